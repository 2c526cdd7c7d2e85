"""Events of accept bits, draws, last iterates and distances, each in its theorem's constants.

Every constant is the one under zero-out, where a record is replaced by one that contributes
nothing; under another relation the accountant doubles what has to be doubled, never the
caller: *Events* (docs/reference/events.md). Constants are public and hold for every possible
record.
"""

import math

import attr
from dp_accounting.dp_event import DpEvent

from numpyro_dp._validate import finite_float, shown
from numpyro_dp.accounting.events.fields import count, event, nonnegative, number, positive

ACCEPTANCES = ("barker", "noisy_barker", "penalty")


@event
class BarkerBit(DpEvent):
    """One accept bit that is 1 with probability σ(l), l a sum of one term for each record.

    :param log_ratio_bound: bound Δ on the absolute value of one record's term.

    **Privacy.** Δ-DP under zero-out and add/remove, 2Δ-DP under replace-one; released are the
    proposal, which is free of data, and the bit.

    **References.** Barker, *Monte Carlo Calculations of the Radial
    Distribution Functions for a Proton-Electron Plasma* (1965).

    **Example**: see :func:`~numpyro_dp.accounting.privacy_curve`, which takes any event.
    """

    log_ratio_bound: float = nonnegative()

    def phrase(self) -> str:
        return f"Barker accept bit, bound {number(self.log_ratio_bound)}"


@event
class NoisyBarkerBit(DpEvent):
    """One accept bit that is 1 with probability E σ(l + N(−s²/2, s²)).

    :param log_ratio_bound: bound Δ on the absolute value of one record's term of l.
    :param noise_sd: s, the standard deviation of the noise.

    **Privacy.** At most a Barker bit and at most a Gaussian of shift Δ/s; exactly the Rényi
    divergence of the bit.

    **References.** *Events*, accept bits.

    **Example**: see :func:`~numpyro_dp.accounting.privacy_curve`, which takes any event.
    """

    log_ratio_bound: float = nonnegative()
    noise_sd: float = positive()

    def phrase(self) -> str:
        bound, noise = number(self.log_ratio_bound), number(self.noise_sd)
        return f"noisy Barker accept bit, bound {bound}, noise sd {noise}"


@event
class PenaltyBit(DpEvent):
    """One accept bit of the penalty rule, min(1, e^{l + N(−s²/2, s²)}) against a uniform.

    :param log_ratio_bound: bound Δ on the absolute value of one record's term of l.
    :param noise_sd: s, the standard deviation of the noise.

    **Privacy.** At most a Gaussian of shift Δ/s; exactly the Rényi divergence of the bit.

    **References.** Ceperley and Dewing, *The penalty method for random walks
    with uncertain energies* (1999).

    **Example**: see :func:`~numpyro_dp.accounting.privacy_curve`, which takes any event.
    """

    log_ratio_bound: float = nonnegative()
    noise_sd: float = positive()

    def phrase(self) -> str:
        bound, noise = number(self.log_ratio_bound), number(self.noise_sd)
        return f"penalty accept bit, bound {bound}, noise sd {noise}"


@event
class DirectionalBarkerBit(DpEvent):
    """A Gaussian proposal and its Barker bit, where a record moves with its linear predictor only.

    :param step_size: s, where the proposal moves by N(0, s²P), P public.
    :param row_norm: R, bound on ‖P^½x‖ over every possible row x; each record's loss is 1-Lipschitz
        in x·θ, and its term of the log ratio is clipped to ``|x·(θ' − θ)|``.

    **Privacy.** Averaged over the direction of the proposal, the bound on a record's term is
    ``sR|Z|`` with Z standard normal.

    **References.** *Events*, direction-averaged charge.

    **Example**: see :func:`~numpyro_dp.accounting.privacy_curve`, which takes any event.
    """

    step_size: float = positive()
    row_norm: float = nonnegative()

    def phrase(self) -> str:
        size, norm = number(self.step_size), number(self.row_norm)
        return f"proposal and Barker bit, step size {size}, row norm {norm}"


