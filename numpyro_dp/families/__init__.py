"""Models that are recognised: generalised linear ones, their losses and priors, single sites."""
