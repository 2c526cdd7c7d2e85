"""How much a chain can have forgotten its start: the relaxation law, from released values alone.

A chain that diffuses for a time t (the sum of the step sizes of DP-SGLD) forgets its start along
a direction of posterior variance v like exp(-t/2v): it holds t/2v relaxation times. Langevin noise
that is privacy noise bounds that time by 4·steps/sd², sd the noise of a released gradient, which
on full batches is 4μ²/C² for the whole μ of the run: more steps buy nothing.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from numpyro_dp.accounting import rounded_down
from numpyro_dp.mcmc.kernel import BoundKernel
from numpyro_dp.mcmc.sgmcmc.bias import clipping_notes
from numpyro_dp.mcmc.sgmcmc.integrator import BoundSumKernel, Note, raised_temperature, step_at
from numpyro_dp.mcmc.sgmcmc.kernel import shapes

ENOUGH = 10.0
_PLACES = 256
_LEAST_DRAWS = 10
# Fewer draws are a trial, of which nobody asks where its posterior lies.
_SETTLED = 100
# A transform whose slope is below it holds its value at the edge of the support.
_FLAT = 1e-15


def relaxation_limit(steps: int, gradient_sd: Any, variance: Any) -> Any:
    """The law: relaxation times that a privacy noise allows, whatever the step size.

    :param steps: private steps of one chain.
    :param gradient_sd: standard deviation of the privacy noise in the released gradient, the
        ``likelihood_power`` and the sampling rate included.
    :param variance: posterior variance of the direction, in the same (preconditioned) coordinates.
    :returns: 2·steps/(sd²·variance). On full batches with GDP μ = √steps/noise_multiplier this is
        2μ²/(C²·variance), and 1/τ times as much for the posterior tempered by τ, whose variance
        is 1/τ times as large and whose noise is τ times as large.
    """
    return 2 * steps / jnp.maximum(jnp.asarray(gradient_sd) ** 2 * variance, 1e-30)


def relaxation_times(
    kernel: BoundSumKernel,
    variance: Float[Array, " dim"],
    *,
    start: int,
    stop: int,
    state: Any = None,
) -> Float[Array, "*chains dim"]:
    """Relaxation times that the steps ``start … stop`` of a chain hold, by coordinate.

    :param variance: of the target in each unconstrained coordinate; a released or public number.
    :param state: the last one, if there is one, for an integrator that adapts.
    """
    count = stop - start
    # Schedules are smooth: a few hundred places tell their mean.
    places = jnp.asarray(np.linspace(start, stop - 1, min(count, _PLACES)), jnp.int32)
    scaled = jnp.maximum(variance / kernel.diagonal(variance.dtype, state), 1e-30)

    def share(step: Array) -> Float[Array, "*chains dim"]:
        return kernel.integrator.relaxation(step, kernel.gradient_noise(step), scaled, state)

    return count * jnp.mean(jax.vmap(share)(places), axis=0)


def drawn_notes(
    kernel: BoundKernel, states: dict[str, Any], last: Any, *, thinning: int
) -> tuple[Note, ...]:
    """What a report says of the draws of a run, the most harmful first.

    :param kernel: the bound kernel that made them.
    :param states: what NumPyro collected; constrained draws by site, leading axes chain and draw.
    :param last: the last state.
    :param thinning: transitions for each draw that was kept.

    **Privacy.** A function of released draws and public numbers.
    """
    if not isinstance(kernel, BoundSumKernel):
        return ()
    gone = _run_away(kernel, states, last)
    if gone:
        return gone
    kept = next((rows.shape[1] for rows in states["z"].values()), 0)
    return (
        *(clipping_notes(kernel, last) if kept >= _SETTLED and not kernel.centred else ()),
        *_adapted(kernel, last),
        *_late_heat(kernel, last),
        *relaxation_notes(kernel, states, last, thinning=thinning),
    )


def _run_away(kernel: BoundSumKernel, states: dict[str, Any], last: Any) -> tuple[Note, ...]:
    """Whether a chain has left for infinity, or for the edge of a support."""
    slopes, mixed, ramps, z = _slopes(kernel, last)
    gone = [
        name
        for name in sorted(z)
        if not np.all(np.isfinite(states["z"].get(name, 0.0)))
        or not np.all(np.isfinite(last.z[name]))
        or (
            _by_itself(slopes[name], mixed[name], ramps[name])
            and np.any(np.abs(np.asarray(slopes[name])) < _FLAT)
        )
    ]
    if not gone:
        return ()
    text = (
        f"The chain has run away: {gone[0]!r} has left for infinity, or for the edge of its "
        "support. Its steps are too long: ndp.plan names a step_size at which they are stable."
    )
    return (Note(text, f"have run away in {gone[0]!r}", first=True),)


def _adapted(kernel: BoundSumKernel, last: Any) -> tuple[Note, ...]:
    """What the last state adds to what was known before the run."""
    said = kernel.integrator.notes(kernel.gradient_sd)
    found = kernel.integrator.notes(kernel.gradient_sd, last)
    return tuple(note for note in found if note not in said)


def _late_heat(kernel: BoundSumKernel, last: Any) -> tuple[Note, ...]:
    """The temperature at the end of a schedule of step sizes."""
    schedule, integrator = kernel.integrator.step_size, kernel.integrator
    if not callable(schedule):
        return ()
    step = max(int(np.max(last.i)) - 1, 0)
    noise = float(np.max(np.asarray(kernel.gradient_noise(jnp.int32(step)))))
    if not noise:
        return ()
    reached = integrator.reached(float(step_at(schedule, step, jnp.float32)), noise)
    free = rounded_down(integrator.free_step_size(noise), 3)
    remedy = f"A schedule that ends at a step_size of at most {free}"
    return raised_temperature(reached, integrator.temperature, remedy)


def relaxation_notes(
    kernel: BoundSumKernel, states: dict[str, Any], last: Any, *, thinning: int
) -> tuple[Note, ...]:
    """What a report says of draws that are too few relaxation times long; nothing, or one note.

    The variance is that of the draws within a chain. A chain that has not moved far shows too small
    a variance, but its square root grows with the time alike: drifting freely it shows t/6, that is
    3 relaxation times.
    """
    draws = {name: rows for name, rows in states["z"].items() if name in last.z}
    length = next(iter(draws.values())).shape[1] if draws else 0
    if length < _LEAST_DRAWS:
        return ()
    shown, known = _unconstrained_variance(kernel, draws, last)
    variance = kernel.believed(shown, last)
    stop = int(np.max(last.i))
    kept = min(length * thinning * kernel.steps_per_sample, stop)
    times = relaxation_times(kernel, variance, start=stop - kept, stop=stop, state=last)
    times = np.asarray(times, float).reshape(-1, variance.size).min(axis=0)
    times = np.where(known, times, np.inf)
    worst = int(np.argmin(times))
    if not times[worst] < ENOUGH:
        return ()
    sd = jnp.broadcast_to(kernel.gradient_noise(jnp.int32(stop - 1)), variance.shape)
    scaled = variance / kernel.diagonal(variance.dtype, last)
    limit = float(relaxation_limit(kept, sd, scaled)[worst])
    text = _sentence(_site(kernel, worst), float(variance[worst]) ** 0.5, times[worst], limit)
    return (Note(text, f"span {times[worst]:.2g} relaxation times, too few to show a posterior"),)


def _sentence(site: str, sd: float, times: float, limit: float) -> str:
    found = (
        f"The kept draws of a chain span about {times:.2g} relaxation times of their slowest "
        f"direction (in {site!r}, unconstrained sd {sd:.2g}); below about {ENOUGH:g} they are not "
        "draws from a posterior, but show where the chain has been."
    )
    if limit >= ENOUGH:
        return (
            f"{found} A larger step_size (as far as ndp.plan calls it stable), more steps or a "
            "preconditioner would mend it."
        )
    return (
        f"{found} At temperature 1 no step size spans more than {limit:.2g}, and more steps at the "
        "same ε change nothing. More records, a larger ε, fewer chains, a preconditioner or a "
        "lower likelihood_power τ (by 1/τ, for draws from a tempered posterior) multiply it; a "
        "smaller clip_norm too, but at the price of a bias, which these draws do not show: ask "
        "ndp.plan for it first."
    )


def _site(kernel: BoundSumKernel, coordinate: int) -> str:
    """The site that a coordinate of the flattened position belongs to."""
    for name, shape in shapes(kernel.private_model).items():
        coordinate -= int(np.prod(shape))
        if coordinate < 0:
            return name
    raise IndexError("no such coordinate")


def _unconstrained_variance(
    kernel: BoundSumKernel, draws: dict[str, Any], last: Any
) -> tuple[Float[Array, " dim"], np.ndarray]:
    """Variance of the draws within a chain by coordinate, and where it is known.

    Draws are kept in their supports; to first order the derivative of the transform at the last
    position turns their variance into that of the unconstrained values. It does so for transforms
    that act on each coordinate by itself; other sites are left out.
    """
    slopes, mixed, ramps, z = _slopes(kernel, last)
    variance, known = {}, {}
    for name, position in z.items():
        alone = _by_itself(slopes[name], mixed[name], ramps[name])
        known[name] = jnp.full(position.shape, alone and name in draws)
        variance[name] = jnp.ones_like(position)
        if alone and name in draws:
            spread = np.asarray(draws[name], float).var(axis=1).mean(axis=0)
            square = jnp.maximum(slopes[name] ** 2, 1e-30)
            variance[name] = jnp.asarray(spread, position.dtype) / square
    return ravel_pytree(variance)[0], np.asarray(ravel_pytree(known)[0], bool)


def _slopes(kernel: BoundSumKernel, last: Any) -> tuple[dict, dict, dict, dict]:
    """Derivatives of the transform at the last position: along all ones, and along ramps.

    The ramps, and the position, come with them.
    """
    z = jax.tree.map(lambda x: x[0], last.z) if np.ndim(last.i) else last.z
    ones = jax.tree.map(jnp.ones_like, z)
    ramps = {
        name: (jnp.linspace(0.5, 1.5, z[name].size, dtype=z[name].dtype) * (-1) ** k).reshape(
            z[name].shape
        )
        for k, name in enumerate(sorted(z))
    }
    slopes, mixed = (jax.jvp(kernel.private_model.constrain, (z,), (v,))[1] for v in (ones, ramps))
    return slopes, mixed, ramps, z


def _by_itself(slope: Any, mixed: Any, ramp: Any) -> bool:
    """Whether a transform acts on each coordinate by itself."""
    return slope.shape == ramp.shape and bool(jnp.allclose(mixed, slope * ramp, rtol=1e-4))
