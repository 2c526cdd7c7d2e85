"""Broken diagnostics: questions that cost more than they say, and records in an archive."""

import jax.numpy as jnp

from numpyro_dp.diagnostics import clipping_rate, inference_data, missing
from tests.mutations.registry import mutation


@mutation(
    "A record's part in the share of cut records is twice what is charged.",
    "diagnostics/test_clipping_rate.py::test_one_record_adds_at_most_a_half_and_moves_no_other",
    r"<= 0\.5",
    slow=True,
)
def share_weighs_double(patch):
    honest = clipping_rate._centred_share
    patch.setattr(
        clipping_rate,
        "_centred_share",
        lambda mechanism, bound, shown, *more: honest(mechanism, bound, 2 * shown, *more),
    )


@mutation(
    "The number of records with missing values is told without noise.",
    "diagnostics/test_missing.py::"
    "test_the_count_is_that_of_records_with_a_hole_and_has_the_noise_that_was_charged",
    r"counts\.std\(\)",
    slow=True,
)
def missing_without_noise(patch):
    def bare(mechanism, half, key, records):
        holes = [jnp.any(~jnp.isfinite(each.reshape(len(each), -1)), axis=1) for each in records]
        return jnp.sum(jnp.where(jnp.any(jnp.stack(holes), axis=0), half, -half))

    patch.setattr(missing, "_centred_count", bare)


@mutation(
    "Predictions at the records go into an archive.",
    "diagnostics/test_inference_data.py::test_predictions_at_the_records_are_refused",
    "DID NOT RAISE",
    slow=True,
)
def predictions_at_records(patch):
    for kind in vars(inference_data).values():
        if isinstance(kind, type) and "_check_public" in vars(kind):
            patch.setattr(kind, "_check_public", lambda self, *given: None)
