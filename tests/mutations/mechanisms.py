"""Broken primitives: noise, clip, rounding, batches, words, accept bits."""

import math
from dataclasses import replace

import jax.numpy as jnp
from jax import random as jax_random

from numpyro_dp.mechanisms import (
    clip,
    lattice,
    noise_schedule,
    private_sum,
    random,
    sharded,
    subsample,
)
from numpyro_dp.mechanisms.accept import log_ratio, minibatch, rules, tables
from numpyro_dp.mechanisms.private_sum import PrivateSum
from numpyro_dp.mechanisms.sparse_sum import SparsePrivateSum
from numpyro_dp.mechanisms.subsample import PoissonSampler
from tests.mutations.patches import Instead, everywhere, one_key
from tests.mutations.registry import mutation

SUMS = "mechanisms/test_private_sum.py"
BATCHES = "mechanisms/test_subsample.py"
TABLES = "mechanisms/test_lattice.py"
WORDS = "mechanisms/test_random.py"
DEVICES = "mechanisms/test_sharded.py"
STORES = "scale/test_sources.py"
BITS = "mechanisms/accept/test_accept.py"
RATIOS = "mechanisms/accept/test_accept_sum.py"

# --- the clipped sum


@mutation(
    "A record is let pass one unit beyond its norm.",
    f"{SUMS}::test_norm_check_is_exact_to_the_last_unit",
    "Mismatched elements",
    fresh=True,
)
def norm_check_one_unit_off(patch):
    honest = clip._within
    patch.setattr(
        clip, "_within", lambda largest, bound, integers: honest(largest, bound + 1, integers)
    )


@mutation(
    "The norm of what rounding made of a record is not checked.",
    f"{SUMS}::test_rounding_that_would_pass_the_bound_is_zeroed",
    r"assert not .*np\.any",
    fresh=True,
)
def rounding_unchecked(patch):
    patch.setattr(clip, "_within", lambda *given: jnp.ones(given[2].shape[:1], bool))


@mutation(
    "A record that holds NaN or infinity stays in the sum.",
    f"{SUMS}::test_a_useless_record_adds_exactly_zero",
    "Mismatched elements",
)
def broken_records_kept(patch):
    careless = {"isfinite": lambda x: jnp.ones_like(x, bool), "where": lambda c, x, y: x}
    patch.setattr(clip, "jnp", Instead(jnp, **careless))


@mutation(
    "Weights of the coordinates are undone after a release and never applied before the clip.",
    f"{SUMS}::test_scaled_coordinates_are_clipped_together_and_scaled_back",
    "assert_allclose",
    slow=True,
)
def scale_left_out_of_the_clip(patch):
    honest = PrivateSum._in_float32
    patch.setattr(
        PrivateSum, "_in_float32", lambda self, vector: honest(replace(self, scale=None), vector)
    )


@mutation(
    "Rounding offsets follow the place in the batch, which other records move.",
    f"{SUMS}::test_dither_depends_on_the_row_number_and_not_on_the_place",
    "assert 1 > 1|Mismatched elements",
)
def dither_by_place(patch):
    honest = clip._offsets
    patch.setattr(
        clip, "_offsets", lambda rows, words: honest(jnp.arange(len(rows), dtype=jnp.int32), words)
    )


@mutation(
    "Where the number of records is private, they are still computed side by side.",
    f"{SUMS}::test_a_private_number_of_records_computes_them_one_at_a_time",
    r"_blocks\(\) ==",
)
def private_number_in_blocks(patch):
    honest = PrivateSum._blocks
    patch.setattr(PrivateSum, "_blocks", lambda self: honest(replace(self, max_records=None)))


@mutation(
    "What tables and full batches add to δ is not charged.",
    f"{SUMS}::test_events_are_what_was_done",
    r"tv_per_step == 8",
)
def tables_uncharged(patch):
    patch.setattr(PrivateSum, "tv_per_step", property(lambda self: 0.0))


