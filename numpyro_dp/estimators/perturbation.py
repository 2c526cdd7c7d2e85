"""What objective and output perturbation share: charge, solve from a public start, release."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random
from jaxtyping import Array

from numpyro_dp import _validate
from numpyro_dp.accounting import Accountant, Budget, calibrate
from numpyro_dp.accounting.events import DpEvent
from numpyro_dp.accounting.report.facts import RunFacts
from numpyro_dp.estimators.noise import Tilt
from numpyro_dp.estimators.problem import Problem, problem
from numpyro_dp.estimators.release import LatticeOutput
from numpyro_dp.estimators.result import EstimatorResult
from numpyro_dp.estimators.solver import (
    Design,
    arithmetic_tolerance,
    design,
    minimise,
    num_iterations,
)
from numpyro_dp.execution.account import Account, ChargedRun
from numpyro_dp.execution.arguments import check_noise
from numpyro_dp.execution.facts import assumed_public
from numpyro_dp.execution.keys import as_typed_keys
from numpyro_dp.families.glm import GLM, GaussianPrior, gaussian_prior, recognise
from numpyro_dp.families.losses import Loss, Row
from numpyro_dp.families.predictor import flat_position
from numpyro_dp.mechanisms._checks import refuse_several_processes
from numpyro_dp.model.private_model import PrivateModel, private_model

_ARITHMETIC = (
    "float64 on the host with every rounding bounded and counted into the gradient tolerance; "
    "released as integers with floored Gaussian noise from an exact table"
)
# Leaves most of a tolerance to the solver where the machine needs some of it.
_HEADROOM = 4.0
_RELATIVE_TOLERANCE = 1e-6


class PerturbationPlan(NamedTuple):
    """Everything fixed before the data is touched.

    - **problem**: the constants of what is solved.
    - **iterations**: steps of the solver.
    - **tilt**: law of the random linear term, ``None`` without one.
    - **output**: noise on the result.
    - **event**: what is charged.
    - **total_variation**: between the drawn noise and its law, a part of ``event``.
    - **contribution**: bound on one record's part, in the units of the noise.
    - **noise_multiplier**: noise over ``contribution``.
    """

    problem: Problem
    iterations: int
    tilt: Tilt | None
    output: LatticeOutput
    event: DpEvent
    total_variation: float
    contribution: float
    noise_multiplier: float


@dataclass(frozen=True, kw_only=True, eq=False)
class PerturbationEstimator:
    """Arguments that both estimators take; see :class:`~numpyro_dp.ObjectivePerturbation`."""

    model: Callable[..., Any] = field(kw_only=False, repr=False)
    row_norm: float
    privacy: Budget | None = None
    noise_multiplier: float | None = None
    accountant: Accountant | None = None
    regularisation: float | None = None
    gradient_tolerance: float | None = None
    max_iterations: int = 20_000
    huber: float | None = None
    max_trials: int | None = None
    predictor_bounds: tuple[float, float] | None = None
    max_count: float | None = None
    max_records: int | None = None
    data_plate: str | None = None
    secure: bool = True
    _account: Account = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _validate.own_numbers(self)
        if not callable(self.model):
            given = _validate.shown(self.model)
            raise ValueError(f"model must be a NumPyro model (a callable), got {given}")
        check_noise(self.privacy, self.noise_multiplier)
        account = Account(type(self).__name__, self.accountant, secure=self.secure)
        object.__setattr__(self, "_account", account)
        for name in ("row_norm", "regularisation", "gradient_tolerance", "noise_multiplier"):
            self._check_public(name)
        _validate.positive_int("max_iterations", self.max_iterations)
        _validate.given(_validate.positive_int, max_records=self.max_records)

    def _check_public(self, name: str) -> None:
        value = getattr(self, name)
        if callable(value):
            raise ValueError(
                f"{name} must be a public number: one that is computed from the data would be a "
                "release that nothing accounts for"
            )
        if name == "row_norm" and isinstance(value, float) and value == math.inf:
            raise ValueError(
                "row_norm must be finite: without a bound on ‖x‖ one record could move the "
                "result by any amount; give a public bound, to which longer rows are projected"
            )
        check = _validate.nonnegative if name == "regularisation" else _validate.positive
        if value is not None:
            check(name, value)

    @property
    def delta(self) -> float:
        """δ at which ε is stated: that of ``privacy``, else the ledger's, else 1e-6."""
        return self._account.delta(self.privacy)

    @abstractmethod
    def _ridge(self, loss: Loss, prior: GaussianPrior, num_records: int) -> float:
        """Curvature of the ridge that is added to the prior where none is given."""

    @abstractmethod
    def _plan(self, stated: Problem) -> PerturbationPlan:
        """Fix noise, solver and event for a problem without a linear term."""

    @abstractmethod
    def _mechanism(self) -> str:
        """The mechanism in words."""

    def run(self, rng_key: Any, *args: Any, **kwargs: Any) -> EstimatorResult:
        """Charge the accountant, then solve and release.

        :param rng_key: a JAX key. With ``secure=True`` it governs nothing: the solver starts at
            the prior's mode, and all noise comes from the operating system.
        :param args: arguments of the model; arrays whose leading axis is the private plate are
            records, everything else is public or must be wrapped in ``numpyro_dp.public``.
        :param kwargs: keyword arguments of the model.
        :returns: the estimate, with its privacy report.
        :raises BudgetExceededError: the accountant refuses; nothing was charged.
        :raises UnsupportedModelError: the model cannot be split, or is no generalised linear model
            with a normal prior.
        :raises ValueError: an argument is out of range, or the guarantee would need more
            iterations than ``max_iterations``.
        """
        called = f"{type(self).__name__}.run"
        # The solver has a copy of all records.
        refuse_several_processes(called)
        with self._account.opened(called, rng_key, args, kwargs) as run:
            keys = as_typed_keys(rng_key, 1)
            model, glm, plan, records = run.prepared(self.prepared, args, kwargs)
            point = self._charge_and_solve(run, keys, glm, plan, records)
        z = flat_position(model)[0](jnp.asarray(point))
        constrained = model.constrain(z)
        return EstimatorResult(
            params={f"{name}_auto_loc": value for name, value in constrained.items()},
            sites={**constrained, **model.deterministics(z)},
            privacy=self._account.report(self._facts(model, plan), delta=self.delta),
        )

    def _charge_and_solve(
        self, run: ChargedRun, keys: Any, glm: GLM, plan: PerturbationPlan, records: list[Array]
    ) -> np.ndarray:
        paid = {"steps": 1, "total_variation": plan.total_variation}
        key = run.charge(plan.event, keys, of=plan, **paid)
        return _solve_and_release(plan, self.designed(glm, plan, records), key)

    def designed(self, glm: GLM, plan: PerturbationPlan, records: list[Array]) -> Design:
        """The rows of all records as the solver reads them; private."""
        rows = _rows(glm, plan.problem.row_norm, self._account.private_size, records)
        return design(plan.problem, rows)

    def prepared(self, args: tuple, kwargs: dict) -> tuple:
        """Split the model and fix every number: what comes before the charge."""
        private_size = self._account.private_size
        model = private_model(
            self.model, args, kwargs, data_plate=self.data_plate, private_size=private_size
        )
        return model, *self.plan(model), model.records(args, kwargs)

    def plan(self, model: PrivateModel) -> tuple[GLM, PerturbationPlan]:
        """Recognise a split model and fix every number; nothing is charged or touched."""
        glm = recognise(model)
        loss = glm.loss(
            huber=self.huber,
            max_trials=self.max_trials,
            predictor_bounds=self.predictor_bounds,
            max_count=self.max_count,
        )
        size, ridge = self._size(model), self.regularisation
        if ridge is None:
            ridge = self._ridge(loss, gaussian_prior(model), size)
        stated = problem(
            glm, loss, num_records=size, row_norm=self.row_norm, regularisation=float(ridge)
        )
        return glm, self._plan(stated)

    def _size(self, model: PrivateModel) -> int:
        if not self._account.private_size:
            return model.num_records
        if self.max_records is None or self.max_records < model.num_records:
            raise ValueError(
                "under relation='add_remove' the number of records is private: give max_records=, "
                "a public upper bound on it"
            )
        return self.max_records

    def _multiplier(self, event: Callable[[float], DpEvent]) -> float:
        """The noise multiplier, as given or calibrated."""
        if self.noise_multiplier is not None:
            return float(self.noise_multiplier)
        if self.privacy is None:
            raise ValueError("give privacy= or noise_multiplier=")
        return calibrate(event, self.privacy, self._account.relation)

    def _solver(self, tilted: Problem) -> tuple[float, int]:
        """Gradient tolerance, as given or the least that float64 supports well, and the count."""
        tolerance = self.gradient_tolerance
        if tolerance is None:
            by_machine = _HEADROOM * arithmetic_tolerance(tilted)
            tolerance = max(_RELATIVE_TOLERANCE * tilted.lipschitz, by_machine)
        if not math.isfinite(tolerance):
            raise ValueError(
                "the problem is so ill-conditioned that float64 guarantees no accuracy at all: "
                "use a larger regularisation or a smaller row_norm"
            )
        count = num_iterations(tilted, tolerance)
        if count > self.max_iterations:
            raise ValueError(
                f"a gradient norm of {tolerance:.3g} for every data set takes {count} iterations, "
                f"more than max_iterations={self.max_iterations}: allow more, or use a larger "
                "regularisation, gradient_tolerance or a smaller row_norm"
            )
        return tolerance, count

    def _facts(self, model: PrivateModel, plan: PerturbationPlan) -> RunFacts:
        size = None if self._account.private_size else model.num_records
        options = "the model, its priors and every option of the estimator"
        return RunFacts(
            mechanism=self._mechanism(),
            sampler="every record",
            sampling_rate=1.0,
            clip_norm=plan.contribution,
            noise_multiplier=plan.noise_multiplier,
            released=("the noisy minimiser",),
            arithmetic=_ARITHMETIC,
            unit=model.unit,
            num_records=size,
            assumed_public=assumed_public(size, options, arguments=model.public_inputs),
            notes=_notes(plan),
        )


