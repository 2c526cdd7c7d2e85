"""``PolyaGammaGuide``: logistic regressions with a normal posterior, from few noisy sums."""

from __future__ import annotations

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
from numpyro_dp.svi.guides import polya_gamma_designs as designs
from numpyro_dp.svi.guides.polya_gamma_base import Settings
from numpyro_dp.svi.guides.polya_gamma_model import (
    Regression,
    read_latents,
    read_regression,
)
from numpyro_dp.svi.programme import Programme, StatisticsGuide
from numpyro_dp.variational import Outline

__all__ = ["PolyaGammaGuide"]

_DESIGNS = ("full", "diagonal", "paper")
# Share of the squared privacy loss that the first matrix gets.
_FIRST_MATRIX = 0.06


class PolyaGammaGuide(StatisticsGuide):
    """A normal posterior of a logistic regression's coefficients."""

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
            raise ValueError(f"design must be one of {_DESIGNS} or None, got {design!r}")
        self.centred_norm, self.design, self.centre = centred_norm, design, centre
        self.intercept, self.max_trials, self.max_count = intercept, max_trials, max_count

    def __call__(self, *args: Any, **kwargs: Any) -> dict[str, Array]:
        """Draw the coefficients, and the precisions where the model has some."""
        latents = read_latents(self.model, args, kwargs)
        dim, groups = latents.dim, latents.groups
        loc = numpyro.param("auto_loc", jnp.zeros(dim))
        tril = numpyro.param(
            "auto_scale_tril", jnp.eye(dim), constraint=dist.constraints.scaled_unit_lower_cholesky
        )
        law = dist.MultivariateNormal(loc, scale_tril=tril)
        flat = numpyro.sample("_auto_latent", law, infer={"is_auxiliary": True})
        drawn = {}
        start = 0
        for name, shape in latents.coefficients:
            size = math.prod(shape)
            value = flat[start : start + size].reshape(shape)
            drawn[name] = numpyro.sample(name, dist.Delta(value, event_dim=len(shape)))
            start += size
        if groups:
            positive = dist.constraints.positive
            shape_ = numpyro.param("auto_shape", jnp.ones(groups), constraint=positive)
            rate = numpyro.param("auto_rate", jnp.ones(groups), constraint=positive)
            start = 0
            for name, shape, inverse in latents.precisions:
                kind = dist.InverseGamma if inverse else dist.Gamma
                own = slice(start, start + math.prod(shape))
                fn = kind(shape_[own].reshape(shape), rate[own].reshape(shape))
                drawn[name] = numpyro.sample(name, fn.to_event(len(shape)))
                start += math.prod(shape)
        return drawn

    def programme(
        self,
        found: Outline,
        num_steps: int | None,
        *,
        sampling_rate: float,
        clip_norm: float | None,
    ) -> Programme:
        """The schedule of releases for a model at known shapes."""
        regression = self._regression(found)
        private = clip_norm != math.inf
        design = (self.design or "diagonal") if private else "exact"
        centre = private and self._centres(regression, design)
        settings = Settings(self.row_norm, self.centred_norm, centre, clip_norm)
        steps = designs.DEFAULT_STEPS[design]
        if num_steps is not None:
            steps = num_steps - centre
        if design == "full":
            return designs.FullScores(regression, found, settings, steps)
        if design == "diagonal":
            return designs.DiagonalScores(regression, found, settings, steps)
        return designs.PaperSums(regression, found, settings, steps, private=private)

    def _regression(self, found):
        return read_regression(found.wall, self.intercept, self.max_trials, self.max_count)

    def _centres(self, regression, design):
        if self.centre is not None:
            return self.centre
        return regression.intercept is not None and design != "paper"
