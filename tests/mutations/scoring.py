"""Broken releases of a likelihood, beside those that stand in ``tests/scoring``."""

import math

import jax.numpy as jnp
import numpy as np

from numpyro_dp.accounting.events import ComposedDpEvent
from numpyro_dp.mcmc import nuts_loop, report
from numpyro_dp.model.guided import chosen_outcomes, outcomes, outside, own_samples
from numpyro_dp.scoring import release, released, statistic, steps
from numpyro_dp.scoring.adaptation import AdaptationPlan
from numpyro_dp.scoring.information import Entries
from numpyro_dp.scoring.verdicts import told
from tests.mutations.registry import mutation


@mutation(
    "Of the release that adapts a fit only the first part is charged.",
    "svi/dpsvi/test_adapted.py::test_release_and_steps_are_one_charge_of_the_whole_budget",
    r"1 \+ ROUNDS",
    slow=True,
    fresh=True,
)
def adaptation_uncharged(patch):
    honest = AdaptationPlan.event.fget
    patch.setattr(
        AdaptationPlan, "event", property(lambda self: ComposedDpEvent(honest(self).events[:1]))
    )


@mutation(
    "A verdict names latents that no record's term reads.",
    "scoring/test_release.py::test_what_records_tell_of_through_other_latents_is_not_called_untold",
    "told of effect.*, mu, tau",
    slow=True,
)
def hyperparameters_called_untold(patch):
    honest = released.read_coordinates
    patch.setattr(released, "read_coordinates", lambda model: [True] * len(honest(model)))


@mutation(
    "Noise that doubles every interval is in no verdict.",
    "scoring/test_rounds.py::test_noise_that_hides_more_than_is_told_is_named",
    r"assert 0 == 1",
)
def drowned_unnamed(patch):
    patch.setattr(told, "DROWNED", math.inf)


@mutation(
    "Levels that little was told of are in no verdict.",
    "scoring/test_rounds.py::test_what_few_records_told_of_is_named",
    r"assert 0 == 1",
)
def few_records_unnamed(patch):
    patch.setattr(told, "_AT_MOST", 0.0)


@mutation(
    "Records of a rare level are cut more in each round.",
    "scoring/test_release.py::test_rare_levels_are_not_cut_more_in_each_round",
    r"2\.4, 2\.6",
    fresh=True,
)
def levels_whitened_with_what_is_told(patch):
    patch.setattr(steps, "held", lambda information, *others: information)


@mutation(
    "A record counts in full for each latent and group that it is of.",
    "scoring/test_statistic.py::test_no_record_adds_more_than_one",
    "isclose",
    fresh=True,
)
def parts_counted_in_full(patch):
    patch.setattr(statistic, "_evenly", lambda met: met * 1.0)


@mutation(
    "What a clip takes off few records is taken for absent.",
    "scoring/test_few_records.py::test_a_group_of_many_events_a_record_is_heard_for_most_of_them",
    r"median",
    fresh=True,
)
def few_records_whitened_with_what_is_told(patch):
    patch.setattr(steps, "uncut", lambda information, *others: information)


@mutation(
    "A column is whitened as if its groups were known.",
    "scoring/test_release.py::test_a_level_that_trades_with_an_age_as_it_comes_is_where_the_records_have_it",
    r"< 45",
    fresh=True,
    slow=True,
)
def groups_alone_whitened(patch):
    def alone(entries, information, more):
        return information + (entries.of.T * more) @ entries.of

    patch.setattr(Entries, "added", alone)


@mutation(
    "A record's size counts once for each part that it has.",
    "scoring/test_statistic.py::test_parts_of_a_size_are_told_together_of_those_alike",
    "Not equal to tolerance",
    fresh=True,
)
def parts_that_add_up_to_more(patch):
    patch.setattr(statistic, "_LEAST_PART", -1.0)


@mutation(
    "Rounds ask where no record can answer, and take noise for information.",
    "scoring/test_release.py::test_of_what_no_record_tells_nothing_is_claimed",
    r"assert 43 == \(43 - 3\)",
    fresh=True,
)
def silent_directions_asked(patch):
    patch.setattr(release, "silent_directions", lambda model, scores: np.zeros((0, 0)))


@mutation(
    "Censored outcomes are drawn as if they were not.",
    "model/test_own_samples.py::test_a_release_of_them_is_refused_before_the_charge",
    "DID NOT RAISE",
    case=0,
    slow=True,
)
def censored_drawn(patch):
    patch.setattr(own_samples, "_censored_in", lambda fn: None)


@mutation(
    "A mask that reads another outcome stays as it is where that one is drawn.",
    "model/test_chosen_outcomes.py::test_outcomes_that_are_arguments_are_drawn_in_turn",
    "Not equal to tolerance|assert",
    fresh=True,
    slow=True,
)
def masks_stay(patch):
    patch.setattr(outcomes._OneRecord, "in_turn", lambda self, *_: self)


