"""``LikelihoodRelease``: the likelihood of all records, released once, to be sampled for ever."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from numpyro_dp import _validate
from numpyro_dp.accounting import (
    Accountant,
    Budget,
    ChargePlan,
    Relation,
    calibrate,
    rounded_down,
)
from numpyro_dp.accounting.events import DpEvent, GaussianDpEvent
from numpyro_dp.accounting.report.facts import RunFacts
from numpyro_dp.errors import UnsupportedModelError
from numpyro_dp.execution.account import Account, ChargedRun
from numpyro_dp.execution.facts import assumed_public, sum_facts
from numpyro_dp.execution.keys import as_typed_keys, folded
from numpyro_dp.execution.progress import epsilon_table, steps_bar
from numpyro_dp.execution.releases import Phase, planned_releases
from numpyro_dp.families.interchangeable import require_entries_apart
from numpyro_dp.families.one_gaussian import (
    require_components_apart,
    require_one_gaussian,
    require_slopes,
)
from numpyro_dp.families.outcome_laws import has_cases
from numpyro_dp.families.silent_directions import chosen_scores, meetings, silent_directions
from numpyro_dp.model.private_model import PrivateModel, private_model
from numpyro_dp.scoring.forecast import (
    Forecast,
    forecast,
    geometric_shares,
    histogram_share,
    own_latents,
)
from numpyro_dp.scoring.located import located
from numpyro_dp.scoring.prior import (
    every_direction,
    heard_directions,
    prior_moments,
    wider,
)
from numpyro_dp.scoring.released import ReleasedLikelihood, kind_of, verdicts_of
from numpyro_dp.scoring.statistic import (
    record_statistic,
    unravelled,
)
from numpyro_dp.scoring.turns import BoundRelease, released_rounds
from numpyro_dp.scoring.verdicts.kinds import foretold
from numpyro_dp.scoring.verdicts.trust import Located

# Folded into the caller's key for the outcomes that are drawn: public randomness.
_OUTCOMES = 0x73636F72
# Shares of successive rounds where a few of them prepare a chain.
_ADAPTATION_RATIO = 1.25
# Entries of one latent from which a refusal asks whose they are.
_MANY = 50
# Fewer records than this an entry may be the rows of one person.
_ROWS = 20


class LikelihoodRelease:
    """Release the likelihood of all records once, in a few rounds of private Fisher scoring.

    Each round releases, in one joint noisy sum over all records, the clipped score and the
    information at the last round's position, in coordinates in which every direction of the
    posterior costs the same noise. What they say together, with privacy noise, misfit and
    curvature counted, is a Gaussian likelihood; with the user's own prior it is an ordinary NumPyro
    model without data. Nothing is to be tuned.

    :param model: a NumPyro model with its observations in one plate, proper priors on the scale of
        the answer, and continuous global latents. A hierarchy is located best in its *centred*
        form; reparametrise the released model, not this one.
    :param privacy: :class:`~numpyro_dp.Budget` of one :meth:`run`.
    :param accountant: the ledger that must agree to every run. Without one each object keeps its
        own unbounded account.
    :param data_plate: name of the plate whose slices are the records, when several enclose the
        observations; ``"auto"`` takes each row for one, where no plate does.
    :param num_rounds: rounds of scoring; by default 12, 14 where the budget leaves much for each,
        and 8 where it leaves little.
    :param allow_unresolved: release even where the forecast says that nothing can be learnt.
    :param secure: whether noise comes from keys of the operating system, as in
        :class:`~numpyro_dp.MCMC`; ``False`` is reproducible from the caller's key and conditional.
    :raises ValueError: for arguments out of range.

    **Privacy.** Released: a noisy histogram of the sizes of records' scores, in one sum with how
    these divide over latents, how many records are of each group, and how many show what the law
    of their outcome cannot have; and for each round a noisy sum over all records of one vector
    (score, information, two squares, whether it is far out); each vector of norm at most 1.
    Mechanism: Gaussian, every record in every round; sensitivity 1 under zero-out and 2 under
    replace-one; event: one Gaussian for the histogram and one for each round, composed, and the
    total variation of tables. Positions, coordinates and clip norms of a round are functions of
    earlier releases. Under add/remove it is refused: the number of records is in every formula.
    Outcomes that are drawn come from the caller's key: public randomness, on which nothing rests.

    **References.** *How a step is released* (docs/explanation/how-a-step-is-released.md) and *From
    release to posterior* (docs/tutorials/from-release-to-posterior.md); for one-step estimators Le
    Cam, *On the asymptotic theory of estimation and testing hypotheses* (1956); for clipping by
    whitened norms Huber, *Robust Statistics* (1981), section 8.

    **Example**::

        >>> import jax, numpy as np, numpyro, numpyro.distributions as dist, numpyro_dp as ndp
        >>> def model(y):
        ...     mean = numpyro.sample("mean", dist.Normal(0, 10))
        ...     with numpyro.plate("people", y.shape[0]):
        ...         numpyro.sample("y", dist.Normal(mean, 1), obs=y)
        >>> y = np.random.default_rng(0).normal(3.0, 1.0, 5_000).astype(np.float32)
        >>> release = ndp.LikelihoodRelease(model, privacy=ndp.Budget(1.0, 1e-5))
        >>> released = release.run(jax.random.key(0), y, progress_bar=False)
        >>> bool(abs(released.located.mean[0] - 3.0) < 0.2)
        True
    """

    def __init__(
        self,
        model: Callable[..., Any],
        *,
        privacy: Budget,
        accountant: Accountant | None = None,
        data_plate: str | None = None,
        num_rounds: int | None = None,
        allow_unresolved: bool = False,
        secure: bool = True,
    ) -> None:
        if not callable(model):
            raise ValueError(f"model must be a NumPyro model, got {_validate.shown(model)}")
        if not isinstance(privacy, Budget):
            raise ValueError(
                "privacy must be a numpyro_dp.Budget(epsilon, delta), got "
                f"{_validate.shown(privacy)}: all noise follows from it"
            )
        _validate.given(_validate.positive_int, num_rounds=num_rounds)
        self.accountant = accountant
        self._model, self._privacy, self._data_plate = model, privacy, data_plate
        self._num_rounds, self._allow_unresolved = num_rounds, bool(allow_unresolved)
        self._account = Account(type(self).__name__, accountant, secure=secure)

    @property
    def delta(self) -> float:
        """δ at which ε is stated."""
        return self._privacy.delta

    def forecast(self, *args: Any, **kwargs: Any) -> Forecast:
        """What a run would tell, from public numbers; costs nothing.

        :param args: arguments of the model; only their shapes are used.
        :param kwargs: keyword arguments of the model.
        :returns: the forecast; ``print`` it.
        :raises UnsupportedModelError: as :meth:`run`.
        """
        bound = self.bind(args, kwargs, self._account.relation)
        steps = bound.plan.num_steps
        room = _room(self.accountant, bound.plan.cost(steps, steps))
        return bound.forecast._replace(ledger=room)

    def run(
        self, rng_key: Any, *args: Any, progress_bar: bool = True, **kwargs: Any
    ) -> ReleasedLikelihood:
        """Charge the accountant for this release, then make it.

        :param rng_key: a JAX key; with ``secure=True`` it governs drawn outcomes only.
        :param args: arguments of the model; arrays whose leading axis is the private plate are
            records, everything else is public or must be wrapped in ``numpyro_dp.public``.
        :param progress_bar: show a bar with the ε reached so far of this run's charge.
        :param kwargs: keyword arguments of the model.
        :returns: the released likelihood.
        :raises BudgetExceededError: the accountant refuses; nothing was charged.
        :raises UnsupportedModelError: the model cannot be split, or not be released so.
        :raises ValueError: the budget resolves nothing (``allow_unresolved=True`` releases anyway),
            or an argument is out of range.
        """
        with self._account.opened("LikelihoodRelease.run", rng_key, args, kwargs) as run:
            return self.released_in(run, rng_key, args, kwargs, progress_bar=progress_bar)

    def released_in(
        self,
        run: ChargedRun,
        rng_key: Any,
        args: tuple,
        kwargs: Mapping[str, Any],
        *,
        progress_bar: bool,
        label: str = "",
    ) -> ReleasedLikelihood:
        """Release within a run that is open, of an account that may be another object's.

        :param label: what the ledger calls the charge; empty for the account's owner.
        """
        key = as_typed_keys(rng_key, 1)
        bound = run.prepared(self.bind, args, kwargs, run.account.relation)
        expected = bound.forecast
        if expected.verdict == "not" and not self._allow_unresolved:
            raise _next_to_nothing(expected, "allow_unresolved=True releases anyway. ")
        plan, model = bound.plan, bound.statistic.private_model
        records = bound.statistic.numbered(model.records(args, kwargs, padded=True))
        steps = plan.num_steps
        paid = {"steps": steps, "total_variation": plan.total_variation, "label": label}
        noise_key = run.charge(plan.cost(steps, steps), key, of=(plan, model), **paid)
        table = epsilon_table(plan, steps, run.account.relation, self._privacy.delta, progress_bar)
        outcome_key = folded(key, _OUTCOMES)
        with steps_bar(steps, table, shown=progress_bar) as show:
            rounds = released_rounds(
                bound, noise_key, outcome_key, records, lambda done: show(done, None, "release")
            )
        at = located(rounds, bound.prior, model.num_records, bound.directions)
        facts = _facts(bound, at)
        report = run.account.report(facts, delta=self._privacy.delta)
        return ReleasedLikelihood(model, at, facts, report)

    def bind(self, args: tuple, kwargs: Mapping[str, Any], relation: Relation) -> BoundRelease:
        """Fix every number of a release; nothing is charged or touched."""
        # Before the model is split: its refusals may tell the number of records.
        refuse_private_size(relation)
        model = private_model(self._model, args, dict(kwargs), data_plate=self._data_plate)
        return bound_release(model, self._privacy, relation, self._num_rounds)


def _room(accountant: Accountant | None, event: DpEvent) -> str:
    """Whether the budget of an accountant has room for a charge, in words; empty without one."""
    if isinstance(accountant, ChargePlan):
        holds = "holds this" if accountant.fits(event) else "does not hold this"
        return f"ledger: the plan {accountant.label!r} {holds}"
    if accountant is None or accountant.budget is None:
        return ""
    total, left = accountant.budget.epsilon, rounded_down(accountant.remaining())
    of = f"ledger: ε = {left} of {total:g} at δ = {accountant.budget.delta:g} is left"
    if accountant.fits(event):
        return f"{of}, and this fits"
    return f"{of}, and this does not fit: the run would be refused, and nothing charged"


def refuse_private_size(relation: Relation) -> None:
    """Refuse the relation under which the number of records is private.

    :raises UnsupportedModelError: it is in every formula.
    """
    if relation == "add_remove":
        raise UnsupportedModelError(
            "a release of scores uses the number of records, which is private under "
            "add_remove: use relation='zero_out', which says the same of these sums, or "
            "'replace_one'"
        )


@lru_cache(maxsize=16)
def bound_release(
    model: PrivateModel,
    privacy: Budget,
    relation: Relation,
    num_rounds: int | None = None,
    adaptation: float | None = None,
) -> BoundRelease:
    """Fix every number of a release on a split model.

    :param adaptation: share of the squared privacy loss of ``privacy`` that it may take, where
        chains take the rest; ``None`` for a release of its own.
    :raises UnsupportedModelError: the model cannot be released so.
    """
    refuse_private_size(relation)
    if own := own_latents(model):
        other = "DPSGLD with step_size and clip_norm" if adaptation else "DPSGLD"
        raise UnsupportedModelError(
            f"record(s) of plate `{model.plate}` have latents of their own ({', '.join(own)}), "
            "summed out or not: such models may have several modes, which one Gaussian likelihood "
            "does not hold. Write discrete ones as `dist.MixtureSameFamily`, each component with a "
            f"prior centre of its own; or use {other} or DPSVI"
        )
    require_slopes(model)
    prior = prior_moments(model)
    require_components_apart(model, unravelled(model, prior.mean))
    directions, scatter = every_direction(len(prior.sd)), wider(model, prior)
    if adaptation is None:
        require_one_gaussian(model, prior.mean, prior.sd)
        scores = chosen_scores(model, prior.mean, prior.sd)
        silent, meeting = silent_directions(model, scores), meetings(model, scores)
        directions, prior = heard_directions(prior, silent, meeting)
        if not len(prior.sd):
            raise UnsupportedModelError(
                f"no record of plate `{model.plate}` tells anything of a latent: its likelihood "
                "reads none. Condition the observed site on what is to be learnt"
            )
    statistic = record_statistic(model, prior.alike)
    if adaptation is None:
        require_entries_apart(model)
    signal = math.sqrt(adaptation or 1) / calibrate(GaussianDpEvent, privacy, relation)
    expected = forecast(
        num_records=model.num_records,
        dim=statistic.dim,
        outcomes=statistic.num_outcomes,
        signal=signal,
        num_rounds=num_rounds,
        privacy=privacy,
        relation=relation,
        cases=has_cases(model),
        crowd=_crowd(model),
    )
    if adaptation is None:
        expected = expected._replace(notes=foretold(kind_of(model)))
    histogram = histogram_share(model.num_records, signal)
    ratio = _ADAPTATION_RATIO if adaptation else None
    shares = geometric_shares(expected.num_rounds, histogram, ratio)
    try:
        plan = planned_releases(
            phases=(
                Phase("sizes of scores", statistic.sizes_told, 1.0, (histogram,)),
                Phase("scores and information", statistic.numbers, 1.0, shares),
            ),
            # With shares that add up to 1, n releases of average noise √n/μ have the signal μ.
            noise=math.sqrt(len(shares) + 1) / signal if adaptation else privacy,
            delta=privacy.delta,
            relation=relation,
            num_records=model.num_records,
            shards=model.shards,
            sampling_rate=1.0,
            microbatch_size=None,
        )
    except ValueError as error:
        # Of thousands of coordinates no lattice carries the noise.
        raise (_next_to_nothing(expected) if expected.verdict == "not" else error) from None
    scatter = directions.inverse @ scatter
    return BoundRelease(statistic, directions, prior, scatter, plan, shares, expected)


def _next_to_nothing(expected: Forecast, anyway: str = "") -> ValueError:
    return ValueError(
        f"this release would cost ε = {expected.privacy.epsilon:g} and tell next to nothing "
        f"(κ = {expected.signal:.3g}, of the information {expected.shape:.3g}): "
        f"{expected.remedy}. {anyway}Nothing was charged"
    )


def _crowd(model: PrivateModel) -> str:
    """Which latent has most of the coordinates, where these are many, and what is done about it."""
    latents = model.structure.latents.items()
    dim = sum(each.size for _, each in latents)
    name, largest = max(latents, key=lambda each: each[1].size)
    if largest.size < _MANY or 2 * largest.size < dim:
        return ""
    persons = (
        "where there is one for each person, make a person with all of theirs the record, and "
        "integrate it out (docs/howto/choose-the-unit.md)"
    )
    groups = "where groups are counties, shops or items, give the small ones a common entry"
    first = (persons, groups) if model.num_records < _ROWS * largest.size else (groups, persons)
    said = "; ".join(first)
    return f"{largest.size} of the {dim} coordinates are of `{name}`: {said}; or take out columns"


def _facts(bound: BoundRelease, at: Located) -> RunFacts:
    model, plan = bound.statistic.private_model, bound.plan
    names = ", ".join(f"{phase.name} ({len(phase.weights)})" for phase in plan.phases)
    return sum_facts(
        plan.sums[1],
        f"sums of clipped statistics of records: {names}",
        clip_norm=1.0,
        noise_multiplier=min(each.noise_multiplier for each in plan.sums),
        released=(
            "the noisy sums of every round, and what follows from them: the likelihood and its "
            "diagnostics",
        ),
        unit=model.unit,
        num_records=model.num_records,
        assumed_public=assumed_public(
            model.num_records,
            "the model, its priors and every option",
            arguments=model.public_inputs,
        ),
        notes=verdicts_of(model, at),
    )
