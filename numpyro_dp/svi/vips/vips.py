"""``VIPS``: variational Bayes on noisy expected sufficient statistics."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import random
from jaxtyping import Array

from numpyro_dp import _validate
from numpyro_dp._arrays import x64
from numpyro_dp.accounting import Accountant, Budget, calibrate, privacy_curve
from numpyro_dp.accounting.events import GaussianDpEvent
from numpyro_dp.accounting.report.facts import RunFacts
from numpyro_dp.errors import UnsupportedModelError
from numpyro_dp.execution import arguments
from numpyro_dp.execution.account import Account, ChargedRun
from numpyro_dp.execution.facts import assumed_public, sum_facts
from numpyro_dp.execution.keys import as_typed_keys
from numpyro_dp.execution.processes import on_each, require_same
from numpyro_dp.execution.progress import epsilon_table, steps_bar
from numpyro_dp.execution.releases import Releases, planned_releases
from numpyro_dp.mechanisms import PrivateSum
from numpyro_dp.model.guided.guides import prepare
from numpyro_dp.model.guided.model import Outline, variational_model
from numpyro_dp.svi.dpsvi.checks import usable_key
from numpyro_dp.svi.result import DPSVIRunResult
from numpyro_dp.svi.vips.statistics import Schedule, StatisticsGuide

# Each has a noise level of its own, listed.
_MOST_STEPS = 100_000


class VIPS:
    """Variational inference by perturbed sufficient statistics.

    A guide from :mod:`numpyro_dp.guides` says which expected statistics of the records its updates
    need. Each step releases their clipped, noisy sum, all blocks of a step in one joint release,
    and the guide does the rest without data. Far fewer steps than gradients need: 10 to 30. The
    shapes of the parameters that :meth:`run` returns stand at each guide.

    :param model: a NumPyro model in the guide's family, with its observations in one plate; one
        slice of that plate is the unit of privacy.
    :param guide: a guide of :mod:`numpyro_dp.guides`, made for this model.
    :param batch_size: *expected* size of a Poisson batch; or
    :param sampling_rate: inclusion probability q of a record, in (0, 1]. Neither: full batches.
    :param privacy: :class:`~numpyro_dp.Budget` of one :meth:`run`, from which the noise is
        calibrated; or
    :param noise_multiplier: standard deviation of the noise over the clip norm at a release of
        average weight (the guide says which releases deserve more of the budget).
    :param clip_norm: L2 bound on a record's statistics, all blocks as one vector in the guide's
        units, in place of the guide's own.
    :param accountant: the ledger that must agree to every run. Without one each object keeps its
        own unbounded account.
    :param data_plate: name of the plate whose slices are the records, when several enclose the
        observations; ``"auto"`` takes each row for one, where no plate does.
    :param microbatch_size: rows whose statistics are held in memory at a time; default: as fits.
    :param secure: whether noise and batches come from keys of the operating system, as in
        :class:`~numpyro_dp.MCMC`; ``False`` is reproducible from the caller's key and conditional.
    :raises ValueError: for arguments out of range, a guide of another kind or of another model, or
        both or neither of ``privacy`` and ``noise_multiplier``.

    **Privacy.** Released: the noisy sum of every step. Mechanism: Poisson-subsampled Gaussian
    mechanism on one joint vector of clipped statistics a step, sensitivity its clip norm under
    zero-out and twice that under replace-one; event: one ``Poisson(q, Gaussian)`` for each step,
    composed, and the total variation of tables and room. A record's statistics are computed from
    that record and earlier releases alone. Everything else (natural parameters, projections,
    hyper-posteriors) is post-processing. Under add/remove, where N is private, it is refused: for
    these sums zero-out, with N public, is the same statement. ``noise_multiplier=0`` with
    ``clip_norm=inf`` switches privacy off, for tests, and charges ε = ∞.

    **References.** Park, Foulds, Chaudhuri, Welling, *Variational Bayes in Private Settings (VIPS)*
    (JAIR 2020), algorithms 1 to 5; accounting by joint releases, as in *Events*
    (docs/reference/events.md), in place of its moments bound, which counts the blocks of a step as
    separate events.

    **Example**: see :class:`~numpyro_dp.guides.PolyaGammaGuide`.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        guide: StatisticsGuide,
        *,
        batch_size: float | None = None,
        sampling_rate: float | None = None,
        privacy: Budget | None = None,
        noise_multiplier: float | None = None,
        clip_norm: float | None = None,
        accountant: Accountant | None = None,
        data_plate: str | None = None,
        microbatch_size: int | None = None,
        secure: bool = True,
    ) -> None:
        if not isinstance(guide, StatisticsGuide):
            raise ValueError(
                f"VIPS takes a guide of numpyro_dp.guides, got {type(guide).__name__}: for other "
                "guides use DPSVI"
            )
        # Not by identity: a method is a new object each time it is looked up.
        if guide.model != model:
            raise ValueError(
                "VIPS and its guide were given different models: the guide reads its statistics "
                "off its own, so make it for this one"
            )
        batch_size, sampling_rate, noise_multiplier, clip_norm, microbatch_size = (
            _validate.python_number(given)
            for given in (batch_size, sampling_rate, noise_multiplier, clip_norm, microbatch_size)
        )
        arguments.check_noise(privacy, noise_multiplier)
        arguments.check_batches(batch_size, sampling_rate, microbatch_size, None)
        arguments.check_noise_and_clip(noise_multiplier, clip_norm)
        self.model, self.guide = model, guide
        self._batch_size, self._sampling_rate = batch_size, sampling_rate
        self._privacy, self._noise_multiplier, self._clip_norm = (
            privacy,
            noise_multiplier,
            clip_norm,
        )
        self._data_plate = guide.data_plate if data_plate is None else data_plate
        self._microbatch_size = microbatch_size
        self._account = Account(type(self).__name__, accountant, secure=secure)

    @property
    def delta(self) -> float:
        """δ at which ε is stated: that of ``privacy``, else the ledger's, else 1e-6."""
        return self._account.delta(self._privacy)

    def run(
        self,
        rng_key: Any,
        num_steps: int | None,
        *args: Any,
        progress_bar: bool = True,
        **kwargs: Any,
    ) -> DPSVIRunResult:
        """Charge the accountant for this run, then fit.

        :param rng_key: a JAX key; governs the start.
        :param num_steps: private releases in all; ``None`` for the guide's own choice.
        :param args: arguments of the model; arrays whose leading axis is the private plate, shape
            (records, ...), are records, everything else is public or must be wrapped in
            ``numpyro_dp.public``.
        :param progress_bar: show a bar with the ε reached so far of this run's charge.
        :param kwargs: keyword arguments of the model.
        :returns: parameters of the guide, what was known at the end, ``None`` for the losses; and
            ``.privacy``.
        :raises BudgetExceededError: the accountant refuses; nothing was charged.
        :raises UnsupportedModelError: the model is outside the guide's family, or cannot be split.
        :raises ValueError: an argument is out of range, or of the wrong kind.
        """
        with self._account.opened("VIPS.run", rng_key, args, kwargs) as run:
            user_key, start_key = as_typed_keys(rng_key, 1), usable_key(rng_key)
            ready = self.prepared(start_key, num_steps, args, kwargs)
            return self._charge_and_run(run, user_key, progress_bar, *ready)

    def _charge_and_run(
        self,
        run: ChargedRun,
        user_key: Any,
        progress_bar: bool,
        schedule: Schedule,
        plan: Releases,
        found: Outline,
        state: Any,
        records: tuple[Array, ...],
    ) -> DPSVIRunResult:
        target = self._target(schedule, found)
        steps, relation = plan.num_steps, self._account.relation
        paid = {"steps": steps, "total_variation": plan.total_variation}
        noise_key = run.charge(plan.cost(steps, steps), user_key, of=(schedule, plan), **paid)
        records = tuple(schedule.prepared(records))
        table = epsilon_table(plan, steps, relation, self.delta, progress_bar)
        with steps_bar(steps, table, shown=progress_bar) as show:
            known = _releases(schedule, plan, state, noise_key, records)
            for done, state in known:
                jax.block_until_ready(state)
                require_same(state)
                show(done)
        state = on_each(state)
        facts = _facts(schedule, plan, found, schedule.learnt(state))
        report = self._account.report(facts, delta=self.delta)
        return DPSVIRunResult(dict(schedule.params(state)), state, None, report, target)

    def forecast(self, num_steps: int | None, *args: Any, **kwargs: Any) -> str:
        """What a run would release, with how much noise, and what that resolves; costs nothing.

        :param num_steps: as for :meth:`run`.
        :param args: arguments of the model, as for :meth:`run`; only their shapes are used.
        :param kwargs: keyword arguments of the model.
        :returns: a text to print.
        :raises UnsupportedModelError: as :meth:`run`.
        :raises ValueError: as :meth:`run`.
        """
        _, plan, found = self._bind(num_steps, args, kwargs)
        rate, relation = plan.sums[0].sampling_rate, self._account.relation
        event = plan.cost(plan.num_steps, plan.num_steps)
        epsilon = privacy_curve(event, relation).epsilon(self.delta)
        heading = (
            f"{plan.num_steps} releases about {found.num_records} records, ε = {epsilon:.4g} at "
            f"δ = {self.delta:.3g} ({relation})"
        )
        lines = [
            f"  {phase.name}: {len(phase.weights)} x {phase.dim} numbers, noise "
            f"{each.noise_multiplier:.4g} x the bound on a record"
            for phase, each in zip(plan.phases, plan.sums, strict=True)
        ]
        signal = self._signal(rate)
        return "\n".join([heading, *lines, *self.guide.outlook(found, num_steps, signal)])

    def _signal(self, sampling_rate: float) -> Callable[[int], float]:
        """What a number of releases tells, as the μ of one Gaussian mechanism."""
        if self._privacy is not None:
            sd = calibrate(GaussianDpEvent, self._privacy, self._account.relation)
            return lambda _: 1 / sd
        noise = self._noise_multiplier
        return lambda steps: math.inf if not noise else sampling_rate * math.sqrt(steps) / noise

    def prepared(
        self, start_key: Any, num_steps: int | None, args: tuple, kwargs: dict
    ) -> tuple[Schedule, Releases, Outline, Any, tuple[Array, ...]]:
        """All of a run that comes before its charge: mistakes are met here and cost nothing.

        :returns: what is asked of the records, how it is released, the model, where the run
            starts, and the records.
        """
        schedule, plan, found = self._bind(num_steps, args, kwargs)
        start = schedule.start(start_key)
        records = tuple(schedule.records(args, kwargs))
        _check_shapes(schedule, plan, start, records)
        return schedule, plan, found, start, records

    def _bind(
        self, num_steps: int | None, args: tuple, kwargs: dict
    ) -> tuple[Schedule, Releases, Outline]:
        """Fix every number of a run; nothing is charged or touched."""
        if num_steps is not None:
            num_steps = _validate.positive_int("num_steps", num_steps)
            if num_steps > _MOST_STEPS:
                raise ValueError(
                    f"num_steps must be at most {_MOST_STEPS:,}, got {_validate.shown(num_steps)}: "
                    "a guide needs 10 to 30"
                )
        if self._account.private_size:
            raise UnsupportedModelError(
                "VIPS divides by the number of records, which is private under add_remove: use "
                "relation='zero_out', which says the same of these sums, or 'replace_one'"
            )
        found = self.guide.outlined(self.model, args, kwargs, self._data_plate)
        prepare(self.guide, found.layout, found.plate, found.dropped)
        rate = arguments.expected_rate(self._batch_size, self._sampling_rate, found.num_records)
        guide = self.guide.settled(found, num_steps, self._signal(rate))
        schedule = _schedule(guide, found, num_steps, self._clip_norm, x64())
        plan = planned_releases(
            phases=schedule.phases,
            noise=arguments.given_noise(self._privacy, self._noise_multiplier),
            delta=self.delta,
            relation=self._account.relation,
            num_records=found.num_records,
            shards=found.layout.shards,
            sampling_rate=rate,
            microbatch_size=self._microbatch_size,
        )
        return schedule, plan, found

    def _target(self, schedule: Schedule, found: Outline) -> Any:
        own = schedule.target()
        if own is not None:
            return own
        return variational_model(self.model, self.guide, found, self._data_plate, False, x64())


