"""VIPS: natural-gradient variational Bayes on noisy expected statistics."""
