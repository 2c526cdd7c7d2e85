"""Point estimates: the MAP of a generalised linear model, perturbed once."""

from numpyro_dp.estimators.objective import ObjectivePerturbation
from numpyro_dp.estimators.output import OutputPerturbation
from numpyro_dp.estimators.result import EstimatorResult

__all__ = ["EstimatorResult", "ObjectivePerturbation", "OutputPerturbation"]
