"""Sigmoid belief networks."""
