"""What clipping removes: how far it moves a posterior, on made-up records of the model.

Clipping takes more from long gradients than from short ones. Where they do not balance, as those of
a scale or of a count never do, the place at which clipped gradients sum to zero is another one.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from jax.flatten_util import ravel_pytree
from jaxtyping import Float

from numpyro_dp.families.synthetic_records import LikelihoodGradient, gradients_at, outcomes
from numpyro_dp.mcmc.sgmcmc.integrator import BoundSumKernel, Note
from numpyro_dp.mcmc.sgmcmc.kernel import shapes
from numpyro_dp.model.private_model import PrivateModel

# By definition, see plan's docstring: posterior standard deviations beyond which a place is another
# one, and of how many likely truths that may be so.
_MOVED, _FEW = 1.5, 1 / 4

# Beyond so many coordinates, correlations are left out.
_DENSE = 256
# Of a prior that says nothing.
_LEAST = 1e-12
# Errors of made-up records that are taken off before anything is called a bias.
_DOUBT = 2.0
# A bias is a mean over many records, which stand for all: as many as memory lets.
_MANY_RECORDS, _MANY_NUMBERS = 8192, 1 << 20
# Fewer show no mean; of a run, so many chains are looked at.
_FEW_RECORDS, _CHAINS = 128, 4
# Counts of doctor's visits, of words and of events are about so much more spread than a Poisson's:
# those of the RAND health insurance experiment, given nine inputs, 2.5 times.
CLUMPED = 2.5
CLUMPED_COUNTS = (
    "of counts 2.5 times as spread as the model says, as real ones often are; a NegativeBinomial2 "
    "would say it"
)


class SiteBias(NamedTuple):
    """How far clipping moves a site's worst coordinate, in posterior standard deviations.

    - **site**: its name.
    - **typical**: at the median of truths drawn from the prior.
    - **upper**: at the most unfavourable of them.
    - **up**: whether its (unconstrained) values come out too large.
    - **share**: of the truths, at how many it is moved by more than 1.5.
    - **where**: which these are, such as ``"'sigma' is at most 0.4"``; empty if no latent tells.
    """

    site: str
    typical: float
    upper: float
    up: bool
    share: float = 0.0
    where: str = ""

    @property
    def too_far(self) -> bool:
        """Whether it is moved by more than 1.5 at more than a quarter of the truths."""
        return self.share > _FEW

    def __str__(self) -> str:
        """The sizes, and where they are too large."""
        said = f"by {self.typical:.2g} to {self.upper:.2g}"
        if not 0 < self.share < 1:
            return said
        where = f", where {self.where}" if self.where else ""
        return f"{said} (above {_MOVED:g} at {self.share:.0%} of likely truths{where})"


@dataclass(frozen=True, eq=False)
class Bias:
    """Made-up records whose gradients are clipped, and how far that moves their posterior.

    :param scores: gradients where their outcomes came from, shape (draws, records, dim).
    :param pull: gradients of the log prior there, shape (draws, dim).
    :param precision: of the prior in each coordinate, shape (draws, dim) or (dim,).
    :param sites: name of each coordinate's site.
    :param num_records: how many records they stand for, times the power of the likelihood.
    :param weights: of the coordinates in the clip.
    :param stretch: how many times as far from what the model expects as its own the records are.
    :param truths: values of latents that are one number, shape (draws,), by site.

    The shift is one scoring step from the truth, that of the clipped gradients less that of the
    others: with G the sum of the gradients g, w the factor by which each is clipped, F = Σggᵀ and
    F_w = Σw·ggᵀ the information in both (E[clip(g)gᵀ] is minus the derivative of E[clip(g)], by
    the score identity), P the prior's precision and p its pull at the truth, it is
    (F_w + P)⁻¹(Σwg + p) − (F + P)⁻¹(G + p). What is random in G is taken off in this way, but for
    what clipping makes of it; and twice the standard error of that is taken off too.
    """

    scores: Float[np.ndarray, "draws records dim"]
    pull: Float[np.ndarray, "draws dim"]
    precision: Float[np.ndarray, "*draws dim"]
    sites: tuple[str, ...]
    num_records: float
    weights: Float[np.ndarray, " dim"]
    stretch: float = 1.0
    truths: Mapping[str, np.ndarray] = field(default_factory=dict)

    def of_sites(self, clip_norm: float) -> tuple[SiteBias, ...]:
        """The bias of every site at this clip, the largest first."""
        shifts = self.shifts(clip_norm)
        found = []
        for site in dict.fromkeys(self.sites):
            own = shifts[:, [name == site for name in self.sites]]
            worst = np.abs(own).max(1)
            up = bool(own[np.arange(len(own)), np.abs(own).argmax(1)].sum() > 0)
            far = worst > _MOVED
            sizes = float(np.median(worst)), float(worst.max())
            found.append(SiteBias(site, *sizes, up, float(far.mean()), self._where(far)))
        return tuple(sorted(found, key=lambda each: (-each.share, -each.upper)))

    def _where(self, far: np.ndarray) -> str:
        """Which of the truths these are, if one number of theirs tells them from the others."""
        if far.all() or not far.any():
            return ""
        for site, values in self.truths.items():
            if values[far].max() < values[~far].min():
                return f"{site!r} is at most {values[far].max():.2g}"
            if values[far].min() > values[~far].max():
                return f"{site!r} is at least {values[far].min():.2g}"
        return ""

    def shifts(self, clip_norm: float) -> Float[np.ndarray, "draws dim"]:
        """How far clipping surely moves each coordinate, in posterior standard deviations."""
        mean, error = self._moved(clip_norm)
        return np.copysign(np.maximum(np.abs(mean) - _DOUBT * error, 0), mean)

    def _moved(self, clip_norm: float) -> tuple[np.ndarray, np.ndarray]:
        """How far clipping moves each coordinate, and the standard error of that."""
        factor = np.minimum(1, clip_norm / np.maximum(self._norms, 1e-30))
        one, two = (self._moment(factor**power) for power in (1, 2))
        here, there = self._inverses, self._inverse(one)
        each = self.stretch * self.num_records / self.scores.shape[1]
        clipped = (factor[..., None] * self._finite).sum(1)
        mean = each * (_times(there, clipped) - _times(here, self._finite.sum(1)))
        # Less information leaves more to the prior.
        mean += _times(there, self.pull) - _times(here, self.pull)
        # What one record adds is ((F_w + P)⁻¹w − (F + P)⁻¹)g.
        square = _squared(there, two) - 2 * _crossed(there, one, here) + _squared(here, self._whole)
        error = each * np.sqrt(np.maximum(square, 0))
        width = np.sqrt(self._variances)
        return mean / width, error / width

    def balanced(self, noise_per_clip: float, least: float = 0.0) -> float:
        """The clip norm at which what clipping moves and what noise shakes are least together.

        :param noise_per_clip: standard deviation of the noise that is left in the gradient when all
            steps have been averaged, over the clip norm.
        :param least: clip norms below it are not asked for.
        """
        clips = np.maximum(self._clips(), least)
        return float(clips[np.argmin([self._error(clip, noise_per_clip) for clip in clips])])

    def _error(self, clip: float, noise_per_clip: float) -> float:
        noise = (clip * noise_per_clip) ** 2 * self._variances
        # Nothing is taken off here: a clip whose bias is in doubt is no better for it.
        worst = (self._moved(clip)[0] ** 2 + noise).max(1)
        return float(np.median(worst))

    def _clips(self) -> np.ndarray:
        norms = self._norms[self._norms > 0]
        if not norms.size:
            return np.ones(1)
        return np.geomspace(np.median(norms) / 4, np.quantile(norms, 0.9999), 12)

    @cached_property
    def _finite(self) -> np.ndarray:
        known = np.isfinite(self.scores).all(-1, keepdims=True)
        return np.where(known, self.scores, 0).astype(float)

    @cached_property
    def _norms(self) -> np.ndarray:
        return self.stretch * np.linalg.norm(self._finite * self.weights, axis=-1)

    @cached_property
    def _variances(self) -> np.ndarray:
        """Of the posterior without clipping, shape (draws, dim)."""
        inverses = self._inverses
        return inverses if inverses.ndim == 2 else np.diagonal(inverses, axis1=1, axis2=2)

    @cached_property
    def _inverses(self) -> np.ndarray:
        return self._inverse(self._whole)

    @cached_property
    def _whole(self) -> np.ndarray:
        return self._moment(np.ones_like(self._norms))

    def _moment(self, factor: np.ndarray) -> np.ndarray:
        """Σ factor·ggᵀ of every draw; its diagonal where there are many coordinates."""
        rows = self._finite
        if rows.shape[2] > _DENSE:
            return (factor[..., None] * rows**2).sum(1)
        return np.swapaxes(factor[..., None] * rows, 1, 2) @ rows

    def _inverse(self, moment: np.ndarray) -> np.ndarray:
        """Covariance of the posterior of records with this sum of squared gradients."""
        information = self.num_records / self.scores.shape[1] * moment
        if moment.ndim == 2:
            return 1 / (information + self.precision)
        return np.linalg.inv(information + self.precision[..., None] * np.eye(moment.shape[1]))


def _times(inverse: np.ndarray, vector: np.ndarray) -> np.ndarray:
    return inverse * vector if inverse.ndim == 2 else (inverse @ vector[..., None])[..., 0]


def _crossed(left: np.ndarray, moment: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The diagonal of left·moment·right."""
    if left.ndim == 2:
        return left * moment * right
    return np.einsum("aij,aji->ai", left @ moment, right)


