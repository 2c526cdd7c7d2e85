"""Attacks on what was claimed: empirical lower bounds on ε."""
