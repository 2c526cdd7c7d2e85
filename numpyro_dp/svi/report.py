"""The privacy report of private variational inference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpyro.infer import autoguide

from numpyro_dp.accounting import Accountant, PrivacyReport
from numpyro_dp.accounting.events import DpEvent
from numpyro_dp.mechanisms.keys import INSECURE, RANDOMNESS
from numpyro_dp.mechanisms.wording import arithmetic
from numpyro_dp.svi.plan import Plan
from numpyro_dp.variational import VariationalModel

__all__ = ["GIVEN_PARAMS", "GIVEN_STATE", "build_report", "resolution_notes"]

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
    guide: Any, held: Sequence[str], plan: Plan, num_steps: int, average: float
) -> tuple[str, ...]:
    """What privacy noise keeps a guide from learning, in sentences; from public values alone."""
    notes = []
    if average:
        notes.append(
            f"The parameters are the average of the last {average:.0%} of {num_steps} steps."
        )
    mechanism = plan.gradient
    if not mechanism.is_private:
        return (*notes, "Clipping and noise were switched off: nothing here is private.")
    if held:
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
    # A log scale's gradient comes to at most 1, in nats, whatever the number of records.
    noise = float(mechanism.noise_sd()) / mechanism.sampling_rate / num_steps**0.5
    if isinstance(guide, _MATRICES) and noise > 1:
        notes.append(
            f"{type(guide).__name__} learns its matrix from gradients of about 1, in which privacy "
            f"leaves noise of {noise:.3g} over all steps: the matrix is not resolved, and the "
            "noise in it harms the location too. Use AutoNormal with scale='curvature'."
        )
    return tuple(notes)


def build_report(
    target: VariationalModel,
    plan: Plan,
    *,
    charges: Sequence[tuple[str, DpEvent]],
    steps: int,
    delta: float,
    secure: bool,
    given: Sequence[str],
    accountant: Accountant,
    private_size: bool,
    notes: Sequence[str],
    centred: bool,
    overflow_delta: float,
) -> PrivacyReport:
    """The report of ``charges``; every ε in it is an upper bound."""
    mechanism = plan.gradient
    full = mechanism.sampling_rate == 1
    clipped = "model-centred and clipped" if centred else "clipped"
    released = ("the parameters and the optimiser's state after every step",)
    if plan.curvature is not None:
        released += ("the noisy diagonal of the curvature, at the end",)
    if plan.elbo is not None:
        released += (f"a noisy loss after every {plan.elbo.trace.every} steps",)
    return PrivacyReport.build(
        entries=charges,
        relation=accountant.relation,
        delta=delta,
        unit=f"one slice of plate '{target.plate}'",
        num_records=None if private_size else target.num_records,
        mechanism=(
            f"Gaussian mechanism on the sum of {clipped} per-record gradients of the bound"
            if mechanism.is_private
            else "none: un-noised, unclipped gradients"
        ),
        sampler=(
            "every record in every step"
            if full
            else f"Poisson sampling, rate {mechanism.sampling_rate:.6g}, a fresh draw for each step"
        ),
        sampling_rate=mechanism.sampling_rate,
        clip_norm=mechanism.clip_norm,
        noise_multiplier=mechanism.noise_multiplier,
        steps=steps,
        warmup_steps=0,
        num_chains=1,
        overflow_delta=overflow_delta,
        released=released,
        assumed_public=(
            *(() if private_size else (f"the number of records ({target.num_records})",)),
            "model, guide, priors, starting values and every option",
            *(f"argument {name}" for name in target.public_inputs),
            *given,
        ),
        conditions=() if secure else (INSECURE,),
        randomness=RANDOMNESS[secure],
        arithmetic=arithmetic(mechanism),
        notes=notes,
        accountant=accountant,
    )
