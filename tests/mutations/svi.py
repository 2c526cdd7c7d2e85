"""Broken fits: statistics, losses and centres."""

from dataclasses import replace

import jax
import numpy as np

from numpyro_dp.execution.account import Account
from numpyro_dp.svi import centre
from numpyro_dp.svi.dpsvi import fit
from numpyro_dp.svi.dpsvi.elbo import ElboRelease, ElboTrace
from numpyro_dp.svi.dpsvi.plan import ReleasePlan
from numpyro_dp.svi.guides.conjugate import family
from numpyro_dp.svi.guides.conjugate.mixture import NormalMixture
from numpyro_dp.svi.guides.polya_gamma import base
from numpyro_dp.svi.guides.sigmoid_belief import statistics as beliefs
from numpyro_dp.svi.vips import vips
from tests.mutations.patches import Instead
from tests.mutations.registry import mutation

CENTRES = "svi/test_centring.py"
LOSSES = "svi/dpsvi/test_elbo.py"
ENGINE = "svi/vips/test_vips.py"
CONJUGATE = "svi/guides/test_conjugate.py::test_a_records_statistic_is_its_own_and_within_the_bound"
BELIEFS = "svi/guides/test_sigmoid_belief.py::test_a_record_stays_within_its_bounds_and_by_itself"


@jax.custom_batching.custom_vmap
def among_others(statistic):
    """A statistic relative to the mean of its batch."""
    return statistic


@among_others.def_vmap
def _(size, batched, statistic):
    return statistic - statistic.mean(0), True


@mutation(
    "The centre of the inputs is released without noise.",
    f"{CENTRES}::test_the_shift_has_the_noise_that_was_charged_and_a_refusal_reads_no_row",
    r"approx|np\.std",
)
def centre_without_noise(patch):
    patch.setattr(
        centre, "_compiled", lambda mechanism, columns, key, x: x[:, np.array(columns)].mean(0)
    )


@mutation(
    "A loss is charged for half of what one record can move it by.",
    f"{LOSSES}::test_the_sensitivity_is_half_the_interval_or_its_farther_end",
    r"== \(-1\.5, 2\.5\)",
)
def loss_moves_further(patch):
    honest = ElboTrace.sensitivity
    patch.setattr(ElboTrace, "sensitivity", lambda self, size: honest(self, size) / 2)


@mutation(
    "Every second loss is not charged.",
    f"{LOSSES}::test_losses_are_calibrated_into_the_budget_and_charged_with_the_run",
    r"== \(7, 2\)",
    slow=True,
    fresh=True,
)
def losses_uncharged(patch):
    honest = ElboRelease.cost

    def half(self, num_steps):
        counted = self.count(num_steps) // 2
        return honest(self, self.trace.every * counted)

    patch.setattr(ElboRelease, "cost", half)


@mutation(
    "The curvature that scales a guide is released and not charged.",
    "svi/dpsvi/test_dpsvi.py::test_scales_come_from_the_curvature",
    "a tenth of the squared loss",
    slow=True,
    fresh=True,
)
def curvature_uncharged(patch):
    honest = ReleasePlan.cost
    patch.setattr(
        ReleasePlan,
        "cost",
        lambda self, done, num_steps: honest(replace(self, curvature=None), done, num_steps),
    )


@mutation(
    "A loss has the noise of the step that it belongs to.",
    f"{LOSSES}::test_a_loss_and_its_step_draw_from_keys_of_their_own",
    r"== 4",
    slow=True,
    fresh=True,
)
def loss_shares_its_noise(patch):
    same = Instead(fit.random, fold_in=lambda key, number: jax.random.key(7))
    patch.setattr(fit, "random", same)


@mutation(
    "All releases of a run of VIPS have the same noise.",
    f"{ENGINE}::test_no_two_releases_share_their_noise",
    r"corrcoef",
    slow=True,
    fresh=True,
)
def releases_share_their_noise(patch):
    patch.setattr(vips, "random", Instead(vips.random, fold_in=lambda key, number: key))


@mutation(
    "VIPS divides by a number of records that is private.",
    f"{ENGINE}::test_private_sizes_are_refused",
    "DID NOT RAISE",
    slow=True,
)
def private_number_used(patch):
    patch.setattr(Account, "private_size", property(lambda self: False))


@mutation(
    "A record of a conjugate guide adds its statistic twice.",
    CONJUGATE,
    r"norms\.max\(\) <= phase\.clip_norm",
    slow=True,
    fresh=True,
)
def conjugate_statistic_twice(patch):
    _changed(patch, NormalMixture, lambda statistic: 2 * statistic)


@mutation(
    "A record's statistic of a conjugate guide is relative to those of its batch.",
    CONJUGATE,
    "Arrays are not equal",
    slow=True,
    fresh=True,
)
def conjugate_statistic_of_others(patch):
    _changed(patch, family.ConjugateSchedule, among_others)


@mutation(
    "A record's statistic of a Pólya-Gamma guide is relative to those of its batch.",
    "svi/guides/test_polya_gamma.py::test_a_record_s_statistic_does_not_see_other_records",
    "Mismatched elements",
    given={"design": "diagonal"},
    slow=True,
    fresh=True,
)
def polya_gamma_statistic_of_others(patch):
    _changed(patch, base.PolyaGammaSchedule, among_others)


@mutation(
    "A record's statistic of a sigmoid belief network is relative to those of its batch.",
    BELIEFS,
    "Mismatched elements",
    slow=True,
    fresh=True,
)
def belief_statistic_of_others(patch):
    _changed(patch, beliefs.BeliefSchedule, among_others)


@mutation(
    "A record of a sigmoid belief network adds twice what its bound allows.",
    BELIEFS,
    r"norms\.max\(\) <= most|Not equal to tolerance",
    slow=True,
    fresh=True,
)
def belief_statistic_twice(patch):
    _changed(patch, beliefs.BeliefSchedule, lambda statistic: 2 * statistic)


def _changed(patch, owner, change):
    honest = owner.statistic
    patch.setattr(owner, "statistic", lambda self, *given: change(honest(self, *given)))
