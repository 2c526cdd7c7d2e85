"""Mutations whose tests stand beside the claims that they break, with fixtures or for all kernels.

Of a test that every kernel runs, one kernel is run by default.
"""

from tests.mutations.registry import stands

stands(
    "mechanisms",
    "contract/test_mutations.py",
    test_halved_noise_is_caught="The noise is half of what is charged.",
    test_a_part_without_noise_is_caught="One part of a joint release carries no noise.",
    test_a_removed_clip_is_caught="Records are not clipped.",
    test_a_batch_reused_across_steps_is_caught="Every step draws the same batch.",
    test_half_the_sampling_rate_in_the_books_is_caught=(
        "The books say half the rate at which batches are drawn."
    ),
    test_division_by_the_drawn_batch_size_is_caught=(
        "A sum is divided by the number of records that were drawn."
    ),
    test_norm_check_and_sum_rounding_apart_are_caught=(
        "The norm of one rounding of a record is checked, and another rounding of it is added."
    ),
    test_a_stale_kernel_after_a_new_budget_is_caught=(
        "A run with a new budget takes the program, and the noise, of the one before."
    ),
)
stands(
    "mechanisms",
    "contract/test_chains.py",
    test_a_batch_shared_by_chains_is_caught=(
        "All chains draw the same batch and are charged as if each had its own."
    ),
)
stands(
    "mechanisms",
    "mechanisms/test_private_sum.py",
    test_noise_is_what_is_charged_and_half_of_it_is_noticed=(
        "Units of the lattice are half as large as planned, and so is the noise."
    ),
)
stands(
    "mcmc",
    "contract/test_chains.py",
    test_one_chain_of_four_uncounted_is_caught="One chain of four is not charged.",
)
stands(
    "mcmc",
    "contract/test_kernel_mutations.py",
    test_half_of_the_steps_uncharged_is_caught="Half of the steps are not charged.",
    test_a_key_reused_on_resume_is_caught="A resumed run draws the noise of the run before.",
    test_an_unnoised_state_field_is_caught="A field of the state holds a sum without noise.",
)
stands(
    "mcmc",
    "mcmc/posterior/test_ops.py",
    test_a_power_left_out_of_the_draw_is_caught=(
        "The power of the likelihood that is charged is left out of the draw."
    ),
    test_a_chain_left_uncounted_is_caught="A chain of posterior draws is not charged.",
)
stands(
    "mcmc",
    "mcmc/posterior/test_ops.py",
    slow=True,
    test_halved_noise_is_caught="Langevin steps take half the noise that is charged.",
)
stands(
    "mcmc",
    "mcmc/posterior/test_ops_exact.py",
    slow=True,
    test_a_dropped_power_is_caught="A draw from a grid forgets the power that is charged.",
)
stands(
    "scoring",
    "scoring/test_mutations.py",
    test_an_uncharged_histogram_is_caught="The histogram before the rounds is not charged.",
    test_replace_one_charged_as_zero_out_is_caught=(
        "A release under replace-one is calibrated as under zero-out."
    ),
)
stands(
    "scoring",
    "scoring/test_mutations.py",
    slow=True,
    test_information_without_noise_is_caught="The released information carries no noise.",
    test_one_round_of_halved_noise_is_caught="One of the rounds has half its noise.",
    test_coordinates_from_information_without_noise_are_caught=(
        "Later rounds ask in coordinates that un-noised numbers chose."
    ),
    test_a_removed_clip_is_caught="A record's score is not clipped.",
    test_a_removed_second_clip_of_the_information_is_caught=(
        "A record's information is clipped by its score alone."
    ),
    test_an_own_score_left_out_of_its_set_is_caught=(
        "A record's own score is left out of those that its clip is centred on."
    ),
)
stands(
    "svi",
    "svi/dpsvi/test_dpsvi.py",
    test_the_noise_is_of_the_charged_size_and_half_of_it_is_caught=(
        "A step of DPSVI has half the noise that is charged."
    ),
)
stands(
    "svi",
    "svi/vips/test_vips.py",
    test_a_second_block_without_noise_is_noticed="The second block of a joint statistic is bare.",
    test_swapped_levels_of_noise_are_noticed=(
        "A loud release is made with the bound of a quiet one."
    ),
)
stands(
    "svi",
    "svi/guides/test_lda.py",
    test_ascent_stopped_by_the_batch_is_noticed=(
        "A document's ascent stops when the whole batch has come to rest."
    ),
    test_a_leak_of_the_documents_lengths_is_noticed=(
        "A document's counts are divided by the mean length of the batch."
    ),
)
stands(
    "svi",
    "svi/guides/test_lda.py",
    slow=True,
    test_a_quarter_of_the_noise_is_proved="Topics are released with a quarter of their noise.",
)
stands(
    "estimators",
    "diagnostics/audit/test_half_noise.py",
    slow=True,
    test_half_the_noise_is_refuted=(
        "Half the noise of sums, accept bits, linear terms, minimisers or particles."
    ),
)
stands(
    "svi",
    "diagnostics/audit/test_audit_everything.py",
    test_a_private_centre_is_audited_and_half_its_noise_refuted=(
        "A private centre has half its noise: an audit proves more than its ε."
    ),
)
stands(
    "mcmc",
    "diagnostics/audit/test_audit.py",
    test_a_kernel_without_clip_is_refuted="DPSGLD does not clip: an audit proves more than its ε.",
)
stands(
    "mcmc",
    "diagnostics/audit/test_audit.py",
    slow=True,
    test_halved_noise_is_refuted="DPSGLD has half its noise: an audit proves more than its ε.",
)
stands(
    "mcmc",
    "diagnostics/audit/test_audit_family.py",
    slow=True,
    test_halved_noise_is_refuted=(
        "Kernels with a momentum have half their noise: an audit proves more than their ε."
    ),
)
stands(
    "scoring",
    "diagnostics/audit/test_audit_release.py",
    slow=True,
    test_halved_noise_is_refuted=(
        "A released likelihood has half its noise: an audit proves more than its ε."
    ),
)
stands(
    "mcmc",
    "diagnostics/audit/test_audit_loudest.py",
    slow=True,
    test_bits_that_hear_each_record_four_times_are_refuted=(
        "Accept bits hear each record four times: an audit proves more than their ε."
    ),
)
stands(
    "mechanisms",
    "statistical/test_metropolis.py",
    slow=True,
    test_the_free_branch_of_the_paper_is_caught=(
        "A step accepts by min(1, e^l), as published: an attack proves more than a Barker bit's ε."
    ),
)
stands(
    "execution",
    "leaks/test_leaks.py",
    test_locals_of_a_run_are_found_and_a_charged_run_leaves_none=(
        "A traceback of a run that failed keeps the key of its noise."
    ),
)
stands(
    "accounting",
    "faults/test_faults.py",
    slow=True,
    test_kills_find_a_charge_that_is_not_made_and_a_file_left_by_half=(
        "A charge returns that was not made; a file is saved in two parts."
    ),
)
stands(
    "diagnostics",
    "diagnostics/checks/test_checks_are_private.py",
    test_half_the_noise_would_be_caught="A private check has half the noise that it was charged.",
)