def _facts(schedule: Schedule, plan: Releases, found: Outline, learnt: tuple[str, ...]) -> RunFacts:
    names = ", ".join(f"{phase.name} ({len(phase.weights)})" for phase in plan.phases)
    return sum_facts(
        plan.sums[0],
        f"sums of clipped expected statistics: {names}",
        clip_norm=max(each.clip_norm for each in plan.sums),
        noise_multiplier=min(each.noise_multiplier for each in plan.sums),
        released=("the noisy sums of every step, and what the guide makes of them",),
        unit=found.unit,
        num_records=found.num_records,
        assumed_public=assumed_public(
            found.num_records,
            "model, guide (with its priors, bounds and starts) and every option",
            arguments=found.layout.public_names,
        ),
        notes=learnt + schedule.notes,
    )


@lru_cache(maxsize=16)
def _schedule(
    guide: StatisticsGuide,
    found: Outline,
    num_steps: int | None,
    clip_norm: float | None,
    wide: bool,
) -> Schedule:
    """One schedule for equal arguments, so that a second run does not compile again."""
    return guide.scheduled(found, num_steps, clip_norm=clip_norm)


def _check_shapes(schedule: Schedule, plan: Releases, state: Any, records: Sequence[Array]) -> None:
    """Trace every phase: mistakes that only a trace shows must not cost anything."""
    records = jax.eval_shape(schedule.prepared, records)
    for phase, each in enumerate(plan.sums):
        after = jax.eval_shape(
            lambda state, rows, phase=phase, each=each: released_step(
                schedule, each, phase, state, random.key(0), list(rows), jnp.int32(0)
            ),
            state,
            tuple(records),
        )
        shapes = [jax.tree.map(lambda x: (x.shape, x.dtype), s) for s in (state, after)]
        if shapes[0] != shapes[1]:
            raise ValueError(
                f"{type(schedule).__name__} changes the shape of what it knows in phase "
                f"{plan.phases[phase].name!r}"
            )


def _releases(
    schedule: Schedule, plan: Releases, state: Any, key: Array, records: tuple[Array, ...]
) -> Iterator[tuple[int, Any]]:
    """Run all phases; yields releases made and what is known after each."""
    done = 0
    for phase, each in enumerate(plan.sums):
        for step in range(len(plan.phases[phase].weights)):
            state = _compiled(
                schedule, each, phase, state, random.fold_in(key, done), records, jnp.int32(step)
            )
            done += 1
            yield done, state


def released_step(
    schedule: Schedule,
    private_sum: PrivateSum,
    phase: int,
    state: Any,
    key: Array,
    records: Sequence[Array],
    step: Array,
) -> Any:
    """What is known after one more release, for use within a program."""
    released = private_sum.release(
        key, partial(schedule.statistic, phase, state), list(records), step
    )
    noise_sd = jnp.asarray(private_sum.noise_sd(step) / private_sum.sampling_rate, released.dtype)
    if private_sum.scale is not None:
        noise_sd = noise_sd / jnp.asarray(private_sum.scale, released.dtype)
    return schedule.advance(
        phase, state, released, jnp.broadcast_to(noise_sd, released.shape), step
    )


_compiled = jax.jit(released_step, static_argnums=(0, 1, 2))
