"""Private variational inference: SVI-like objects on user models and guides."""

from numpyro_dp.svi import guides
from numpyro_dp.svi.centre import CentredInputs, PrivateCentre
from numpyro_dp.svi.dpsvi.dpsvi import DPSVI
from numpyro_dp.svi.dpsvi.elbo import ElboTrace
from numpyro_dp.svi.result import DPSVIRunResult
from numpyro_dp.svi.vips.vips import VIPS

__all__ = [
    "DPSVI",
    "VIPS",
    "CentredInputs",
    "DPSVIRunResult",
    "ElboTrace",
    "PrivateCentre",
    "guides",
]
