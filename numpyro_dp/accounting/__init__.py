"""Privacy accounting: events, privacy curves, calibration, ledgers and reports (no JAX)."""

from numpyro_dp.accounting import events as events
from numpyro_dp.accounting.accountant import Accountant as Accountant, ChargePlan as ChargePlan
from numpyro_dp.accounting.budget import DEFAULT_DELTA as DEFAULT_DELTA, Budget as Budget
from numpyro_dp.accounting.calibrate import calibrate as calibrate, largest as largest
from numpyro_dp.accounting.curve import PrivacyCurve as PrivacyCurve, privacy_curve as privacy_curve
from numpyro_dp.accounting.ledger.book import Entry as Entry
from numpyro_dp.accounting.relation import (
    Relation as Relation,
    check_relation as check_relation,
    relation_text as relation_text,
    sensitivity as sensitivity,
)
from numpyro_dp.accounting.report.privacy_report import PrivacyReport as PrivacyReport
from numpyro_dp.accounting.rounding import rounded_down as rounded_down, rounded_up as rounded_up
