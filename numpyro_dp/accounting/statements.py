"""The events of mechanisms that dp-accounting does not know, each in its theorem's constants.

Every constant is the one under zero-out, where a record is replaced by one that contributes
nothing; under another relation the accountant doubles what has to be doubled, never the caller
(privacy.md section 0). Constants are public and hold for every possible record.
"""

import math
from collections.abc import Callable

import attr
from dp_accounting.dp_event import DpEvent, ZCDpEvent

from numpyro_dp._validate import nonnegative, positive, positive_int

__all__ = [
    "ACCEPTANCES",
    "BarkerBit",
    "DirectionalBarkerBit",
    "LangevinLastIterate",
    "LogConcaveDraw",
    "MinibatchBit",
    "MultiCandidateBit",
    "NoisyBarkerBit",
    "ObjectivePerturbationRelease",
    "OutputPerturbationRelease",
    "PenaltyBit",
    "PosteriorDraw",
    "PureObjectivePerturbationRelease",
    "ZCDpEvent",
]

ACCEPTANCES = ("barker", "noisy_barker", "penalty")

_event = attr.s(frozen=True, slots=True, auto_attribs=True)


def _checked(check: Callable[[str, object], object]) -> Callable[[object, object, object], None]:
    def validate(_instance: object, attribute: object, value: object) -> None:
        check(getattr(attribute, "name", ""), value)

    return validate


_POSITIVE = _checked(positive)
_NONNEGATIVE = _checked(nonnegative)
_COUNT = _checked(positive_int)


@_event
class BarkerBit(DpEvent):
    """One accept bit that is 1 with probability σ(l), l a sum of one term for each record.

    Args:
        log_ratio_bound: bound Δ on the absolute value of one record's term.

    Privacy: Δ-DP under zero-out and add/remove, 2Δ-DP under replace-one; released are the
        proposal, which is free of data, and the bit.

    References:
        privacy.md section 4; Barker, *Monte Carlo Calculations of the Radial Distribution
        Functions for a Proton-Electron Plasma* (1965).
    """

    log_ratio_bound: float = attr.ib(validator=_NONNEGATIVE)


@_event
class NoisyBarkerBit(DpEvent):
    """One accept bit that is 1 with probability E σ(l + N(−s²/2, s²)).

    Args:
        log_ratio_bound: bound Δ on the absolute value of one record's term of l.
        noise_sd: s, the standard deviation of the noise.

    Privacy: at most a Barker bit and at most a Gaussian of shift Δ/s; exactly the Rényi
        divergence of the bit.

    References:
        privacy.md section 4.
    """

    log_ratio_bound: float = attr.ib(validator=_NONNEGATIVE)
    noise_sd: float = attr.ib(validator=_POSITIVE)


@_event
class PenaltyBit(DpEvent):
    """One accept bit of the penalty rule, min(1, e^{l + N(−s²/2, s²)}) against a uniform.

    Args:
        log_ratio_bound: bound Δ on the absolute value of one record's term of l.
        noise_sd: s, the standard deviation of the noise.

    Privacy: at most a Gaussian of shift Δ/s; exactly the Rényi divergence of the bit.

    References:
        privacy.md section 4; Ceperley and Dewing, *The penalty method for random walks with
        uncertain energies* (1999).
    """

    log_ratio_bound: float = attr.ib(validator=_NONNEGATIVE)
    noise_sd: float = attr.ib(validator=_POSITIVE)


@_event
class DirectionalBarkerBit(DpEvent):
    """A Gaussian proposal and its Barker bit, where a record moves with its linear predictor only.

    Args:
        step_size: s, where the proposal moves by N(0, s²P), P public.
        row_norm: R, bound on ‖P^½x‖ over every possible row x; each record's loss is 1-Lipschitz
            in x·θ, and its term of the log ratio is clipped to |x·(θ' − θ)|.

    Privacy: averaged over the direction of the proposal, the bound on a record's term is sR|Z|
        with Z standard normal.

    References:
        privacy.md section 4, *direction-averaged charge*.
    """

    step_size: float = attr.ib(validator=_POSITIVE)
    row_norm: float = attr.ib(validator=_NONNEGATIVE)


