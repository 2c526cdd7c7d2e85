"""Events in a few words, for reports."""

import math
from collections.abc import Callable

from dp_accounting.dp_event import DpEvent, ZCDpEvent

from numpyro_dp.accounting.events.perturbation import (
    ObjectivePerturbationRelease,
    OutputPerturbationRelease,
    PureObjectivePerturbationRelease,
)
from numpyro_dp.accounting.events.sampling import (
    BarkerBit,
    DirectionalBarkerBit,
    LangevinLastIterate,
    LogConcaveDraw,
    MinibatchBit,
    MultiCandidateBit,
    NoisyBarkerBit,
    PenaltyBit,
    PosteriorDraw,
    SmoothBarkerBit,
)


def number(value: float) -> str:
    """Return a number as reports print it."""
    return f"{value:.6g}"


def _minibatch_words(e: MinibatchBit) -> str:
    noise = f", noise sd {number(e.noise_sd)}" if e.noise_sd else ""
    return (
        f"mini-batch accept bit ({e.acceptance}{noise}), bound "
        f"{number(e.lipschitz * e.max_move)}, {number(e.expected_batch)} draws expected of "
        f"{e.num_records} records"
    )


def _objective_words(e: ObjectivePerturbationRelease) -> str:
    output = f", output noise sd {number(e.output_noise_sd)}" if e.output_noise_sd else ""
    return f"objective perturbation, noise sd {number(e.noise_sd)}{output}"


WORDS: dict[type[DpEvent], Callable[..., str]] = {
    BarkerBit: lambda e: f"Barker accept bit, bound {number(e.log_ratio_bound)}",
    NoisyBarkerBit: lambda e: (
        f"noisy Barker accept bit, bound {number(e.log_ratio_bound)}, noise sd {number(e.noise_sd)}"
    ),
    PenaltyBit: lambda e: (
        f"penalty accept bit, bound {number(e.log_ratio_bound)}, noise sd {number(e.noise_sd)}"
    ),
    DirectionalBarkerBit: lambda e: (
        f"proposal and Barker bit, step size {number(e.step_size)}, row norm {number(e.row_norm)}"
    ),
    SmoothBarkerBit: lambda e: (
        f"proposal and Barker bit in {e.dim} dimensions, step size {number(e.step_size)}, "
        f"gradient {number(e.lipschitz)}, curvature {number(e.smoothness)}"
    ),
    MultiCandidateBit: lambda e: f"choice among candidates, range {number(e.log_ratio_range)}",
    MinibatchBit: _minibatch_words,
    PosteriorDraw: lambda e: (
        f"exact posterior draw, log-likelihood range {number(e.log_likelihood_range)}"
    ),
    LogConcaveDraw: lambda e: (
        f"exact draw from a log-concave posterior, shift "
        f"{number(e.lipschitz / math.sqrt(e.strong_convexity))}"
    ),
    LangevinLastIterate: lambda e: (
        f"last of {e.num_steps} full-batch Langevin steps of size {number(e.step_size)}"
    ),
    OutputPerturbationRelease: lambda e: f"output perturbation, noise sd {number(e.noise_sd)}",
    ObjectivePerturbationRelease: _objective_words,
    PureObjectivePerturbationRelease: lambda e: (
        f"objective perturbation with pure ε, noise scale {number(e.noise_scale)}"
    ),
    ZCDpEvent: lambda e: f"{number(e.rho)}-zCDP",
}
