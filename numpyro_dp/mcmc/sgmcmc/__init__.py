"""Stochastic-gradient kernels: one noisy step, an integrator for each."""
