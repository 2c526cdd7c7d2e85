"""How it is told: the privacy report, its text and its risks."""
