"""What is wrong with a plan, in order of harm, and what would mend it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from numpyro_dp.accounting import rounded_down
from numpyro_dp.diagnostics.plan.signal import Gains, SignalModel
from numpyro_dp.diagnostics.plan.steps import WIDENED, ChainSteps
from numpyro_dp.diagnostics.plan.subject import PlannedRun
from numpyro_dp.mcmc.sgmcmc.bias import CLUMPED_COUNTS, SiteBias
from numpyro_dp.mcmc.sgmcmc.relaxation import ENOUGH

Fault = Literal["swamped", "unstable", "biased", "noisy"]
Verdict = Literal["fine"] | Fault

# By definition, see plan's docstring: the share that a fine plan lets through; the posterior
# standard deviations by which it may miss its place half-way.
FINE = 0.9
_SWAMPED = 0.1
_MISSED = 3.0
_PRECONDITIONER = "a preconditioner of public prior variances"


@dataclass(frozen=True, eq=False)
class Findings:
    """What was found out about a run.

    :param studied: the run.
    :param signal_model: what comes through it.
    :param gains: shares that come through.
    :param reached: what a fit gains on the model's own gradients, or ``None``.
    :param bias: what clipping moves; empty where the clip is centred.
    :param balanced: the clip norm that weighs bias against noise.
    :param chain: its steps, or ``None``.
    """

    studied: PlannedRun
    signal_model: SignalModel
    gains: Gains
    reached: float | None
    bias: tuple[SiteBias, ...]
    balanced: float
    chain: ChainSteps | None

    @property
    def gain(self) -> float:
        """Share of what the data could teach that is expected to come through."""
        if self.reached is None:
            return self.gains.expected
        return min(self.gains.expected, max(self.reached, 0.0))

    def faults(self) -> tuple[Fault, ...]:
        """All that is wrong, in order of harm."""
        if self.studied.influence <= _SWAMPED:
            return ("swamped",)
        # A share is measured by the way from the start; far from the prior, most of that is the
        # prior's own pull. Nine tenths from the records take a signal of three times all noise, at
        # which the bound is 1.
        noisy = (
            self.gain < FINE
            or self.studied.influence < 1
            or self._blurred()
            or self._hot()
            or self._slow()
            or self._short()
        )
        found: list[tuple[Fault, bool]] = [
            ("unstable", self._unstable()),
            ("biased", self._moved() or self._mostly_clipped()),
            ("noisy", noisy),
        ]
        return tuple(fault for fault, wrong in found if wrong)

    def remedies(self) -> tuple[str, ...]:
        """What would mend the plan, by what harms most."""
        found = []
        if self.chain is not None and self._unstable():
            found.append(self._shorter_steps(self.chain))
        if self._moved():
            found.append(self._looser_clip())
        elif self._mostly_clipped():
            found.append(
                "a larger clip_norm: most records would be clipped, which shifts the posterior "
                "wherever they are unlike the model's"
            )
        return (*found, *self._against_noise())

    def _unstable(self) -> bool:
        chain, size = self.chain, self.studied.step_size
        return chain is not None and size is not None and size > chain.stable_size()

    def _moved(self) -> bool:
        return any(each.too_far for each in self.bias)

    def _mostly_clipped(self) -> bool:
        # A centred clip has mean zero under the model wherever it cuts.
        return not self.studied.centred and self.signal_model.clipped_at_truth() > 1 / 2

    def _blurred(self) -> bool:
        curvature = self.studied.curvature
        return curvature is not None and float(curvature.noise_sd()) > self.signal_model.curvature()

    def _hot(self) -> bool:
        size = self.studied.step_size
        return self.chain is not None and size is not None and (
            self.chain.temperature(size) > WIDENED
        )  # fmt: skip

    def _cooled_already(self) -> bool:
        """Whether the step size that is stable is cool as well."""
        chain = self.chain
        return chain is not None and self._unstable() and (
            chain.temperature(chain.stable_size()) <= WIDENED
        )  # fmt: skip

    def _slow(self) -> bool:
        return self.chain is not None and self.chain.missing() > _MISSED

    def _short(self) -> bool:
        """Whether a report of the run would call its draws no posterior."""
        return self.chain is not None and self.chain.times() < ENOUGH

    def _shorter_steps(self, chain: ChainSteps) -> str:
        size = chain.stable_size()
        said = (
            f"a step_size of at most {rounded_down(size, 2)}: longer ones overshoot the steepest "
            "direction, or shake with the mini-batches; draws spread too widely there, and scales "
            "may run to 0"
        )
        full = chain.on_full_batches().stable_size()
        return (
            f"{said} (with full batches up to {rounded_down(full, 2)})"
            if full > 1.5 * size
            else said
        )

    def _looser_clip(self) -> str:
        worst, studied = self.bias[0], self.studied
        towards = "upwards" if worst.up else "downwards"
        clumped = f" ({CLUMPED_COUNTS})" if studied.bias.stretch > 1 else ""
        said = f"clipping moves {worst.site!r} {towards} {worst} posterior sds{clumped}"
        clip, best = studied.mechanism.clip_norm, self.balanced
        if best < 1.2 * clip:
            return (
                "a larger budget or more records, and then a larger clip_norm: "
                f"{said}, and noise forbids a larger one now"
            )
        left = studied.bias.of_sites(best)[0]
        narrower = (
            f"; where {left.where} no clip will do at this noise: if you know better, say so in "
            "the prior"
            if left.too_far and left.where
            else ""
        )
        return (
            f"{self._clip(best)}, which balances bias and noise: {said}, and there {left}{narrower}"
        )

    def _clip(self, norm: float) -> str:
        if self.studied.by_site:
            return f"every bound of clip_norm times {norm / self.studied.mechanism.clip_norm:.2g}"
        return f"clip_norm={norm:.2g}"

    def _against_noise(self) -> list[str]:
        studied, gains, chain = self.studied, self.gains, self.chain
        found = []
        if self.gain < FINE or studied.influence < 1:
            found.append(
                "more records, a larger budget, fewer parameters, or a larger batch with fewer "
                "steps"
            )
        size = studied.step_size
        if chain is not None and size is not None and self._hot() and not self._cooled_already():
            found.append(self._far_law() if self._slow() else self._cooler(chain, size))
        if self._blurred():
            found.append(
                "a larger budget, fewer parameters or a smaller curvature_clip: the noise of the "
                "curvature's release is larger than the curvature, so that scales come out wrong"
            )
        if found and self.balanced < studied.mechanism.clip_norm / 1.5:
            worst = None if studied.centred else studied.bias.of_sites(self.balanced)[0]
            moved = "" if worst is None else (
                f"; clipping then moves {worst.site!r} {worst} posterior sds"
            )  # fmt: skip
            # Noise that would be traded for a bias of which the plan then complains is no remedy.
            if worst is None or not worst.too_far:
                found.append(
                    f"{self._clip(self.balanced)}: the noise is sized for longer gradients than "
                    f"need be{moved}"
                )
        if gains.expected >= FINE and studied.influence < 1:
            found.append(
                "a start within the prior's reach: most of the way from this one is the prior's own"
            )
        if chain is not None and self._short() and not self._slow():
            found.append(self._more_times(chain))
        if chain is None or not self._slow():
            found.extend(self._way())
        elif not self._hot():
            found.append(self._longer_way(chain))
        return found

    def _cooler(self, chain: ChainSteps, size: float) -> str:
        heat = chain.temperature(size)
        free = chain.integrator.free_step_size(chain.noise)
        return (
            f"a step_size nearer {free:.2g}: at this one the privacy noise puts the draws at "
            f"temperature {heat:.3g}, {math.sqrt(heat):.2g} times too wide"
        )

    def _far_law(self) -> str:
        return (
            "more records, a larger budget, a preconditioner of public prior variances or a lower "
            "likelihood_power: at no step_size is the noise cool and the slowest direction there"
        )

    def _more_times(self, chain: ChainSteps) -> str:
        longer = self._longer_steps(chain)
        what = (
            f"{longer}, or more steps"
            if longer
            else f"more records, a larger budget, or {_PRECONDITIONER}"
        )
        return (
            f"{what}: a chain spans {chain.times():.2g} relaxation times of its slowest direction, "
            f"and below about {ENOUGH:g} its draws are no posterior"
        )

    def _longer_way(self, chain: ChainSteps) -> str:
        longer = self._longer_steps(chain)
        what = f"{longer}, or more steps" if longer else f"more steps, or {_PRECONDITIONER}"
        return (
            f"{what}: half of the steps leave the slowest direction {chain.missing():.2g} "
            "posterior sds from its place"
        )

    def _longer_steps(self, chain: ChainSteps) -> str:
        """A step size that is stable, cool and longer than the run's; empty if there is none."""
        size = self.studied.step_size
        most = min(chain.stable_size(), chain.integrator.free_step_size(chain.noise))
        if size is None or not size * 1.2 < most < math.inf:
            return ""
        return f"a step_size up to {rounded_down(most, 2)}"

    def _way(self) -> list[str]:
        """What moves a chain or an optimiser from its start to the posterior."""
        gains, reached, chain = self.gains, self.reached, self.studied.rehearsal is None
        found = []
        if gains.shaken > 1:
            found.append(
                f"a smaller learning rate: noise alone carries the fit {gains.shaken:.2g} times as "
                "far as the prior reaches, from where it predicts worse than the prior"
            )
        elif gains.arrived < FINE:
            name, who = ("step_size", "chain") if chain else ("learning rate", "optimiser")
            found.append(f"a larger {name}: the {who} may not get from its start to the posterior")
        elif not chain and gains.expected < FINE <= gains.averaged:
            found.append(
                "a smaller learning rate or a longer average: the optimiser follows the noise"
            )
        if reached is not None and reached < FINE:
            worse = ", and ends worse than it began" if reached < 0 else ""
            found.append(
                "a smaller learning rate: rehearsed on records drawn from the model the fit gains "
                f"{max(reached, 0):.0%} of what they can teach{worse}"
            )
        return found


def found_out(studied: PlannedRun, signal_model: SignalModel, norms: np.ndarray) -> Findings:
    """What is found out about a run.

    :param norms: finite gradient norms of the made-up records.
    """
    gains, clip = signal_model.gains(), studied.mechanism.clip_norm
    # What is not fine as a quadratic needs no more rehearsing.
    rehearsed = studied.dress is not None and gains.expected >= FINE
    median = float(np.median(norms))
    if studied.centred:
        bias, balanced = (), median
    else:
        left = studied.noise / clip / math.sqrt(signal_model.num_steps)
        bias = studied.bias.of_sites(clip)
        balanced = studied.bias.balanced(left, median / 2)
    return Findings(
        studied=studied,
        signal_model=signal_model,
        gains=gains,
        reached=studied.dress.reached() if rehearsed and studied.dress else None,
        bias=bias,
        balanced=balanced,
        chain=studied.steps(signal_model),
    )
