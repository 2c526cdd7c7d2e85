"""Broken books: what is proved of events, how it composes, what is admitted, what is kept."""

import math
from collections import Counter
from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace

from numpyro_dp.accounting import (
    accountant as accountants,
    admission,
    events,
    plan_steps,
    rounding,
)
from numpyro_dp.accounting.accountant import Accountant
from numpyro_dp.accounting.bounds import bits, directional, domination, proved
from numpyro_dp.accounting.budget import Budget
from numpyro_dp.accounting.curve import PrivacyCurve
from numpyro_dp.accounting.events import codec
from numpyro_dp.accounting.ledger import book, file
from numpyro_dp.accounting.pld import composition, grid, profiles, renyi
from numpyro_dp.accounting.relation import sensitivity
from numpyro_dp.accounting.report import short
from tests.accounting.report import test_short
from tests.mutations.patches import Instead, everywhere, proof, row
from tests.mutations.registry import mutation

CURVES = "accounting/test_curve.py"
ROWS = "accounting/test_vectors.py"
STATEMENTS = "accounting/events/test_statements.py"
SHORT = "accounting/report/test_short.py"
BOOKS = "accounting/test_accountant.py"
ADMITTED = "accounting/test_admission.py"
LEDGERS = "accounting/ledger/test_ledger.py"
TOO_SMALL = r"got >= truth"
ONE_REPORT = {
    "notes": [],
    "outside": [],
    "conditions": ["the key is secret, random and used once, " * 20],
    "unit": "one slice of plate 'people'",
    "other": "a mechanism",
}
IN_MEMORY = {"request": SimpleNamespace(param="memory")}

# --- what is proved of an event


@mutation(
    "The relation is ignored: another value of a record counts as its absence.",
    f"{CURVES}::test_replace_one_is_not_what_dp_accounting_rdp_says",
    r"17\.8566",
)
def relation_ignored(patch):
    everywhere(patch, sensitivity, lambda relation: 1.0)


@mutation(
    "The last event of a list is dropped.",
    f"{ROWS}::test_row",
    TOO_SMALL,
    given={"row": row("mixed_schedule_two_rates")},
)
def last_event_dropped(patch):
    proof(
        patch,
        events.ComposedDpEvent,
        lambda event: events.ComposedDpEvent(event.events[: max(1, len(event.events) - 1)]),
    )


@mutation(
    "Of repeated steps only the first one counts.",
    f"{ROWS}::test_row",
    TOO_SMALL,
    given={"row": row("gaussian_zero-out_s5_T100")},
)
def repetitions_uncounted(patch):
    patch.setattr(proved.Proved, "times", lambda self, count: self)


@mutation(
    "Two releases from one batch are charged as if each had a batch of its own.",
    f"{CURVES}::test_two_releases_from_one_batch_are_one_joint_event",
    r"approx",
    slow=True,
)
def one_batch_as_two(patch):
    honest = proved._PROOFS[events.PoissonSampledDpEvent]

    def apart(event, relation):
        inner = getattr(event.event, "events", [event.event])
        rate = event.sampling_probability
        return proved.added(
            honest(events.PoissonSampledDpEvent(rate, each), relation) for each in inner
        )

    patch.setitem(proved._PROOFS, events.PoissonSampledDpEvent, apart)


@mutation(
    "Total variation is left out of δ.",
    f"{CURVES}::test_no_epsilon_where_total_variation_exceeds_delta",
    r"== inf",
)
def distances_dropped(patch):
    patch.setitem(proved._PROOFS, events.TotalVariation, lambda event, relation: proved.Proved())


@mutation(
    "Total variation is added to δ without its factor 1 + e^ε.",
    f"{CURVES}::test_total_variation_is_added_outside",
    r"approx",
)
def distances_added_once(patch):
    patch.setattr(PrivacyCurve, "_outside", lambda self, epsilon: self.distance)


@mutation(
    "An event that nobody has a theorem for costs nothing.",
    f"{CURVES}::test_unknown_events_are_refused",
    "DID NOT RAISE",
)
def unknown_events_free(patch):
    known = proved._PROOFS
    nothing = lambda event, relation: proved.Proved()  # noqa: E731
    patch.setattr(proved, "_PROOFS", SimpleNamespace(get=lambda cls: known.get(cls, nothing)))


@mutation(
    "A release without privacy costs nothing.",
    f"{CURVES}::test_no_privacy_is_infinite",
    r"== inf",
)
def no_privacy_free(patch):
    patch.setitem(proved._PROOFS, events.NonPrivateDpEvent, lambda event, relation: proved.Proved())


@mutation(
    "A posterior draw is charged alike when a record changes its value and when it vanishes.",
    f"{ROWS}::test_row_of_another_mechanism",
    TOO_SMALL,
    given={"row": row("ops_bounded_R_100_lower")},
)
def draws_of_replaced_records(patch):
    honest = bits._ranged
    patch.setattr(bits, "_ranged", lambda width, relation: honest(width, "zero_out"))


