"""Private variational inference: SVI-like objects on user models and guides."""

from numpyro_dp.svi import guides as guides
from numpyro_dp.svi.centre import CentredInputs as CentredInputs, PrivateCentre as PrivateCentre
from numpyro_dp.svi.dpsvi.dpsvi import DPSVI as DPSVI
from numpyro_dp.svi.dpsvi.elbo import ElboTrace as ElboTrace
from numpyro_dp.svi.result import DPSVIRunResult as DPSVIRunResult
from numpyro_dp.svi.vips.vips import VIPS as VIPS
