"""Differentially private Bayesian inference for ordinary NumPyro models.

Write a NumPyro model, run it with a private kernel in :class:`MCMC`, and read what it cost in
``mcmc.privacy``. Names are loaded on first use, so that the accounting can be used without JAX.
"""

from importlib.metadata import version
from typing import TYPE_CHECKING

from numpyro_dp import _moved
from numpyro_dp._lazy import on_first_use

if TYPE_CHECKING:
    from numpyro_dp._compilation_cache import (
        enable_compilation_cache as enable_compilation_cache,
    )
    from numpyro_dp._public import public as public
    from numpyro_dp._shards import shard as shard
    from numpyro_dp._sources import RecordSource as RecordSource
    from numpyro_dp.accounting import (
        Accountant as Accountant,
        Budget as Budget,
        PrivacyReport as PrivacyReport,
        calibrate as calibrate,
        events as events,
    )
    from numpyro_dp.accounting.bayesian import BayesianAccountant as BayesianAccountant
    from numpyro_dp.diagnostics import (
        AuditResult as AuditResult,
        audit as audit,
        from_numpyro as from_numpyro,
    )
    from numpyro_dp.diagnostics.audit.loudest import (
        NeighbouringData as NeighbouringData,
        loudest_pair as loudest_pair,
    )
    from numpyro_dp.diagnostics.audit.one_run import (
        OneRunAudit as OneRunAudit,
        audit_one_run as audit_one_run,
    )
    from numpyro_dp.diagnostics.checks.accuracy import (
        Accuracy as Accuracy,
        private_accuracy as private_accuracy,
    )
    from numpyro_dp.diagnostics.checks.calibration import (
        CalibrationCurve as CalibrationCurve,
        private_calibration_curve as private_calibration_curve,
    )
    from numpyro_dp.diagnostics.checks.log_density import (
        LogPredictiveDensity as LogPredictiveDensity,
        private_log_predictive_density as private_log_predictive_density,
    )
    from numpyro_dp.diagnostics.checks.predictive_check import (
        private_posterior_predictive_check as private_posterior_predictive_check,
    )
    from numpyro_dp.diagnostics.checks.predictive_result import (
        PredictiveCheck as PredictiveCheck,
    )
    from numpyro_dp.diagnostics.clipping_rate import (
        ClippingRate as ClippingRate,
        clipping_rate as clipping_rate,
    )
    from numpyro_dp.diagnostics.coverage.coverage import coverage as coverage
    from numpyro_dp.diagnostics.coverage.result import CoverageResult as CoverageResult
    from numpyro_dp.diagnostics.forest import plot_forest as plot_forest
    from numpyro_dp.diagnostics.missing import (
        MissingCount as MissingCount,
        count_missing as count_missing,
    )
    from numpyro_dp.diagnostics.plan.plan import Plan as Plan, plan as plan
    from numpyro_dp.diagnostics.plots import (
        plot_budget as plot_budget,
        plot_epsilon_by_step as plot_epsilon_by_step,
        plot_privacy_curve as plot_privacy_curve,
    )
    from numpyro_dp.errors import (
        BudgetExceededError as BudgetExceededError,
        LedgerError as LedgerError,
        UnsupportedModelError as UnsupportedModelError,
    )
    from numpyro_dp.estimators import (
        EstimatorResult as EstimatorResult,
        ObjectivePerturbation as ObjectivePerturbation,
        OutputPerturbation as OutputPerturbation,
    )
    from numpyro_dp.families.hinge import HuberHinge as HuberHinge
    from numpyro_dp.mcmc import (
        DPNUTS as DPNUTS,
        DPSGFS as DPSGFS,
        DPSGHMC as DPSGHMC,
        DPSGLD as DPSGLD,
        DPSGNHT as DPSGNHT,
        MCMC as MCMC,
        OPS as OPS,
        BoundedLikelihood as BoundedLikelihood,
        DPBarkerMH as DPBarkerMH,
        DPFastMH as DPFastMH,
        DPPenaltyMH as DPPenaltyMH,
        Grid as Grid,
        Langevin as Langevin,
        PhaseTransitionStepSize as PhaseTransitionStepSize,
        PolynomialStepSize as PolynomialStepSize,
        Rejection as Rejection,
        StronglyLogConcave as StronglyLogConcave,
        UncheckedNUTS as UncheckedNUTS,
    )
    from numpyro_dp.scoring.release import LikelihoodRelease as LikelihoodRelease
    from numpyro_dp.scoring.released import ReleasedLikelihood as ReleasedLikelihood
    from numpyro_dp.svi import (
        DPSVI as DPSVI,
        VIPS as VIPS,
        CentredInputs as CentredInputs,
        DPSVIRunResult as DPSVIRunResult,
        ElboTrace as ElboTrace,
        PrivateCentre as PrivateCentre,
        guides as guides,
    )