def _squared(inverse: np.ndarray, moment: np.ndarray) -> np.ndarray:
    return _crossed(inverse, moment, inverse)


def many_records(dim: int) -> int:
    """How many records are made up for a bias of so many coordinates."""
    return min(_MANY_RECORDS, _MANY_NUMBERS // dim)


def clip_weights(kernel: BoundSumKernel) -> Float[np.ndarray, "*dim"]:
    """Weights of a gradient's coordinates in its clip, in coordinates over the root of the metric.

    In those all noise is alike.
    """
    weights = getattr(kernel, "clip_weights", kernel.private_sum.scale)
    return np.asarray(1.0 if weights is None else weights) / metric_root(kernel)


def metric_root(kernel: BoundSumKernel) -> Float[np.ndarray, "*dim"]:
    """Root of the preconditioner."""
    return np.sqrt(np.asarray(1.0 if kernel.metric is None else kernel.metric, float))


def clipping_notes(kernel: BoundSumKernel, last: Any) -> tuple[Note, ...]:
    """What a report says of the clip of a run; nothing, or one note.

    Records are made up as the model would draw them at the last positions: what clipping moves them
    by is what it moves a posterior by that lies there. Of outcomes that are not arguments as they
    are, and of more than 8,192 coordinates, nothing is said.

    :param kernel: the bound kernel.
    :param last: the last state.

    **Privacy.** A function of released positions and public numbers.
    """
    mechanism = kernel.private_sum
    z = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[np.ndim(last.i) :]), last.z)
    bias = None
    # The run is paid for: a note that cannot be had, as of an outcome that has no sampler, must not
    # take its draws.
    with contextlib.suppress(Exception):
        bias = _of_run(kernel, jax.tree.map(lambda leaf: leaf[:_CHAINS], z))
    if bias is None:
        return ()
    worst = bias.of_sites(mechanism.clip_norm)[0]
    if not worst.share > 1 / 2:
        return ()
    clumped = f" ({CLUMPED_COUNTS})" if bias.stretch > 1 else ""
    far = f"about {worst.typical:.2g}" if worst.typical < 100 else "more than 100"
    towards = "upwards" if worst.up else "downwards"
    text = (
        f"Clipping moves {worst.site!r} {towards} by {far} posterior sds, if the records are such "
        f"as the model makes at the last position of the chain{clumped}. A larger clip_norm, or "
        "one by site, moves it less: ndp.plan names one that balances that against the noise."
    )
    return (Note(text, f"are moved by clipping ({worst.site!r})", first=True),)


