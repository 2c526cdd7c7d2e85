"""Broken runs and kernels: what is charged, what a record may do, what leaves."""

from dataclasses import replace

import jax.numpy as jnp

from numpyro_dp.accounting import events
from numpyro_dp.mcmc import driver, nuts, plain, setup
from numpyro_dp.mcmc.driver import MCMC
from numpyro_dp.mcmc.kernel import BoundKernel, PrivateKernel
from numpyro_dp.mcmc.metropolis import plan, privacy_filter, step
from numpyro_dp.mcmc.metropolis.step import BoundMetropolis
from numpyro_dp.mcmc.posterior import bounded, conditional, rejection
from numpyro_dp.mcmc.posterior.langevin import LangevinDraw
from numpyro_dp.mcmc.reserved import Reserved
from numpyro_dp.mcmc.sgmcmc import integrator
from tests.mutations.patches import Instead, everywhere, one_key
from tests.mutations.registry import mutation

CONTRACT = "contract/test_kernel_contract.py"
METROPOLIS = "mcmc/metropolis/test_metropolis.py"
STEPS = "mcmc/metropolis/test_metropolis_steps.py"
REVIEWED = "mcmc/test_reviewed.py"
DRAWS = "mcmc/posterior/test_ops_exact.py"
DPSGLD = {"name": "DPSGLD"}

# --- what is charged


@mutation(
    "Samples that were paid for without a condition are drawn under one.",
    "scale/test_sources.py::test_what_was_paid_for_without_a_condition_covers_nothing_with_one",
    r"not reserved\.covers|not .*covers",
)
def condition_of_reserved_samples_ignored(patch):
    honest = Reserved.covers

    def covers(self, bound, *run):
        return honest(self._replace(conditions=bound.facts().conditions), bound, *run)

    patch.setattr(Reserved, "covers", covers)


def _charging(patch, paid):
    """Charge other steps than those of a run: from those, and the steps of a sample."""
    honest = MCMC._charge

    def charge(self, charged, keys, bound, steps, *more):
        fewer = paid(self, steps, bound.steps_per_sample)
        return honest(self, charged, keys, bound, fewer, *more)

    patch.setattr(MCMC, "_charge", charge)


@mutation(
    "Warm-up is not charged.",
    f"{CONTRACT}::test_every_data_touching_step_is_charged",
    r"== steps \* chains",
    given={**DPSGLD, "method": "vectorized", "chains": 1},
    slow=True,
)
def warmup_uncharged(patch):
    _charging(
        patch,
        lambda mcmc, steps, of_sample: steps - mcmc.num_warmup * of_sample * mcmc.num_chains,
    )


