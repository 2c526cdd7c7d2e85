"""Exact draws under a bounded likelihood by rejection from the prior."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax, random
from numpyro import distributions as dist
from numpyro.infer import init_to_sample

from numpyro_dp import _validate
from numpyro_dp.errors import UnsupportedModelError
from numpyro_dp.families.sites import latent_sites
from numpyro_dp.mcmc.posterior.bounded import (
    ARITHMETIC,
    ROUNDOFF,
    STEPS,
    UNIFORM_BITS,
    BoundedDraw,
    BoundedTarget,
    uniform_below,
)
from numpyro_dp.model.plates import peeled
from numpyro_dp.model.private_model import PrivateModel

_MOST_TRIES = 100_000


@dataclass(frozen=True)
class Rejection:
    """Draw exactly from the posterior by rejection, with the prior as proposal.

    A proposal is accepted with probability exp(τ Σ (clip(log p) − upper)), which may be as small
    as exp(−τ·N·(upper − lower)): for few records or a small τ.

    :param max_tries: proposals looked at, always all of them; default: as many as make failure
        unlikely enough against δ, at most 100,000.

    **Privacy.** The number of tries is never shown. That all fail has a probability bounded
    without data, which is charged as total variation; the last proposal is then released.

    **References.** von Neumann, *Various techniques used in connection with random digits* (1951),
    with a fixed number of tries: *Events* (docs/reference/events.md).

    **Example**: see :class:`OPS`.
    """

    max_tries: int | None = None

    def __post_init__(self) -> None:
        _validate.own_numbers(self)
        _validate.given(_validate.positive_int, max_tries=self.max_tries)

    def bound_to(self, target: BoundedTarget, failure: float = 1e-12) -> RejectionDraw:
        """Fix the number of tries.

        :param target: the posterior.
        :param failure: probability of failure to stay below, where ``max_tries`` is not given.
        :raises ValueError: when too many tries would be needed.
        :raises UnsupportedModelError: when the prior cannot be drawn from.
        """
        _require_drawable(target.private_model)
        least = math.exp(-target.range * target.num_records)
        tries = self.max_tries
        if tries is None:
            wanted = math.log(failure) / math.log1p(-least) if 0 < least < 1 else math.inf
            if least == 1:
                wanted = 1.0
            if wanted > _MOST_TRIES:
                raise ValueError(
                    f"a proposal may be accepted with probability {least:.3g} only: rejection is "
                    "for few records. Use a smaller likelihood_power, a Grid, or the Langevin "
                    "sampler with StronglyLogConcave"
                )
            tries = math.ceil(wanted)
        return RejectionDraw(target, int(tries), least)


@dataclass(frozen=True)
class RejectionDraw(BoundedDraw):
    """Rejection with its number of tries fixed."""

    tries: int
    least_acceptance: float

    @property
    def tv(self) -> float:
        failure = math.exp(self.tries * math.log1p(-self.least_acceptance * (1 - 1e-9)))
        if self.least_acceptance == 1:
            failure = 0.0
        return min(1.0, failure * (1 + 1e-9) + self.tries * (2**-UNIFORM_BITS + 1024 * ROUNDOFF))

    @property
    def mechanism(self) -> str:
        return (
            f"exact draw from the posterior by rejection from the prior, always {self.tries} tries"
        )

    @property
    def arithmetic(self) -> str:
        return ARITHMETIC.replace("one secret 62-bit uniform number", "secret 62-bit uniforms")

    def draw(self, key: Any, z: dict, records: list) -> dict:
        model, most = self.target.private_model, self.target.num_records * STEPS

        def attempt(carry: tuple, key: Any) -> tuple[tuple, None]:
            accepted, kept = carry
            proposal_key, accept_key = random.split(key)
            proposal = model.init(proposal_key, init_to_sample)
            total = self.target.total(proposal, records)
            with jax.enable_x64(True):
                chance = jnp.exp(self.target.step * (total - most).astype(jnp.float64))
                limit = (chance * 2.0**UNIFORM_BITS).astype(jnp.int64)
                passed = uniform_below(accept_key) < limit
            kept = jax.tree.map(lambda new, old: jnp.where(accepted, old, new), proposal, kept)
            return (accepted | passed, kept), None

        start = (jnp.zeros((), bool), {n: jnp.asarray(z[n]) for n in z})
        return lax.scan(attempt, start, random.split(key, self.tries))[0][1]


def _require_drawable(model: PrivateModel) -> None:
    for name in model.structure.outside(model.plate, "observed", "factor"):
        raise UnsupportedModelError(
            f"site `{name}` outside plate `{model.plate}` is part of the prior, which rejection "
            "draws its proposals from: take it out, or use a Grid"
        )
    flat: list[str] = []

    def trace(arrays: list, key: Any) -> None:
        sites = latent_sites(model.function, model.layout.fill(arrays), key)
        improper = dist.ImproperUniform
        flat.extend(n for n, s in sites.items() if isinstance(peeled(s["fn"]).fn, improper))

    jax.eval_shape(trace, model.layout.structs(), jax.eval_shape(lambda: random.key(0)))
    if flat:
        raise UnsupportedModelError(
            f"site `{flat[0]}` has an improper prior, which cannot be drawn from: give it a proper "
            "one, or use a Grid"
        )
