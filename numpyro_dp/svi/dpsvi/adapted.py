"""A variational fit that adapts: start, coordinates and scales come from released numbers.

Before its first step a run releases where the posterior lies and coordinates x in which its
covariance is about the identity. There every direction costs the same noise, one clip norm suits
all models and steps of order 1 suit all units. Scales are no matter of gradients: they follow from
the same release, and from what the steps are known to leave of the privacy noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from numpyro_dp._quick_compile import lightly_jitted
from numpyro_dp.accounting import Relation
from numpyro_dp.errors import UnsupportedModelError
from numpyro_dp.execution import arguments
from numpyro_dp.execution.keys import of_default_kind
from numpyro_dp.model.guided.model import VariationalModel
from numpyro_dp.scoring.adaptation import AdaptationPlan, Adapted, require_even_prior
from numpyro_dp.scoring.statistic import unravelled
from numpyro_dp.svi.dpsvi.fit import Carry, Fit, run_all
from numpyro_dp.svi.dpsvi.normal_guide import (
    NORMAL_GUIDES,
    by_name,
    located_by_guide,
    location,
    scale_names,
    spread,
)
from numpyro_dp.svi.dpsvi.plan import AdaptedPlan
from numpyro_dp.svi.dpsvi.settings import INSTEAD, DPSVISettings

# Runs of the optimiser without records, from which its own error follows.
_REHEARSALS = 256
# The clip norm is as loose as leaves noise of this many posterior sds in all steps together, within
# multiples of a record's typical score, √(dim/records).
_NOISE, _TIGHTEST, _LOOSEST = 0.25, 2.0, 10.0
# What such clips were measured to leave of the slope of scores, and by how much that varies.
_SLOPE, _SLOPE_SD = 0.8, 0.3
# Standard deviations of the located posterior, times the root of the dimension, that steps may go.
_FARTHEST = 3.0
# A release counts no less than this part of the information.
_PART = 0.04
_LEFT = (
    "What noise and steps leave of the location's error is {:.2g} standard deviations of the "
    "posterior without them; the scales count it."
)
_MISFIT = (
    "The records' scores vary {:.1f} times as much as the model expects, as from a wrong family or "
    "a few far outcomes; the scales count it."
)
# And those that an optimiser may be off in all where the posterior is known.
_SETTLED = 100.0
_RAN_AWAY = (
    "The steps ended {:.3g} standard deviations from where adaptation located the posterior: they "
    "have run away or are on their way, and the scales are not those of their end. A scale that "
    "may be zero does this, and priors far from the answer: DPNUTS says more of such a model."
)


class Frame(NamedTuple):
    """Coordinates x of the steps; released numbers.

    - **whitening**: W, shape (dim, dim): a step x is a step Wᵀx of the latents in the order of
      their names.
    - **products**, **squares**: sums over the steps so far of the guide's draws times what was
      released there, and of their squares, from which the slope of what is released follows.
    """

    whitening: Float[Array, "dim dim"]
    products: Float[Array, ""]
    squares: Float[Array, ""]

    @classmethod
    def of(cls, whitening: Any) -> Frame:
        dtype = jnp.result_type(float)
        return cls(jnp.asarray(whitening, dtype), jnp.zeros((), dtype), jnp.zeros((), dtype))


@dataclass(frozen=True, eq=False)
class AdaptedFit(Fit):
    """A run whose optimiser is given natural gradients of the guide's location.

    :param adaptation: the release before the steps.
    """

    adaptation: AdaptationPlan = field(kw_only=True)

    @property
    def dim(self) -> int:
        """Unconstrained coordinates."""
        return self.adaptation.release.statistic.dim

    def place(self, params: dict) -> Float[Array, " dim"]:
        """Where the guide is located, in the order of the sites' names."""
        return ravel_pytree(location(self.target.guide, self.target.latents, params))[0]

    def placed(self, params: dict, u: Array) -> dict[str, Any]:
        """Parameters with the guide located at ``u``; the inverse of :meth:`place`."""
        z = unravelled(self.adaptation.model, u)
        return {**params, **by_name(self.target.guide, "loc", z)}

    def gradient(
        self, params: dict, step_key: Any, noise_key: Any, records: list[Array], carry: Carry
    ) -> tuple[dict[str, Any], Frame]:
        (whitening, products, squares), u = carry.frame, self.place(params)
        draw_key, outcome_key = random.split(step_key)
        # Public randomness: where the records are asked, on which no guarantee rests.
        away = random.normal(draw_key, u.shape, u.dtype)
        at = u + away @ whitening
        # The draw's own pull has mean zero: the guide's density takes it off again.
        pull = self.pull(noise_key, outcome_key, at, records, carry)
        frame = Frame(whitening, products + away @ pull, squares + away @ away)
        return self.placed({}, -((pull + away) @ whitening)), frame

    def pull(
        self, noise_key: Any, outcome_key: Any, at: Array, records: list[Array], carry: Carry
    ) -> Float[Array, " dim"]:
        """The noisy gradient of the log posterior in released coordinates."""
        whitening, model = carry.frame.whitening, self.adaptation.model
        statistic = self.adaptation.release.statistic

        def vector(record: list[Array]) -> Float[Array, " dim"]:
            return statistic.score(at, whitening, self.private_sum.clip_norm, outcome_key, record)

        released = self.private_sum.release(noise_key, vector, self.numbered(records), carry.i)
        prior = ravel_pytree(jax.grad(model.log_prior)(unravelled(model, at)))[0]
        return whitening @ prior + released.astype(at.dtype)

    def begun(
        self, key: Any, carry: Carry, records: tuple, progress_bar: bool
    ) -> tuple[Carry, Adapted]:
        """Locate the posterior, and start there; the run must be charged by now."""
        found = self.adaptation.adapted(key, self.numbered(list(records)), progress_bar)
        params = self.optim.get_params(carry.optim_state)
        state = self.optim.init(self.placed(params, jnp.asarray(found.at.mean, float)))
        found = found._replace(whitening=_sharpened(found, self._prior))
        frame = Frame.of(found.whitening)
        return carry._replace(optim_state=state, frame=frame), found

    @property
    def _prior(self) -> Float[np.ndarray, "dim dim"]:
        return self.adaptation.release.prior.precision

    @property
    def _noise_sd(self) -> float:
        """Of one step's gradient in released coordinates; a batch's own noise included."""
        rate = self.private_sum.sampling_rate
        return math.hypot(float(self.private_sum.noise_sd()) / rate, math.sqrt((1 - rate) / rate))

    def scales(
        self, found: Adapted, begin: Carry, last: Carry, num_steps: int, tail: int
    ) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Constrained scale parameters, and what is to be said of them.

        In coordinates x the end of the steps is off the truth by what the records leave open, and
        by what the steps themselves leave. Both hang on how fast scores fall with x, which their
        values at the guide's draws tell.
        """
        whitening, at = found.whitening, found.at
        precision = whitening @ self._prior @ whitening.T
        information = np.eye(self.dim) - precision
        slope = self._slope(last.frame, information, precision)
        misfit = at.misfit if at.misfits else 1.0
        told = slope / _SLOPE * information
        posterior = np.linalg.inv(told + precision)
        open_ = posterior @ (misfit * told + precision) @ posterior
        left = self._left(found, begin, slope * information + precision, num_steps, tail)
        like = unravelled(self.adaptation.model, jnp.zeros(self.dim))
        values = spread(self.target.guide, whitening.T @ (open_ + left) @ whitening, like)
        said = (_LEFT.format(math.sqrt(np.trace(left) / np.trace(open_))),)
        if (gone := self._gone(found, last, tail)) > _FARTHEST * math.sqrt(self.dim):
            said = (_RAN_AWAY.format(gone), *said)
        if at.misfits:
            said += (_MISFIT.format(at.misfit),)
        return values, (*found.notes, *said)

    def _gone(self, found: Adapted, last: Carry, tail: int) -> float:
        """How far the end is from where the posterior was located, in standard deviations."""
        gap = np.asarray(self.place(self.end(last, tail)), np.float64) - found.at.mean
        values, vectors = np.linalg.eigh(found.at.covariance)
        sds = np.sqrt(np.maximum(values, np.finfo(float).tiny))
        return float(np.linalg.norm(vectors.T @ gap / sds))

    def _slope(self, frame: Frame, information: np.ndarray, precision: np.ndarray) -> float:
        """What the clip leaves of the scores' slope, from the steps' draws and from experience."""
        squares, level = float(frame.squares), max(np.trace(information) / self.dim, 0.02)
        seen = (-float(frame.products) / squares - np.trace(precision) / self.dim) / level
        weight = (level / self._noise_sd) ** 2 * squares
        known = _SLOPE_SD**-2
        return max((seen * weight + _SLOPE * known) / (weight + known), _SLOPE / 4)

    def _left(
        self, found: Adapted, begin: Carry, slope: np.ndarray, num_steps: int, tail: int
    ) -> Float[np.ndarray, "dim dim"]:
        """Mean square of what a run's end is off in coordinates x: noise, and a way not gone.

        The optimiser is run without records, where gradients have this slope.
        """
        outward = np.linalg.inv(found.whitening).T
        values, vectors = np.linalg.eigh(outward @ found.at.covariance @ outward.T)
        # What was located is off by as much as it is wider than the posterior.
        root = vectors * np.sqrt(np.maximum(values - 1, 0))
        known = Rehearsal(found.at.mean, outward, slope @ outward, self._noise_sd, root)
        ends = self._rehearsed(found.rest_key, begin, known, num_steps, tail)
        return ends.T @ ends / len(ends)

    def _rehearsed(
        self, key: Any, begin: Carry, known: Rehearsal, num_steps: int, tail: int
    ) -> Float[np.ndarray, "runs dim"]:
        """How far runs of the optimiser on a known posterior end from its middle."""
        fit = _Rehearsed(**{f.name: getattr(self, f.name) for f in fields(self)})
        known = jax.tree.map(lambda each: jnp.asarray(each, jnp.result_type(float)), known)
        keys = random.split(of_default_kind(key), _REHEARSALS)
        # The run's own key of noise is none of its business.
        begin = begin._replace(noise_key=keys[0])
        return np.asarray(_ends(fit, begin, known, keys, num_steps, tail), np.float64)

    def require_settling(self, begin: Carry, num_steps: int, tail: int) -> None:
        """Refuse an optimiser that runs away, while nothing is charged.

        :raises ValueError: on a standard normal posterior, from its middle, it does.
        """
        eye, middle = np.eye(self.dim), np.zeros(self.dim)
        known = Rehearsal(middle, eye, eye, self._noise_sd, 0 * eye)
        ends = self._rehearsed(random.key(0), begin, known, num_steps, tail)
        off = math.sqrt(np.mean(ends**2))
        if not off <= _SETTLED:
            raise ValueError(
                f"this optimiser runs away: on a posterior of sd 1 it ends {off:.2g} sds off. Its "
                "gradients are natural ones, for which step sizes of order 1 are long: take "
                f"smaller ones, or leave out {INSTEAD}. Nothing was charged"
            )


class Rehearsal(NamedTuple):
    """A posterior that is known.

    - **centre**: its mean; **outward**: from there to coordinates x.
    - **pull**: from there to the gradient; **noise_sd**: of a step's.
    - **root**: of the covariance of starts in x.
    """

    centre: Any
    outward: Any
    pull: Any
    noise_sd: Any
    root: Any


@dataclass(frozen=True, eq=False)
class _Rehearsed(AdaptedFit):
    """The run on a :class:`Rehearsal`, its records."""

    def pull(
        self, noise_key: Any, outcome_key: Any, at: Array, records: list[Array], carry: Carry
    ) -> Float[Array, " dim"]:
        known = Rehearsal(*records)
        # No record is near: nothing here is protected.
        noise = known.noise_sd * random.normal(noise_key, at.shape, at.dtype)
        return known.pull @ (known.centre - at) + noise


# As quick as one that takes twice as long to compile: a rehearsal is small.
@partial(lightly_jitted, static_argnums=(0, 5))
def _ends(
    fit: _Rehearsed, begin: Carry, known: Rehearsal, keys: Any, num_steps: Any, tail: int
) -> Float[Array, "runs dim"]:
    """Where runs end, as coordinates x from the middle."""
    params = fit.optim.get_params(begin.optim_state)

    def one(key: Any) -> Float[Array, " dim"]:
        # Public randomness: a rehearsal sees released numbers and no record.
        start_key, draws_key, noise_key = random.split(key, 3)
        start = known.root @ random.normal(start_key, known.centre.shape, known.centre.dtype)
        placed = fit.placed(params, known.centre + start @ begin.frame.whitening)
        carry = begin._replace(
            optim_state=fit.optim.init(placed), draws_key=draws_key, noise_key=noise_key
        )
        last = run_all(fit, carry, tuple(known), num_steps, tail)
        return known.outward @ (fit.place(fit.end(last, tail)) - known.centre)

    return jax.vmap(one)(keys)


def _sharpened(found: Adapted, prior: np.ndarray) -> Float[np.ndarray, "dim dim"]:
    """The whitening of all the information.

    A release shrinks each record's score and information to its bounds, by one factor. Squares
    of scores fall with its square and the information with itself, so their ratio tells it.
    """
    at, whitening = found.at, found.whitening
    part = at.dispersion / at.misfit
    if not at.misfits:
        # Observed and expected squares are two looks at one number.
        part = (part + at.dispersion) / 2
    precision = whitening @ prior @ whitening.T
    values, vectors = np.linalg.eigh(np.eye(len(precision)) - precision)
    information = (vectors * np.maximum(values, 0)) @ vectors.T
    whole = information / np.clip(part, _PART, 1) + precision
    return np.linalg.inv(np.linalg.cholesky(whole)) @ whitening


def refuse_given(init_state: Any, init_params: Any) -> None:
    """Refuse starts of the user's: adaptation gives one.

    :raises ValueError: there is one.
    """
    for name, given in (("init_state", init_state), ("init_params", init_params)):
        if given is not None:
            raise ValueError(
                f"{name}= goes with {INSTEAD}: without them a release before the steps gives "
                "their start. Nothing was charged"
            )


def bind_adapted(
    settings: DPSVISettings,
    target: VariationalModel,
    optim: Any,
    num_steps: int,
    relation: Relation,
) -> tuple[AdaptedFit, AdaptedPlan]:
    """Fix every number of a run that adapts; nothing is charged or touched.

    :raises UnsupportedModelError: guide or model have more to learn than a location, or the
        posterior of such a model cannot be located.
    :raises ValueError: the release before the steps would tell nothing, or steps of one size do
        not suit the prior.
    """
    guide, model = target.guide, target.private_model
    if type(guide) not in NORMAL_GUIDES or model is None or not located_by_guide(target):
        raise UnsupportedModelError(
            "without clip_norm DPSVI adapts, which is for AutoNormal, AutoDiagonalNormal and "
            "AutoMultivariateNormal over a model without parameters or latents of single "
            f"records; this is {type(guide).__name__}: use one of these, or give {INSTEAD}"
        )
    privacy: Any = settings.privacy
    plan = AdaptationPlan(model, privacy, relation, float(settings.adaptation), dense=True)
    plan.require_located(INSTEAD)
    require_even_prior(model, INSTEAD)
    rate = arguments.expected_rate(settings.batch_size, settings.sampling_rate, target.num_records)
    shape: dict[str, Any] = {"sampling_rate": rate, "microbatch_size": settings.microbatch_size}
    noise: Any = plan.rest(num_steps, **shape).noise_multiplier
    clip_norm = _NOISE * rate * math.sqrt(num_steps) / noise
    clip_norm = min(max(clip_norm, _TIGHTEST * plan.typical), _LOOSEST * plan.typical)
    private_sum = plan.rest(num_steps, clip_norm, noise, **shape)
    held = scale_names(guide, target.latents)
    outcomes = plan.release.statistic.outcomes
    fit = AdaptedFit(target, optim, private_sum, 1, held, outcomes, adaptation=plan)
    return fit, AdaptedPlan(private_sum, None, adaptation=plan)
