"""How it is told: the privacy report, its text and its risks."""

from numpyro_dp.accounting.report.privacy_report import PrivacyReport as PrivacyReport
