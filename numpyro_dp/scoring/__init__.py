"""Private Fisher scoring: where a posterior lies, and its shape, from a few noisy releases."""