@mutation(
    "A record that names one row twice adds to it twice.",
    "mechanisms/test_sparse_sum.py::test_a_useless_record_adds_exactly_zero",
    "Mismatched elements",
    fresh=True,
    slow=True,
)
def duplicate_rows_added(patch):
    honest = SparsePrivateSum._in_place

    def trusting(self, vectors):
        slots, values, valid = honest(self, vectors)
        return slots, values, jnp.ones_like(valid)

    patch.setattr(SparsePrivateSum, "_in_place", trusting)


@mutation(
    "The sum of a batch is clipped, and no record in it.",
    "contract/test_mutations.py::check_sensitivity",
    "sensitivity",
    given={"name": "DPSGLD"},
    slow=True,
    fresh=True,
)
def sum_clipped_instead(patch):
    def clipped(plan, vectors, rows, mask, *more):
        total = jnp.where(mask[:, None], vectors, 0).sum(0) / plan.scale
        shrink = jnp.minimum(1, plan.radius / jnp.linalg.norm(total))
        return jnp.rint(total * shrink).astype(jnp.int32)

    patch.setattr(private_sum, "integer_sum", clipped)


# --- noise


@mutation(
    "Records are let be a tenth longer than the noise was planned for.",
    f"{TABLES}::test_no_plan_promises_more_noise_than_it_draws",
    "squared_bound",
    given={"noise_multiplier": 1.0, "dim": 20, "batch": 100.0, "precise": False},
)
def room_for_longer_records(patch):
    honest = lattice._planned

    def roomy(*given):
        found = honest(*given)
        return replace(found, squared_bound=int(1.21 * found.squared_bound))

    patch.setattr(lattice, "_planned", roomy)


@mutation(
    "The stated distance of the noise table to the normal law is too small.",
    f"{TABLES}::test_stored_words_are_as_close_to_the_normal_law_as_claimed",
    "distance <= claimed",
)
def table_error_understated(patch):
    patch.setattr(lattice, "_TABLE_ERROR", {8: 2.0**-60, 16: 2.0**-60})


@mutation(
    "That two draws of a table are not one normal draw is left out of the charge.",
    f"{TABLES}::test_two_draws_act_as_one_normal_within_the_claimed_distance",
    "distance <= claimed",
)
def two_draws_uncharged(patch):
    tables = property(lambda self: self.draws * lattice._TABLE_ERROR[self.span])
    patch.setattr(lattice.Lattice, "tv", tables)


@mutation(
    "The sign of the noise follows from its size.",
    f"{TABLES}::test_noise_has_the_floored_normal_law",
    "> 1e-6",
    slow=True,
    fresh=True,
)
def sign_of_the_noise_from_its_size(patch):
    honest = lattice.floor_noise

    def tied(plan, first, second):
        return honest(plan, (first & 0x7FFFFFFF) | ((first & 0x40000000) << 1), second)

    everywhere(patch, honest, tied)


@mutation(
    "The noise is never negative.",
    f"{TABLES}::test_noise_is_centred_by_the_mean_of_the_plan",
    r"noise\.mean\(\)",
)
def one_sided_noise(patch):
    honest = lattice.floor_noise
    everywhere(patch, honest, lambda plan, *words: jnp.abs(honest(plan, *words)))


@mutation(
    "Steps of a schedule are all charged at its largest noise.",
    "mcmc/sgmcmc/test_noise_schedule.py::test_every_step_is_charged_at_its_own_noise",
    r"charged\(accountant\) ==",
    slow=True,
    fresh=True,
)
def schedule_charged_at_its_quietest(patch):
    honest = noise_schedule.taken
    patch.setattr(
        private_sum,
        "taken",
        lambda schedule, *rest, **more: honest((max(schedule),) * len(schedule), *rest, **more),
    )


@mutation(
    "Every step of a schedule bounds records as the step of least noise may.",
    "mcmc/sgmcmc/test_noise_schedule.py::test_the_clip_holds_at_every_level_of_a_schedule",
    r"distance\.(max|min)\(\)",
    slow=True,
    fresh=True,
)
def schedule_bounded_at_its_loudest(patch):
    honest = noise_schedule.bound_at

    def fixed(schedule, bounds, step):
        found = honest(schedule, bounds, step)
        least = bounds[0]
        return found._replace(squared=jnp.uint32(least.squared), cap=jnp.float32(least.cap))

    patch.setattr(private_sum, "bound_at", fixed)


