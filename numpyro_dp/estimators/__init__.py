"""Point estimates: the MAP of a generalised linear model, perturbed once."""

from numpyro_dp.estimators.objective import ObjectivePerturbation as ObjectivePerturbation
from numpyro_dp.estimators.output import OutputPerturbation as OutputPerturbation
from numpyro_dp.estimators.result import EstimatorResult as EstimatorResult
