"""Where charges are written down: in memory, or durably in a file."""