@mutation(
    "An outcome that is the same of all who are asked is taken for one.",
    "model/test_chosen_outcomes.py::test_censored_times_in_two_parts_are_refused_with_their_page",
    "DID NOT RAISE",
    case=1,
    fresh=True,
)
def fixed_taken(patch):
    patch.setattr(outcomes, "fixed_outcomes", lambda *_: [])


@mutation(
    "Which entries of a table a mask reads is not looked at.",
    "model/test_chosen_outcomes.py::test_outcomes_are_drawn_each_after_those_it_reads",
    "assert",
    case=3,
)
def tables_not_looked_into(patch):
    patch.setattr(chosen_outcomes.Read, "_followed", lambda self, i, values: [])


@mutation(
    "Drawn outcomes are cut to whole numbers where the records are.",
    "model/test_own_samples.py::test_drawn_outcomes_keep_their_fractions_where_the_records_are_whole",
    "assert",
    case=0,
    fresh=True,
)
def fractions_cut(patch):
    patch.setattr(
        own_samples, "as_observed", lambda outcome, seen: outcome.astype(jnp.result_type(seen))
    )


@mutation(
    "An outcome whose law reads numbers of itself is drawn at once.",
    "model/test_chosen_outcomes.py::test_draws_number_after_number_are_of_the_joint_law",
    "Not equal to tolerance",
    case=0,
    fresh=True,
)
def own_numbers_stay(patch):
    patch.setattr(chosen_outcomes, "turns_of", lambda *_: 1)


@mutation(
    "What is missing is drawn too.",
    "model/test_chosen_outcomes.py::test_what_is_missing_is_not_drawn",
    "Not equal to tolerance",
    case=0,
    fresh=True,
)
def gaps_filled(patch):
    patch.setattr(chosen_outcomes.Read, "missing", lambda self, of: set())


@mutation(
    "A record that counts w times has w² times the information.",
    "model/test_record_scale.py::test_the_width_is_that_of_the_posterior",
    "assert",
    case=0,
    fresh=True,
)
def weights_squared(patch):
    patch.setattr(statistic.RecordStatistic, "_counts", lambda *_: 1.0)


@mutation(
    "Chains begin at the first draw, whatever the model says of it.",
    "mcmc/test_nuts_start.py::test_no_chain_begins_where_the_model_forbids_it",
    "assert",
    fresh=True,
)
def any_start(patch):
    patch.setattr(nuts_loop, "_TRIES", 1)


@mutation(
    "Chains that have not mixed are in no note.",
    "mcmc/test_nuts_start.py::test_chains_that_have_not_mixed_are_named_first",
    "have not mixed in",
)
def unmixed_unnamed(patch):
    patch.setattr(report, "_UNMIXED", math.inf)


@mutation(
    "Outcomes that their law cannot have are not told from others.",
    "scoring/test_outside.py::test_a_yes_or_no_as_one_and_two_is_not_to_be_used",
    "approx",
    fresh=True,
)
def outcomes_unjudged(patch):
    patch.setattr(statistic.RecordStatistic, "_outside", lambda *_: jnp.array(False))


@mutation(
    "A record that shows what its law cannot have counts in full, and its size beside.",
    "scoring/test_statistic.py::test_no_record_adds_more_than_one",
    "isclose",
    case=0,
    fresh=True,
)
def outside_beside_a_full_size(patch):
    honest = statistic.RecordStatistic.sizes

    def full(self, *given):
        told = honest(self, *given)
        return told.at[0].set(jnp.where(told[-1] > 0, 1.0, told[0]))

    patch.setattr(statistic.RecordStatistic, "sizes", full)


@mutation(
    "A share of 0 or 1 counts for one that its law can have.",
    "scoring/test_outside.py::test_what_a_law_cannot_have_is_told_from_what_it_can",
    r"== \[0, 2, 3\]",
    case=13,
    fresh=True,
)
def ends_taken_for_inside(patch):
    patch.setattr(outside, "_off_its_ends", lambda *_: True)


@mutation(
    "An outcome beyond what a latent says is taken for one that its law cannot have.",
    "scoring/test_outside.py::test_what_a_law_cannot_have_is_told_from_what_it_can",
    r"== \[\]",
    case=-1,
    fresh=True,
)
def ends_judged_at_the_prior(patch):
    def every(sites_of, values, structs):
        def parts(values, record):
            return [outside._within(site) for site in sites_of(values, record)]

        return tuple(outside.parts_of(outside.trace_program(parts, values, structs)))

    patch.setattr(outcomes, "within_laws", every)