@mutation(
    "Batch and noise of one release are made of the same random words.",
    f"{SUMS}::test_batch_dither_and_noise_are_drawn_from_words_of_their_own",
    r"np\.unique|len\(words\)",
)
def batch_and_noise_share_words(patch):
    honest = PrivateSum._words

    def shared(self, key):
        noise = honest(replace(self, sampler=None), key)[2]
        return honest(self, key)[0], noise, noise

    patch.setattr(PrivateSum, "_words", shared)


# --- batches


@mutation(
    "Padding of a batch counts as records.",
    f"{BATCHES}::test_batches_are_independent_coins",
    "np.diff",
    case=4,
)
def padding_counted(patch):
    honest = PoissonSampler.draw

    def padded(self, first, second):
        rows, chosen = honest(self, first, second)
        return rows, jnp.ones_like(chosen)

    patch.setattr(PoissonSampler, "draw", padded)


@mutation(
    "Batches have one size, and are charged as if every record had a coin of its own.",
    f"{BATCHES}::test_batches_are_independent_coins",
    r"sizes\.var\(\)",
    case=4,
)
def batches_of_one_size(patch):
    def fixed(self, first, second):
        rows = jnp.arange(self.room, dtype=jnp.int32)
        return rows, rows < round(self.num_records * self.sampling_rate)

    patch.setattr(PoissonSampler, "draw", fixed)


@mutation(
    "Records join a batch together with their neighbours in the table.",
    f"{BATCHES}::test_every_record_has_the_same_rate_and_pairs_are_independent",
    "pairs",
)
def records_join_in_runs(patch):
    honest = PoissonSampler.draw

    def run(self, first, second):
        drawn = jnp.sum(honest(self, first, second)[1])
        start = (first[0] % self.num_records).astype(jnp.int32)
        places = jnp.arange(self.room, dtype=jnp.int32)
        return (start + places) % self.num_records, places < drawn

    patch.setattr(PoissonSampler, "draw", run)


@mutation(
    "Records join a batch at twice the rate that is charged.",
    f"{BATCHES}::test_batches_are_independent_coins",
    r"sizes\.mean\(\)",
    case=4,
)
def twice_the_rate(patch):
    honest = subsample.gap_tables
    patch.setattr(subsample, "gap_tables", lambda rate: honest(2 * rate))


@mutation(
    "That a batch may outgrow its room is not charged.",
    f"{BATCHES}::test_room_overflows_no_more_often_than_promised",
    r"sampler\.tv >= overflow",
)
def overflow_uncharged(patch):
    tables = property(lambda self: self.room * subsample.gap_tables(self.sampling_rate).tv)
    patch.setattr(PoissonSampler, "tv", tables)


@mutation(
    "Batches get room for their expected size alone, and what does not fit is not charged.",
    f"{BATCHES}::test_room_overflows_no_more_often_than_promised",
    "best <= overflow",
)
def room_for_the_mean(patch):
    patch.setattr(subsample, "_least_places", lambda trials, rate, _: math.ceil(trials * rate))


# --- devices


@mutation(
    "Rows that only fill up the last device's part are records.",
    f"{DEVICES}::test_a_sum_over_devices_is_that_of_one",
    "Arrays are not equal",
)
def filled_up_rows_counted(patch):
    honest = sharded.rows_held

    def all_held(shards, number, num_records):
        first, _ = honest(shards, number, num_records)
        return first, jnp.int32(shards.rows(num_records))

    patch.setattr(sharded, "rows_held", all_held)


@mutation(
    "A device takes rows of a batch that the next one takes too.",
    f"{DEVICES}::test_shares_of_a_draw_are_the_draw",
    "assert .* ==",
)
def rows_of_two_devices(patch):
    honest = PoissonSampler.part
    patch.setattr(
        PoissonSampler,
        "part",
        lambda s, rows, own, first, held: honest(s, rows, own, first, held + 1),
    )