@event
class SmoothBarkerBit(DpEvent):
    """A Gaussian proposal and its Barker bit, where records are smooth functions of the position.

    :param step_size: s, where the proposal moves by δ ~ N(0, s²I).
    :param lipschitz: L, bound on the gradient g of a record's term, to which g is clipped.
    :param smoothness: β, the curvature that is granted: the term is clipped to ``|g·δ| + β‖δ‖²/2``.
    :param dim: d, dimensions of the move.

    **Privacy.** Averaged over the proposal, the bound on a record's term is ``sL|Z| + βs²(Z² +
    C)/2`` with Z standard normal and C ~ χ²(d − 1).

    **References.** *Events*, direction-averaged charge.

    **Example**: see :func:`~numpyro_dp.accounting.privacy_curve`, which takes any event.
    """

    step_size: float = positive()
    lipschitz: float = nonnegative()
    smoothness: float = nonnegative()
    dim: int = count()

    def phrase(self) -> str:
        return (
            f"proposal and Barker bit in {self.dim} dimensions, step size "
            f"{number(self.step_size)}, gradient {number(self.lipschitz)}, curvature "
            f"{number(self.smoothness)}"
        )


@event
class MultiCandidateBit(DpEvent):
    """One of several candidates, picked with probability proportional to the target density.

    :param log_ratio_range: bound η on max u − min u, the range over all candidates (the current
        point included) of one record's log likelihood.

    **Privacy.** The exponential mechanism on a public set: bounded range η under zero-out and
    add/remove, 2η under replace-one.

    **References.** Durfee and Rogers, *Practical Differentially Private Top-k
    Selection with Pay-what-you-get Composition* (2019).

    **Example**: see :func:`~numpyro_dp.accounting.privacy_curve`, which takes any event.
    """

    log_ratio_range: float = nonnegative()

    def phrase(self) -> str:
        return f"choice among candidates, range {number(self.log_ratio_range)}"