def _notes(plan: PerturbationPlan) -> tuple[str, ...]:
    stated = plan.problem
    notes: tuple[str, ...] = (
        f"Rows of the design longer than {stated.row_norm:g} were projected to that norm, the "
        "intercept's column included.",
        f"The solver took {plan.iterations} iterations, a number fixed in advance that guarantees "
        "its accuracy for every data set.",
    )
    # Compared as curvatures: a flat prior is wider than any noise.
    if plan.output.noise_sd**2 * (stated.strong_convexity - stated.ridge) > 1:
        notes += (
            "The noise is wider than the model's prior: the estimate says next to nothing. A "
            "larger regularisation or budget, or ObjectivePerturbation, would help.",
        )
    if stated.ridge == 0:
        return notes
    return (
        *notes,
        f"A ridge of curvature {stated.ridge:.4g} around the prior's mode was added: the result "
        "is the MAP estimate of a model with a tighter prior.",
    )


def _solve_and_release(plan: PerturbationPlan, rows: Design, key: Any) -> np.ndarray:
    stated = plan.problem
    tilt_key, output_key = random.split(key)
    tilt = np.zeros(stated.dim)
    if plan.tilt is not None:
        tilt = plan.tilt.draw(tilt_key, stated.dim)
    found = minimise(stated, rows, tilt, plan.iterations)
    return plan.output.release(output_key, found, stated.start)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _rows(glm: GLM, row_norm: float, one_by_one: bool, records: list[Array]) -> Row:
    if not one_by_one:
        return glm.rows(records, row_norm)
    # Where a record may be absent, later ones move, and vector instructions may round them
    # differently in another place.
    return lax.map(
        lambda record: glm.clipped(record, row_norm), [leaf[:, None] for leaf in records]
    )