@mutation(
    "Of several steps a sample only one is charged.",
    f"{CONTRACT}::test_every_data_touching_step_is_charged",
    r"== steps \* chains",
    given={**DPSGLD, "method": "vectorized", "chains": 1},
    slow=True,
)
def steps_between_samples_uncharged(patch):
    _charging(patch, lambda mcmc, steps, of_sample: steps // of_sample)


@mutation(
    "One charge of a warm-up pays for samples again and again.",
    "mcmc/test_driver.py::test_only_the_announced_samples_were_charged_with_the_warmup",
    r"== 2",
    given={"change": "second run"},
    slow=True,
)
def warmup_pays_for_all_samples(patch):
    honest = MCMC._take_reserved

    def kept(self, bound, steps):
        reserved = self._reserved
        paid = honest(self, bound, steps)
        self._reserved = reserved
        return paid or (reserved.done if reserved else 0)

    patch.setattr(MCMC, "_take_reserved", kept)


@mutation(
    "More samples than a warm-up announced are paid for by its charge.",
    "mcmc/test_driver.py::test_only_the_announced_samples_were_charged_with_the_warmup",
    r"== 2",
    given={"change": "more samples"},
    slow=True,
)
def warmup_pays_for_more(patch):
    patch.setattr(Reserved, "covers", lambda self, *given: True)


@mutation(
    "In plain NumPyro a chain goes on under the key of its own state.",
    "mcmc/test_plain.py::test_resuming_with_the_states_own_key_is_refused",
    "DID NOT RAISE",
    given={**DPSGLD, "chains": 1},
    slow=True,
)
def own_key_accepted(patch):
    patch.setattr(plain, "CHACHA20", None)


@mutation(
    "Runs that go on from an earlier one are not charged.",
    f"{CONTRACT}::test_charges_of_warmup_run_and_resume",
    r"== 20",
    given=DPSGLD,
    slow=True,
)
def resumed_runs_uncharged(patch):
    patch.setattr(
        MCMC, "_take_reserved", lambda self, bound, steps: int(self._warmup_state is not None)
    )


@mutation(
    "The kernel that chains start from is not charged.",
    "mcmc/test_init_kernel.py::test_one_charge_covers_both_and_a_resumed_run_only_itself",
    r"alone\.epsilon",
    slow=True,
)
def first_kernel_uncharged(patch):
    patch.setattr(setup.FirstSample, "event", property(lambda self: events.NoOpDpEvent()))


@mutation(
    "In plain NumPyro a chain steps on after the steps that were charged.",
    "mcmc/test_plain.py::test_a_chain_takes_the_steps_it_was_charged_and_no_more",
    r"isnan",
    given={**DPSGLD, "chains": 2, "method": "vectorized", "charges": [16]},
    slow=True,
)
def meter_ignored(patch):
    patch.setattr(plain, "_may_step", lambda kernel, bound, state: jnp.ones((), bool))


@mutation(
    "A state may be stepped by a kernel that was not charged.",
    f"{REVIEWED}::test_a_state_cannot_be_stepped_by_a_kernel_that_was_not_charged",
    r"isnan",
    slow=True,
)
def any_kernel_steps(patch):
    patch.setattr(plain, "_digest", lambda *given: jnp.zeros(4, jnp.uint32))


@mutation(
    "DPNUTS answers other records with the likelihood of those before.",
    "mcmc/test_nuts.py::test_other_arguments_are_neither_a_stale_posterior_nor_a_free_touch",
    "DID NOT RAISE",
    slow=True,
)
def stale_release(patch):
    patch.setattr(nuts.Release, "_same", lambda self, leaves: True)


@mutation(
    "Of the release that adapts the steps only the first part is charged.",
    "mcmc/sgmcmc/test_adapted.py::test_release_and_chains_are_one_charge_of_the_whole_budget",
    r"1 \+ ROUNDS",
    slow=True,
)
def adaptation_uncharged(patch):
    honest = driver.ChainsCost.charge

    def little(self, *given):
        begun = events.ComposedDpEvent(self.first.event.events[:1])
        return honest(replace(self, first=Instead(self.first, event=begun)), *given)

    patch.setattr(driver.ChainsCost, "charge", little)


@mutation(
    "A choice among several candidates is charged as a choice between two.",
    f"{METROPOLIS}::test_a_step_costs_what_its_theorem_says",
    r"events\[0\] ==",
    case=3,
    slow=True,
    fresh=True,
)
def candidates_charged_as_two(patch):
    half = lambda width: events.MultiCandidateBit(width / 2)  # noqa: E731
    patch.setattr(plan, "events", Instead(events, MultiCandidateBit=half))


@mutation(
    "A zCDP filter pays for every move, whatever is left.",
    f"{METROPOLIS}::test_filter_arithmetic_is_exact",
    r"bool\(paid\)",
)
def filter_never_refuses(patch):
    honest = privacy_filter.spend

    def generous(left, income, root):
        paid, after = honest(left, income, root)
        return jnp.ones_like(paid), after

    everywhere(patch, honest, generous)


@mutation(
    "What a filter's chain has left is spent by every run that goes on from it.",
    "mcmc/test_reviewed_family.py::"
    "test_what_a_run_leaves_is_not_spent_by_every_run_that_goes_on_from_it",
    "per_step",
    slow=True,
)
def allowance_kept(patch):
    patch.setattr(BoundMetropolis, "renewed", staticmethod(lambda state: state))


@mutation(
    "What tables add to δ is left out of a Metropolis step's charge.",
    f"{METROPOLIS}::test_a_step_costs_what_its_theorem_says",
    r"\.distance",
    slow=True,
    fresh=True,
)
def tables_of_bits_uncharged(patch):
    honest = plan.FixedCharge
    patch.setattr(plan, "FixedCharge", lambda limit, event, tv: honest(limit, event, 0.0))


@mutation(
    "ε is calibrated and told at a larger δ than the budget's.",
    f"{CONTRACT}::test_warmup_and_run_together_cost_the_budget",
    r"epsilon|delta",
    given=DPSGLD,
    slow=True,
)
def another_delta(patch):
    patch.setattr(PrivateKernel, "delta", property(lambda self: 1e-3))


@mutation(
    "What rounding lets a record move a Langevin step by is not charged.",
    "mcmc/posterior/test_ops.py::test_the_rounding_that_is_charged_covers_what_64_bits_round",
    r"method\.rounding",
    slow=True,
)
def rounding_uncharged(patch):
    patch.setattr(LangevinDraw, "bound", property(lambda self: self.target.lipschitz))


@mutation(
    "A filter's cost of a move is half of what its bound costs.",
    f"{METROPOLIS}::test_the_filter_never_spends_more_than_was_charged",
    r"spent <=",
    slow=True,
    fresh=True,
)
def filter_pays_half(patch):
    honest = plan.BitCost
    patch.setattr(plan, "BitCost", lambda factor, *more: honest(factor / 2, *more))


@mutation(
    "A record bound of the caller's holds for one direction of a move alone.",
    f"{METROPOLIS}::test_a_bound_of_the_callers_holds_for_the_way_back_too",
    r"approx",
)
def bound_of_one_direction(patch):
    def one_way(self, points):
        return jnp.asarray(self.power * self.record_bound(*points))

    patch.setattr(privacy_filter.PairwiseBound, "__call__", one_way)


# --- noise


@mutation(
    "Every step of a chain draws the same noise and batch.",
    "contract/test_mutations.py::check_batches",
    "batches",
    given=DPSGLD,
    slow=True,
    fresh=True,
)
def steps_share_a_key(patch):
    patch.setattr(BoundKernel, "keys", staticmethod(lambda state: (state.rng_key, state.rng_key)))


@mutation(
    "A step's release and its Langevin noise are drawn with one key.",
    "contract/test_keys.py::test_no_kernel_uses_a_key_twice",
    "used twice",
    given=DPSGLD,
    slow=True,
    fresh=True,
)
def release_and_walk_share_a_key(patch):
    patch.setattr(integrator, "random", Instead(integrator.random, split=one_key))


@mutation(
    "A Metropolis step's proposal, batch and accept bit are drawn with one key.",
    "contract/test_keys.py::test_no_kernel_uses_a_key_twice",
    "used twice",
    given={"name": "DPFastMH mini-batch"},
    slow=True,
    fresh=True,
)
def proposal_and_bit_share_a_key(patch):
    patch.setattr(step, "random", Instead(step.random, split=one_key))


@mutation(
    "All chains draw with the key of the first.",
    "contract/test_chains.py::test_chains_are_charged_and_draw_batches_of_their_own",
    "batches of a chain",
    slow=True,
    fresh=True,
)
def chains_share_a_key(patch):
    honest = BoundKernel.init

    def alike(self, rng_key, *more):
        return honest(self, rng_key[jnp.zeros(rng_key.shape, int)], *more)

    patch.setattr(BoundKernel, "init", alike)


# --- what a record may do


@mutation(
    "Records are let say twice what an accept bit is charged for.",
    "mcmc/test_reviewed_family.py::test_a_record_is_cut_to_the_bound_that_is_charged",
    r"<= nats",
    slow=True,
    fresh=True,
)
def twice_the_bound(patch):
    honest = plan.FixedCharge
    patch.setattr(plan, "FixedCharge", lambda limit, *more: honest(2 * limit, *more))


@mutation(
    "Where the charge is averaged over directions, a record may say more than its predictor does.",
    f"{STEPS}::test_a_direction_averaged_term_stays_within_that_of_its_predictor",
    r"np\.abs|1 \+ 1e-5",
    slow=True,
)
def beyond_the_predictor(patch):
    patch.setattr(step, "jnp", Instead(jnp, clip=lambda value, low, high: value))


@mutation(
    "A record of bounded gradient and curvature is let say twice what they allow.",
    "mcmc/metropolis/test_metropolis_smooth.py::"
    "test_no_record_exceeds_its_gradient_and_curvature_in_any_move",
    "most",
    case=1,
    slow=True,
    fresh=True,
)
def beyond_gradient_and_curvature(patch):
    honest = BoundMetropolis.allowance
    patch.setattr(BoundMetropolis, "allowance", lambda self, *given: 2 * honest(self, *given))


@mutation(
    "A proposal is longer where the records are dense.",
    f"{STEPS}::test_steps_are_free_of_the_noise_seed_of_their_neighbours",
    "proposals",
    slow=True,
    fresh=True,
)
def proposal_reads_records(patch):
    honest = BoundMetropolis._decide

    def reading(self, key, state, record_cache, records):
        walk = replace(self, walk=Longer(self.walk, jnp.sum(records[0][:8])))
        return honest(walk, key, state, (), records)

    patch.setattr(BoundMetropolis, "_decide", reading)
    patch.setattr(BoundMetropolis, "_remembering", None)


class Longer:
    """A walk that goes farther by a factor that it should not know."""

    def __init__(self, walk, total):
        self.walk, self.total = walk, total

    def draw(self, *given):
        return self.walk.draw(*given) * (1 + 1e-3 * jnp.abs(self.total))


@mutation(
    "A record's log likelihood is not cut to the range that a draw is charged for.",
    f"{DRAWS}::test_the_law_of_neighbours_stays_within_the_range_that_is_charged",
    r"<= eta",
    slow=True,
)
def range_not_cut(patch):
    as_it_is = {"clip": lambda value, low, high: value, "where": lambda c, x, y: x}
    patch.setattr(bounded, "jnp", Instead(jnp, **as_it_is))


@mutation(
    "That a rejection sampler may run out of tries is not charged.",
    f"{DRAWS}::test_what_arithmetic_and_capped_tries_add_is_charged",
    r"tv ==",
    slow=True,
)
def tries_uncharged(patch):
    patch.setattr(rejection.RejectionDraw, "tv", property(lambda self: 1e-12))


@mutation(
    "A draw by NUTS is taken for an exact one, without a condition.",
    "mcmc/posterior/test_ops.py::test_conditional_draws_are_refused_by_a_budget",
    "DID NOT RAISE",
    slow=True,
)
def nuts_taken_for_exact(patch):
    patch.setattr(conditional.NUTSDraw, "conditions", property(lambda self: ()))


# --- what leaves


@mutation(
    "A report tells the number of records where that is private.",
    "mcmc/test_private_size.py::test_no_text_of_a_run_holds_the_number",
    r"found == \[\]",
    slow=True,
)
def private_number_told(patch):
    honest = BoundKernel.stated
    patch.setattr(
        BoundKernel, "stated", lambda self, private_size: honest(self, private_size=False)
    )


@mutation(
    "Fields that hold keys are collected like any other.",
    f"{CONTRACT}::test_secret_and_unknown_fields_are_refused_before_any_charge",
    "DID NOT RAISE",
    given={**DPSGLD, "field": "rng_key"},
    slow=True,
)
def secret_fields_shown(patch):
    patch.setattr(setup, "check_fields", lambda *given: None)


@mutation(
    "A pickled run holds the records.",
    f"{CONTRACT}::test_pickles_hold_neither_records_nor_keys",
    "not in pickled",
    given=DPSGLD,
    slow=True,
)
def records_pickled(patch):
    forget, state, kept = MCMC._forget, MCMC.__getstate__, []

    def remembering(self):
        kept[:] = [self._args]
        forget(self)

    patch.setattr(MCMC, "_forget", remembering)
    patch.setattr(MCMC, "__getstate__", lambda self: {**state(self), "_args": kept[0]})


@mutation(
    "The key of a chain stays in the state that outlives its run.",
    f"{CONTRACT}::test_pickles_hold_neither_records_nor_keys",
    r"not .*key\.any",
    given=DPSGLD,
    slow=True,
)
def keys_kept(patch):
    patch.setattr(driver, "scrub", lambda state: state)


@mutation(
    "A kernel hands its model to whoever looks, and ArviZ replays it on the records.",
    f"{CONTRACT}::test_the_kernel_is_frozen_and_hides_its_model",
    r"model is None",
    given=DPSGLD,
)
def model_shown(patch):
    def shown(self, name):
        place = "_model" if name == "model" else name
        return object.__getattribute__(self, place) or object.__getattribute__(self, name)

    patch.setattr(PrivateKernel, "__getattribute__", shown)


@mutation(
    "That a chain started from a state of elsewhere is left out of the report.",
    f"{REVIEWED}::test_a_foreign_state_and_given_positions_are_named_in_the_report",
    "did not compute",
    slow=True,
)
def foreign_state_unnamed(patch):
    known = MCMC.post_warmup_state.fget
    patch.setattr(
        MCMC,
        "post_warmup_state",
        property(known, lambda self, state: self.__dict__.update(_warmup_state=state)),
    )