@mutation(
    "A Barker bit counts as a Gaussian of half its bound.",
    f"{STATEMENTS}::test_shift_of_a_bit_keeps_its_digits",
    r"1 <= ",
)
def bits_as_half_gaussians(patch):
    patch.setattr(bits, "_logistic_shift", lambda width: width / 2)


@mutation(
    "What a mini-batch's chance of being small adds to a bit is left out.",
    f"{STATEMENTS}::test_the_χ_form_is_the_batch_with_that_rate",
    r"0\.9 \* ",
)
def mini_batch_bit_as_full(patch):
    proof(
        patch,
        events.MinibatchBit,
        lambda event: event.__class__(
            event.num_records,
            event.lipschitz,
            event.max_move,
            1000 * event.expected_batch,
            event.acceptance,
            event.noise_sd,
        ),
    )


@mutation(
    "Two records in different directions are charged as two in one.",
    f"{STATEMENTS}::test_directional_bit_covers_records_in_any_two_directions",
    r"delta\(epsilon\)",
    given={"scale": 1.0},
    slow=True,
    fresh=True,
)
def two_directions_as_one(patch):
    honest = directional.DirectionalProfile
    patch.setattr(
        directional,
        "DirectionalProfile",
        lambda scale, replaced: honest(scale * (1 + replaced), False),
    )


@mutation(
    "The last iterate of Langevin steps is charged as if the prior were twice as convex.",
    f"{ROWS}::test_row_of_another_mechanism",
    TOO_SMALL,
    given={"row": row("ula_last_zero-out_h0.05_T10")},
)
def contraction_overstated(patch):
    def convex(event):
        given = (event.lipschitz, 2 * event.strong_convexity, event.smoothness)
        return events.LangevinLastIterate(event.step_size, event.num_steps, *given)

    proof(patch, events.LangevinLastIterate, convex)


@mutation(
    "Objective perturbation is charged without the term for the losses' curvature.",
    f"{STATEMENTS}::test_one_gaussian_is_not_enough_for_objective_perturbation",
    r"delta\(epsilon\) >= truth",
)
def curvature_of_objective_uncharged(patch):
    given = lambda e: (e.regularisation, e.noise_sd, e.output_noise_sd)  # noqa: E731
    proof(
        patch,
        events.ObjectivePerturbationRelease,
        lambda e: events.ObjectivePerturbationRelease(
            e.lipschitz, 0.0, *given(e), e.gradient_tolerance
        ),
    )


@mutation(
    "Output perturbation is charged as if its solver had reached the minimum.",
    f"{STATEMENTS}::test_what_a_minimum_is_short_of_is_charged",
    "approx",
)
def unfinished_minimum_uncharged(patch):
    proof(
        patch,
        events.OutputPerturbationRelease,
        lambda e: events.OutputPerturbationRelease(
            e.lipschitz, e.strong_convexity, 0.0, e.noise_sd
        ),
    )


@mutation(
    "Objective perturbation is charged as if its solver had reached the minimum.",
    f"{STATEMENTS}::test_what_a_minimum_is_short_of_is_charged",
    ">= beside",
)
def unfinished_objective_uncharged(patch):
    proof(
        patch,
        events.ObjectivePerturbationRelease,
        lambda e: events.ObjectivePerturbationRelease(
            e.lipschitz, e.smoothness, e.regularisation, e.noise_sd, 0.0, 0.0
        ),
    )


# --- how it composes


@mutation(
    "Losses are rounded down to their grid, not up.",
    "accounting/test_extremes.py::test_epsilon_is_never_too_small",
    r"got >= exact",
    case=3,
    fresh=True,
)
def losses_rounded_down(patch):
    honest = profiles.create_pmf_pessimistic_connect_dots

    def inward(spacing, places, deltas):
        found = honest(spacing, places, deltas).to_dense_pmf()
        found._lower_loss -= 1
        return found

    patch.setattr(profiles, "create_pmf_pessimistic_connect_dots", inward)


@mutation(
    "Losses past the end of their grid are dropped.",
    "accounting/test_extremes.py::test_epsilon_is_never_too_small",
    r"got >= exact",
    case=3,
    fresh=True,
    slow=True,
)
def far_losses_dropped(patch):
    honest = profiles.create_pmf_pessimistic_connect_dots

    def cut(spacing, places, deltas):
        found = honest(spacing, places, deltas).to_dense_pmf()
        found._infinity_mass = 0.0
        return found

    patch.setattr(profiles, "create_pmf_pessimistic_connect_dots", cut)
    patch.setattr(profiles, "_NEGLIGIBLE", 1e-9)


