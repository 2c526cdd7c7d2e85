"""What a person looks at: released draws in ArviZ."""

from numpyro_dp.diagnostics.inference_data import from_numpyro

__all__ = ["from_numpyro"]
