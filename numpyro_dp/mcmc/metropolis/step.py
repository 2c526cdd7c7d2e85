"""One private Metropolis step: propose without data, sum exactly, decide, release."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax, random
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int

from numpyro_dp.accounting.events import DpEvent
from numpyro_dp.accounting.report.facts import RunFacts
from numpyro_dp.families.glm import recognise
from numpyro_dp.families.losses import Row
from numpyro_dp.mcmc.adaptation import require_plain
from numpyro_dp.mcmc.kernel import BoundKernel
from numpyro_dp.mcmc.metropolis.plan import MetropolisPlan
from numpyro_dp.mcmc.metropolis.privacy_filter import FilteredCharge
from numpyro_dp.mcmc.metropolis.proposals import Move, RandomWalk, move_publicly
from numpyro_dp.mechanisms.accept.log_ratio import FullBatch, RecordChange, RecordTerm
from numpyro_dp.mechanisms.accept.pick import pick

_ARITHMETIC = (
    "integer record contributions, exact integer sum, and a threshold from an exact table on the "
    "same integers"
)
_RULES = {
    "barker": "Barker accept bits",
    "noisy_barker": "noisy Barker accept bits",
    "penalty": "accept bits of the penalty rule",
}


class MetropolisState(NamedTuple):
    """What a private Metropolis chain carries; released values, functions of them, and a key.

    - **i**: private steps taken so far.
    - **z**: unconstrained position, one array for each latent site.
    - **rng_key**: key of the proposals and decisions to come; zeroed in every state that outlives
      a run.
    - **allowance**: what a zCDP filter has left, in two limbs: a function of proposals and
      positions. Zero where the charge is fixed in advance, and where a further run begins: what
      one run leaves, two runs must not spend.
    - **adapt_state**: what adaptation released, :class:`~numpyro_dp.mcmc.AdaptState`; ``None``
      without it.
    """

    i: Int[Array, "..."]
    z: dict[str, Float[Array, "..."]]
    rng_key: Any
    allowance: Int[Array, "... 2"]
    adapt_state: Any = None


RecordValue = Callable[[Array, list], Array]


class RecordsChange(NamedTuple):
    """What one record says of a move.

    - **here**: from a record to its log likelihood at the position.
    - **step**: from a record and that number to its term and its log likelihood at the candidate.
    """

    here: RecordTerm
    step: RecordChange

    def term(self, record: list) -> Float[Array, ""]:
        """The record's term, in nats."""
        return self.step(record, self.here(record))[0]


