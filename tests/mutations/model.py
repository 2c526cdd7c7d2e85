"""Broken walls: models that see more than one record, and priors and sites that see any."""

from numpyro_dp.model import private_model, programs, rows_plate, split
from numpyro_dp.model.private_model import PrivateModel
from tests.mutations.patches import everywhere
from tests.mutations.registry import mutation

REFUSED = "model/test_refused.py::test_refused_with_cause_and_remedy"
NAMED = "model/test_named.py"
WALL = "model/test_wall.py"
ROWS = "model/test_rows_plate.py"


@mutation(
    "A model in which records know of each other is taken for a sum over records.",
    "model/test_additive.py::test_statistics_over_rows_are_refused_whatever_the_noise",
    "DID NOT RAISE",
    given={"kind": "mean", "likelihood": "normal 100"},
)
def additivity_unjudged(patch):
    patch.setattr(private_model, "check_additive", lambda spec, parts: None)


@mutation(
    "A prior that reads the records is accepted.",
    REFUSED,
    "DID NOT RAISE",
    case="g_prior",
)
def prior_reads_records(patch):
    patch.setattr(programs, "_refuse_readers", lambda *given: None)
    patch.setattr(private_model, "check_additive", lambda spec, parts: None)


@mutation(
    "A deterministic site that reads the records is shown with the draws.",
    "model/test_accepted.py::test_parts_add_up_and_each_term_reads_one_record",
    "DID NOT WARN",
    case="horseshoe_with_deterministics",
)
def deterministic_site_reads_records(patch):
    honest = programs._record_readers

    def seen(whole, group):
        return {} if group == "deterministic" else honest(whole, group)

    patch.setattr(programs, "_record_readers", seen)


@mutation(
    "A record counts twice.",
    "model/test_accepted.py::test_parts_add_up_and_each_term_reads_one_record",
    "RELATIVE",
    case=0,
    slow=True,
)
def record_counted_twice(patch):
    honest = PrivateModel.record_log_likelihood
    patch.setattr(
        PrivateModel, "record_log_likelihood", lambda self, z, record: 2 * honest(self, z, record)
    )


@mutation(
    "Where the number of records is private, a prior may tell it.",
    f"{WALL}::test_a_prior_that_tells_the_number_of_records_is_refused",
    "DID NOT RAISE",
    slow=True,
)
def prior_tells_the_number(patch):
    patch.setattr(programs, "_require_same", lambda whole, longer, plate: [])


@mutation(
    "Records that a model finds in a global of its module are accepted.",
    f"{NAMED}::test_a_named_array_of_records_is_refused",
    "DID NOT RAISE",
)
def captured_records_accepted(patch):
    patch.setattr(private_model, "require_all_handed", lambda *given: ())


@mutation(
    "A model with a rule of its own for batches is accepted, and sees many records.",
    "mcmc/test_reviewed.py::test_a_model_with_its_own_batching_rule_is_refused",
    "DID NOT RAISE",
    slow=True,
)
def batching_rule_accepted(patch):
    everywhere(patch, programs.require_one_record, lambda pruned: None)


@mutation(
    "A derivative that looks at other records is accepted.",
    "mcmc/test_reviewed_family.py::"
    "test_a_custom_derivative_that_sees_more_than_its_record_is_refused",
    "DID NOT RAISE",
    slow=True,
)
def derivative_unjudged(patch):
    patch.setattr(split, "require_own_gradient", lambda *given: None)


@mutation(
    "A plate of all rows goes round what reads no record, which then counts once for each.",
    f"{ROWS}::test_the_same_as_written_with_the_plate",
    r"auto\.structure == plain\.structure",
    case=1,  # groups and a soft constraint
)
def plate_around_the_prior(patch):
    patch.setattr(
        rows_plate,
        "sites_of_rows",
        lambda structure: tuple(s.name for s in structure.of_kind("observed", "factor")),
    )


@mutation(
    "The unit does not say that each row was taken for a record.",
    f"{ROWS}::test_its_unit_is_a_row_and_says_who_took_it_for_a_record",
    "one slice of plate 'records'",
)
def rows_taken_unsaid(patch):
    patch.setattr(private_model, "unit_of", lambda model, plate: rows_plate.slice_of(plate))