@_event
class MultiCandidateBit(DpEvent):
    """One of several candidates, picked with probability proportional to the target density.

    Args:
        log_ratio_range: bound η on max u − min u, the range over all candidates (the current
            point included) of one record's log likelihood.

    Privacy: the exponential mechanism on a public set: bounded range η under zero-out and
        add/remove, 2η under replace-one.

    References:
        privacy.md section 4; Durfee and Rogers, *Practical Differentially Private Top-k Selection
        with Pay-what-you-get Composition* (2019).
    """

    log_ratio_range: float = attr.ib(validator=_NONNEGATIVE)


@_event
class MinibatchBit(DpEvent):
    """One accept bit computed on a Poisson mini-batch drawn with replacement (TunaMH).

    Args:
        num_records: N, public.
        lipschitz: c, where one record's term of the log ratio is clipped to cM.
        max_move: M, bound on the length of a move.
        expected_batch: λ + N·c·M, the mean number of draws; λ > 0.
        acceptance: ``"barker"`` on the estimated log ratio itself; ``"noisy_barker"`` or
            ``"penalty"`` on the estimate plus Gaussian noise.
        noise_sd: standard deviation of that noise; 0 for ``"barker"``, positive otherwise.

    Privacy: neither draws nor their number are released. A cap on the kept draws, or a padded
        room, is a ``TotalVariation`` beside this event. Not stated under add/remove: N is public.

        With λ = χ·N·b(θ, θ'), b a record bound that varies with the move but never exceeds cM,
        the bit without noise is what this event states for λ = χ·N·c·M, that is
        ``expected_batch`` = (1 + χ)·N·c·M: a Barker bit with Δ = b(1 + 1/χ) ≤ cM(1 + 1/χ) under
        zero-out and b(2 + 1/χ) under replace-one. ``BarkerBit(b·(1 + 1/χ))`` charges the first
        exactly and under replace-one 2b(1 + 1/χ), which is more than needed and holds too.

    References:
        privacy.md section 5; Zhang, Cooper and De Sa, *Asymptotically Optimal Exact Minibatch
        Metropolis-Hastings* (2020).
    """

    num_records: int = attr.ib(validator=_COUNT)
    lipschitz: float = attr.ib(validator=_POSITIVE)
    max_move: float = attr.ib(validator=_POSITIVE)
    expected_batch: float = attr.ib(validator=_POSITIVE)
    acceptance: str
    noise_sd: float = attr.ib(default=0.0, validator=_NONNEGATIVE)

    def __attrs_post_init__(self) -> None:
        if self.acceptance not in ACCEPTANCES:
            raise ValueError(
                f"acceptance must be one of {', '.join(ACCEPTANCES)}, got {self.acceptance!r}"
            )
        if (self.noise_sd > 0) == (self.acceptance == "barker"):
            raise ValueError(
                f"noise_sd must be 0 for 'barker' and positive for the other rules, got "
                f"{self.noise_sd!r} for {self.acceptance!r}"
            )
        moved = self.num_records * self.lipschitz * self.max_move
        if not self.expected_batch > moved * (1 + 1e-9):
            raise ValueError(
                f"expected_batch must exceed num_records · lipschitz · max_move = {moved:.6g}, "
                f"got {self.expected_batch!r}: raise it or shorten the moves"
            )


@_event
class PosteriorDraw(DpEvent):
    """One exact draw from the density ∝ prior · exp(τ Σ log p).

    Args:
        log_likelihood_range: η, bound on sup − inf over the parameters of one record's
            contribution to the log density, likelihood power included: τ(b − a) for
            likelihoods in [a, b], that is 2τB for |log p| ≤ B and τB for log p in [−B, 0].

    Privacy: bounded range η under zero-out and add/remove, 2η under replace-one. The draw must be
        exact; a proved total variation distance goes into a ``TotalVariation`` beside it.

    References:
        privacy.md section 6; Dimitrakakis et al., *Robust and Private Bayesian Inference* (2014);
        Wang, Fienberg and Smola, *Privacy for Free* (2015).
    """

    log_likelihood_range: float = attr.ib(validator=_NONNEGATIVE)


