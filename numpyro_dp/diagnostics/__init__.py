"""What a person looks at: released draws in ArviZ, and attacks on what was claimed of them."""

from numpyro_dp.diagnostics.audit.audit import AuditResult, audit
from numpyro_dp.diagnostics.inference_data import from_numpyro

__all__ = ["AuditResult", "audit", "from_numpyro"]