@mutation(
    "Devices that draw their own shares of a batch do so with one key.",
    f"{DEVICES}::test_large_batches_are_drawn_by_each_device",
    "corrcoef",
)
def one_key_for_all_devices(patch):
    patch.setattr(sharded, "random", Instead(jax_random, fold_in=lambda key, _: key))


@mutation(
    "Of the draws of several devices, the imprecision of one is charged.",
    f"{DEVICES}::test_large_batches_are_drawn_by_each_device",
    "tv_per_step",
)
def draws_of_devices_uncharged(patch):
    honest = PrivateSum.tv_per_step.fget

    def one(self):
        return honest(self) - 3 * self.sampler.tv if self._draws > 1 else honest(self)

    patch.setattr(PrivateSum, "tv_per_step", property(one))


@mutation(
    "A Metropolis step counts rows that fill up the last device's part.",
    f"{DEVICES}::test_log_ratios_of_all_records",
    "Arrays are not equal",
)
def filled_up_rows_have_a_say(patch):
    patch.setattr(log_ratio, "rows_held", lambda shards, _, rows: (0, jnp.int32(shards.rows(rows))))


# --- keys and words


@mutation(
    "The operating system's bytes are drawn once and used again.",
    f"{WORDS}::test_os_keys_are_fresh_and_independent",
    r"len\(set",
)
def keys_not_fresh(patch):
    patch.setattr(random.secrets, "token_bytes", lambda size: bytes(range(size)))


@mutation(
    "Both words of a pair are the same one.",
    f"{WORDS}::test_word_pairs_are_distinct_words_under_jit_and_vmap",
    r"len\(set",
)
def one_word_for_two(patch):
    honest = random.word_pairs
    everywhere(patch, honest, lambda key, n: (honest(key, n)[0],) * 2)


@mutation(
    "Noise and the keys of later steps are made of the same words.",
    f"{WORDS}::test_uses_of_one_key_share_no_words",
    r"len\(set",
    fresh=True,
    slow=True,
)
def words_of_two_uses(patch):
    patch.setattr(random, "_SPLIT", random._BITS)


@mutation(
    "A key drawn inside a compiled program becomes a constant of it.",
    f"{WORDS}::test_os_key_is_refused_inside_transformations",
    "DID NOT RAISE",
)
def key_inside_a_program(patch):
    core = Instead(random.jax.extend.core, get_opaque_trace_state=lambda: random._HOST)
    extend = Instead(random.jax.extend, core=core)
    patch.setattr(random, "jax", Instead(random.jax, extend=extend))


# --- accept bits


@mutation(
    "A record's log ratio is not cut to its bound.",
    f"{RATIOS}::test_one_record_moves_the_sum_by_at_most_the_limit",
    r"abs\(moved\) <= 300",
)
def log_ratio_not_cut(patch):
    patch.setattr(
        log_ratio,
        "as_integers",
        lambda terms, unit, limit: jnp.rint(terms / unit).astype(jnp.int32),
    )


@mutation(
    "A record of infinite log ratio has a say.",
    f"{RATIOS}::test_broken_records_have_no_say",
    r"summed\(values\) == 900",
    case=1,
)
def infinite_log_ratio_counted(patch):
    patch.setattr(log_ratio, "jnp", Instead(jnp, isfinite=lambda x: jnp.ones_like(x, bool)))


@mutation(
    "Among several candidates a record's range is not bounded.",
    f"{RATIOS}::test_a_record_ranges_over_candidates_by_at_most_the_limit",
    "<= 400",
)
def range_over_candidates_unbounded(patch):
    honest = log_ratio.FullBatch.candidate_totals
    patch.setattr(
        log_ratio.FullBatch,
        "candidate_totals",
        lambda self, term, records, limit: honest(self, term, records, 1 << 20),
    )


