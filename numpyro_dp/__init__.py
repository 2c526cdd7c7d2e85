"""Differentially private Bayesian inference for ordinary NumPyro models."""
