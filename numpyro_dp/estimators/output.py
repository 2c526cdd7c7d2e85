"""Output perturbation: the minimiser of a strongly convex objective, plus Gaussian noise."""

from __future__ import annotations

from dataclasses import dataclass

from numpyro_dp.accounting.events import (
    ComposedDpEvent,
    DpEvent,
    OutputPerturbationRelease,
    TotalVariation,
)
from numpyro_dp.estimators.perturbation import PerturbationEstimator, Plan
from numpyro_dp.estimators.problem import Problem
from numpyro_dp.estimators.release import LatticeOutput

__all__ = ["OutputPerturbation"]


@dataclass(frozen=True, kw_only=True, eq=False)
class OutputPerturbation(PerturbationEstimator):
    """Private MAP estimate of a generalised linear model by output perturbation.

    The negative log posterior is minimised and Gaussian noise is added to the minimiser, as much
    as one record could move it: L/λ, with L the bound on a record's gradient and λ the curvature
    of the prior. Simple, and good where the prior is strong; :class:`ObjectivePerturbation` is
    usually better where it is not.

    The parameters are those of :class:`ObjectivePerturbation`, without ``noise``, except that

    :param noise_multiplier: is the standard deviation of the noise over (L + 2γ)/λ;
    :param regularisation: adds nothing when ``None``.
    :raises ValueError: for arguments out of range, an infinite ``row_norm``, or options computed
        from data (callables).

    **Privacy.** Released: the noisy minimiser, once. Sensitivity (L + 2γ)/λ under zero-out and
    add/remove, (2L + 2γ)/λ under replace-one; event ``OutputPerturbationRelease(L, λ, γ, s)`` and
    one ``TotalVariation``. What guarantees L, λ and γ for every data set, in the machine's
    arithmetic too, is said at :class:`ObjectivePerturbation`; the loss need only be convex with a
    bounded gradient.

    **References.** Chaudhuri, Monteleoni, Sarwate, *Differentially Private Empirical Risk
    Minimization* (2011), Algorithm 1, with the analytic Gaussian mechanism.

    **Example**::

        >>> import jax, jax.numpy as jnp, numpyro, numpyro.distributions as dist
        >>> import numpyro_dp as ndp
        >>> def model(y):
        ...     mean = numpyro.sample("mean", dist.Normal(0, 0.1))
        ...     with numpyro.plate("people", y.shape[0]):
        ...         numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)
        >>> estimator = ndp.OutputPerturbation(model, row_norm=1.0, huber=1.5,
        ...                                    privacy=ndp.Budget(1.0, 1e-5))
        >>> result = estimator.run(jax.random.key(0), jnp.linspace(-1.0, 1.2, 500))
        >>> result.get_samples()["mean"].shape, result.privacy.epsilon <= 1.0
        ((1,), True)
    """

    def _plan(self, stated: Problem) -> Plan:
        tolerance, iterations = self._solver(stated)
        distance = LatticeOutput(1.0, stated.dim).tv

        def output(multiplier: float) -> LatticeOutput:
            moved = (stated.lipschitz + 2 * tolerance) / stated.strong_convexity
            return LatticeOutput(multiplier * moved, stated.dim)

        def event(multiplier: float) -> DpEvent:
            noise = output(multiplier)
            release = OutputPerturbationRelease(
                lipschitz=stated.lipschitz,
                strong_convexity=stated.strong_convexity,
                gradient_tolerance=tolerance + stated.strong_convexity * noise.rounding,
                noise_sd=noise.noise_sd,
            )
            return ComposedDpEvent([release, TotalVariation(distance)])

        multiplier = self._multiplier(event)
        return Plan(
            problem=stated,
            iterations=iterations,
            tilt=None,
            output=output(multiplier),
            event=event(multiplier),
            contribution=(stated.lipschitz + 2 * tolerance) / stated.strong_convexity,
            noise_multiplier=multiplier,
        )

    def _mechanism(self) -> str:
        return "output perturbation: Gaussian noise on the minimiser of the negative log posterior"
