"""What a person looks at: released draws in ArviZ, and attacks on what was claimed of them."""

from numpyro_dp.diagnostics.audit.audit import AuditResult as AuditResult, audit as audit
from numpyro_dp.diagnostics.inference_data import from_numpyro as from_numpyro
