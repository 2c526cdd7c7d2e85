"""The privacy report of private variational inference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpyro.infer import autoguide

from numpyro_dp.accounting.report.facts import RunFacts
from numpyro_dp.execution.facts import assumed_public, sum_facts
from numpyro_dp.model.guided.model import VariationalModel
from numpyro_dp.scoring.adaptation import RELEASED, SUMMANDS
from numpyro_dp.svi.dpsvi.plan import AdaptedPlan, ReleasePlan

GIVEN_PARAMS = "the starting values given as init_params"
GIVEN_STATE = (
    "the state given as init_state, which is not this object's last: what it cost is not part of "
    "this ε"
)
_MATRICES = (
    autoguide.AutoMultivariateNormal,
    autoguide.AutoLowRankMultivariateNormal,
    autoguide.AutoBNAFNormal,
    autoguide.AutoIAFNormal,
)


def resolution_notes(
    guide: Any,
    held: Sequence[str],
    plan: ReleasePlan,
    num_steps: int,
    average: float,
    *,
    centred: bool,
) -> tuple[str, ...]:
    """What privacy noise keeps a guide from learning, in sentences; from public values alone.

    :param centred: whether gradients are shifted before the clip.
    """
    notes = []
    if average:
        notes.append(
            f"The parameters are the average of the last {average:.0%} of {num_steps} steps."
        )
    mechanism = plan.gradient
    if not mechanism.is_private:
        return (*notes, "Clipping and noise were switched off: nothing here is private.")
    if not centred:
        notes.append(
            "Gradients were clipped as they are: where the clip bites, locations move by more than "
            "the posterior says (shapes of censored times by sixteen of its sds), and nothing "
            "released tells it. A larger clip_norm moves them less (ndp.plan), clip='centred' "
            "hardly, where outcomes can be drawn."
        )
    if isinstance(plan, AdaptedPlan):
        notes.append(
            "The scales come from the release before the steps, and count the noise of both."
        )
    elif held:
        notes.append("The scales come from one noisy release of the likelihood's curvature.")
    elif type(guide) in (autoguide.AutoNormal, autoguide.AutoDiagonalNormal):
        notes.append(
            "The scales were left to noisy gradients, which hardly move them: the posterior's "
            "width is that of the start. scale='curvature' would release them."
        )
    if plan.elbo is not None:
        trace, sd = plan.elbo.trace, plan.elbo.private_sum.noise_sd()
        notes.append(
            f"Losses sum the records' terms clipped to [{trace.lower:g}, {trace.upper:g}], with "
            f"noise of standard deviation {sd / mechanism.sampling_rate:.3g} beside what "
            "the guide's draws add."
        )
    unresolved = unresolved_matrix(guide, plan, num_steps)
    return (*notes, *(() if unresolved is None else (unresolved,)))


def unresolved_matrix(guide: Any, plan: ReleasePlan, num_steps: int) -> str | None:
    """What to say of a full-rank guide whose matrix drowns in noise; from public values alone."""
    mechanism = plan.gradient
    learnt = isinstance(guide, _MATRICES) and not isinstance(plan, AdaptedPlan)
    if not learnt or not mechanism.is_private:
        return None
    # A log scale's gradient comes to at most 1, in nats, whatever the number of records.
    noise = float(mechanism.noise_sd()) / mechanism.sampling_rate / num_steps**0.5
    if noise <= 1:
        return None
    return (
        f"{type(guide).__name__} learns its matrix from gradients of about 1, in which privacy "
        f"leaves noise of {noise:.3g} over all steps: the matrix is not resolved, and the "
        "noise in it harms the location too. Use AutoNormal with scale='curvature'."
    )


def run_facts(
    target: VariationalModel,
    plan: ReleasePlan,
    *,
    private_size: bool,
    centred: bool,
    notes: tuple[str, ...],
) -> RunFacts:
    """What a run says about itself."""
    size = None if private_size else target.num_records
    clipped = "model-centred and clipped" if centred else "clipped"
    summands = f"the sum of {clipped} per-record gradients of the bound"
    released: tuple[str, ...] = ("the parameters and the optimiser's state after every step",)
    if isinstance(plan, AdaptedPlan):
        summands = f"the sum of {SUMMANDS}"
        # The clip norm is a public number, in coordinates that are released.
        released = (f"{RELEASED}, and with the steps the scales", *released)
    if plan.curvature is not None:
        released += ("the noisy diagonal of the curvature, at the end",)
    if plan.elbo is not None:
        released += (f"a noisy loss after every {plan.elbo.trace.every} steps",)
    return sum_facts(
        plan.gradient,
        summands,
        released=released,
        unit=target.unit,
        num_records=size,
        assumed_public=assumed_public(
            size,
            "model, guide, priors, starting values and every option",
            arguments=target.public_inputs,
        ),
        notes=notes,
    )
