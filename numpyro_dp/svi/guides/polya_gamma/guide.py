"""``PolyaGammaGuide``: logistic regressions with a normal posterior, from few noisy sums."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array

from numpyro_dp import _validate
from numpyro_dp.errors import UnsupportedModelError
from numpyro_dp.model.guided.model import Outline
from numpyro_dp.svi.guides.polya_gamma.base import (
    PolyaGammaSchedule,
    PolyaGammaSettings,
    least_resolved,
    resolution,
)
from numpyro_dp.svi.guides.polya_gamma.designs import (
    DEFAULT_STEPS,
    LEAST_STEPS,
    DiagonalScores,
    FullScores,
    PaperSums,
)
from numpyro_dp.svi.guides.polya_gamma.recognise import (
    Latents,
    Regression,
    cut,
    read_latents,
    read_regression,
)
from numpyro_dp.svi.vips.statistics import StatisticsGuide

_DESIGNS = ("full", "diagonal", "paper")


class PolyaGammaGuide(StatisticsGuide):
    """A normal posterior of a logistic regression's coefficients, by Pólya–Gamma augmentation.

    For Bernoulli, Binomial and NegativeBinomial outcomes (known number of failures) with affine
    logits under normal priors. A coefficient's precision may have a Gamma prior, one for each
    coefficient (automatic relevance determination) or shared, as a variance an InverseGamma prior:
    its variational law is computed from that of the coefficients, one step away from the data.

    The sum of ``E[ω] x x'``, which the augmented update needs, is at most a quarter of the sum of
    ``x x'``; what is left of the update is the sum of scores ``(y − σ(x'm)) x``. So the designs
    release vectors often and a matrix seldom:

    - ``"full"``: a bound on the curvature once, three rounds of scores, the curvature at the point
      reached once, five more rounds; the posterior precision knows how noisy the scores were.
      Ten releases. For intervals, where the budget resolves the matrix: directions that lie below
      its noise have rough ones, and the report names them.
    - ``"diagonal"``: the bound's diagonal once and fifteen rounds of scores; a mean-field
      posterior, too narrow where outcomes are far from even odds, since the bound stands for the
      curvature. Where the budget does not resolve the matrix.
    - ``"paper"``: both expected statistics in every round, averaged; for comparison.

    :param model: a NumPyro model in the family.
    :param row_norm: L2 bound on most rows of inputs, without the intercept. Longer ones count in
        the centre as if cut to it; scores are bounded by themselves.
    :param centred_norm: the same after centring; default: learnt in the centring release, which has
        one number more for it.
    :param design: see above; ``None`` chooses ``"full"`` where the noise of a curvature release is
        smaller than its mean eigenvalue, by public numbers alone (:meth:`VIPS.forecast` shows it,
        and how weak a direction may be).
    :param centre: whether the mean of the inputs is released first, for a twentieth of the
        squared privacy loss, subtracted, and undone in the intercept. Default: where there is an
        intercept, and not in the paper's design.
    :param intercept: place of the coefficient (in the flat vector of all, sites in order of their
        names) whose column holds ones. Default: a coefficient that the model itself adds.
    :param max_trials: public bound on the trials of binomial outcomes that are no constant.
    :param max_count: public bound on the counts of negative binomial outcomes, which are cut to
        ``[0, max_count]``: a count below 0 adds what a count of 0 would.
    :param data_plate: name of the private plate, when several enclose the observations, or
        ``"auto"`` where none does and each row is a record.
    :raises ValueError: for arguments out of range.

    Parameters after a run: ``auto_loc`` (dim,), ``auto_scale_tril`` (dim, dim), and ``auto_shape``
    and ``auto_rate`` of the precisions' Gamma laws.

    **Privacy.** Released, through :class:`~numpyro_dp.VIPS`: noisy sums of record vectors, each of
    L2 norm at most 1 in its own public or released unit. Scores: half of the rows' norm, after a
    model-centred clip, which has mean zero under the model whatever the unit; curvatures: a quarter
    of the squared norm; the paper's two blocks: √5/4 jointly for rows of norm 1. Gaussian
    mechanism, zero-out or replace-one. Centre, spectra, precisions and hyper-posteriors are
    post-processing. ``clip_norm=`` of the engine replaces the unit of scores; ``clip_norm=inf``
    with ``noise_multiplier=0`` runs coordinate ascent, whose limit is the variational posterior.

    **References.** Polson, Scott, Windle, *Bayesian inference for logistic models using Pólya–Gamma
    latent variables* (2013); Park, Foulds, Chaudhuri, Welling, *VIPS* (2020), section 5; Böhning
    (1992) for the bound; *Events* (docs/reference/events.md) for joint releases and *How a step is
    released* (docs/explanation/how-a-step-is-released.md) for the centred clip.

    **Example**::

        >>> import jax, jax.numpy as jnp, numpyro, numpyro.distributions as dist
        >>> import numpyro_dp as ndp
        >>> def model(x, y=None):
        ...     b = numpyro.sample("b", dist.Normal(0, 3))
        ...     w = numpyro.sample("w", dist.Normal(0, 3).expand([x.shape[-1]]).to_event(1))
        ...     with numpyro.plate("people", x.shape[0]):
        ...         numpyro.sample("y", dist.Bernoulli(logits=b + x @ w), obs=y)
        >>> x, y = jnp.zeros((5000, 2)), jnp.zeros(5000, int)
        >>> guide = ndp.guides.PolyaGammaGuide(model, row_norm=1.5)
        >>> vips = ndp.VIPS(model, guide, privacy=ndp.Budget(1.0, 1e-5))
        >>> "design 'full' fits" in vips.forecast(None, x, y)
        True

    ``vips.run(key, None, x, y)`` then fits it.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        *,
        row_norm: float,
        centred_norm: float | None = None,
        design: str | None = None,
        centre: bool | None = None,
        intercept: int | None = None,
        max_trials: int | None = None,
        max_count: float | None = None,
        data_plate: str | None = None,
    ) -> None:
        super().__init__(model, data_plate=data_plate)
        self.row_norm = _validate.positive("row_norm", row_norm)
        if centred_norm is not None:
            centred_norm = _validate.positive("centred_norm", centred_norm)
        if design is not None and design not in _DESIGNS:
            raise ValueError(
                f"design must be one of {_DESIGNS} or None, got {_validate.shown(design)}"
            )
        if centre is not None and not isinstance(centre, bool):
            raise ValueError(f"centre must be True, False or None, got {_validate.shown(centre)}")
        if intercept is not None and (isinstance(intercept, bool) or intercept != int(intercept)):
            raise ValueError(
                f"intercept must be the place of a coefficient, got {_validate.shown(intercept)}"
            )
        self.centred_norm, self.design, self.centre = centred_norm, design, centre
        self.intercept, self.max_trials, self.max_count = _validate.python_number(
            (intercept, max_trials, max_count)
        )
        self._reason: str | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> dict[str, Array]:
        """Draw the coefficients, and the precisions where the model has some."""
        latents = read_latents(self.model, args, kwargs)
        loc = numpyro.param("auto_loc", jnp.zeros(latents.dim))
        factor = dist.constraints.scaled_unit_lower_cholesky
        tril = numpyro.param("auto_scale_tril", jnp.eye(latents.dim), constraint=factor)
        law = dist.MultivariateNormal(loc, scale_tril=tril)
        flat = jnp.asarray(numpyro.sample("_auto_latent", law, infer={"is_auxiliary": True}))
        drawn = {
            name: jnp.asarray(numpyro.sample(name, dist.Delta(value, event_dim=value.ndim)))
            for name, value in cut(flat, latents.coefficients).items()
        }
        return drawn | _draw_precisions(latents)

    def scheduled(
        self, found: Outline, num_steps: int | None, *, clip_norm: float | None
    ) -> PolyaGammaSchedule:
        """The schedule of releases for a model at known shapes; called by the engine."""
        regression = self._regression(found)
        private = clip_norm != math.inf
        design = (self.design or "diagonal") if private else "exact"
        if design == "paper" and clip_norm is not None:
            raise ValueError(
                "the bound of design='paper' follows from row_norm: give that, and no clip_norm"
            )
        centre = private and self._centres(regression, design)
        least = LEAST_STEPS[design] + centre
        steps = DEFAULT_STEPS[design] + centre if num_steps is None else num_steps
        if steps < least:
            raise ValueError(
                f"num_steps={steps} is too few for design {design!r}, which makes {least} releases "
                "at least: give None for what suits"
            )
        settings = PolyaGammaSettings(self.row_norm, self.centred_norm, centre, clip_norm)
        if design == "full":
            made: PolyaGammaSchedule = FullScores(regression, found, settings, steps - centre)
        elif design == "diagonal":
            made = DiagonalScores(regression, found, settings, steps - centre)
        else:
            made = PaperSums(regression, found, settings, steps - centre, private=private)
        if self._reason is not None and private:
            made.notes = (self._reason,)
        return made

    def settled(
        self, found: Outline, num_steps: int | None, signal: Callable[[int], float]
    ) -> PolyaGammaGuide:
        """This guide, with the design that the budget resolves where none was given."""
        if self.design is not None:
            return self
        ratio, least = self._resolution(found, num_steps, signal)
        return _with_design(self, "full" if ratio < 1 else "diagonal", _reason(ratio, least))

    def outlook(
        self, found: Outline, num_steps: int | None, signal: Callable[[int], float]
    ) -> tuple[str, ...]:
        """Which design fits, and why."""
        return (_reason(*self._resolution(found, num_steps, signal)),)

    def _resolution(
        self, found: Outline, num_steps: int | None, signal: Callable[[int], float]
    ) -> tuple[float, float]:
        """Noise of a curvature over its mean eigenvalue, and the weakest direction resolved."""
        regression = self._regression(found)
        steps = DEFAULT_STEPS["full"] + 1 if num_steps is None else num_steps
        told, own = signal(steps), 0.0
        if regression.intercept is not None:
            own = regression.intercept[1]
        norm = self.centred_norm or self.row_norm
        return (
            resolution(regression.dim, found.num_records, told),
            least_resolved(regression.dim, told, norm, own),
        )

    def _regression(self, found: Outline) -> Regression:
        model = found.judged(self.model)
        return read_regression(model, found, self.intercept, self.max_trials, self.max_count)

    def _centres(self, regression: Regression, design: str) -> bool:
        if self.centre is None:
            return regression.intercept is not None and design != "paper"
        if self.centre and regression.intercept is None:
            raise UnsupportedModelError(
                "centre=True needs an intercept, which takes up the shift, and the predictor of "
                f"site `{regression.glm.site}` has none that is known: add a latent to it, or say "
                "with intercept= which coefficient belongs to a column of ones"
            )
        return self.centre


