"""What would mend a plan whose noise leaves too little of the signal."""

from __future__ import annotations

import numpy as np

from numpyro_dp.diagnostics.channel import Channel, Gains
from numpyro_dp.diagnostics.subject import Subject

__all__ = ["FINE", "faults", "remedies"]

# The share that a fine plan lets through; by definition, see plan's docstring.
FINE = 0.9


def faults(studied: Subject, channel: Channel) -> list[str]:
    """What forbids to call a plan fine, whatever comes through; said as remedies."""
    found = []
    # A centred clip has mean zero under the model wherever it cuts.
    if not studied.centred and channel.clipped_at_truth() > 1 / 2:
        found.append(
            "a larger clip_norm: most records would be clipped, which shifts the posterior "
            "wherever they are unlike the model's"
        )
    curvature = studied.curvature
    if curvature is not None and float(curvature.noise_sd()) > channel.curvature():
        found.append(
            "a larger budget, fewer parameters or a smaller curvature_clip: the noise of the "
            "curvature's release is larger than the curvature, so that scales come out wrong"
        )
    return found


def remedies(
    studied: Subject,
    gains: Gains,
    reached: float | None,
    norms: np.ndarray,
    faults: list[str],
) -> tuple[str, ...]:
    """What would mend the plan of a subject, the most general first."""
    found = [
        "more records, a larger budget, fewer parameters, or a larger batch with fewer steps",
        *faults,
    ]
    if studied.mechanism.clip_norm > 3 * np.median(norms):
        found.append("a smaller clip_norm: the noise is sized for longer gradients than any")
    if gains.expected >= FINE and studied.influence < 1:
        found.append(
            "a start within the prior's reach: most of the way from this one is the prior's own"
        )
    chain = studied.rehearsal is None
    if gains.shaken > 1:
        found.append(
            f"a smaller learning rate: noise alone carries the fit {gains.shaken:.2g} times as far "
            "as the prior reaches, from where it predicts worse than the prior"
        )
    elif gains.arrived < FINE:
        name, who = ("step_size", "chain") if chain else ("learning rate", "optimiser")
        found.append(f"a larger {name}: the {who} may not get from its start to the posterior")
    elif not chain and gains.expected < FINE <= gains.averaged:
        found.append("a smaller learning rate or a longer average: the optimiser follows the noise")
    if reached is not None and reached < FINE:
        worse = ", and ends worse than it began" if reached < 0 else ""
        found.append(
            "a smaller learning rate: rehearsed on records drawn from the model the fit gains "
            f"{max(reached, 0):.0%} of what they can teach{worse}"
        )
    return tuple(found)
