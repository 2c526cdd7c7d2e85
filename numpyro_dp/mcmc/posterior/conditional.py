"""A draw by NUTS, whose guarantee holds only if the draw is exact."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree
from numpyro.infer import NUTS

from numpyro_dp import _validate
from numpyro_dp.accounting.events import DpEvent, LogConcaveDraw
from numpyro_dp.errors import UnsupportedModelError
from numpyro_dp.mcmc.posterior.bounded import BoundedTarget
from numpyro_dp.mcmc.posterior.concave import ConcaveTarget
from numpyro_dp.mcmc.posterior.draw import Draw

EXACT = (
    "the Markov chain had reached its stationary law exactly: every draw is an exact draw from the "
    "tempered posterior, which no diagnostic can show"
)


@dataclass(frozen=True)
class UncheckedNUTS:
    """Draw by a chain of NUTS that is *taken to be* exact; a conditional guarantee.

    :param num_steps: transitions of one draw, step size and mass adapted during all but the last.

    **Privacy.** ε holds if the draw is exact, which nothing proves: such a charge is refused
    unless conditional ones are allowed, is never summed with others into a guarantee, and the
    chain's run time depends on the records. Nothing of NUTS's own statistics leaves.

    **References.** Wang, Fienberg, Smola, *Privacy for Free* (2015), which leaves the condition
    out; Hoffman and Gelman, *The No-U-Turn Sampler* (2014).

    **Example**: see :class:`OPS`.
    """

    num_steps: int = 500

    def __post_init__(self) -> None:
        _validate.own_numbers(self)
        _validate.positive_int("num_steps", self.num_steps)

    def bound_to(self, target: ConcaveTarget | BoundedTarget) -> NUTSDraw:
        """Attach to a target.

        :raises UnsupportedModelError: when the guarantee needs a strictly convex prior that the
            model has not.
        """
        if isinstance(target, ConcaveTarget) and target.strong_convexity == 0:
            raise UnsupportedModelError(
                "the prior is flat in some direction, where an exact draw has no guarantee: give "
                "StronglyLogConcave a strong_convexity, or use the Langevin sampler"
            )
        return NUTSDraw(target, self.num_steps)


@dataclass(frozen=True)
class NUTSDraw(Draw):
    """NUTS with its target and length fixed."""

    target: ConcaveTarget | BoundedTarget
    num_steps: int

    @property
    def event(self) -> DpEvent:
        if isinstance(self.target, BoundedTarget):
            return self.target.event
        return LogConcaveDraw(
            lipschitz=self.target.lipschitz, strong_convexity=self.target.strong_convexity
        )

    @property
    def bound(self) -> float:
        bounded = isinstance(self.target, BoundedTarget)
        return self.target.range if bounded else self.target.lipschitz

    @property
    def tv(self) -> float:
        return 0.0

    @property
    def mechanism(self) -> str:
        return f"last of {self.num_steps} transitions of NUTS, taken to be an exact posterior draw"

    @property
    def arithmetic(self) -> str:
        return "floating point, without a statement: part of the condition"

    @property
    def notes(self) -> tuple[str, ...]:
        return ("The run time of NUTS depends on the records; do not let it be seen.",)

    @property
    def conditions(self) -> tuple[str, ...]:
        return (EXACT,)

    def draw(self, key: Any, z: dict, records: list) -> dict:
        start, unravel = ravel_pytree(z)
        kernel = NUTS(potential_fn=self._potential(unravel, records))
        state = kernel.init(key, self.num_steps - 1, start, (), {})
        state = lax.fori_loop(0, self.num_steps, lambda _, s: kernel.sample(s, (), {}), state)
        return unravel(state.z)

    def _potential(self, unravel: Any, records: list) -> Any:
        target = self.target
        if isinstance(target, ConcaveTarget):
            rows = target.rows(records)
            return lambda q: target.energy(q, rows)

        def energy(q: Any) -> Any:
            z = unravel(q)
            terms = jax.vmap(lambda r: target.private_model.record_log_likelihood(z, r))(
                [leaf[:, None] for leaf in records]
            )
            low, high = target.guarantee.lower, target.guarantee.upper
            terms = jnp.clip(jnp.where(jnp.isnan(terms), low, terms), low, high)
            return -target.private_model.log_prior(z) - target.power * jnp.sum(terms)

        return energy
