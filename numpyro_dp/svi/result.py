"""What a private variational run returns: NumPyro's triple, with its privacy statement."""

from __future__ import annotations

from typing import Any

import jax
from jax import random
from jaxtyping import Array
from numpyro.infer.svi import SVIRunResult

from numpyro_dp import _validate
from numpyro_dp.accounting import PrivacyReport
from numpyro_dp.model.guided.model import VariationalModel


class DPSVIRunResult(SVIRunResult):
    """Parameters of a private run; unpacks like NumPyro's ``SVIRunResult``.

    - **params**: constrained parameters of guide and model, one array each, of the shape that the
      guide gives it.
    - **state**: the last ``SVIState``, its key zeroed.
    - **losses**: ``None``; with an :class:`~numpyro_dp.ElboTrace` a noisy loss for each step after
      which one was released, NaN elsewhere, shape (num_steps,).
    - **privacy**: the :class:`~numpyro_dp.PrivacyReport` of everything its object has run.

    **Privacy.** Released parameters and what follows from them: free to publish with ``privacy``.

    **References**: see :class:`DPSVI` and :class:`VIPS`.

    **Example**: see :class:`DPSVI`.
    """

    privacy: PrivacyReport
    target: VariationalModel

    def __new__(
        cls,
        params: dict[str, Any],
        state: Any,
        losses: Array | None,
        privacy: PrivacyReport,
        target: VariationalModel,
    ) -> DPSVIRunResult:
        result = super().__new__(cls, params, state, losses)
        result.privacy, result.target = privacy, target
        return result

    def __getnewargs__(self) -> tuple[Any, ...]:
        return (*self, self.privacy, self.target)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(params={self.params!r}, losses={self.losses!r})"

    @property
    def guide_name(self) -> str:
        """Name of the guide's kind."""
        guide = self.target.guide
        return getattr(guide, "__name__", type(guide).__name__)

    def get_samples(
        self, rng_key: Any = None, num_samples: int = 1000, *, group_by_chain: bool = False
    ) -> dict[str, Array]:
        """Draws from the guide: global latents and deterministic sites that read no record.

        :param rng_key: a JAX key; default ``jax.random.key(0)``.
        :param num_samples: draws.
        :param group_by_chain: give each array a leading axis of one chain.
        :returns: one array a site, of shape (num_samples, ...).

        **Privacy.** Post-processing of released parameters: free.
        """
        key = random.key(0) if rng_key is None else rng_key
        keys = random.split(key, _validate.positive_int("num_samples", num_samples))
        params = self.target.unconstrain(self.params)

        def draw(key: Any) -> dict[str, Array]:
            latents, sites = self.target.draw(params, key)
            return {**latents, **sites}

        draws = jax.jit(jax.vmap(draw))(keys)
        return jax.tree.map(lambda x: x[None], draws) if group_by_chain else draws


# As a plain named tuple JAX would rebuild it without its statement.
jax.tree_util.register_pytree_node(
    DPSVIRunResult,
    lambda result: (tuple(result), (result.privacy, result.target)),
    lambda kept, parts: DPSVIRunResult(*parts, *kept),
)