@dataclass(frozen=True)
class BoundMetropolis(BoundKernel):
    """A Metropolis kernel with proposal, bound, noise and charge fixed."""

    walk: RandomWalk
    plan: MetropolisPlan
    public_moves: tuple[Move, ...]

    masks_padding: ClassVar[bool] = True

    @property
    def derived(self) -> tuple[str, ...]:
        return ("allowance",)

    def start(self, rng_key: Any, z: dict) -> MetropolisState:
        return MetropolisState(jnp.zeros((), jnp.int32), z, rng_key, self.plan.charge.start())

    def resumed(self, state: MetropolisState) -> MetropolisState:
        require_plain(state)
        return self.renewed(state)

    @staticmethod
    def renewed(state: MetropolisState) -> MetropolisState:
        """The state of a run that is charged anew."""
        return state._replace(allowance=jnp.zeros_like(state.allowance))

    def displaced(self, state: MetropolisState, move: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """What a move of the walk is in unconstrained coordinates."""
        return move

    def advance(self, key: Any, state: MetropolisState, records: list) -> MetropolisState:
        return self.advance_from(key, state, self.record_cache(state, records), records)[0]

    def record_cache(self, state: MetropolisState, records: list) -> Any:
        """Every record's log likelihood at the position, where the next step can rely on it."""
        if self._remembering is None:
            return ()
        here = self.change(state, jnp.zeros_like(ravel_pytree(state.z)[0])).here
        return self._remembering.values(here, records)

    def advance_from(
        self, key: Any, state: MetropolisState, record_cache: Any, records: list
    ) -> tuple[MetropolisState, Any]:
        step_key, move_key = random.split(key)
        if self._several:
            z, allowance = self._choose(step_key, state, records)
        else:
            z, allowance, record_cache = self._decide(step_key, state, record_cache, records)
        if self.public_moves:
            z = move_publicly(move_key, z, self.public_moves, self.private_model.log_prior)
        return state._replace(z=z, allowance=allowance), record_cache

    @property
    def _several(self) -> bool:
        return self.plan.settings.num_candidates > 1

    @property
    def _remembering(self) -> FullBatch | None:
        """The batch whose values at the position hold until the next step, if they do."""
        batch = self.plan.log_ratio
        # A public move changes the position without a look at the records.
        if not isinstance(batch, FullBatch) or self._several or self.public_moves:
            return None
        return batch

    def _decide(
        self, key: Any, state: MetropolisState, record_cache: Any, records: list
    ) -> tuple[dict, Array, Any]:
        """One candidate, accepted or not."""
        walk_key, batch_key, accept_key = random.split(key, 3)
        move = self._walked(walk_key, state)
        there = self.at(state, move)
        prior = self.private_model.log_prior(there) - self.private_model.log_prior(state.z)
        possible = prior > -jnp.inf
        limit, tried, allowance = self.plan.charge.admit(
            state.allowance, [state.z, there], possible
        )
        change = self.change(state, move)
        if self._remembering is None:
            total = self.plan.log_ratio.total(batch_key, change.term, records, limit)
            after = record_cache
        else:
            total, after = self._remembering.change(change.step, record_cache, records, limit)
        accepted = tried & self.plan.test.decide(accept_key, total, jnp.where(possible, prior, 0))
        z = jax.tree.map(lambda new, old: jnp.where(accepted, new, old), there, state.z)
        chosen = jax.tree.map(lambda new, old: jnp.where(accepted, new, old), after, record_cache)
        return z, allowance, chosen

    def proposed(self, key: Any, state: MetropolisState) -> Float[Array, " dim"]:
        """The move of a step with this key, as the walk draws it."""
        return self._walked(random.split(key, 3)[0], state)

    def _walked(self, key: Any, state: MetropolisState) -> Float[Array, " dim"]:
        position = ravel_pytree(state.z)[0]
        return self.walk.draw(key, state.i, position, 1)[0]

    def at(self, state: MetropolisState, move: Float[Array, " dim"]) -> dict[str, Array]:
        """Where a move leads."""
        position, unravel = ravel_pytree(state.z)
        return unravel(position + self.displaced(state, move))

    def _choose(self, key: Any, state: MetropolisState, records: list) -> tuple[dict, Array]:
        """One of several candidates around a centre, the current position among them."""
        centre_key, walk_key, pick_key = random.split(key, 3)
        position, unravel = ravel_pytree(state.z)
        count = self.plan.settings.num_candidates
        centre = position + self.walk.draw(centre_key, state.i, position, 1)[0]
        moved = centre + self.walk.draw(walk_key, state.i, position, count)
        points = jnp.concatenate([position[None], moved])
        prior = jax.vmap(lambda point: self.private_model.log_prior(unravel(point)))(points)
        # What the prior excludes is no place to ask a record about.
        places = jax.vmap(unravel)(jnp.where((prior > -jnp.inf)[:, None], points, position))
        listed = [unravel(point) for point in points]
        limit, tried, allowance = self.plan.charge.admit(
            state.allowance, listed, jnp.any(prior[1:] > -jnp.inf)
        )
        power = self.plan.power

        def term(record: list) -> Float[Array, " candidates"]:
            return power * jax.vmap(self.private_model.record_log_likelihood, (0, None))(
                places, record
            )

        batch = self.plan.log_ratio
        if not isinstance(batch, FullBatch):
            raise TypeError("several candidates need exact sums over all records")
        totals = batch.candidate_totals(term, records, limit)
        chosen = pick(pick_key, self.plan.test.grid, totals, prior)
        return unravel(jnp.where(tried, points[chosen], position)), allowance

    def change(self, state: MetropolisState, move: Float[Array, " dim"]) -> RecordsChange:
        """What records say of a move."""
        settings = self.plan.settings
        if not settings.directional:
            return self._likelihood_change(self._moved(state), move)
        if settings.smoothness is None:
            return self._predictor_change(ravel_pytree(state.z)[0], move)
        return self._smooth_change(state, move)

    def _moved(self, state: MetropolisState) -> RecordValue:
        """From a move and a record to its log likelihood there."""

        def value(move: Float[Array, " dim"], record: list) -> Float[Array, ""]:
            return self.private_model.record_log_likelihood(self.at(state, move), record)

        return value

    def _likelihood_change(self, value: RecordValue, move: Float[Array, " dim"]) -> RecordsChange:
        def step(record: list, here: Float[Array, ""]) -> tuple[Array, Array]:
            there = value(move, record)
            return self.plan.power * (there - here), there

        return RecordsChange(partial(value, jnp.zeros_like(move)), step)

    def _predictor_change(self, position: Array, move: Array) -> RecordsChange:
        """The change of a convex loss of a projected row, within that of its predictor.

        The move is the normal vector as drawn. Far from the origin, positions are so coarse in
        floating point that their difference is longer on average, and the charge is its average.
        """
        glm = recognise(self.private_model)
        loss, power = glm.loss(), self.plan.power
        row_norm = self.plan.settings.slope / power / loss.lipschitz

        def value(point: Array, row: Row) -> Float[Array, ""]:
            # Accelerators multiply matrices with 10-bit mantissas unless told otherwise.
            predictor = jnp.matmul(row.x, point, precision=lax.Precision.HIGHEST)
            return -loss.value(predictor + row.offset, row)

        def step(record: list, here: Float[Array, ""]) -> tuple[Array, Array]:
            row = glm.clipped(record, row_norm)
            there = value(position + move, row)
            shift = jnp.matmul(row.x, move, precision=lax.Precision.HIGHEST)
            most = jnp.abs(shift) * loss.lipschitz
            return power * jnp.clip(there - here, -most, most), there

        return RecordsChange(lambda record: value(position, glm.clipped(record, row_norm)), step)

    def _smooth_change(self, state: MetropolisState, move: Float[Array, " dim"]) -> RecordsChange:
        """The change of a smooth function, within that of its clipped gradient and a curvature."""
        value, power = self._moved(state), self.plan.power

        def step(record: list, here: Float[Array, ""]) -> tuple[Array, Array]:
            there, most = value(move, record), self.allowance(state, move, record)
            return jnp.clip(power * (there - here), -most, most), there

        return RecordsChange(partial(value, jnp.zeros_like(move)), step)

    def allowance(
        self, state: MetropolisState, move: Float[Array, " dim"], record: list
    ) -> Float[Array, ""]:
        """The largest term, in nats, that a smooth record is allowed in a move.

        The move is the normal vector as drawn, see :meth:`_predictor_change`.
        """
        settings = self.plan.settings
        lipschitz = settings.slope / self.plan.power
        gradient = jax.grad(self._moved(state))(jnp.zeros_like(move), record)
        # In units of its largest entry, whose square cannot be lost.
        largest = jnp.maximum(jnp.max(jnp.abs(gradient)), jnp.finfo(gradient.dtype).tiny)
        length = jnp.linalg.norm(gradient / largest)
        clipped = gradient / largest * jnp.minimum(largest, lipschitz / jnp.maximum(length, 1e-6))
        along = jnp.matmul(clipped, move, precision=lax.Precision.HIGHEST)
        bend = self.plan.power * (settings.smoothness or 0.0)
        return self.plan.power * jnp.abs(along) + bend / 2 * jnp.sum(move**2)

    def event(self, num_steps: int, *, start: int = 0, num_chains: int = 1) -> DpEvent:
        return self.plan.charge.event(num_steps, start=start, num_chains=num_chains)

    def facts(self) -> RunFacts:
        settings, charge = self.plan.settings, self.plan.charge
        rate = 1.0
        if settings.batch_size is not None:
            rate = settings.batch_size / settings.num_records
        private = settings.private
        rule = _RULES[settings.acceptance]
        if settings.num_candidates > 1:
            rule = f"choices among {settings.num_candidates + 1} points"
        return RunFacts(
            mechanism=(
                f"{rule} on a clipped log ratio ({self._charge_in_words()})"
                if private
                else "none: a log ratio without bound or noise"
            ),
            sampler=(
                "every record in every step"
                if settings.batch_size is None
                else f"Poisson mini-batches with replacement, {settings.batch_size:g} draws "
                "expected, a fresh one for each step and chain"
            ),
            sampling_rate=rate,
            clip_norm=self._bound_in_nats(),
            noise_multiplier=self._noise_in_words(),
            overflow_delta=charge.tv,
            released=("the position after every step (warm-up included) and its step counter",),
            arithmetic=_ARITHMETIC if private else "floating point",
            notes=self._notes(),
        )

    def _bound_in_nats(self) -> float:
        settings = self.plan.settings
        if not settings.private:
            return math.inf
        if isinstance(self.plan.charge, FilteredCharge):
            return self.plan.charge.largest * self.plan.charge.unit
        if settings.directional:
            # In a move as long as moves are on average, along the record's gradient.
            return settings.stride + settings.bend * settings.dim
        return settings.bound

    def _charge_in_words(self) -> str:
        settings = self.plan.settings
        if isinstance(self.plan.charge, FilteredCharge):
            return "a record bound that follows the move, metered by a zCDP filter"
        if settings.directional:
            return "averaged over the direction of the move"
        return "one bound for all steps, fixed in advance"

    def _noise_in_words(self) -> str:
        noise = self.plan.settings.noise_scale
        if not noise:
            return "none beside the accept bit's own randomness"
        return f"{noise:.4g} nats on the log ratio"

    def _notes(self) -> tuple[str, ...]:
        settings, power = self.plan.settings, self.plan.power
        notes: tuple[str, ...] = ()
        if power != 1:
            notes += (
                f"The likelihood was raised to the power {power:.4g}: these are draws from a "
                "tempered posterior.",
            )
        if not settings.private:
            return (*notes, "Bound and noise were switched off: nothing here is private.")
        return (*notes, self._of_the_bound(), self._effective_draws())

    def _of_the_bound(self) -> str:
        """What cutting may do to the target."""
        return (
            "Records whose log likelihood changes by more than the bound were cut to it: where "
            "that happens the target is biased, and a true bound is never active."
        )

    def _effective_draws(self) -> str:
        """The law that ties effective draws to privacy, in this run's numbers."""
        settings = self.plan.settings
        share = "at most half of" if settings.acceptance == "barker" else "at most"
        return (
            f"A run with Gaussian-DP parameter μ (about ε/√(2·log(1.25/δ)) for small ε) holds "
            f"{share} μ²/(τC²v) effective draws of a parameter with posterior variance v, τ the "
            "likelihood power and C the largest gradient of one record, however the steps are "
            "arranged: below ten, read the draws as a point and not as intervals."
        )
