"""Logistic, binomial and negative binomial regression by Pólya-Gamma augmentation."""
