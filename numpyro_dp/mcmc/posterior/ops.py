"""OPS: one posterior sample, each draw released and charged on its own."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from numpyro_dp import _validate
from numpyro_dp.accounting import Budget, Relation, privacy_curve
from numpyro_dp.accounting.events import (
    ComposedDpEvent,
    DpEvent,
    SelfComposedDpEvent,
    TotalVariation,
)
from numpyro_dp.accounting.report.facts import RunFacts
from numpyro_dp.mcmc.kernel import BoundKernel, PrivateKernel, Terms
from numpyro_dp.mcmc.posterior.bounded import BoundedTarget, Grid
from numpyro_dp.mcmc.posterior.concave import ConcaveTarget
from numpyro_dp.mcmc.posterior.conditional import UncheckedNUTS
from numpyro_dp.mcmc.posterior.draw import BoundedLikelihood, Draw, StronglyLogConcave
from numpyro_dp.mcmc.posterior.langevin import Langevin
from numpyro_dp.mcmc.posterior.rejection import Rejection
from numpyro_dp.model.private_model import PrivateModel

_PRECISION = 1e-4
_LEAST_POWER = 1e-9
_FITTING: dict[type, tuple[type, ...]] = {
    StronglyLogConcave: (Langevin, UncheckedNUTS),
    BoundedLikelihood: (Grid, Rejection, UncheckedNUTS),
}


class OPSState(NamedTuple):
    """What a chain of posterior samples carries; released values and a key, nothing else.

    - **i**: draws released so far.
    - **z**: the last released draw, unconstrained (the public start before the first).
    - **rng_key**: key of the draws to come; zeroed in every state that outlives a run.
    """

    i: Int[Array, "..."]
    z: dict[str, Float[Array, "..."]]
    rng_key: Any


@dataclass(frozen=True)
class BoundOPS(BoundKernel):
    """Posterior samples with the way of drawing and every number fixed."""

    method: Draw
    power: float

    def start(self, rng_key: Any, z: dict) -> OPSState:
        return OPSState(jnp.zeros((), jnp.int32), z, rng_key)

    def advance(self, key: Any, state: OPSState, records: list) -> OPSState:
        return state._replace(z=self.method.draw(key, state.z, records))

    def event(self, num_steps: int, *, start: int = 0, num_chains: int = 1) -> DpEvent:
        num_steps = _validate.positive_int("num_steps", num_steps)
        draws = SelfComposedDpEvent(self.method.event, num_steps)
        return ComposedDpEvent([draws, TotalVariation(min(1.0, num_steps * self.method.tv))])

    def facts(self) -> RunFacts:
        notes = self.method.notes
        if self.power != 1:
            notes += (
                f"The likelihood was raised to the power {self.power:.6g}: these are draws from a "
                "tempered posterior, wider than the posterior itself.",
            )
        return RunFacts(
            mechanism=f"one posterior sample a draw: {self.method.mechanism}",
            sampler="every record in every draw",
            sampling_rate=1.0,
            clip_norm=self.method.bound,
            noise_multiplier="the posterior's own randomness",
            overflow_delta=self.method.tv,
            released=("every draw and its number",),
            arithmetic=self.method.arithmetic,
            notes=notes,
            conditions=self.method.conditions,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class OPS(PrivateKernel):
    """One posterior sample: differentially private because the posterior is random.

    Every draw of :class:`~numpyro_dp.MCMC` is a finished sample and one charge (``num_warmup`` must
    be 0, chains are charged each); nothing of how it came about leaves. One draw answers "a
    plausible parameter"; for intervals use a chain such as :class:`~numpyro_dp.DPSGLD`, which this
    kernel can start (``DPSGLD(…, init_kernel=OPS(…))``).

    :param model: a NumPyro model whose observations lie in one plate.
    :param guarantee: what bounds a record's influence:
        :class:`~numpyro_dp.StronglyLogConcave` (generalised linear models with Gaussian priors,
        the default choice, unconditional) or :class:`~numpyro_dp.BoundedLikelihood` (any model,
        its log likelihoods cut to bounds).
    :param sampler: how to draw. With ``StronglyLogConcave``: :class:`~numpyro_dp.Langevin`
        (default). With ``BoundedLikelihood``: :class:`~numpyro_dp.Grid` or
        :class:`~numpyro_dp.Rejection`. With either, on condition only:
        :class:`~numpyro_dp.UncheckedNUTS`.
    :param likelihood_power: τ, multiplies the log likelihood; the prior is not tempered. With
        ``privacy``, the largest τ to use.
    :param privacy: :class:`~numpyro_dp.Budget` of one complete run, for which the largest τ is
        found. A small τ costs little privacy and draws widely. A *public* rule that served well
        for a single draw from a logistic regression: τ between 0.02 and 0.05 and a prior of
        curvature m = (τ·R/μ)², μ the Gaussian shift that the budget allows.
    :param accountant: the ledger that must agree to every run.
    :param allow_conditional: accept a sampler whose guarantee is conditional.
    :param max_records: public upper bound on the number of records, needed where that number is
        private (an accountant with ``relation="add_remove"``).
    :param init_strategy: a NumPyro initialisation strategy that needs no data; where the Langevin
        sampler starts.
    :param data_plate: name of the plate whose slices are the records, when several enclose the
        observations; ``"auto"`` takes each row for one, where no plate does.
    :param steps_per_sample: charged draws per collected one; 1 wastes nothing.
    :param num_steps: draws of one chain, for one run in plain ``numpyro.infer.MCMC``.
    :raises ValueError: for arguments out of range, or a sampler that does not fit the guarantee.
    :raises UnsupportedModelError: when the run begins, for a model that does not meet the
        guarantee's conditions, naming site and condition.

    **Privacy.** Released: every draw. ``StronglyLogConcave`` with ``Langevin``: event
    :class:`~numpyro_dp.events.LangevinLastIterate` with G = τ·L·R and what rounding adds to it;
    a further draw goes on from the last released one. ``BoundedLikelihood`` with an exact
    sampler: :class:`~numpyro_dp.events.PosteriorDraw` of range τ·(upper − lower), and a
    ``TotalVariation`` of what arithmetic and capped tries add. Both double under replace-one.

    **References.** Wang, Fienberg, Smola, *Privacy for Free* (2015); Dimitrakakis et al., *Robust
    and Private Bayesian Inference* (2014); Altschuler and Talwar, *Privacy of Noisy Stochastic
    Gradient Descent* (2022).

    **Example**::

        >>> import jax, jax.numpy as jnp, numpyro, numpyro.distributions as dist
        >>> import numpyro_dp as ndp
        >>> def model(x, y):
        ...     w = numpyro.sample("w", dist.Normal(0, 2).expand([2]).to_event(1))
        ...     with numpyro.plate("people", x.shape[0]):
        ...         numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)
        >>> kernel = ndp.OPS(model, guarantee=ndp.StronglyLogConcave(row_norm=1.0),
        ...                  privacy=ndp.Budget(1.0, 1e-5))
        >>> mcmc = ndp.MCMC(kernel, num_warmup=0, num_samples=1, progress_bar=False)
        >>> x = jnp.stack([jnp.ones(200), jnp.linspace(-1, 1, 200)], axis=1)
        >>> mcmc.run(jax.random.key(0), x, (x[:, 1] > 0).astype(int))
        >>> mcmc.get_samples()["w"].shape
        (1, 2)
        >>> mcmc.privacy.epsilon <= 1.0
        True
    """

    guarantee: StronglyLogConcave | BoundedLikelihood
    sampler: Langevin | Grid | Rejection | UncheckedNUTS | None = None
    likelihood_power: float = 1.0
    allow_conditional: bool = False
    max_records: int | None = None

    takes_warmup: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.guarantee, tuple(_FITTING)):
            raise ValueError(
                "guarantee must be numpyro_dp.StronglyLogConcave(row_norm=…) or "
                f"numpyro_dp.BoundedLikelihood(lower, upper), got {_validate.shown(self.guarantee)}"
            )
        _validate.positive("likelihood_power", self.likelihood_power)
        _validate.given(_validate.positive_int, max_records=self.max_records)
        fitting = _FITTING[type(self.guarantee)]
        if self.sampler is None and fitting[0] is Langevin:
            object.__setattr__(self, "sampler", Langevin())
        if not isinstance(self.sampler, fitting):
            names = ", ".join(kind.__name__ for kind in fitting)
            raise ValueError(
                f"sampler= for {type(self.guarantee).__name__} must be one of {names}, got "
                f"{self.sampler!r}"
            )
        if isinstance(self.sampler, UncheckedNUTS) and not self.allow_conditional:
            raise ValueError(
                "UncheckedNUTS has a guarantee only if its draws are exact, which nothing can "
                "show: use Langevin(), Grid(…) or Rejection(), or pass allow_conditional=True and "
                "an accountant that allows conditional charges"
            )

    def _bind(self, model: PrivateModel, terms: Terms) -> BoundOPS:
        private_size = terms.relation == "add_remove"
        if private_size and (self.max_records is None or self.max_records < model.num_records):
            raise ValueError(
                "under relation='add_remove' the number of records is private: give "
                "max_records=, a public upper bound on it"
            )
        size = self.max_records if private_size and self.max_records else model.num_records
        # What a rejection sampler aims below: a small share of δ.
        failure = min(1e-9, 1e-3 * terms.delta / max(terms.num_steps, 1))
        at = _methods(model, self.guarantee, self.sampler, size, private_size, failure)

        def bound(power: float) -> BoundOPS:
            return BoundOPS(model, self.steps_per_sample, at(power), power)

        most = float(self.likelihood_power)
        if self.privacy is not None:
            at = lru_cache(maxsize=None)(at)

            def run(power: float) -> DpEvent:
                return bound(power).event(terms.num_steps)

            most = largest_power(run, self.privacy, terms.relation, most)
        return bound(most)


def _methods(
    model: PrivateModel,
    guarantee: StronglyLogConcave | BoundedLikelihood,
    sampler: Any,
    num_records: int,
    one_by_one: bool,
    failure: float,
) -> Callable[[float], Draw]:
    """The way of drawing at each likelihood power."""

    def at(power: float) -> Draw:
        if isinstance(guarantee, StronglyLogConcave):
            target = ConcaveTarget(model, guarantee, power, num_records, one_by_one)
            return sampler.bound_to(target)
        bounded = BoundedTarget(model, guarantee, power, num_records, one_by_one)
        if isinstance(sampler, Rejection):
            return sampler.bound_to(bounded, failure)
        return sampler.bound_to(bounded)

    return at


def largest_power(
    run: Callable[[float], DpEvent], budget: Budget, relation: Relation, most: float
) -> float:
    """The largest likelihood power, to a factor 1.0001, whose run fits a budget.

    :param run: event of a complete run at a power.
    :param budget: what it may cost.
    :param relation: neighbouring relation.
    :param most: largest power to consider.
    :raises ValueError: when not even a power of 1e-9 fits.
    """

    def fits(power: float) -> bool:
        try:
            event = run(power)
        except ValueError:
            # Too large a power for the sampler, such as a rejection that would hardly ever end.
            return False
        # At very small shifts the closed form of the Gaussian takes log 0 on its way, rightly.
        with np.errstate(divide="ignore"):
            return privacy_curve(event, relation).epsilon(budget.delta) <= budget.epsilon

    low = most
    while not fits(low):
        low /= 4
        if low < _LEAST_POWER * most:
            raise ValueError(
                f"privacy={budget} is too small for this run at any likelihood_power: run fewer "
                "draws or chains, tighten the prior, or allow more"
            )
    if low == most:
        return most
    low, high = math.log(low), math.log(4 * low)
    while high - low > _PRECISION:
        middle = (low + high) / 2
        low, high = (middle, high) if fits(math.exp(middle)) else (low, middle)
    return math.exp(low)
