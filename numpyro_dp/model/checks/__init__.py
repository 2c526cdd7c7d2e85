"""Checks that no guarantee rests on: whether a model is a sum, and what its code names."""
