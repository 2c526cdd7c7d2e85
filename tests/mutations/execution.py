"""Broken runs: charges, keys and conditions on the way from a call to the records."""

from contextlib import contextmanager

from numpyro_dp._sources import Reading
from numpyro_dp.execution import account, facts, processes
from numpyro_dp.execution.account import Account, ChargedRun
from tests.mutations.registry import mutation

RUNS = "execution/test_account.py"
STORES = "scale/test_sources.py"
TOGETHER = "execution/test_processes.py"


@mutation(
    "The noise is a function of the caller's key, although the run is called secure.",
    f"{RUNS}::test_the_callers_key_makes_noise_only_on_a_condition",
    r"np\.all\(words\[2\] != words\[0\]\)|assert np",
)
def secure_from_the_callers_key(patch):
    patch.setattr(Account, "fresh_key", lambda self, key: account.seeded_key(key))


@mutation(
    "The key of noise and batches is given before anything was charged.",
    f"{RUNS}::test_nothing_gives_a_key_before_a_charge",
    "DID NOT RAISE",
)
def key_before_the_charge(patch):
    patch.setattr(ChargedRun, "paid_key", lambda self, key, of: account.os_key())


@mutation(
    "A run stands in its own report and not in the ledger.",
    f"{RUNS}::test_ledger_and_report_count_every_charge_with_its_tables",
    r"ledger\.epsilon",
)
def ledger_not_asked(patch):
    def told(self, event, user_key, *, of, **known):
        self.account.charges.append(account.Charge(event, **known))
        return self.paid_key(user_key, of=of)

    patch.setattr(ChargedRun, "charge", told)


@mutation(
    "A report counts the last charge of an object and none before it.",
    f"{RUNS}::test_ledger_and_report_count_every_charge_with_its_tables",
    r"found\.steps",
)
def earlier_runs_not_reported(patch):
    honest = Account.report

    def last(self, *given, **more):
        kept, self.charges = self.charges, self.charges[-1:]
        try:
            return honest(self, *given, **more)
        finally:
            self.charges = kept

    patch.setattr(Account, "report", last)


@mutation(
    "The ledger is asked when a run is over, and its records have been read.",
    "estimators/test_estimators.py::test_nothing_is_touched_when_the_charge_is_refused",
    "records were touched",
    slow=True,
)
def charged_afterwards(patch):
    honest, opened = ChargedRun.charge, Account.opened

    def promised(self, event, user_key, *, of, **known):
        self.account.owed.append((self, event, user_key, {"of": of, **known}))
        self.account.charges.append(account.Charge(event, **known))
        return self.paid_key(user_key, of=of)

    @contextmanager
    def settling(self, *called):
        self.owed = []
        with opened(self, *called) as run:
            yield run
            for made, event, user_key, known in self.owed:
                honest(made, event, user_key, **known)

    patch.setattr(ChargedRun, "charge", promised)
    patch.setattr(Account, "opened", settling)


@mutation(
    "Two runs of one object go on at the same time.",
    f"{RUNS}::test_copies_keep_the_charges_and_runs_exclude_each_other",
    "DID NOT RAISE",
)
def runs_side_by_side(patch):
    @contextmanager
    def opened(self, *called):
        yield ChargedRun(self)

    patch.setattr(Account, "opened", opened)


@mutation(
    "A run that fails is taken out of the ledger again, though its noise may have been seen.",
    "mcmc/test_driver.py::test_interrupted_runs_stay_charged_and_leave_no_data",
    r"len\(accountant\.entries\) == 1",
    slow=True,
)
def failed_runs_given_back(patch):
    honest = Account.opened

    @contextmanager
    def forgiving(self, *called):
        before = self.accountant._ledger._book
        try:
            with honest(self, *called) as run:
                yield run
        except BaseException:
            self.accountant._ledger._book = before
            raise

    patch.setattr(Account, "opened", forgiving)


@mutation(
    "Conditions of a charge are left out of the report.",
    f"{RUNS}::test_conditions_of_every_charge_stand_in_every_report",
    r"found\.conditions",
)
def conditions_left_out(patch):
    patch.setattr(Account, "conditions", property(lambda self: ()))


@mutation(
    "A run inside a compiled program is charged once and executed often.",
    f"{RUNS}::test_a_call_inside_a_transformation_is_refused",
    "DID NOT RAISE",
)
def traced_runs_charged_once(patch):
    patch.setattr(account, "is_traced", lambda *inputs: False)


@mutation(
    "Where the number of records is private, an error tells it.",
    f"{RUNS}::test_where_the_size_is_private_no_error_of_the_preparation_tells_it",
    "did not match",
)
def private_number_in_errors(patch):
    patch.setattr(account, "redacted", lambda private, prepare, *given: prepare(*given))


@mutation(
    "That a store is trusted not to look is no condition of what is charged.",
    f"{STORES}::test_a_trusted_storage_is_a_condition",
    r"facts\(\)\.conditions",
)
def trust_unsaid(patch):
    patch.setattr(facts, "conditions_of", lambda mechanism: ())


@mutation(
    "What a store says of the rows that it was asked for comes out with the error.",
    f"{STORES}::test_an_error_of_the_store_ends_the_run_and_tells_nothing",
    r"type\(seen\.raised\) is",
    slow=True,
)
def rows_in_an_error(patch):
    def rows(self, places, rows):
        return self._rows([self.sources[place] for place in places], rows)

    patch.setattr(Reading, "rows", rows)


@mutation(
    "A run goes on with zeros in the place of records that could not be fetched.",
    f"{STORES}::test_a_failing_store_is_asked_once_and_known_to_have_failed",
    "DID NOT RAISE",
)
def unread_records_unnoticed(patch):
    patch.setattr(Reading, "require_read", lambda self: None)


# --- several processes


@mutation(
    "Each of several processes charges for itself, and makes noise of its own.",
    f"{TOGETHER}::test_the_first_process_charges_and_the_others_get_its_key",
    r"made == \[\]|assert \[1\] == \[\]",
)
def each_process_for_itself(patch):
    patch.setattr(account, "key_of_first", lambda make: make())


@mutation(
    "Processes that are about to do different things go on, one of them with another bound.",
    f"{TOGETHER}::test_processes_that_differ_charge_nothing",
    "DID NOT RAISE",
)
def differing_processes_go_on(patch):
    patch.setattr(processes.Meeting, "agree", lambda self, *of, able: None)


@mutation(
    "What a run is made of is compared by its kind, not by its numbers.",
    f"{TOGETHER}::test_different_things_differ",
    r"assert b'.* != b'",
)
def numbers_not_compared(patch):
    patch.setattr(processes, "_PLAIN", ())


@mutation(
    "A bound that a function reads from its script may differ between processes.",
    f"{TOGETHER}::test_numbers_of_a_functions_module_count_and_nothing_else_of_it",
    r"assert b'.* != b'",
)
def constants_of_a_script_not_compared(patch):
    patch.setattr(processes, "_plain_globals", lambda function: set())


@mutation(
    "A process charges although the ledger of another has no room, and goes on alone.",
    f"{TOGETHER}::test_a_ledger_of_others_that_has_no_room_is_known_before_the_charge",
    "did not match",
)
def room_of_others_not_asked(patch):
    agree = processes.Meeting.agree
    patch.setattr(processes.Meeting, "agree", lambda self, *of, able: agree(self, *of))
