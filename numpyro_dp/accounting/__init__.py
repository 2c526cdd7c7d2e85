"""Privacy accounting: events, privacy curves, calibration, ledgers and reports (no JAX)."""

from numpyro_dp.accounting import events
from numpyro_dp.accounting.accountant import Accountant, ChargePlan
from numpyro_dp.accounting.budget import DEFAULT_DELTA, Budget
from numpyro_dp.accounting.calibrate import calibrate, largest
from numpyro_dp.accounting.curve import PrivacyCurve, privacy_curve
from numpyro_dp.accounting.ledger.book import Entry
from numpyro_dp.accounting.relation import Relation, check_relation, relation_text, sensitivity
from numpyro_dp.accounting.report.privacy_report import PrivacyReport
from numpyro_dp.accounting.rounding import rounded_down, rounded_up

__all__ = [
    "DEFAULT_DELTA",
    "Accountant",
    "Budget",
    "ChargePlan",
    "Entry",
    "PrivacyCurve",
    "PrivacyReport",
    "Relation",
    "calibrate",
    "check_relation",
    "events",
    "largest",
    "privacy_curve",
    "relation_text",
    "rounded_down",
    "rounded_up",
    "sensitivity",
]