def _of_run(kernel: BoundSumKernel, z: dict[str, Any]) -> Bias | None:
    """The bias at some positions, shape (draws, ...) by site, where it can be told."""
    mechanism, model = kernel.private_sum, kernel.private_model
    dim = sum(leaf[0].size for leaf in z.values())
    count = many_records(dim)
    if not mechanism.is_private or count < _FEW_RECORDS:
        return None
    inputs = model.dummy_records(random.key(0), count)
    made = outcomes(model, jax.tree.map(lambda leaf: leaf[0], z), inputs)
    if not made.follow:
        return None
    scores, _ = gradients_at(model, LikelihoodGradient(model), inputs, z, random.key(1))
    pull, curvature = _prior_at(model, z)
    root = metric_root(kernel)
    return Bias(
        np.asarray(scores) * root,
        np.asarray(pull, float) * root,
        np.maximum(-np.asarray(curvature, float) * root**2, _LEAST),
        tuple(name for name, shape in shapes(model).items() for _ in range(math.prod(shape))),
        kernel.likelihood_power * (mechanism.max_records or mechanism.num_records),
        clip_weights(kernel) * np.ones(dim),
        CLUMPED if made.bare_counts else 1.0,
    )


@partial(jax.jit, static_argnums=0)
def _prior_at(model: PrivateModel, z: dict[str, Any]) -> tuple[Any, Any]:
    """Gradient of the log prior and the diagonal of its second derivatives, shape (draws, dim).

    Of many coordinates, the sums of their rows.
    """

    def one(z: dict[str, Any]) -> tuple[Any, Any]:
        position, unravel = ravel_pytree(z)
        pull = jax.grad(lambda position: model.log_prior(unravel(position)))
        if position.size <= _DENSE:
            return pull(position), jnp.diagonal(jax.jacfwd(pull)(position))
        return jax.jvp(pull, (position,), (jnp.ones_like(position),))

    return jax.vmap(one)(z)