@mutation(
    "Unequal levels of noise are grouped by rounding up to the quieter one.",
    f"{CURVES}::test_grouping_rounds_noise_down",
    r"bounds\[0\] <= grouped",
    fresh=True,
    slow=True,
)
def grouped_upwards(patch):
    honest = grid.grouped

    def quiet(steps):
        found = honest(steps)
        if found == steps:
            return found
        louder = [step for step, _ in found[1:]] + [found[-1][0]]
        return tuple((up, count) for up, (_, count) in zip(louder, found, strict=True))

    patch.setattr(composition, "grouped", quiet)


@mutation(
    "Rényi divergences become an ε without the term for δ.",
    f"{ROWS}::test_row_of_another_mechanism",
    TOO_SMALL,
    given={"row": row("barker_lower_D0.05_T1000")},
    fresh=True,
    slow=True,
)
def renyi_without_delta(patch):
    everywhere(
        patch, renyi.renyi_epsilon, lambda divergences, delta: max(float(divergences.min()), 0.0)
    )


@mutation(
    "Rényi divergences of sampled steps ignore that a record was replaced and not removed.",
    "accounting/test_extremes.py::test_epsilon_is_never_too_small",
    r"got >= exact",
    case=2,
    slow=True,
    fresh=True,
)
def renyi_ignores_the_relation(patch):
    honest = composition._divergences.__wrapped__
    patch.setattr(
        composition, "_divergences", lambda made: honest(replace(made, relation="zero_out"))
    )


@mutation(
    "What is stored of an event has fewer digits than what was checked.",
    "accounting/events/test_events.py::test_round_trip_is_exact",
    "==",
    given={"event": events.GaussianDpEvent(1.123456789)},
)
def events_stored_in_few_digits(patch):
    honest = codec._plain_value

    def short(cls, field, value):
        found = honest(cls, field, value)
        return float(f"{found:.4g}") if isinstance(found, float) else found

    patch.setattr(codec, "_plain_value", short)


@mutation(
    "Calibration returns a hundredth less noise than fits.",
    "accounting/test_calibrate.py::test_fits_and_is_tight",
    r"epsilon\(noise\) <= budget\.epsilon",
    case=-1,
)
def calibrated_too_quiet(patch):
    # Its package names the function alike.
    module = import_module("numpyro_dp.accounting.calibrate")
    honest = module._search
    patch.setattr(module, "_search", lambda *given: 0.99 * honest(*given))


@mutation(
    "Figures of ε are rounded down when they are printed.",
    "mcmc/test_reviewed.py::test_printed_bounds_are_rounded_up",
    r"float\(rounded_up\(value\)\) >= value",
)
def printed_downwards(patch):
    honest = rounding._rounded
    patch.setattr(rounding, "_rounded", lambda value, digits, way: honest(value, digits, -way))


# --- what is admitted


@mutation(
    "A charge is compared with the budget as if nothing had been charged before it.",
    f"{BOOKS}::test_nothing_remains_once_all_is_spent",
    "DID NOT RAISE",
)
def earlier_charges_forgotten(patch):
    honest = accountants.admits
    patch.setattr(accountants, "admits", lambda curves, budget: honest(curves[-1:], budget))


@mutation(
    "Charges chosen from earlier results are admitted as if they had been planned.",
    f"{ADMITTED}::test_the_counterexamples_are_refused",
    r"not .*fits",
)
def chosen_as_planned(patch):
    def one_list(curves, budget):
        made = [curve.composition for curve in curves]
        steps, bounds = Counter(), Counter()
        for each in made:
            steps.update(dict(each.steps))
            bounds.update(dict(each.bounds))
        whole = replace(
            made[0],
            square=math.fsum(each.square for each in made),
            steps=tuple(sorted(steps.items())),
            bounds=tuple(sorted(bounds.items(), key=repr)),
        )
        return whole.epsilon(budget.delta) <= budget.epsilon

    patch.setattr(accountants, "admits", one_list)


@mutation(
    "A later charge counts as a Gaussian that is too small to dominate it.",
    f"{ADMITTED}::test_certificates_dominate_everywhere_and_barely",
    r"brute\(release, shift, slack\) <= 0",
    given={"relation": "zero_out", "residue": 0.0},
    slow=True,
    fresh=True,
)
def certificate_too_small(patch):
    honest = domination.least_shift
    everywhere(patch, honest, lambda *given: 0.98 * honest(*given))


@mutation(
    "By how much later charges may exceed their Gaussians is not taken off the budget.",
    f"{ADMITTED}::test_the_best_choice_of_the_second_charge_stays_within_delta",
    r"<= BUDGET\.delta",
    case=1,
    slow=True,
    fresh=True,
)
def room_not_kept(patch):
    honest = admission.rooms

    def generous(first, budget):
        found = honest(first, budget)
        return found and found._replace(delta=budget.delta)

    everywhere(patch, honest, generous)


