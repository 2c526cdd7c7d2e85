"""Differentially private Bayesian inference for ordinary NumPyro models.

Write a NumPyro model, run it with a private kernel in :class:`MCMC`, and read what it cost in
``mcmc.privacy``. Names are loaded on first use, so that the accounting can be used without JAX.
"""

from typing import TYPE_CHECKING

from numpyro_dp import _moved
from numpyro_dp._lazy import on_first_use

if TYPE_CHECKING:
    from numpyro_dp.accounting import Accountant as Accountant
    from numpyro_dp.accounting import Budget as Budget
    from numpyro_dp.accounting import PrivacyReport as PrivacyReport
    from numpyro_dp.accounting import calibrate as calibrate
    from numpyro_dp.accounting import events as events
    from numpyro_dp.accounting.bayesian import BayesianAccountant as BayesianAccountant
    from numpyro_dp.diagnostics import AuditResult as AuditResult
    from numpyro_dp.diagnostics import audit as audit
    from numpyro_dp.diagnostics import from_numpyro as from_numpyro
    from numpyro_dp.diagnostics.clipping_rate import ClippingRate as ClippingRate
    from numpyro_dp.diagnostics.clipping_rate import clipping_rate as clipping_rate
    from numpyro_dp.diagnostics.missing import MissingCount as MissingCount
    from numpyro_dp.diagnostics.missing import count_missing as count_missing
    from numpyro_dp.diagnostics.plan.plan import Plan as Plan
    from numpyro_dp.diagnostics.plan.plan import plan as plan
    from numpyro_dp.diagnostics.plots import plot_budget as plot_budget
    from numpyro_dp.diagnostics.plots import plot_epsilon_by_step as plot_epsilon_by_step
    from numpyro_dp.diagnostics.plots import plot_privacy_curve as plot_privacy_curve
    from numpyro_dp.errors import BudgetExceededError as BudgetExceededError
    from numpyro_dp.errors import LedgerError as LedgerError
    from numpyro_dp.errors import UnsupportedModelError as UnsupportedModelError
    from numpyro_dp.estimators import EstimatorResult as EstimatorResult
    from numpyro_dp.estimators import ObjectivePerturbation as ObjectivePerturbation
    from numpyro_dp.estimators import OutputPerturbation as OutputPerturbation
    from numpyro_dp.families.hinge import HuberHinge as HuberHinge
    from numpyro_dp.mcmc import DPSGFS as DPSGFS
    from numpyro_dp.mcmc import DPSGHMC as DPSGHMC
    from numpyro_dp.mcmc import DPSGLD as DPSGLD
    from numpyro_dp.mcmc import DPSGNHT as DPSGNHT
    from numpyro_dp.mcmc import MCMC as MCMC
    from numpyro_dp.mcmc import OPS as OPS
    from numpyro_dp.mcmc import BoundedLikelihood as BoundedLikelihood
    from numpyro_dp.mcmc import DPBarkerMH as DPBarkerMH
    from numpyro_dp.mcmc import DPFastMH as DPFastMH
    from numpyro_dp.mcmc import DPPenaltyMH as DPPenaltyMH
    from numpyro_dp.mcmc import Grid as Grid
    from numpyro_dp.mcmc import Langevin as Langevin
    from numpyro_dp.mcmc import PhaseTransitionStepSize as PhaseTransitionStepSize
    from numpyro_dp.mcmc import PolynomialStepSize as PolynomialStepSize
    from numpyro_dp.mcmc import Rejection as Rejection
    from numpyro_dp.mcmc import StronglyLogConcave as StronglyLogConcave
    from numpyro_dp.mcmc import UncheckedNUTS as UncheckedNUTS
    from numpyro_dp.model.records import public as public
    from numpyro_dp.svi import DPSVI as DPSVI
    from numpyro_dp.svi import VIPS as VIPS
    from numpyro_dp.svi import CentredInputs as CentredInputs
    from numpyro_dp.svi import DPSVIRunResult as DPSVIRunResult
    from numpyro_dp.svi import ElboTrace as ElboTrace
    from numpyro_dp.svi import PrivateCentre as PrivateCentre
    from numpyro_dp.svi import guides as guides

__version__ = "0.1.0"

_moved.install()

_HOME = {
    "Accountant": "accounting",
    "AuditResult": "diagnostics",
    "BayesianAccountant": "accounting.bayesian",
    "BoundedLikelihood": "mcmc",
    "Budget": "accounting",
    "BudgetExceededError": "errors",
    "DPBarkerMH": "mcmc",
    "DPFastMH": "mcmc",
    "DPPenaltyMH": "mcmc",
    "CentredInputs": "svi",
    "ClippingRate": "diagnostics.clipping_rate",
    "DPSGFS": "mcmc",
    "DPSGHMC": "mcmc",
    "DPSGLD": "mcmc",
    "DPSGNHT": "mcmc",
    "DPSVI": "svi",
    "DPSVIRunResult": "svi",
    "Grid": "mcmc",
    "HuberHinge": "families.hinge",
    "Langevin": "mcmc",
    "ElboTrace": "svi",
    "EstimatorResult": "estimators",
    "LedgerError": "errors",
    "MCMC": "mcmc",
    "MissingCount": "diagnostics.missing",
    "OPS": "mcmc",
    "PhaseTransitionStepSize": "mcmc",
    "ObjectivePerturbation": "estimators",
    "OutputPerturbation": "estimators",
    "Plan": "diagnostics.plan.plan",
    "PolynomialStepSize": "mcmc",
    "PrivacyReport": "accounting",
    "PrivateCentre": "svi",
    "Rejection": "mcmc",
    "StronglyLogConcave": "mcmc",
    "UncheckedNUTS": "mcmc",
    "UnsupportedModelError": "errors",
    "VIPS": "svi",
    "audit": "diagnostics",
    "calibrate": "accounting",
    "clipping_rate": "diagnostics.clipping_rate",
    "count_missing": "diagnostics.missing",
    "events": "accounting",
    "from_numpyro": "diagnostics",
    "guides": "svi",
    "plan": "diagnostics.plan.plan",
    "plot_budget": "diagnostics.plots",
    "plot_epsilon_by_step": "diagnostics.plots",
    "plot_privacy_curve": "diagnostics.plots",
    "public": "model.records",
}

__all__ = sorted(_HOME)

__getattr__, __dir__ = on_first_use(
    "numpyro_dp", {name: f"numpyro_dp.{home}" for name, home in _HOME.items()}, "__version__"
)
