"""Exponential-family models whose conjugate updates are read off the model."""