@event
class MinibatchBit(DpEvent):
    """One accept bit computed on a Poisson mini-batch drawn with replacement (TunaMH).

    :param num_records: N, public.
    :param lipschitz: c, where one record's term of the log ratio is clipped to cM.
    :param max_move: M, bound on the length of a move.
    :param expected_batch: λ + N·c·M, the mean number of draws; λ > 0.
    :param acceptance: ``"barker"`` on the estimated log ratio itself; ``"noisy_barker"`` or
        ``"penalty"`` on the estimate plus Gaussian noise.
    :param noise_sd: standard deviation of that noise; 0 for ``"barker"``, positive otherwise.

    **Privacy.** Neither draws nor their number are released. A cap on the kept draws, or a padded
    room, is a ``TotalVariation`` beside this event. Not stated under add/remove: N is public.

        With λ = χ·N·b(θ, θ'), b a record bound that varies with the move but never exceeds cM,
        the bit without noise is what this event states for λ = χ·N·c·M, that is
        ``expected_batch`` = (1 + χ)·N·c·M: a Barker bit with Δ = b(1 + 1/χ) ≤ cM(1 + 1/χ) under
        zero-out and b(2 + 1/χ) under replace-one. ``BarkerBit(b·(1 + 1/χ))`` charges the first
        exactly and under replace-one 2b(1 + 1/χ), which is more than needed and holds too.

    **References.** Zhang, Cooper and De Sa, *Asymptotically Optimal Exact
    Minibatch Metropolis-Hastings* (2020).

    **Example**: see :func:`~numpyro_dp.accounting.privacy_curve`, which takes any event.
    """

    num_records: int = count()
    lipschitz: float = positive()
    max_move: float = positive()
    expected_batch: float = positive()
    acceptance: str
    noise_sd: float = nonnegative(default=0.0)

    def __attrs_post_init__(self) -> None:
        if self.acceptance not in ACCEPTANCES:
            raise ValueError(
                f"acceptance must be one of {', '.join(ACCEPTANCES)}, got {shown(self.acceptance)}"
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

    def phrase(self) -> str:
        noise = f", noise sd {number(self.noise_sd)}" if self.noise_sd else ""
        return (
            f"mini-batch accept bit ({self.acceptance}{noise}), bound "
            f"{number(self.lipschitz * self.max_move)}, {number(self.expected_batch)} draws "
            f"expected of {self.num_records} records"
        )


@event
class PosteriorDraw(DpEvent):
    """One exact draw from the density ∝ prior · exp(τ Σ log p).

    :param log_likelihood_range: η, bound on sup − inf over the parameters of one record's
        contribution to the log density, likelihood power included: τ(b − a) for likelihoods in [a,
        b], that is 2τB for ``|log p| ≤ B`` and τB for log p in [−B, 0].

    **Privacy.** Bounded range η under zero-out and add/remove, 2η under replace-one. The draw must
    be exact; a proved total variation distance goes into a ``TotalVariation`` beside it.

    **References.** Dimitrakakis et al., *Robust and Private Bayesian
    Inference* (2014); Wang, Fienberg and Smola, *Privacy for Free* (2015).

    **Example**: see :func:`~numpyro_dp.accounting.privacy_curve`, which takes any event.
    """

    log_likelihood_range: float = nonnegative()

    def phrase(self) -> str:
        return f"exact posterior draw, log-likelihood range {number(self.log_likelihood_range)}"


@event
class LogConcaveDraw(DpEvent):
    """One exact draw from a strongly log-concave posterior.

    :param lipschitz: G, bound on the Lipschitz constant in the sampled coordinates of one record's
        contribution to the log density, likelihood power included.
    :param strong_convexity: m, of minus the log prior in the same coordinates.

    **Privacy.** Gaussian of shift G/√m under zero-out and add/remove, 2G/√m under replace-one,
    provided that minus the log likelihood is convex for every possible record.

    **References.** Gopi, Lee and Liu, *Private Convex Optimization via
    Exponential Mechanism* (2022), Theorem 4.

    **Example**: see :func:`~numpyro_dp.accounting.privacy_curve`, which takes any event.
    """

    lipschitz: float = nonnegative()
    strong_convexity: float = positive()

    def phrase(self) -> str:
        shift = number(self.lipschitz / math.sqrt(self.strong_convexity))
        return f"exact draw from a log-concave posterior, shift {shift}"


@event
class LangevinLastIterate(DpEvent):
    """The last state of full-batch Langevin dynamics after a fixed number of steps.

    :param step_size: h of θ ← θ − h∇F(θ) + √(2h)·N(0, I), below 2/smoothness.
    :param num_steps: number of steps since the start, which is public or was released.
    :param lipschitz: G, bound on one record's gradient in F, likelihood power included.
    :param strong_convexity: m of F for every data set; 0 when none is known.
    :param smoothness: M of F for every data set.

    **Privacy.** A Gaussian of shift √(h/2)·G·√[(1 − cᵀ)/(1 + cᵀ)·(1 + c)/(1 − c)], c the
    contraction ``max(|1 − hm|, |1 − hM|)``; 2G under replace-one. With c = 1 the shift is G√(hT/2),
    that of releasing every state. Gradients must be neither clipped nor batched. Under add/remove m
    and M come from a public bound on the number of records.

    **References.** Altschuler and Talwar, *Privacy of Noisy Stochastic
    Gradient Descent* (2022); Bok, Su and Altschuler, *Shifted Interpolation for Differential
    Privacy* (2024).

    **Example**: see :func:`~numpyro_dp.accounting.privacy_curve`, which takes any event.
    """

    step_size: float = positive()
    num_steps: int = count()
    lipschitz: float = nonnegative()
    strong_convexity: float = nonnegative()
    smoothness: float = positive()

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

    def phrase(self) -> str:
        size = number(self.step_size)
        return f"last of {self.num_steps} full-batch Langevin steps of size {size}"


def _within_one(_instance: object, _attribute: object, value: object) -> None:
    if not 0 <= finite_float("distance", value) <= 1:
        raise ValueError(f"distance must lie in [0, 1], got {shown(value)}")


@event
class TotalVariation(DpEvent):
    """The output is within ``distance`` in total variation of the mechanism charged beside it.

    :param distance: an upper bound, in [0, 1], on the total variation distance between what was run
        and the ideal mechanism, whatever the data (tables, padded rooms, caps).

    **Privacy.** Adds (1 + e^ε)·distance to δ at every ε, outside the privacy loss distribution.

    **References.** *Events*, the table: P(A) ≤ P̃(A) + distance on both sides of the definition.

    **Example**: see :func:`~numpyro_dp.accounting.privacy_curve`, which takes any event.
    """

    distance: float = attr.ib(validator=_within_one)

    def phrase(self) -> str:
        return f"total variation {number(self.distance)}"
