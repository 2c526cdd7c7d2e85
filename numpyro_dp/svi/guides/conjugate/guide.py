"""``ConjugateGuide``: exact or coordinate-ascent posteriors from noisy sufficient statistics."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jaxtyping import Array, ArrayLike
from numpyro import handlers

from numpyro_dp import _validate
from numpyro_dp.model.guided.model import Outline
from numpyro_dp.svi.guides.conjugate.counts import (
    BetaBinomial,
    DirichletCategorical,
    GammaPoisson,
)
from numpyro_dp.svi.guides.conjugate.family import ConjugateSchedule, Family
from numpyro_dp.svi.guides.conjugate.mixture import NormalMixture
from numpyro_dp.svi.guides.conjugate.recognise import Reading, read_model
from numpyro_dp.svi.guides.conjugate.regression import NormalRegression
from numpyro_dp.svi.vips.statistics import Schedule, StatisticsGuide

_NOT_WIDENED = (
    "The posterior takes the noisy sums as if they were exact: its intervals do not widen for the "
    "privacy noise."
)
_WIDENED = (
    "The posterior widens for the privacy noise of its sums, approximately: noisy sums count as "
    "fewer records."
)


class ConjugateGuide(StatisticsGuide):
    """The guide of :class:`~numpyro_dp.VIPS` for conjugate models, read off the model itself.

    Families, with the parameters that :meth:`~numpyro_dp.VIPS.run` returns for latent ``s``:

    - ``Bernoulli(p)`` or ``Binomial(n, p)``, each p an entry of a ``Beta`` (or unit ``Uniform``)
      site: ``s_concentration1``, ``s_concentration0``;
    - ``Categorical(p)`` with a ``Dirichlet`` site: ``s_concentration``;
    - ``Poisson(rate)`` with a ``Gamma`` (or ``Exponential``) site: ``s_concentration``, ``s_rate``;
    - ``Normal(mean, scale)`` with a mean linear in ``Normal`` sites and a scale that is public, the
      root of an ``InverseGamma`` variance or the inverse root of a ``Gamma`` precision:
      ``coefficients_loc`` and ``coefficients_scale_tril`` (all sites by name, flattened), and
      ``s_concentration`` and ``s_rate``. Coefficients whose prior scale is a multiple of the
      noise's have an exact posterior, with the factor multiplied by the noise's scale; otherwise
      it is a mean-field one;
    - mixtures of normals with diagonal scales, ``Dirichlet`` weights and ``Normal`` locations, as
      ``MixtureSameFamily`` or with a ``Categorical`` latent in the plate: mean-field.

    All but mixtures need one release (``num_steps=None``), and more are averaged. Outcomes may be
    vectors. Records beyond a bound count as if they lay on it: counts are cut to
    ``[0, max_count]``, long rows shrink together with their outcome, then the outcome is cut.

    :param model: the NumPyro model.
    :param data_plate: name of the private plate, when several enclose the observations, or
        ``"auto"`` where none does and each row is a record.
    :param row_norm: public bound on the L2 norm of a record's row (the derivative of its means in
        the coefficients, intercept included) or, in mixtures, of a record.
    :param outcome_bound: public bound on the L2 norm of a record's outcome in a regression.
    :param max_count: public bound on a Poisson count.
    :param init_loc: where the components' locations start, public: an array (components,
        dimensions), or ``{"mu": array}`` with the name and the shape of their latent site; default:
        drawn from their prior, within ``row_norm``.
    :param noise_aware: widen the posterior for the noise of the released sums. Known for counts
        and for regressions with a public noise scale, by weighting the likelihood down to what the
        noisy sum is worth.
    :raises ValueError: for bounds out of range.

    **Privacy.** Released: the noisy sum of every round, all statistics in one joint vector with one
    clip norm; post-processing: projections (counts not negative, matrices positive) and the
    posterior. Sensitivity under zero-out, before scaling: for counts, half the range of a record's
    count, since they are centred at its middle; ``√2`` or ``√3`` in units of the bounds for
    regressions and mixtures. A record's responsibilities are a function of that record and earlier
    releases. What the bounds are must be known without the data. Relation and event:
    :class:`~numpyro_dp.VIPS`.

    **References.** Park, Foulds, Chaudhuri, Welling, *Variational Bayes in Private Settings (VIPS)*
    (JAIR 2020), section 3; Bishop, *Pattern Recognition and Machine Learning* (2006), sections
    2.3.6, 3.3 and 10.2; Bernstein, Sheldon, *Differentially Private Bayesian Inference for
    Exponential Families* (NeurIPS 2018) for why noise should widen the posterior.

    **Example**::

        >>> import jax, jax.numpy as jnp, numpyro, numpyro.distributions as dist
        >>> import numpyro_dp as ndp
        >>> def model(y):
        ...     p = numpyro.sample("p", dist.Beta(1, 1))
        ...     with numpyro.plate("people", y.shape[0]):
        ...         numpyro.sample("y", dist.Bernoulli(p), obs=y)
        >>> guide = ndp.guides.ConjugateGuide(model, noise_aware=True)
        >>> vips = ndp.VIPS(model, guide, privacy=ndp.Budget(1.0, 1e-5))
        >>> y = (jnp.arange(10_000) % 4 == 0).astype(int)
        >>> result = vips.run(jax.random.key(0), None, y, progress_bar=False)
        >>> p = result.get_samples(num_samples=2000)["p"]
        >>> bool(abs(p.mean() - 0.25) < 0.03), result.privacy.epsilon <= 1.0
        (True, True)
    """

    def __init__(
        self,
        model: Callable[..., Any],
        *,
        data_plate: str | None = None,
        row_norm: float | None = None,
        outcome_bound: float | None = None,
        max_count: float | None = None,
        init_loc: ArrayLike | Mapping[str, ArrayLike] | None = None,
        noise_aware: bool = False,
    ) -> None:
        super().__init__(model, data_plate=data_plate)
        bounds = {"row_norm": row_norm, "outcome_bound": outcome_bound, "max_count": max_count}
        self._bounds = {
            name: None if value is None else _validate.positive(name, value)
            for name, value in bounds.items()
        }
        self._init_loc, self._noise_aware = init_loc, bool(noise_aware)
        self._family: Family | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> dict[str, Array]:
        """Draw the latents; the arguments matter only before the first run."""
        if self._family is None:
            # The model's shapes are all that is read, also inside a transformation; its sites are
            # no business of whoever traces this guide.
            with handlers.block(), jax.ensure_compile_time_eval():
                found = self.outlined(self.model, args, kwargs, self.data_plate)
                self._family = self._read(found, private=False)
        return self._family.sample()

    def scheduled(
        self, found: Outline, num_steps: int | None, *, clip_norm: float | None
    ) -> Schedule:
        """The family's statistics, bound to a model at known shapes.

        :raises UnsupportedModelError: the model is in none of the families; by site and cause.
        :raises ValueError: the family needs a bound that was not given.
        """
        family = self._read(found, private=clip_norm != math.inf)
        notes = (_WIDENED if self._noise_aware else _NOT_WIDENED,)
        return ConjugateSchedule(self, found, family, num_steps, clip_norm, notes)

    def draw_from(self, family: Family) -> None:
        """Take the sites of the family that is being run; autoguides learn theirs likewise."""
        self._family = family

    def _read(self, found: Outline, private: bool) -> Family:
        reading = read_model(found)
        make = {
            "bernoulli": lambda: BetaBinomial(reading, self._noise_aware),
            "binomial": lambda: BetaBinomial(reading, self._noise_aware),
            "categorical": lambda: DirichletCategorical(reading, self._noise_aware),
            "poisson": lambda: GammaPoisson(
                reading, self._noise_aware, self._bounds["max_count"], private
            ),
            "normal": lambda: NormalRegression(
                reading,
                self._noise_aware,
                self._bounds["row_norm"],
                self._bounds["outcome_bound"],
                private,
            ),
            "mixture": lambda: self._mixture(reading, private),
        }
        return make[reading.kind]()

    def _mixture(self, reading: Reading, private: bool) -> Family:
        if self._noise_aware:
            raise ValueError(
                "noise_aware=True is not known for mixtures: how noise enters through the "
                "responsibilities of later rounds has no closed form; leave it off"
            )
        return NormalMixture(reading, self._bounds["row_norm"], self._init_loc, private)
