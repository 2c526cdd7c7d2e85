"""What an estimator returns: a point, in the shape of an SVI result with an AutoDelta guide."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from numpyro_dp.accounting import PrivacyReport


@dataclass(frozen=True)
class EstimatorResult:
    """A private point estimate.

    It unpacks like ``numpyro.infer.svi.SVIRunResult``, and ``params`` serves an ``AutoDelta`` guide
    of the same model; there is no state and there are no losses, which would tell of the records.

    :param params: ``{site}_auto_loc`` for each latent site: an array of the site's own shape, on
        its own support.
    :param sites: latent sites and data-free deterministic ones at the estimate, by name, each of
        its own shape.
    :param privacy: the privacy statement of everything this estimator object has run.

    **Privacy.** Post-processing of one released vector: everything here may be published.

    **References**: see :class:`ObjectivePerturbation`.

    **Example**: see :class:`ObjectivePerturbation`.
    """

    params: dict[str, Array]
    sites: dict[str, Array]
    privacy: PrivacyReport
    state: None = None
    losses: None = None

    def __iter__(self) -> Iterator[Any]:
        return iter((self.params, self.state, self.losses))

    def get_samples(self, group_by_chain: bool = False) -> dict[str, Array]:
        """The estimate as a single draw, for ``Predictive(model, result.get_samples())``.

        :param group_by_chain: whether a chain axis precedes the draw axis.
        :returns: one array a site, of shape ``(1, ...)``, or ``(1, 1, ...)`` with chains.
        """
        axes = (0, 1) if group_by_chain else (0,)
        return {name: jnp.expand_dims(value, axes) for name, value in self.sites.items()}