@mutation(
    "What is left of a budget is told as if nothing had been charged.",
    f"{BOOKS}::test_nothing_remains_once_all_is_spent",
    r"remaining\(\) < 0\.02",
)
def remaining_overstated(patch):
    honest = accountants.largest_left
    patch.setattr(accountants, "largest_left", lambda curves, budget: honest((), budget))


@mutation(
    "A guarantee that rests on a condition is charged as one that rests on none.",
    f"{BOOKS}::test_conditional_charges_need_consent",
    "DID NOT RAISE",
    given=IN_MEMORY,
)
def conditions_need_no_consent(patch):
    patch.setattr(Accountant, "_check_kind", lambda self, alone, label, condition: None)


@mutation(
    "The ledger's ε is told without the condition that it rests on.",
    f"{BOOKS}::test_a_conditional_charge_makes_epsilon_infinite",
    r"== inf",
)
def conditions_not_told(patch):
    patch.setattr(book.Book, "conditions", property(lambda self: ()))


@mutation(
    "A part of a plan may be taken again and again.",
    "accounting/test_plan.py::test_a_part_is_drawn_once",
    "DID NOT RAISE",
    given=IN_MEMORY,
)
def parts_taken_twice(patch):
    everywhere(patch, plan_steps.unused, lambda book, entry: plan_steps.steps_of(entry.event))


# --- what is kept


@mutation(
    "The ledger says yes and writes nothing.",
    f"{BOOKS}::test_copies_of_a_file_accountant_share_the_file",
    r"entries\) == 3",
)
def charge_not_written(patch):
    honest = file.FileLedger._write

    def volatile(self, chain, body, admit):
        said = []
        honest(self, chain, body, lambda found: said.append(admit(found)) or False)
        return said[-1]

    patch.setattr(file.FileLedger, "_write", volatile)


@mutation(
    "A ledger whose entries were edited is believed.",
    f"{LEDGERS}::test_foreign_and_damaged_files_are_left_untouched",
    "DID NOT RAISE",
    case=5,
)
def edited_entries_believed(patch):
    patch.setattr(file, "_link", lambda previous, number, body: "0" * 64)


@mutation(
    "A budget in memory is spent by parent and child after a fork.",
    "mcmc/test_reviewed.py::test_a_budget_in_memory_does_not_survive_a_fork",
    "DID NOT RAISE",
)
def budget_forked(patch):
    patch.setattr(book, "os", Instead(book.os, getpid=lambda: 1))


@mutation(
    "A budget in memory is copied with its accountant, and spent by each copy.",
    f"{BOOKS}::test_memory_is_never_duplicated",
    "DID NOT RAISE",
)
def budget_copied(patch):
    patch.setattr(Accountant, "__reduce__", lambda self: (Budget, (1.0, 1e-5)))


@mutation(
    "An existing ledger takes over the budget of whoever opens it.",
    f"{LEDGERS}::test_other_terms_are_refused",
    "DID NOT RAISE",
)
def terms_replaced(patch):
    honest = file.FileLedger.__init__

    def agreeing(self, path, budget, relation):
        honest(self, path, None if path.exists() else budget, relation)
        self.budget = budget

    patch.setattr(file.FileLedger, "__init__", agreeing)


# --- how it is told


@mutation(
    "A printed report leaves out what its ε depends on.",
    f"{SHORT}::test_one_screen_that_never_cuts_what_epsilon_hangs_on",
    "printed",
    given=ONE_REPORT | {"report": test_short.PLAIN},
)
def printed_without_conditions(patch):
    honest = short._guarantee
    patch.setattr(short, "_guarantee", lambda report: honest(replace(report, conditions=())))


@mutation(
    "Conditions and unit are shortened to find room on the screen.",
    f"{SHORT}::test_one_screen_that_never_cuts_what_epsilon_hangs_on",
    "printed",
    given=ONE_REPORT | {"report": test_short.PLAIN},
)
def guarantee_cut_to_fit(patch):
    honest = short._row
    patch.setattr(short, "_row", lambda name, fact: short._ended(honest(name, fact), 2))


@mutation(
    "Notes that find no room are dropped without a word.",
    f"{SHORT}::test_what_does_not_fit_is_counted",
    "more notes",
)
def notes_dropped_silently(patch):
    honest = short._shortened
    patch.setattr(short, "_shortened", lambda *given: [r for r in honest(*given) if r[0]])


@mutation(
    "A note that is too long is cut at its end, where what to do stands.",
    f"{SHORT}::test_what_to_do_is_shown_however_long_the_note",
    "advice",
    given={"number": 2},
)
def notes_cut_at_their_end(patch):
    patch.setattr(short, "_cut", short._ended)
