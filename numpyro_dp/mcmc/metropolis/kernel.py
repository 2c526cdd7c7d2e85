"""DP-Fast MH: private Metropolis–Hastings, full batch or mini-batch, with a true total charge."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from jaxtyping import ArrayLike

from numpyro_dp import _validate
from numpyro_dp.mcmc.adaptation import AdaptedForecast, AdaptingKernel, adapted_forecast
from numpyro_dp.mcmc.kernel import Terms
from numpyro_dp.mcmc.metropolis.adapted import Settings, adapted_settings, bound_adapted
from numpyro_dp.mcmc.metropolis.claims import (
    check_public_moves,
    require_linear,
    require_slopes,
    try_record_bound,
)
from numpyro_dp.mcmc.metropolis.plan import MetropolisSettings, planned
from numpyro_dp.mcmc.metropolis.proposals import Move, RandomWalk
from numpyro_dp.mcmc.metropolis.step import BoundMetropolis
from numpyro_dp.mcmc.sgmcmc.kernel import by_coordinate, dimension
from numpyro_dp.mechanisms.accept.pick import MOST_CANDIDATES
from numpyro_dp.model.private_model import PrivateModel
from numpyro_dp.scoring.adaptation import AdaptationPlan, require_even_prior

# A slope is a sum of so many products at most, which rounds by less than its margin allows. Less
# power leaves the prior alone, whose width no release tells.
_MOST_DIMENSIONS, _LEAST_POWER = 1_000, 0.01
_RULES = ("barker", "noisy_barker", "penalty")


@dataclass(frozen=True, kw_only=True, eq=False)
class DPFastMH(AdaptingKernel):
    """Differentially private Metropolis–Hastings with an exact target and a true total charge.

    A step proposes a Gaussian move that knows nothing of the records, sums over the records how
    their log likelihoods change, each cut to a public bound, and decides by an acceptance test
    whose one random bit is all that a step tells. As long as the bound is true, the chain's
    stationary law is the (tempered) posterior exactly, with mini-batches too.

    Without ``step_size`` the kernel *adapts*, as :class:`~numpyro_dp.DPSGLD` does: a quarter of the
    squared privacy loss releases where the posterior lies and how it is shaped, chains start there,
    and moves are isotropic in coordinates in which the posterior's standard deviations are about 1.
    Bounds and step size there are public numbers: :meth:`forecast` says them, and how many
    relaxation times a chain holds, at most half of ``DPSGLD``'s. Such a bound is a guess: rare
    outcomes are cut and underrated, and the report says from where on.

    :param model: a NumPyro model whose observations lie in one plate; one slice of that plate is
        the unit of privacy.
    :param step_size: standard deviation of the random walk, in unconstrained parameters; a number
        or a callable of the step counter. ``None`` adapts it: the longest that the budget allows,
        and no longer than what moves fastest.
    :param lipschitz: bound C on the norm of one record's gradient of the log likelihood, in
        unconstrained (preconditioned) coordinates: its term is cut to C times the length of a
        move. ``math.inf`` switches privacy off, for tests. With adaptation it bounds scores in
        released coordinates, whose typical norm is √(dim/records); ``None`` then is 3 to 10 times
        that, as loose as the budget allows at the fastest step. Or
    :param smoothness: with ``lipschitz`` and without ``max_move``: bound β on the norm of one
        record's Hessian, in unconstrained coordinates. The charge is then averaged over the
        direction of the move for *any* differentiable model: a record's term is cut to
        ``|g·δ| + β‖δ‖²/2``, g its gradient at the position clipped to ``lipschitz``, δ the move.
        With adaptation in released coordinates too, by default ``lipschitz**2``.
    :param adaptation: share of the squared privacy loss, in (0, 1), that adaptation takes.
    :param dense_mass: whether the coordinates that it releases tell apart parameters that hang
        together; else they are scales alone.
    :param record_bound: a public function of two unconstrained positions (dicts of arrays) that
        bounds the change of one record's log likelihood, in nats. The larger of both orders is
        taken, and terms are cut to it; a run is then metered by a zCDP filter, and moves past its
        allowance are refused unseen.
    :param max_move: the longest move; longer ones are shortened. Needed with ``lipschitz`` unless
        ``acceptance="barker"`` decides on full batches with one candidate and the model is a
        generalised linear one: there the charge is averaged over the direction of the move, at no
        cost in the number of dimensions (``lipschitz`` then bounds the rows, which are projected);
        or ``smoothness`` is given.
    :param num_candidates: K > 1 picks among K candidates around a random centre and the current
        position, with probability proportional to the target.
    :param public_moves: involutions of unconstrained positions that leave every record's
        likelihood unchanged and preserve volume, such as label swaps: each is tried after every
        step, with even odds, and costs nothing, since only the prior decides.
    :param batch_size: expected number of draws of a mini-batch, at least twice and better five
        times the number of records times the bound. ``None``: every record in every step.
    :param acceptance: ``"barker"`` (no noise), ``"noisy_barker"`` or ``"penalty"``.
    :param noise_scale: standard deviation of the noise on the log ratio, in nats, for the two
        noisy tests; ``None`` lets ``privacy`` choose it. 0 with ``"penalty"`` is the Metropolis
        rule, without privacy.
    :param privacy: budget of one complete run. It chooses what is left open: ``noise_scale``,
        ``likelihood_power=None``, or the filter's total; where nothing is, the run must fit.
    :param rho: zCDP of one complete run with ``record_bound``, in place of ``privacy``.
    :param accountant: the ledger that must agree to every run.
    :param likelihood_power: τ, multiplies the log likelihood; 1 is the posterior, less a tempered
        one; ``None`` lets ``privacy`` choose it.
    :param preconditioner: public diagonal G by site: moves are N(0, s²G), and ``lipschitz`` and
        ``max_move`` are in the coordinates G^-½θ.
    :param steps_per_sample: private steps per collected draw.
    :param init_kernel: another private kernel over the same latents, whose one sample is where
        each chain starts.
    :param init_strategy: a NumPyro initialisation strategy that needs no data.
    :param data_plate: name of the plate whose slices are the records, when several enclose the
        observations; ``"auto"`` takes each row for one, where no plate does.
    :param num_steps: private steps of one chain, for plain ``numpyro.infer.MCMC``.
    :raises ValueError: without a bound, with ``max_move`` missing where the charge needs it, a
        batch larger than the data, noise where it is missing, or a run that its budget does not
        cover.

    **Privacy.** Released: the position after every step. Mechanism: one accept bit (or choice) a
    step on a sum whose sensitivity is the bound (twice that under replace-one); proposals count as
    released. Events: ``BarkerBit``, ``NoisyBarkerBit``, ``PenaltyBit``, ``MultiCandidateBit``,
    ``MinibatchBit``, ``DirectionalBarkerBit``, ``SmoothBarkerBit``, composed over all steps and
    chains, or ``ZCDpEvent`` under the filter, and the total variation of tables; with adaptation
    one histogram and ten joint sums over all records before them (Gaussian mechanism, sensitivity 1
    under zero-out and 2 under replace-one), in the same charge. Neither the log
    ratio nor the batch or its size ever leaves. Mini-batches are stated for a public number of
    records (not add/remove).

    **References.** Zhang and Zhang, *DP-Fast MH: Private, Fast, and Accurate Metropolis-Hastings
    for Large-Scale Bayesian Inference* (ICML 2023), without its free acceptance branch, its
    data-dependent constants and its ε per step; Zhang, Cooper, De Sa (2020) for the mini-batches;
    Barker (1965); Ceperley and Dewing (1999); Tjelmeland, *Using all Metropolis–Hastings proposals
    to estimate mean values* (2004).

    **Example**::

        >>> import jax, jax.numpy as jnp, numpyro, numpyro.distributions as dist
        >>> import numpyro_dp as ndp
        >>> def model(x, y=None):
        ...     w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
        ...     with numpyro.plate("people", x.shape[0]):
        ...         numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)
        >>> x = jnp.stack([jnp.ones(500), jnp.linspace(-1, 1, 500)], 1)
        >>> kernel = ndp.DPFastMH(model, step_size=0.05, lipschitz=1.5)
        >>> mcmc = ndp.MCMC(kernel, num_warmup=50, num_samples=50, progress_bar=False)
        >>> mcmc.run(jax.random.key(0), x, x[:, 1] > 0.2)
        >>> mcmc.get_samples()["w"].shape
        (50, 2)
    """

    step_size: float | Callable[[Any], Any] | None = None
    lipschitz: float | None = None
    smoothness: float | None = None
    record_bound: Callable[[dict, dict], Any] | None = None
    max_move: float | None = None
    num_candidates: int = 1
    public_moves: tuple[Move, ...] = ()
    batch_size: float | None = None
    acceptance: str = "barker"
    noise_scale: float | None = None
    rho: float | None = None
    likelihood_power: float | None = 1.0
    preconditioner: Mapping[str, ArrayLike] | None = None

    instead: ClassVar[str] = "step_size (and a bound on one record)"
    apart: ClassVar[tuple[str, ...]] = (
        "record_bound",
        "max_move",
        "batch_size",
        "noise_scale",
        "rho",
        "preconditioner",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.adapts and not callable(self.step_size):
            _validate.positive("step_size", self.step_size)
        _validate.given(_validate.positive, max_move=self.max_move, batch_size=self.batch_size)
        if self.likelihood_power is not None:
            _validate.positive("likelihood_power", self.likelihood_power)
        elif self.privacy is None:
            raise ValueError(
                "likelihood_power=None lets a budget choose the power: give privacy=, or a number"
            )
        _validate.positive_int("num_candidates", self.num_candidates)
        object.__setattr__(self, "public_moves", tuple(self.public_moves))
        if not all(callable(move) for move in self.public_moves):
            raise ValueError("public_moves must be functions from a position to a position")
        if self.adapts:
            self._check_adapted()
        else:
            self._check_bound()
            self._check_test()

    @property
    def adapts(self) -> bool:
        return self.step_size is None

    def _check_adapted(self) -> None:
        self.check_adaptation()
        _validate.given(_validate.positive, lipschitz=self.lipschitz)
        _validate.given(_validate.nonnegative, smoothness=self.smoothness)
        if self.acceptance != "barker" or self.num_candidates != 1:
            other = "without step_size the kernel adapts, by acceptance='barker' on one candidate"
            raise ValueError(f"{other} a step: give {self.instead} for others")
        if self.likelihood_power is None or self.likelihood_power < _LEAST_POWER:
            told = "without step_size the budget chooses the step, as long as the records count"
            raise ValueError(f"{told}: give likelihood_power= a number of at least {_LEAST_POWER}")

    def _check_bound(self) -> None:
        if (self.lipschitz is None) == (self.record_bound is None):
            given = "neither is" if self.lipschitz is None else "both are"
            raise ValueError(
                "give a bound on one record: lipschitz=, on its gradient, or record_bound=, a "
                f"function of two positions, and not both: {given} given, and the charge rests "
                "on one of them"
            )
        _validate.given(_validate.positive_or_infinite, lipschitz=self.lipschitz)
        self._check_smoothness()
        if self.record_bound is None:
            if self.rho is not None:
                raise ValueError("rho= is the total of record_bound=: use privacy= here")
            return
        if not callable(self.record_bound):
            raise ValueError("record_bound must be a function of two positions")
        _validate.given(_validate.positive, rho=self.rho)
        if (self.rho is None) == (self.privacy is None):
            raise ValueError(
                "record_bound= is metered by a zCDP filter, which needs a total: give either "
                "privacy= or rho="
            )
        if self.likelihood_power is None:
            raise ValueError(
                "with record_bound= the budget is the filter's total: give likelihood_power= a "
                "number"
            )

    def _check_smoothness(self) -> None:
        if self.smoothness is None:
            return
        _validate.nonnegative("smoothness", self.smoothness)
        if self.lipschitz is None or self.lipschitz == math.inf or self.max_move is not None:
            raise ValueError(
                "smoothness= goes with a finite lipschitz= and averages the charge over the "
                "direction of a move, however long: drop max_move= (or smoothness=)"
            )

    def _check_test(self) -> None:
        if self.acceptance not in _RULES:
            given = _validate.shown(self.acceptance)
            raise ValueError(f"acceptance must be one of {', '.join(_RULES)}, got {given}")
        if self.num_candidates > 1 and (
            self.acceptance != "barker"
            or self.batch_size is not None
            or self.num_candidates > MOST_CANDIDATES
            or self.lipschitz == math.inf
        ):
            raise ValueError(
                "several candidates are picked by acceptance='barker' on all records, with a "
                f"finite bound, and at most {MOST_CANDIDATES} of them"
            )
        if self.acceptance == "barker":
            if self.noise_scale is not None:
                raise ValueError(
                    "acceptance='barker' takes no noise: drop noise_scale, or use 'noisy_barker'"
                )
            return
        self._check_noise()

    def _check_noise(self) -> None:
        if self.noise_scale is None:
            if self.lipschitz == math.inf:
                raise ValueError("lipschitz=inf switches privacy off: give noise_scale=0 too")
            if self.privacy is None or self.record_bound is not None:
                raise ValueError(
                    f"acceptance={self.acceptance!r} needs noise: give noise_scale=, in nats (1 to "
                    "2 is usual), or privacy= to choose it"
                )
            if self.likelihood_power is None:
                raise ValueError(
                    "privacy= can choose one of noise_scale and likelihood_power: give the other"
                )
            return
        _validate.nonnegative("noise_scale", self.noise_scale)
        if (self.noise_scale == 0) != (self.lipschitz == math.inf) and self.batch_size is None:
            raise ValueError(
                f"acceptance={self.acceptance!r} with noise_scale=0 and lipschitz=inf switches "
                "privacy off, for tests: either one alone has no guarantee; give a positive "
                "noise_scale and a finite bound"
            )
        if self.noise_scale == 0 and self.acceptance != "penalty":
            raise ValueError("noisy_barker without noise is acceptance='barker'")

    def _promised(self, model: PrivateModel, terms: Terms) -> AdaptedForecast:
        adaptation, settings = self._adapted(model, terms)
        chosen = settings.plan.settings
        bound: Any = chosen.lipschitz
        return adapted_forecast(adaptation, settings.relaxation_times, chosen.step_size, bound)

    def _adapted(self, model: PrivateModel, terms: Terms) -> tuple[AdaptationPlan, Settings]:
        require_slopes(model)
        require_even_prior(model, self.instead)
        if dimension(model) > _MOST_DIMENSIONS:
            raise ValueError(f"adaptation locates at most {_MOST_DIMENSIONS} coordinates")
        plan, power = self.adaptation_plan(model, terms), float(self.likelihood_power or 1.0)
        bounds = {"lipschitz": self.lipschitz, "smoothness": self.smoothness, "power": power}
        return plan, adapted_settings(plan, terms, **bounds)

    def _bind(self, model: PrivateModel, terms: Terms) -> BoundMetropolis:
        check_public_moves(model, self.public_moves)
        if self.adapts:
            # Before seconds are spent on a step that nobody takes.
            self.adaptation_plan(model, terms).require_located(self.instead)
            adaptation, settings = self._adapted(model, terms)
            each = self.steps_per_sample
            return bound_adapted(adaptation, settings, each, self.public_moves)
        if self.record_bound is not None:
            try_record_bound(model, self.record_bound)
        private_size = terms.relation == "add_remove"
        directional = self._directional(model)
        self._check_batch(model, private_size)
        plan = planned(self._settings(model, directional, private_size), terms, self.privacy)
        roots = None
        if self.preconditioner is not None:
            metric = by_coordinate(model, "preconditioner", self.preconditioner, default=1.0)
            roots = tuple(math.sqrt(g) for g in metric)
        given: Any = self.step_size
        step = given if callable(given) else float(given)
        return BoundMetropolis(
            private_model=model,
            steps_per_sample=self.steps_per_sample,
            walk=RandomWalk(step, roots, self.max_move),
            plan=plan,
            public_moves=self.public_moves,
        )

    def _settings(
        self, model: PrivateModel, directional: bool, private_size: bool
    ) -> MetropolisSettings:
        step: Any = self.step_size
        return MetropolisSettings(
            acceptance=self.acceptance,
            lipschitz=self.lipschitz,
            smoothness=self.smoothness,
            record_bound=self.record_bound,
            max_move=self.max_move,
            num_candidates=self.num_candidates,
            batch_size=self.batch_size,
            noise_scale=self.noise_scale,
            power=self.likelihood_power,
            rho=self.rho,
            step_size=None if callable(step) else float(step),
            directional=directional,
            dim=dimension(model),
            num_records=model.num_records,
            one_by_one=private_size,
            shards=model.shards,
        )

    def _directional(self, model: PrivateModel) -> bool:
        """Whether the charge is averaged over directions; refuses a charge without a bound."""
        if self.record_bound is not None or self.max_move is not None or self.lipschitz == math.inf:
            return False
        need = (
            "max_move= is missing: lipschitz= bounds a record's term only together with the length "
            "of a move. Without it the charge can be averaged over the direction of the move, for "
        )
        if (
            self.acceptance != "barker"
            or self.num_candidates > 1
            or self.batch_size is not None
            or callable(self.step_size)
            or self.preconditioner is not None
        ):
            raise ValueError(
                need + "acceptance='barker' on all records, with one candidate, a constant "
                "step_size and no preconditioner: give max_move="
            )
        if dimension(model) > _MOST_DIMENSIONS:
            raise ValueError(
                need + f"at most {_MOST_DIMENSIONS} coordinates, in which the rounding of a "
                "record's slope is accounted for: give max_move="
            )
        if self.smoothness is None:
            require_linear(model, need)
        else:
            require_slopes(model)
        return True

    def _check_batch(self, model: PrivateModel, private_size: bool) -> None:
        if self.batch_size is None:
            return
        if private_size:
            raise ValueError(
                "batch_size= needs a public number of records, which relation='add_remove' keeps "
                "private: use full batches, or an accountant with 'zero_out' or 'replace_one'"
            )
        if self.batch_size > model.num_records:
            raise ValueError(
                f"batch_size={self.batch_size:g} is larger than the {model.num_records} records: "
                "give at most that many, or leave it out for full batches"
            )
        if self.lipschitz == math.inf:
            raise ValueError("batch_size= needs a finite bound on a record, privacy or not")
        if self.record_bound is not None and self.acceptance != "barker":
            raise ValueError(
                "mini-batches with record_bound= are charged for acceptance='barker' only: use "
                "lipschitz= and max_move= for the noisy tests"
            )
