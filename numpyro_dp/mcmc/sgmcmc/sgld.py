"""DP-SGLD: stochastic gradient Langevin dynamics on a private gradient."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import random
from jaxtyping import Array, Float, Int

from numpyro_dp.mcmc.sgmcmc.integrator import Integrator, Move, NoisyGradient, Vector, step_at
from numpyro_dp.mcmc.sgmcmc.kernel import GradientKernel


class SGLDState(NamedTuple):
    """What a DP-SGLD chain carries; released values and a key, nothing else.

    - **i**: private steps taken so far.
    - **z**: unconstrained position, one array for each latent site.
    - **rng_key**: key of the noise to come; zeroed in every state that outlives a run.
    - **adapt_state**: what adaptation released, :class:`~numpyro_dp.mcmc.AdaptState`; ``None``
      without it.
    """

    i: Int[Array, "..."]
    z: dict[str, Float[Array, "..."]]
    rng_key: Any
    adapt_state: Any = None


@dataclass(frozen=True)
class LangevinDynamics(Integrator):
    """θ ← θ + (η/2)·gradient + fresh noise, the privacy noise counted into the Langevin noise."""

    def start(self, rng_key: Any, z: dict, position: Vector, gradient_sd: Any = 0.0) -> SGLDState:
        return SGLDState(jnp.zeros((), jnp.int32), z, rng_key)

    def step(self, key: Any, state: SGLDState, position: Vector, gradient: NoisyGradient) -> Move:
        value, gradient_sd, metric = gradient
        step = step_at(self.step_size, state.i, position.dtype)
        missing = jnp.maximum(self.temperature * step - (step * gradient_sd / 2) ** 2, 0)
        # Public randomness: it completes the Langevin noise and protects nothing.
        fresh = jnp.sqrt(missing * metric) * random.normal(key, position.shape, position.dtype)
        return position + step / 2 * metric * value + fresh, {}

    def reached(self, step_size: float, gradient_sd: float) -> float:
        return step_size * gradient_sd**2 / 4

    def free_step_size(self, gradient_sd: float) -> float:
        return 4 * self.temperature / gradient_sd**2

    def widened(self, step_size: float, curvature: float, batches: float) -> float:
        pull = step_size * curvature / 4
        return (1 + pull * batches) / (1 - pull) if pull < 1 else math.inf

    def relaxation(self, step: Any, gradient_sd: Any, variance: Any, state: Any = None) -> Any:
        return jnp.minimum(step_at(self.step_size, step, jnp.float32) / (2 * variance), 1)


@dataclass(frozen=True, kw_only=True, eq=False)
class DPSGLD(GradientKernel):
    """Differentially private stochastic gradient Langevin dynamics.

    Each step releases the noisy sum of clipped per-record gradients of the log likelihood, adds
    the data-free gradient of the log prior, and moves by Langevin dynamics; the privacy noise is
    counted into the Langevin noise, and only what is missing is added.

    Without ``step_size`` and ``clip_norm`` the kernel *adapts*: a quarter of the squared privacy
    loss goes to a few rounds of private Fisher scoring before the first step (as in
    :class:`~numpyro_dp.LikelihoodRelease`), which give the chains' start (drawn, with the run's own
    noise key, from where the posterior was located) and a metric. The chains then move in
    coordinates in which the posterior's standard deviations are about 1, on scores that are clipped
    about what the model expects of each record. Step size and clip norm follow from public numbers:
    :meth:`forecast` says them, and how many relaxation times a chain holds.

    :param model: a NumPyro model whose observations lie in one plate; one slice of that plate is
        the unit of privacy. Record arguments have the plate as leading axis.
    :param step_size: η, in units of squared unconstrained parameter; a number, or a schedule: a
        callable of the step counter, such as :class:`~numpyro_dp.PolynomialStepSize` or those of
        optax. ``None`` adapts it: the largest at which the privacy noise is free and steps are
        stable. With adaptation it is in units of squared posterior standard deviations.
    :param clip_norm: L2 bound C on one record's gradient over the whole unconstrained vector; or a
        dict with one bound C_k for every site, for sites whose gradients are of different sizes:
        the gradient with each site's part divided by its C_k is clipped to norm 1, and the noise
        of a site is ∝ its C_k. ``noise_multiplier`` is then relative to that joint norm of 1.
        ``None`` adapts it: as loose as some twenty relaxation times a chain allow, between 2 and 10
        times a record's typical score. With adaptation it bounds whitened scores, whose typical
        norm is √(dim/records).
    :param adaptation: share of the squared privacy loss, in (0, 1), that adaptation takes where
        step size or clip norm is left out.
    :param dense_mass: whether the metric that adaptation releases tells apart coordinates that hang
        together; else it is diagonal.
    :param batch_size: *expected* size of a Poisson batch; or
    :param sampling_rate: inclusion probability q of a record, in (0, 1]. Neither: full batches.
    :param privacy: :class:`~numpyro_dp.Budget` of one complete run (warm-up and samples, all
        chains), from which the noise is calibrated; or
    :param noise_multiplier: standard deviation of the noise divided by ``clip_norm``: a number, or
        a callable of the step, evaluated on the host for the announced steps of a chain, whose
        last value holds for any further ones.
    :param accountant: the ledger that must agree to every run. Without one each ``MCMC`` object
        keeps its own unbounded account.
    :param temperature: scales the Langevin noise variance; 1 samples the posterior.
    :param likelihood_power: τ, multiplies the log likelihood (the released sum); 1 is the
        posterior, less is a tempered one.
    :param steps_per_sample: private steps per collected draw.
    :param init_kernel: another private kernel over the same latents, whose one sample is where each
        chain starts. It has its own noise or ``privacy`` and no accountant; one charge covers both.
    :param init_strategy: a NumPyro initialisation strategy that needs no data; default
        ``init_to_uniform(radius=0.1)``.
    :param data_plate: name of the plate whose slices are the records, when several enclose the
        observations; ``"auto"`` takes each row for one, where no plate does.
    :param microbatch_size: rows whose gradients are held in memory at a time; default all.
    :param preconditioner: public diagonal G of a preconditioner, positive, by site: a dict of
        numbers or arrays that broadcast to the unconstrained shape of the site; sites that it does
        not name have 1. Drift and noise are both ∝ G, and ``clip_norm`` bounds G^½·gradient. A
        diagonal computed from the records is a release of yours that nothing here accounts for.
    :param max_records: public upper bound on the number of records, needed where that number is
        private (an accountant with ``relation="add_remove"``).
    :param num_steps: private steps of one chain, for one run in plain ``numpyro.infer.MCMC``:
        each chain charges as many to ``accountant`` before it starts, and turns NaN after them.
    :raises ValueError: for arguments out of range, both or neither of ``privacy`` and
        ``noise_multiplier``, both of ``batch_size`` and ``sampling_rate``.

    **Privacy.** Released: the position after every step. Mechanism: Poisson-subsampled Gaussian
    mechanism on the clipped gradient sum, sensitivity ``clip_norm`` when one record becomes a null
    record (zero-out, add/remove) and ``2·clip_norm`` when it changes value (replace-one); event
    ``SelfComposed(Poisson(q, Gaussian(noise_multiplier)), steps·chains)`` and the total variation
    of tables and room. There is no discount for warm-up or thinning. ``noise_multiplier=0`` with
    ``clip_norm=inf`` switches privacy off, for tests, and charges ε = ∞. An adapting kernel
    first releases one histogram and ten joint sums over all records (Gaussian mechanism,
    sensitivity 1 under zero-out and 2 under replace-one); they and the steps are one charge,
    calibrated together to ``privacy``.

    **References.** Wang, Fienberg, Smola, *Privacy for Free* (ICML 2015), Algorithm 1, with drift
    η/2 in place of its Eq. 1 (which samples the squared posterior) and the accounting of Abadi et
    al. (2016) through privacy loss distributions in place of its Theorem 16. Adaptation: see
    :class:`~numpyro_dp.LikelihoodRelease`.

    **Example**::

        >>> import jax, jax.numpy as jnp, numpyro, numpyro.distributions as dist
        >>> import numpyro_dp as ndp
        >>> def model(x):
        ...     mu = numpyro.sample("mu", dist.Normal(0, 1))
        ...     with numpyro.plate("people", x.shape[0]):
        ...         numpyro.sample("x", dist.Normal(mu, 1), obs=x)
        >>> kernel = ndp.DPSGLD(model, step_size=1e-3, batch_size=50, clip_norm=2.0,
        ...                     privacy=ndp.Budget(1.0, 1e-5))
        >>> mcmc = ndp.MCMC(kernel, num_warmup=50, num_samples=50, progress_bar=False)
        >>> mcmc.run(jax.random.key(0), jnp.linspace(-1.0, 3.0, 500))
        >>> mcmc.get_samples()["mu"].shape
        (50,)
        >>> mcmc.privacy.epsilon <= 1.0
        True
    """

    def integrator(self, sampling_rate: float) -> LangevinDynamics:
        return LangevinDynamics(*self.paced)