@_event
class LogConcaveDraw(DpEvent):
    """One exact draw from a strongly log-concave posterior.

    Args:
        lipschitz: G, bound on the Lipschitz constant in the sampled coordinates of one record's
            contribution to the log density, likelihood power included.
        strong_convexity: m, of minus the log prior in the same coordinates.

    Privacy: Gaussian of shift G/√m under zero-out and add/remove, 2G/√m under replace-one,
        provided that minus the log likelihood is convex for every possible record.

    References:
        privacy.md section 6; Gopi, Lee and Liu, *Private Convex Optimization via Exponential
        Mechanism* (2022), Theorem 4.
    """

    lipschitz: float = attr.ib(validator=_NONNEGATIVE)
    strong_convexity: float = attr.ib(validator=_POSITIVE)


@_event
class LangevinLastIterate(DpEvent):
    """The last state of full-batch Langevin dynamics after a fixed number of steps.

    Args:
        step_size: h of θ ← θ − h∇F(θ) + √(2h)·N(0, I), below 2/smoothness.
        num_steps: number of steps since the start, which is public or was released.
        lipschitz: G, bound on one record's gradient in F, likelihood power included.
        strong_convexity: m of F for every data set; 0 when none is known.
        smoothness: M of F for every data set.

    Privacy: a Gaussian of shift √(h/2)·G·√[(1 − cᵀ)/(1 + cᵀ)·(1 + c)/(1 − c)], c the contraction
        max(|1 − hm|, |1 − hM|); 2G under replace-one. With c = 1 the shift is G√(hT/2), that of
        releasing every state. Gradients must be neither clipped nor batched. Under add/remove m
        and M come from a public bound on the number of records.

    References:
        privacy.md section 7; Altschuler and Talwar, *Privacy of Noisy Stochastic Gradient Descent*
        (2022); Bok, Su and Altschuler, *Shifted Interpolation for Differential Privacy* (2024).
    """

    step_size: float = attr.ib(validator=_POSITIVE)
    num_steps: int = attr.ib(validator=_COUNT)
    lipschitz: float = attr.ib(validator=_NONNEGATIVE)
    strong_convexity: float = attr.ib(validator=_NONNEGATIVE)
    smoothness: float = attr.ib(validator=_POSITIVE)

    def __attrs_post_init__(self) -> None:
        if self.strong_convexity > self.smoothness:
            raise ValueError(
                f"strong_convexity must not exceed smoothness, got {self.strong_convexity!r} and "
                f"{self.smoothness!r}"
            )
        if not self.step_size * self.smoothness < 2:
            raise ValueError(
                f"step_size must be below 2 / smoothness = {2 / self.smoothness:.6g}, got "
                f"{self.step_size!r}: longer steps do not contract"
            )


@_event
class OutputPerturbationRelease(DpEvent):
    """An approximate minimiser plus N(0, s²I).

    Args:
        lipschitz: L, of one record's convex loss.
        strong_convexity: λ of the objective.
        gradient_tolerance: γ, bound on the objective's gradient norm at the approximate
            minimiser, guaranteed for every data set.
        noise_sd: s.

    Privacy: a Gaussian of shift (L + 2γ)/(λs) under zero-out and add/remove, (2L + 2γ)/(λs) under
        replace-one.

    References:
        privacy.md section 8; Chaudhuri, Monteleoni and Sarwate, *Differentially Private Empirical
        Risk Minimization* (2011).
    """

    lipschitz: float = attr.ib(validator=_NONNEGATIVE)
    strong_convexity: float = attr.ib(validator=_POSITIVE)
    gradient_tolerance: float = attr.ib(validator=_NONNEGATIVE)
    noise_sd: float = attr.ib(validator=_POSITIVE)


@_event
class ObjectivePerturbationRelease(DpEvent):
    """The minimiser of a GLM objective with a random linear term b ~ N(0, σ²I).

    Args:
        lipschitz: L, bound on one record's gradient |f'|‖x‖.
        smoothness: β, bound on one record's curvature f''‖x‖².
        regularisation: λ of ½λ‖θ‖².
        noise_sd: σ, standard deviation of b.
        output_noise_sd: s of N(0, s²I) added to the approximate minimiser.
        gradient_tolerance: γ, bound on the perturbed objective's gradient norm at the approximate
            minimiser, guaranteed for every data set; needs ``output_noise_sd`` when positive.

    Privacy: see the accounting of this event; the approximate minimum adds a Gaussian of shift
        2γ/(λs). A Gaussian of shift L/σ alone would be too little.

    References:
        privacy.md section 9; Kifer, Smith and Thakurta, *Private Convex Empirical Risk
        Minimization and High-dimensional Regression* (2012); Redberg, Koskela and Wang,
        *Improving the Privacy and Practicality of Objective Perturbation* (2023).
    """

    lipschitz: float = attr.ib(validator=_NONNEGATIVE)
    smoothness: float = attr.ib(validator=_NONNEGATIVE)
    regularisation: float = attr.ib(validator=_POSITIVE)
    noise_sd: float = attr.ib(validator=_POSITIVE)
    output_noise_sd: float = attr.ib(default=0.0, validator=_NONNEGATIVE)
    gradient_tolerance: float = attr.ib(default=0.0, validator=_NONNEGATIVE)

    def __attrs_post_init__(self) -> None:
        if self.gradient_tolerance > 0 and self.output_noise_sd == 0:
            raise ValueError(
                "an approximate minimiser (gradient_tolerance > 0) is not private by itself: set "
                "output_noise_sd"
            )


