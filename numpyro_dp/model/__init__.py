"""A NumPyro model, split into a prior without data and one term a record; it knows no budget."""

from numpyro_dp._moved import formerly
from numpyro_dp.model.private_model import PrivateModel as PrivateModel

__getattr__ = formerly("numpyro_dp.model.private_model")
