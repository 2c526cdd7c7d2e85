"""What a run will cost and teach, from shapes alone: nothing private is read."""

from numpyro_dp._moved import formerly

__getattr__ = formerly("numpyro_dp.diagnostics.plan.plan")