@_event
class PureObjectivePerturbationRelease(DpEvent):
    """The exact minimiser of a GLM objective with a random linear term, density ∝ e^{−‖b‖/s}.

    Args:
        lipschitz: L, bound on one record's gradient |f'|‖x‖.
        smoothness: β, bound on one record's curvature f''‖x‖².
        regularisation: λ of ½λ‖θ‖².
        noise_scale: s, where ‖b‖ ~ Gamma(d, s) and the direction is uniform.

    Privacy: pure ε = L/s + log(1 + β/λ) under zero-out and add/remove, 2L/s + log(1 + β/λ) under
        replace-one.

    References:
        privacy.md section 9; Chaudhuri, Monteleoni and Sarwate (2011), Theorem 9.
    """

    lipschitz: float = attr.ib(validator=_NONNEGATIVE)
    smoothness: float = attr.ib(validator=_NONNEGATIVE)
    regularisation: float = attr.ib(validator=_POSITIVE)
    noise_scale: float = attr.ib(validator=_POSITIVE)


def _number(value: float) -> str:
    return f"{value:.6g}"


def _minibatch_words(e: MinibatchBit) -> str:
    noise = f", noise sd {_number(e.noise_sd)}" if e.noise_sd else ""
    return (
        f"mini-batch accept bit ({e.acceptance}{noise}), bound "
        f"{_number(e.lipschitz * e.max_move)}, {_number(e.expected_batch)} draws expected of "
        f"{e.num_records} records"
    )


def _objective_words(e: ObjectivePerturbationRelease) -> str:
    output = f", output noise sd {_number(e.output_noise_sd)}" if e.output_noise_sd else ""
    return f"objective perturbation, noise sd {_number(e.noise_sd)}{output}"


WORDS: dict[type[DpEvent], Callable[..., str]] = {
    BarkerBit: lambda e: f"Barker accept bit, bound {_number(e.log_ratio_bound)}",
    NoisyBarkerBit: lambda e: (
        f"noisy Barker accept bit, bound {_number(e.log_ratio_bound)}, noise sd "
        f"{_number(e.noise_sd)}"
    ),
    PenaltyBit: lambda e: (
        f"penalty accept bit, bound {_number(e.log_ratio_bound)}, noise sd {_number(e.noise_sd)}"
    ),
    DirectionalBarkerBit: lambda e: (
        f"proposal and Barker bit, step size {_number(e.step_size)}, row norm {_number(e.row_norm)}"
    ),
    MultiCandidateBit: lambda e: f"choice among candidates, range {_number(e.log_ratio_range)}",
    MinibatchBit: _minibatch_words,
    PosteriorDraw: lambda e: (
        f"exact posterior draw, log-likelihood range {_number(e.log_likelihood_range)}"
    ),
    LogConcaveDraw: lambda e: (
        f"exact draw from a log-concave posterior, shift "
        f"{_number(e.lipschitz / math.sqrt(e.strong_convexity))}"
    ),
    LangevinLastIterate: lambda e: (
        f"last of {e.num_steps} full-batch Langevin steps of size {_number(e.step_size)}"
    ),
    OutputPerturbationRelease: lambda e: f"output perturbation, noise sd {_number(e.noise_sd)}",
    ObjectivePerturbationRelease: _objective_words,
    PureObjectivePerturbationRelease: lambda e: (
        f"objective perturbation with pure ε, noise scale {_number(e.noise_scale)}"
    ),
    ZCDpEvent: lambda e: f"{_number(e.rho)}-zCDP",
}
