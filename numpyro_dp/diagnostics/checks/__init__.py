"""A model held against private records: scores, calibration and predictive checks, each charged."""