@mutation(
    "The straight pieces of the table of accept bits are not paid for.",
    f"{BITS}::test_the_log_odds_of_a_barker_bit_move_by_no_more_than_the_bound",
    r"moved\.max\(\) <= bound",
)
def pieces_of_the_table_unpaid(patch):
    honest = rules.fine_grid

    def unpaid(bound, resolution):
        grid, largest = honest(bound, resolution)
        return replace(grid, unit=bound / largest), largest

    patch.setattr(rules, "fine_grid", unpaid)


@mutation(
    "The table of accept bits is rounded to a millionth.",
    f"{BITS}::test_total_variation_of_the_tables",
    "1e-12",
    slow=True,
    fresh=True,
)
def coarse_table_of_bits(patch):
    honest = tables.nearest_weights

    def coarse(law):
        weights, tv = honest(law)
        kept = [weight >> 43 << 43 for weight in weights]
        kept[0] += sum(weights) - sum(kept)
        return kept, tv

    patch.setattr(tables, "nearest_weights", coarse)


@mutation(
    "The noise of a penalty bit is half of what is charged.",
    f"{BITS}::test_decisions_happen_as_often_as_the_tables_say",
    "< 0.0113",
    given={"name": "penalty"},
    slow=True,
    fresh=True,
)
def quiet_penalty(patch):
    honest = rules.floor_noise
    patch.setattr(rules, "floor_noise", lambda *given: honest(*given) // 2)


@mutation(
    "The noise of a noisy accept bit and its threshold are drawn with one key.",
    f"{BITS}::test_decisions_happen_as_often_as_the_tables_say",
    "< 0.0113",
    given={"name": "penalty"},
    slow=True,
    fresh=True,
)
def noise_and_threshold_share_a_key(patch):
    patch.setattr(rules, "random", Instead(rules.random, split=one_key))


@mutation(
    "Which records a mini-batch draws decides which of them it keeps.",
    "mechanisms/accept/test_accept_minibatch.py::test_kept_counts_are_poisson_and_independent",
    r"counts\.(mean|var)\(\) - rate|np\.cov",
    slow=True,
    fresh=True,
)
def draws_decide_what_is_kept(patch):
    honest = minibatch.word_pairs

    def repeated(key, number):
        first, second = honest(key, number)
        room = number // 2
        return jnp.concatenate([first[:room], first[:room], first[-1:]]), second

    patch.setattr(minibatch, "word_pairs", repeated)


@mutation(
    "The sign of an accept bit's threshold follows from its size.",
    f"{BITS}::test_decisions_happen_as_often_as_the_tables_say",
    "< 0.0113",
    given={"name": "barker"},
    slow=True,
    fresh=True,
)
def sign_of_the_threshold_from_its_size(patch):
    honest = tables.word_pairs

    def tied(key, number):
        first, second = honest(key, number)
        return (first & 0x7FFFFFFF) | ((first & 0x40000000) << 1), second

    patch.setattr(tables, "word_pairs", tied)


@mutation(
    "A mini-batch keeps every record that it draws, whatever the record says.",
    "mechanisms/accept/test_accept_minibatch.py::test_kept_counts_are_poisson_and_independent",
    r"counts\.mean\(\) - rate",
    slow=True,
    fresh=True,
)
def mini_batch_not_thinned(patch):
    honest = minibatch.PoissonBatch._kept

    def kept(self, integers, mask, words, limit):
        return honest(self, integers, mask, jnp.zeros_like(words), limit)

    patch.setattr(minibatch.PoissonBatch, "_kept", kept)


@mutation(
    "Rows of a mini-batch are drawn from the first half of the table alone.",
    "mechanisms/accept/test_accept_minibatch.py::test_rows_are_exact_products",
    r"rows\.tolist\(\) ==",
)
def rows_of_one_half(patch):
    honest = minibatch._rows
    everywhere(patch, honest, lambda records, *words: honest(-(-records // 2), *words))


@mutation(
    "Amplification by sampling is claimed against a store that is told who is in a batch.",
    f"{STORES}::test_a_storage_that_is_not_trusted_gets_no_amplification",
    "PoissonSampled",
)
def amplified_before_all_eyes(patch):
    patch.setattr(PrivateSum, "amplified", property(lambda self: self.sampler is not None))
