"""Broken recognition: bounds that a record does not keep to."""

from numpyro_dp.families import glm, silent_directions
from numpyro_dp.families.glm import GLM
from numpyro_dp.families.losses import Loss
from tests.mutations.patches import everywhere
from tests.mutations.registry import mutation

MODELS = "families/test_glm.py"


@mutation(
    "A record's row is not projected to the public bound on its length.",
    f"{MODELS}::test_rows_are_projected_and_broken_ones_vanish",
    r"norms\.max\(\) <= 0\.7",
    slow=True,
)
def rows_not_projected(patch):
    honest = GLM.clipped
    patch.setattr(GLM, "clipped", lambda self, record, row_norm: honest(self, record, 2 * row_norm))


@mutation(
    "The bound on the slope of a loss is half of what the loss reaches.",
    f"{MODELS}::test_derivative_bounds_hold_for_every_outcome_and_are_reached",
    r"loss\.lipschitz",
    slow=True,
)
def slope_understated(patch):
    honest = Loss.lipschitz.fget
    patch.setattr(Loss, "lipschitz", property(lambda self: honest(self) / 2))


@mutation(
    "The prior is taken for twice as convex as it is.",
    f"{MODELS}::test_curvature_of_the_prior",
    "assert_allclose",
    given={"case": "correlated"},
    slow=True,
)
def convexity_overstated(patch):
    honest = glm.prior_curvature

    def convex(model):
        least, most = honest(model)
        return 2 * least, most

    everywhere(patch, honest, convex)


@mutation(
    "Made-up records of far larger rates decide which directions no record tells.",
    "families/test_silent_directions.py"
    "::test_a_rate_of_one_group_far_out_hides_no_direction_of_the_others",
    "assert",
    given={"sd": 0.5, "places": 12},
)
def records_of_any_size(patch):
    patch.setattr(silent_directions, "_of_length_one", lambda rows: rows)
