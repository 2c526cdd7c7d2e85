"""Chains that begin with adaptation: their arguments, starts and states, and what they promise.

Shared by the gradient kernels and the Metropolis ones, which move in the released coordinates each
in its own way.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from numpyro_dp import _validate
from numpyro_dp.accounting.events import DpEvent
from numpyro_dp.mcmc.first import Begun
from numpyro_dp.mcmc.kernel import PrivateKernel, Terms
from numpyro_dp.model.private_model import PrivateModel, private_model
from numpyro_dp.scoring import adaptation
from numpyro_dp.scoring.adaptation import AdaptationPlan
from numpyro_dp.scoring.forecast import Forecast, promised
from numpyro_dp.scoring.release import refuse_private_size
from numpyro_dp.scoring.statistic import unravelled

RELEASED = f"{adaptation.RELEASED} (adapt_state)"


class AdaptState(NamedTuple):
    """What a chain was given before its first step; released values.

    - **mean**: where the posterior was located, unconstrained, shape (dim,).
    - **mass_matrix_sqrt_inv**: W, shape (dim, dim): a step of size 1 in the chain's coordinates x
      is a step Wᵀx of the unconstrained ones, flat in the order of the site names. WᵀW is about
      the posterior's covariance.
    """

    mean: Float[Array, "... dim"]
    mass_matrix_sqrt_inv: Float[Array, "... dim dim"]


class Placed(NamedTuple):
    """A starting position **z** and the **adapt_state** that goes with it."""

    z: dict[str, Array]
    adapt_state: AdaptState


def placed(z: Any) -> Placed:
    """A start as it is; bare positions stand for the shapes of one."""
    if isinstance(z, Placed):
        return z
    position = ravel_pytree(z)[0]
    return Placed(z, AdaptState(position, jnp.eye(position.size, dtype=position.dtype)))


def require_adapted(state: Any) -> None:
    """Refuse to go on from a state that has no coordinates.

    :raises ValueError: it was left by a kernel that did not adapt.
    """
    if getattr(state, "adapt_state", None) is None:
        raise ValueError(
            "post_warmup_state was left by a kernel that did not adapt: give this one the "
            "settings of that run, or begin anew"
        )


def require_plain(state: Any) -> None:
    """Refuse to go on, in coordinates of the user's, from a state that has its own.

    :raises ValueError: it was left by a kernel that adapted.
    """
    if getattr(state, "adapt_state", None) is not None:
        raise ValueError(
            "post_warmup_state was left by a kernel that adapted, whose steps have other "
            "units: go on with that kernel, or begin anew"
        )


@dataclass(frozen=True)
class Adaptation:
    """The release, with the chains that it starts; see :class:`~numpyro_dp.mcmc.first.First`."""

    plan: AdaptationPlan
    num_chains: int

    label: ClassVar[str] = ""
    conditions: ClassVar[tuple[str, ...]] = ()

    @property
    def event(self) -> DpEvent:
        return self.plan.event

    @property
    def steps(self) -> int:
        return self.plan.steps

    @property
    def total_variation(self) -> float:
        return self.plan.total_variation

    def begin(
        self, rng_key: Any, start: Any, records: tuple, given: bool, progress_bar: bool
    ) -> Begun:
        """Locate the posterior; chains start at draws from where it was found."""
        at, whitening, start_key, notes = self.plan.adapted(rng_key, list(records), progress_bar)
        dtype = jnp.result_type(float)
        state = AdaptState(jnp.asarray(at.mean, dtype), jnp.asarray(whitening, dtype))
        # A covariance of numbers that no records could give may have no Cholesky root: the run is
        # paid for by now.
        values, vectors = np.linalg.eigh(np.nan_to_num(at.covariance))
        root = jnp.asarray(vectors * np.sqrt(np.maximum(values, 0)), dtype)

        def place(key: Any) -> dict[str, Array]:
            # Public randomness: what is drawn follows from released numbers.
            away = root @ random.normal(key, state.mean.shape, dtype)
            return unravelled(self.plan.model, state.mean + away)

        several = self.num_chains > 1
        if not given:
            keys = random.split(start_key, self.num_chains) if several else start_key
            start = jax.vmap(place)(keys) if several else place(keys)
        if several:
            state = jax.tree.map(lambda x: jnp.stack([x] * self.num_chains), state)
        return Begun(Placed(start, state), notes)


class AdaptedForecast(NamedTuple):
    """What a run of an adapted kernel would be, from public numbers; ``print`` it.

    - **relaxation_times**: of every direction, in one chain; below about ten the draws show the
      chain's way rather than a posterior.
    - **step_size**: in released coordinates, in which the posterior's sds are 1.
    - **clip_norm**: bound on a record's score in these (of a Metropolis kernel: ``lipschitz``).
    - **located**: forecast of the release that gives these coordinates.
    - **released**: what :class:`~numpyro_dp.DPNUTS` would promise at the same ε.

    **Privacy.** A function of shapes, public values and the model: free.
    """

    relaxation_times: float
    step_size: Any
    clip_norm: float
    located: Forecast
    released: Forecast | None

    def __str__(self) -> str:
        step = "a schedule" if callable(self.step_size) else f"{self.step_size:g}"
        at, other = self.located, self.released
        lines = [
            f"adapts in {at.num_rounds} rounds of scores and information (κ = {at.signal:.3g}, of "
            f"the information {at.shape:.3g}; {at.dim} coordinates, {at.num_records} records)",
            f"  then step size {step}, clip norm {self.clip_norm:.3g} where the posterior's sds "
            f"are 1: a chain spans about {self.relaxation_times:.2g} relaxation times (ten make a "
            "posterior)",
        ]
        if at.verdict == "not":
            lines[1:] = [f"  refused, that tells next to nothing: {at.remedy}"]
        if other is not None:
            lines.append(f"  DPNUTS at the same ε: {other.promise}")
        return "\n".join(lines)


def adapted_forecast(
    plan: AdaptationPlan, relaxation_times: float, step_size: Any, clip_norm: float
) -> AdaptedForecast:
    """What these settings promise."""
    budget = plan.privacy
    released = promised(plan.model, budget.epsilon, budget.delta, plan.relation)
    expected = plan.release.forecast
    return AdaptedForecast(relaxation_times, step_size, clip_norm, expected, released)


@dataclass(frozen=True, kw_only=True, eq=False)
class AdaptingKernel(PrivateKernel):
    """Arguments of the kernels that may adapt."""

    adaptation: float = 0.25
    dense_mass: bool = True

    # The arguments that switch adaptation off, in words, and those that have no meaning with it.
    instead: ClassVar[str]
    apart: ClassVar[tuple[str, ...]]

    @property
    @abstractmethod
    def adapts(self) -> bool:
        """Whether a release before the chains gives what was left open."""

    @abstractmethod
    def _promised(self, model: PrivateModel, terms: Terms) -> AdaptedForecast:
        """What a run that adapts would be."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.adapts and (self.adaptation != 0.25 or self.dense_mass is not True):
            raise ValueError(
                f"adaptation= and dense_mass= have no meaning with {self.instead}: leave them out"
            )

    def check_adaptation(self) -> None:
        """Refuse options that have no meaning where the kernel adapts.

        :raises ValueError: for a share out of range, no budget, or an option that goes without.
        """
        if not 0 < _validate.positive("adaptation", self.adaptation) < 1:
            raise ValueError("adaptation must lie between 0 and 1: chains need a share too")
        if self.privacy is None:
            raise ValueError(
                f"without {self.instead} the kernel adapts, which takes a share of a budget: give "
                "privacy=Budget(epsilon, delta), or settings of your own"
            )
        for name in (*self.apart, "init_kernel", "init_strategy", "num_steps"):
            if getattr(self, name) is not None:
                raise ValueError(
                    f"{name}= goes with {self.instead}: without them a release before the chains "
                    "gives their start and metric, in numpyro_dp.MCMC"
                )

    def adaptation_plan(self, model: PrivateModel, terms: Terms) -> AdaptationPlan:
        """The release before the chains.

        :raises UnsupportedModelError: under a relation that has none.
        """
        refuse_private_size(terms.relation)
        privacy: Any = self.privacy
        shares = privacy, terms.relation, float(self.adaptation), bool(self.dense_mass)
        return AdaptationPlan(model, *shares)

    def forecast(
        self, *args: Any, num_steps: int, num_chains: int = 1, **kwargs: Any
    ) -> AdaptedForecast:
        """What a run that adapts would be, from public numbers; costs nothing. ``print`` it.

        :param args: arguments of the model; only their shapes are used.
        :param num_steps: private steps of one chain, warm-up included.
        :param num_chains: chains.
        :param kwargs: keyword arguments of the model.
        :returns: relaxation times, step size and clip norm, what the release before the chains
            will tell, and what :class:`~numpyro_dp.DPNUTS` would promise at the same ε.
        :raises ValueError: for a kernel with settings of its own, whose forecast is
            :func:`~numpyro_dp.plan`; and for a prior that steps of one size do not suit.
        :raises UnsupportedModelError: the posterior of such a model cannot be located.

        **Privacy.** Nothing is charged, and no record is read.
        """
        if not self.adapts:
            raise ValueError("this kernel has its settings: numpyro_dp.plan tells what they do")
        refuse_private_size(self.relation)
        model = private_model(self.user_model, args, kwargs, data_plate=self.data_plate)
        each = _validate.positive_int("num_steps", num_steps)
        num_chains = _validate.positive_int("num_chains", num_chains)
        terms = Terms(each * num_chains, num_chains, self.relation, self.delta)
        return self._promised(model, terms)
