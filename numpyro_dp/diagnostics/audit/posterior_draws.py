"""The score of an adversary of posterior draws: how much likelier one record makes them."""

from __future__ import annotations

from typing import Any

from jaxtyping import Array, Float

from numpyro_dp.diagnostics.audit.neighbours import NeighbourPair
from numpyro_dp.mcmc.posterior.ops import BoundOPS


def draw_score(kernel: BoundOPS, pair: NeighbourPair, before: Any, after: Any) -> Float[Array, ""]:
    """Log likelihood ratio of one draw up to a constant, the first data set over the second.

    Exact for draws from the posterior; of a last iterate it is what its limit would tell.
    """
    del before
    method: Any = kernel.method
    own, other = (
        method.target.log_likelihood(after.z, leaves) for leaves in (pair.own, pair.other)
    )
    return own - other
