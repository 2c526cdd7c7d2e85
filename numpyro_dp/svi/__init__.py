"""Private variational inference: SVI-like objects on user models and guides."""

from numpyro_dp.svi.centre import CentredInputs, PrivateCentre
from numpyro_dp.svi.dpsvi import DPSVI
from numpyro_dp.svi.result import DPSVIRunResult

__all__ = ["DPSVI", "CentredInputs", "DPSVIRunResult", "PrivateCentre"]