def _draw_precisions(latents: Latents) -> dict[str, Array]:
    """Draw the precisions (or variances) from their Gamma laws."""
    if not latents.groups:
        return {}
    positive = dist.constraints.positive
    shapes, rates = (
        cut(
            jnp.asarray(numpyro.param(name, jnp.ones(latents.groups), constraint=positive)),
            latents.precisions,
        )
        for name in ("auto_shape", "auto_rate")
    )
    drawn: dict[str, Array] = {}
    for name, shape, inverse in latents.precisions:
        law = (dist.InverseGamma if inverse else dist.Gamma)(shapes[name], rates[name])
        drawn[name] = jnp.asarray(numpyro.sample(name, law.to_event(len(shape))))
    return drawn


@lru_cache(maxsize=16)
def _with_design(guide: PolyaGammaGuide, design: str, reason: str) -> PolyaGammaGuide:
    """One copy for equal arguments, so that a second run does not compile again."""
    settled = copy.copy(guide)
    settled.design, settled._reason = design, reason
    return settled


def _reason(ratio: float, least: float) -> str:
    noise = f"The noise of one released curvature matrix is about {ratio:.2g} times its mean"
    if ratio >= 1:
        return f"{noise} eigenvalue, above 1: design 'diagonal' fits, without intervals to trust."
    return (
        f"{noise} eigenvalue, below 1: design 'full' fits. Its intervals hold along directions of "
        f"the inputs whose sum of squares about their mean is {least:.2g} or more (for a column of "
        "0 and 1, its number of ones; for two collinear columns, of their difference); weaker ones "
        "are not resolved, and the report counts them."
    )
