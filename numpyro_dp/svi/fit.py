"""The compiled loop of private variational inference: noisy sum, optimiser, tail average."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax, random
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int

from numpyro_dp._outcomes import Outcomes
from numpyro_dp.mechanisms import PrivateSum
from numpyro_dp.mechanisms.centred import centre
from numpyro_dp.variational import VariationalModel

__all__ = ["Carry", "Fit", "run_steps"]


class Carry(NamedTuple):
    """What the loop carries; released values and keys, nothing else.

    - **i**: private steps taken in this run.
    - **optim_state**: the optimiser's state.
    - **draws_key**: key of the guide's draws, which are public.
    - **noise_key**: key of batches and noise; never leaves the run.
    - **tail**: sum of the unconstrained parameters over the last steps.
    """

    i: Int[Array, ""]
    optim_state: Any
    draws_key: Any
    noise_key: Any
    tail: Any


@dataclass(frozen=True, eq=False)
class Fit:
    """One run with every number fixed; hashable, a static argument of the compiled loop.

    :param target: the bound, split into a data-free part and one term per record.
    :param optim: a NumPyro optimiser.
    :param private_sum: how gradients leave the records.
    :param num_particles: draws of the guide that a step averages over.
    :param held: parameters that stay where they are.
    :param outcomes: programs of the outcomes for the model-centred clip; ``None`` for a plain one.
    """

    target: VariationalModel
    optim: Any
    private_sum: PrivateSum
    num_particles: int
    held: tuple[str, ...] = ()
    outcomes: Outcomes | None = None

    def __hash__(self) -> int:
        # Outcomes are programs of the target, which the other fields decide.
        return hash(self._identity)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fit) and self._identity == other._identity

    @property
    def _identity(self) -> tuple[Any, ...]:
        clip = self.outcomes is None
        return self.target, self.optim, self.private_sum, self.num_particles, self.held, clip

    def keys(self, step_key: Any) -> Any:
        """One key for each particle, split as NumPyro's ``Trace_ELBO`` splits them."""
        if self.num_particles == 1:
            return step_key[None]
        return random.split(step_key, self.num_particles)

    def step(self, carry: Carry, records: list[Array]) -> tuple[Any, Any, Any, Any]:
        """One private step; returns optimiser state, both keys, and the new parameters."""
        draws_key, step_key = random.split(carry.draws_key)
        noise_key, fresh = random.split(carry.noise_key)
        params = self.optim.get_params(carry.optim_state)
        moving = {name: value for name, value in params.items() if name not in self.held}
        flat, unravel = ravel_pytree(moving)
        keys = self.keys(step_key)

        def whole(flat: Float[Array, " dim"]) -> dict[str, Any]:
            return {**params, **unravel(flat)}

        def data_free(flat: Float[Array, " dim"]) -> Float[Array, ""]:
            return self._mean(lambda key: self.target.global_elbo(whole(flat), key), keys)

        released = self.private_sum.release(
            random.fold_in(fresh, carry.i), self.record_vector(flat, whole, keys), records, carry.i
        )
        gradient = -(jax.grad(data_free)(flat) + released.astype(flat.dtype))
        still = {name: jax.tree.map(jnp.zeros_like, params[name]) for name in self.held}
        optim_state = self.optim.update(
            {**still, **unravel(gradient)}, carry.optim_state, value=jnp.zeros((), flat.dtype)
        )
        return optim_state, draws_key, noise_key, self.optim.get_params(optim_state)

    def record_vector(
        self, flat: Float[Array, " dim"], whole: Callable, keys: Any
    ) -> Callable[[list[Array]], Float[Array, " dim"]]:
        """What one record adds to the released sum: the gradient of its own term."""

        def term(flat: Float[Array, " dim"], record: list[Array]) -> Float[Array, ""]:
            return self._mean(lambda key: self.target.record_elbo(whole(flat), key, record), keys)

        def plain(record: list[Array]) -> Float[Array, " dim"]:
            return jax.grad(term)(flat, record)

        outcomes = self.outcomes
        if outcomes is None:
            return plain

        def possible(
            flat: Float[Array, " dim"], record: list[Array]
        ) -> tuple[Float[Array, " outcomes"], Float[Array, " outcomes"]]:
            terms, law = jax.vmap(
                lambda key: self.target.record_outcomes(outcomes, whole(flat), key, record)
            )(keys)
            return terms.mean(axis=0), jnp.exp(law).mean(axis=0)

        def centred(record: list[Array]) -> Float[Array, " dim"]:
            scores, weights = jax.jacrev(possible, has_aux=True)(flat, record)
            return plain(record) - centre(scores, weights, self.private_sum.clip_norm)

        return centred

    def _mean(self, value: Callable[[Any], Array], keys: Any) -> Array:
        if self.num_particles == 1:
            return value(keys[0])
        return jnp.mean(jax.vmap(value)(keys))


def run_steps(
    fit: Fit, carry: Carry, records: tuple[Array, ...], num_steps: int, tail: int, chunks: int
) -> Iterator[tuple[int, Carry]]:
    """Run ``num_steps`` in ``chunks`` pieces; yields steps done and what is carried after each.

    The last ``tail`` steps are summed into the carry's ``tail``.
    """
    bounds = [num_steps * k // chunks for k in range(chunks + 1)]
    for low, high in pairwise(bounds):
        if low < high:
            carry = _chunk(fit, low, high, num_steps - tail, carry, records)
            yield high, carry


@partial(jax.jit, static_argnums=0)
def _chunk(fit: Fit, low: Any, high: Any, start: Any, carry: Carry, records: tuple) -> Carry:
    def body(index: Array, carry: Carry) -> Carry:
        optim_state, draws_key, noise_key, params = fit.step(carry, list(records))
        tail = jax.tree.map(
            lambda total, new: total + jnp.where(index >= start, new, 0), carry.tail, params
        )
        return Carry(carry.i + 1, optim_state, draws_key, noise_key, tail)

    return lax.fori_loop(low, high, body, carry)
