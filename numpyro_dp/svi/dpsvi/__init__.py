"""DPSVI: clipped gradients of the ELBO, released with noise."""
