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

from numpyro_dp._sources import require_read
from numpyro_dp.mechanisms import PrivateSum
from numpyro_dp.mechanisms.centred import centred_clip
from numpyro_dp.model.guided.model import VariationalModel
from numpyro_dp.model.guided.outcomes import Outcomes, Simulated
from numpyro_dp.svi.dpsvi.elbo import ElboRelease


class Carry(NamedTuple):
    """What the loop carries; released values and keys, nothing else.

    - **i**: private steps taken in this run.
    - **optim_state**: the optimiser's state.
    - **draws_key**: key of the guide's draws, which are public.
    - **noise_key**: key of batches and noise; never leaves the run.
    - **tail**: sum of the unconstrained parameters over the last steps.
    - **losses**: noisy losses of the steps so far, 0 where none was released; or nothing.
    - **frame**: released coordinates of the steps, where adaptation gave some; or nothing.
    """

    i: Int[Array, ""]
    optim_state: Any
    draws_key: Any
    noise_key: Any
    tail: Any
    losses: Any = ()
    frame: Any = ()


@dataclass(frozen=True, eq=False)
class Fit:
    """One run with every number fixed; hashable, a static argument of the compiled loop.

    :param target: the bound, split into a data-free part and one term per record.
    :param optim: a NumPyro optimiser.
    :param private_sum: how gradients leave the records.
    :param num_particles: draws of the guide that a step averages over.
    :param held: parameters that stay where they are.
    :param outcomes: programs of the outcomes for the model-centred clip; ``None`` for a plain one.
    :param elbo: how losses leave the records; ``None`` when they do not.
    """

    target: VariationalModel
    optim: Any
    private_sum: PrivateSum
    num_particles: int
    held: tuple[str, ...] = ()
    outcomes: Outcomes | None = None
    elbo: ElboRelease | None = None

    def __hash__(self) -> int:
        # Outcomes are programs of the target, which the other fields decide.
        return hash(self._identity)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fit) and self._identity == other._identity

    @property
    def _identity(self) -> tuple[Any, ...]:
        clip = self.outcomes is None
        # A rehearsal must never be taken for the run that it stands for, nor the other way round.
        what = type(self), self.target, self.optim
        return *what, self.private_sum, self.num_particles, self.held, clip, self.elbo

    def keys(self, step_key: Any) -> Any:
        """One key for each particle, split as NumPyro's ``Trace_ELBO`` splits them."""
        if self.num_particles == 1:
            return step_key[None]
        return random.split(step_key, self.num_particles)

    def step(self, carry: Carry, records: list[Array]) -> tuple[Any, Any, Any, Any]:
        """One private step; returns optimiser state, both keys, and the new parameters."""
        return self.advance(carry, records)[:4]

    def advance(self, carry: Carry, records: list[Array]) -> tuple[Any, Any, Any, Any, Any]:
        """One private step, as :meth:`step`; and the frame of the next."""
        draws_key, step_key = random.split(carry.draws_key)
        noise_key, fresh = random.split(carry.noise_key)
        params = self.optim.get_params(carry.optim_state)
        key = random.fold_in(fresh, carry.i)
        gradient, frame = self.gradient(params, step_key, key, records, carry)
        still = {name: jax.tree.map(jnp.zeros_like, params[name]) for name in self.held}
        optim_state = self.optim.update(
            {**still, **gradient}, carry.optim_state, value=jnp.zeros(())
        )
        return optim_state, draws_key, noise_key, self.optim.get_params(optim_state), frame

    def moved(self, carry: Carry, records: list[Array], in_tail: Any) -> Carry:
        """What is carried after one private step, its loss left out.

        :param in_tail: whether the step is among the last, which are averaged.
        """
        optim_state, draws_key, noise_key, params, frame = self.advance(carry, records)
        tail = jax.tree.map(
            lambda total, new: total + jnp.where(in_tail, new, 0), carry.tail, params
        )
        so_far = carry.losses
        return Carry(carry.i + 1, optim_state, draws_key, noise_key, tail, so_far, frame)

    def gradient(
        self, params: dict, step_key: Any, noise_key: Any, records: list[Array], carry: Carry
    ) -> tuple[dict[str, Any], Any]:
        """The noisy gradient of the loss in the parameters that move, and the next frame."""
        moving = {name: value for name, value in params.items() if name not in self.held}
        flat, unravel = ravel_pytree(moving)
        keys = self.keys(step_key)

        def whole(flat: Float[Array, " dim"]) -> dict[str, Any]:
            return {**params, **unravel(flat)}

        def data_free(flat: Float[Array, " dim"]) -> Float[Array, ""]:
            return self._mean(lambda key: self.target.global_elbo(whole(flat), key), keys)

        vector = self.record_vector(flat, whole, keys)
        released = self.released(noise_key, flat, vector, records, carry.i)
        gradient = -(jax.grad(data_free)(flat) + released.astype(flat.dtype))
        return unravel(gradient), carry.frame

    def released(
        self, key: Any, flat: Float[Array, " dim"], vector: Callable, records: list[Array], i: Any
    ) -> Float[Array, " dim"]:
        """The noisy sum of the records' vectors at the position ``flat``."""
        return self.private_sum.release(key, vector, self.numbered(records), i)

    def end(self, last: Carry, tail: int) -> dict[str, Any]:
        """Unconstrained parameters of a run: the average of its last ``tail`` steps, if any."""
        if tail:
            return jax.tree.map(lambda total: total / tail, last.tail)
        return self.optim.get_params(last.optim_state)

    def numbered(self, records: list[Array]) -> list[Array]:
        """Records with their row numbers last, where their outcomes are drawn by these."""
        if not isinstance(self.outcomes, Simulated):
            return records
        return [*records, jnp.arange(records[0].shape[0], dtype=jnp.int32)]

    def loss(self, elbo: ElboRelease, carry: Carry, records: list[Array]) -> Float[Array, ""]:
        """A noisy loss at the parameters before a step, with the draws of that step."""
        keys = self.keys(random.split(carry.draws_key)[1])
        params = self.optim.get_params(carry.optim_state)

        def term(record: list[Array]) -> Float[Array, ""]:
            return self._mean(lambda key: self.target.record_elbo(params, key, record), keys)

        # The step's own batch and noise come from the first two of these.
        noise_key = random.fold_in(random.split(carry.noise_key, 3)[2], carry.i)
        data_free = self._mean(lambda key: self.target.global_elbo(params, key), keys)
        return -(data_free + elbo.estimate(noise_key, term, records))

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
            return self.target.record_outcomes(outcomes, whole(flat), keys, record)

        def centred(record: list[Array]) -> Float[Array, " dim"]:
            scores, weights = jax.jacrev(possible, has_aux=True)(flat, record)
            drawn = isinstance(outcomes, Simulated)
            own = plain(record[:-1] if drawn else record)
            if drawn:
                # Exchangeable with the drawn ones, if the model is right: see `centred`.
                scores = jnp.concatenate([scores, own[None]])
                weights = jnp.full(scores.shape[0], 1 / scores.shape[0], weights.dtype)
            return centred_clip(own, scores, weights, self.private_sum.clip_norm)

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
            require_read(records, carry.i)
            yield high, carry


def run_all(fit: Fit, carry: Carry, records: tuple, num_steps: Any, tail: int) -> Carry:
    """:func:`run_steps` in one piece, for use within a program."""
    return _chunk(fit, 0, num_steps, num_steps - tail, carry, records)


def trace_steps(fit: Fit, carry: Carry, records: tuple[Array, ...]) -> None:
    """Trace what :func:`run_steps` would run, without running it; raises what a trace shows."""
    _chunk.eval_shape(fit, 0, 1, 0, carry, records)


@partial(jax.jit, static_argnums=0)
def _chunk(fit: Fit, low: Any, high: Any, start: Any, carry: Carry, records: tuple) -> Carry:
    def losses(elbo: ElboRelease, index: Array, carry: Carry) -> Array:
        def released() -> Array:
            return carry.losses.at[index].set(fit.loss(elbo, carry, list(records)))

        return lax.cond(elbo.due(index), released, lambda: carry.losses)

    def body(index: Array, carry: Carry) -> Carry:
        moved = fit.moved(carry, list(records), index >= start)
        return moved if fit.elbo is None else moved._replace(losses=losses(fit.elbo, index, carry))

    return lax.fori_loop(low, high, body, carry)