__version__ = version("numpyro-dp")

_moved.install()

_HOME = {
    "Accountant": "accounting",
    "Accuracy": "diagnostics.checks.accuracy",
    "AuditResult": "diagnostics",
    "BayesianAccountant": "accounting.bayesian",
    "BoundedLikelihood": "mcmc",
    "Budget": "accounting",
    "BudgetExceededError": "errors",
    "DPBarkerMH": "mcmc",
    "DPFastMH": "mcmc",
    "DPPenaltyMH": "mcmc",
    "CalibrationCurve": "diagnostics.checks.calibration",
    "CentredInputs": "svi",
    "ClippingRate": "diagnostics.clipping_rate",
    "CoverageResult": "diagnostics.coverage.result",
    "DPNUTS": "mcmc",
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
    "LikelihoodRelease": "scoring.release",
    "LogPredictiveDensity": "diagnostics.checks.log_density",
    "MCMC": "mcmc",
    "MissingCount": "diagnostics.missing",
    "NeighbouringData": "diagnostics.audit.loudest",
    "OPS": "mcmc",
    "OneRunAudit": "diagnostics.audit.one_run",
    "PhaseTransitionStepSize": "mcmc",
    "ObjectivePerturbation": "estimators",
    "OutputPerturbation": "estimators",
    "Plan": "diagnostics.plan.plan",
    "PolynomialStepSize": "mcmc",
    "PredictiveCheck": "diagnostics.checks.predictive_result",
    "PrivacyReport": "accounting",
    "PrivateCentre": "svi",
    "RecordSource": "_sources",
    "Rejection": "mcmc",
    "ReleasedLikelihood": "scoring.released",
    "StronglyLogConcave": "mcmc",
    "UncheckedNUTS": "mcmc",
    "UnsupportedModelError": "errors",
    "VIPS": "svi",
    "audit": "diagnostics",
    "audit_one_run": "diagnostics.audit.one_run",
    "calibrate": "accounting",
    "clipping_rate": "diagnostics.clipping_rate",
    "count_missing": "diagnostics.missing",
    "coverage": "diagnostics.coverage.coverage",
    "enable_compilation_cache": "_compilation_cache",
    "events": "accounting",
    "from_numpyro": "diagnostics",
    "guides": "svi",
    "loudest_pair": "diagnostics.audit.loudest",
    "plan": "diagnostics.plan.plan",
    "plot_budget": "diagnostics.plots",
    "plot_epsilon_by_step": "diagnostics.plots",
    "plot_forest": "diagnostics.forest",
    "plot_privacy_curve": "diagnostics.plots",
    "private_accuracy": "diagnostics.checks.accuracy",
    "private_calibration_curve": "diagnostics.checks.calibration",
    "private_log_predictive_density": "diagnostics.checks.log_density",
    "private_posterior_predictive_check": "diagnostics.checks.predictive_check",
    "public": "_public",
    "shard": "_shards",
}

__all__ = sorted(_HOME)

__getattr__, __dir__ = on_first_use(
    "numpyro_dp", {name: f"numpyro_dp.{home}" for name, home in _HOME.items()}, "__version__"
)
