"""A charged run: the one way from a call to the records.

A front end opens a run on its :class:`Account`, prepares it, charges it, and gets the key of its
noise from the charge; at the end it asks the account for the report. What every run owes is said
here once: no charge under a trace, one run at a time, no error that tells a private number of
records, no key before the charge, every condition in every report; and of several processes, that
one charges for all.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

import jax

from numpyro_dp import _validate
from numpyro_dp._arrays import MappedFile, mapped_files, require_unchanged, warn_of_copies
from numpyro_dp._compilation_cache import nothing_kept
from numpyro_dp._sources import Reading
from numpyro_dp.accounting import (
    Accountant,
    Budget,
    PrivacyReport,
    Relation,
    privacy_curve,
    rounded_down,
    rounded_up,
)
from numpyro_dp.accounting.events import ComposedDpEvent, DpEvent
from numpyro_dp.accounting.report.facts import RunFacts
from numpyro_dp.accounting.spending import printable
from numpyro_dp.errors import redacted
from numpyro_dp.execution.arguments import given_noise
from numpyro_dp.execution.calibration import planned_sum
from numpyro_dp.execution.keys import INSECURE, RANDOMNESS, is_traced, seeded_key
from numpyro_dp.execution.process_settings import settings_of_runs
from numpyro_dp.execution.processes import Meeting, is_first, key_of_first
from numpyro_dp.mechanisms.private_sum import PrivateSum
from numpyro_dp.mechanisms.random import os_key

T = TypeVar("T")

_MAPPED = (
    "Records were read from mapped files; a run in which one of these was changed, replaced or "
    "removed ended in an error, and no result of it was given out."
)


_NOT_FIRST = (
    "This is a report of another process than the first, whose ledger counts: of the whole ledger "
    "and of charges before these, the report of process 0 tells."
)


def require_chargeable(called: str, *inputs: Any) -> None:
    """Refuse a call that one charge would not cover: under a trace.

    :param called: what was called, for the message.
    :param inputs: everything it was given.
    :raises ValueError: something given, or fresh, is traced: charged once, it would run many times.
    """
    if is_traced(*inputs):
        raise ValueError(
            f"{called} was called inside a JAX transformation: it would be charged once and could "
            "be executed many times. Call it outside jit, vmap and pmap"
        )


class Charge(NamedTuple):
    """What the ledger agreed to.

    - **event**: everything that the run releases.
    - **steps**: private steps of the run.
    - **total_variation**: distance to the ideal mechanism, outside the privacy loss distribution.
    - **label**: what the ledger calls it; empty for the owner's name.
    - **warmup_steps**: those of the steps that are warm-up.
    - **conditions**: what its guarantee depends on.
    """

    event: DpEvent
    steps: int
    total_variation: float
    label: str = ""
    warmup_steps: int = 0
    conditions: tuple[str, ...] = ()


class Account:
    """What the runs of one object were charged, and what all of them have in common.

    :param owner: class of the object, which labels its charges.
    :param accountant: the ledger that must agree; ``None`` for an unbounded one of its own.
    :param secure: whether noise comes from keys of the operating system; if not, every charge is
        conditional.
    :raises ValueError: ``accountant`` is something else.

    **Privacy.** A charge is durable before a run has a key, and is never taken back; each one is
    part of every later report of the object. Copies and pickles take the charges along.
    """

    # Also of what was pickled before it was kept.
    given: Accountant | None = None
    mapped: bool = False

    def __init__(self, owner: str, accountant: Accountant | None, *, secure: bool) -> None:
        if accountant is not None and not isinstance(accountant, Accountant):
            given = _validate.shown(accountant)
            raise ValueError(f"accountant must be a numpyro_dp.Accountant, got {given}")
        if not isinstance(secure, bool):
            raise ValueError(f"secure must be True or False, got {_validate.shown(secure)}")
        self.owner, self.secure, self.given = owner, secure, accountant
        self.accountant = Accountant() if accountant is None else accountant
        self.charges: list[Charge] = []
        self._lock = threading.Lock()

    @property
    def relation(self) -> Relation:
        """The neighbouring relation of every charge."""
        return self.accountant.relation

    @property
    def private_size(self) -> bool:
        """Whether the number of records is private."""
        return self.relation == "add_remove"

    @property
    def conditions(self) -> tuple[str, ...]:
        """What all charges together depend on, once each."""
        return self._conditions(self.charges)

    def _conditions(self, charges: Sequence[Charge]) -> tuple[str, ...]:
        own = () if self.secure else (INSECURE,)
        found = [each for charge in charges for each in charge.conditions]
        return tuple(dict.fromkeys((*found, *own)))

    def delta(self, privacy: Budget | None) -> float:
        """δ at which ε is stated: that of ``privacy``, else the ledger's, else 1e-6."""
        return self.accountant.stated_delta if privacy is None else privacy.delta

    def sum_once(
        self, privacy: Budget | None, noise_multiplier: float | None, **shape: Any
    ) -> PrivateSum:
        """The private sum of one release about all records.

        :param privacy: its budget; or
        :param noise_multiplier: its noise.
        :param shape: records, coordinates and bound of :meth:`PrivateSum.create`.
        """
        return planned_sum(
            sampling_rate=1.0,
            num_steps=1,
            delta=self.delta(privacy),
            relation=self.relation,
            noise=given_noise(privacy, noise_multiplier),
            **shape,
        )

    @contextmanager
    def opened(self, called: str, *inputs: Any) -> Generator[ChargedRun]:
        """A run of the object, while no other is under way.

        :param called: what the user called, for messages.
        :param inputs: everything that was given to it.
        :raises ValueError: the call is traced, or a file that records are mapped from is gone.
        :raises RuntimeError: another run is under way; this is one of several processes, and keeps
            a ledger that the first should keep; at the end, such a file is not what it was.

        **Privacy.** An exception that ends a charged run says what stays charged, and leaves no key
        of noise and nothing un-noised in the locals of its traceback. JAX's debugging for NaN is
        off within: its error can tell that a record holds one. So is JAX's cache of compiled
        programs on disk where the number of records is private.
        """
        meeting = Meeting()
        try:
            with self._alone(called, meeting, inputs) as run:
                yield run
        except Exception:
            meeting.fail()
            raise

    @contextmanager
    def _alone(self, called: str, meeting: Meeting, inputs: Any) -> Generator[ChargedRun]:
        require_chargeable(called, *inputs)
        if not self._lock.acquire(blocking=False):
            raise RuntimeError(f"this {self.owner} object is already running in another thread")
        charges, handled, reading = len(self.charges), sys.exception(), Reading()
        try:
            self._require_one_ledger()
            run = ChargedRun(self, mapped_files(inputs), meeting, reading)
            self.mapped = self.mapped or bool(run.files)
            # While nothing is charged: whoever turns warnings into errors keeps the budget.
            warn_of_copies(inputs)
            # Shapes tell the number of records to whoever reads the cache of compiled programs.
            kept = nothing_kept() if self.private_size else nullcontext()
            with jax.debug_nans(False), jax.debug_infs(False), kept, settings_of_runs():
                yield run
            run.require_unchanged()
        except BaseException as error:
            if len(self.charges) > charges:
                _forget_locals(error, handled)
                error.add_note(self.unfinished(self.charges[charges:]))
            raise
        finally:
            reading.close()
            self._lock.release()

    def _require_one_ledger(self) -> None:
        if self.accountant.path and not is_first():
            raise RuntimeError(
                f"this is process {jax.process_index()} of {jax.process_count()}, and the ledger "
                f"in '{self.accountant.path}' belongs to process 0, which charges for all: here "
                "give an Accountant of the same budget without a path"
            )

    def fresh_key(self, user_key: Any) -> Any:
        """The key of noise and batches, of which nothing was used."""
        return os_key() if self.secure else seeded_key(user_key)

    def report(
        self, facts: RunFacts, *, delta: float, num_chains: int = 1, given: Sequence[str] = ()
    ) -> PrivacyReport:
        """The report of all charges.

        :param facts: what the last run says about itself.
        :param delta: δ at which ε is stated.
        :param num_chains: chains of a run.
        :param given: what the caller supplied that no charge covers.
        """
        if self.mapped:
            facts = replace(facts, notes=(*facts.notes, _MAPPED))
        if not is_first():
            facts = replace(facts, notes=(_NOT_FIRST, *facts.notes))
        return PrivacyReport.build(
            facts,
            entries=[(charge.label or self.owner, charge.event) for charge in self.charges],
            relation=self.relation,
            delta=delta,
            steps=sum(charge.steps for charge in self.charges),
            warmup_steps=sum(charge.warmup_steps for charge in self.charges),
            num_chains=num_chains,
            overflow_delta=sum(charge.total_variation for charge in self.charges),
            conditions=self.conditions,
            given=given,
            randomness=RANDOMNESS[self.secure],
            accountant=self.accountant,
        )

    def in_short(self, report: PrivacyReport) -> str:
        """One line: what the object's runs spent, and what a budget leaves."""
        spent = (
            f"ε={rounded_up(report.epsilon)} at δ={report.delta:.3g} spent by this object's runs "
            f"({report.relation}, unit: {printable(report.unit)}{provided(report.conditions)}"
            f"{''.join(f'; not part of it: {each}' for each in report.given)})"
        )
        accountant = self.accountant
        if accountant.budget is None or not is_first():
            return spent
        where = f" in '{accountant.path}'" if accountant.path else ""
        stated = accountant.stated_delta
        at = "" if stated == report.delta else f" at δ={stated:.3g}"
        return f"{spent}; ε={rounded_down(accountant.remaining())} left{at}{where}"

    def unfinished(self, charges: Sequence[Charge]) -> str:
        """What is known of an object whose runs did not come to their end.

        :param charges: theirs.
        """
        if not charges:
            return "nothing has run yet: call run() before asking for its privacy"
        accountant = self.accountant
        delta = accountant.stated_delta
        event = ComposedDpEvent([charge.event for charge in charges])
        epsilon = rounded_up(privacy_curve(event, self.relation).epsilon(delta))
        condition = provided(self._conditions(charges))
        where = f" in '{accountant.path}'" if accountant.path else ""
        return (
            f"this run of {self.owner} did not come to its end; it was charged before, and stays so"
            f"{where}: ε={epsilon} at δ={delta:.3g} ({self.relation}{condition})"
        )

    def apart(self, relation: Relation) -> Account:
        """One like it with reproducible noise and an unbounded ledger that nobody reads."""
        return Account(self.owner, Accountant(relation=relation), secure=False)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()


def provided(conditions: Sequence[str]) -> str:
    """What an ε in one line goes on with; empty where it depends on nothing."""
    return f", if {'; and if '.join(conditions)}" if conditions else ""


def _forget_locals(error: BaseException, handled: BaseException | None) -> None:
    """Empty the frames that an exception ended, and those of all that it was raised from.

    :param handled: what the caller was handling before, which is the caller's own.
    """
    left: list[BaseException | None] = [error]
    known = {id(handled)}
    while left:
        each = left.pop()
        if each is not None and id(each) not in known:
            known.add(id(each))
            traceback.clear_frames(each.__traceback__)
            # Both: an error may name its cause while another one is handled.
            left += [each.__cause__, each.__context__]


@dataclass(frozen=True)
class ChargedRun:
    """One run of an object; made by :meth:`Account.opened`.

    :param account: the object's.
    :param files: those that its records are mapped from, as they were at the beginning.
    :param meeting: where it meets the other processes of the run, if there are any.
    :param reading: by which it fetches records that are stored elsewhere.
    """

    account: Account
    files: tuple[MappedFile, ...] = ()
    meeting: Meeting = field(default_factory=Meeting)
    reading: Reading = field(default_factory=Reading)

    def require_unchanged(self) -> None:
        """Refuse a result of a file that is no longer what it was, or of rows that nobody got.

        :raises RuntimeError: it was changed, replaced or removed, or a store did not give the rows
            that it was asked for; nothing is said of what either holds.
        """
        self.reading.require_read()
        require_unchanged(self.files)

    def prepared(self, prepare: Callable[..., T], *args: Any) -> T:
        """What comes before the charge; where the number of records is private, no error tells it.

        :raises UnsupportedModelError: as ``prepare`` does.
        :raises ValueError: likewise.
        """
        return redacted(self.account.private_size, prepare, *args)

    def charge(self, event: DpEvent, user_key: Any, *, of: Any, **known: Any) -> Any:
        """Charge the run before it touches a record.

        Of several processes the first one charges; then all have its key, and book the charge.

        :param event: everything that it releases.
        :param user_key: the caller's typed key or keys.
        :param of: what releases it, with every number fixed; the same in all processes.
        :param known: the other fields of :class:`Charge`.
        :returns: the key of noise and batches: a fresh one, or a function of the caller's.
        :raises BudgetExceededError: the ledger refuses; nothing was charged.
        :raises RuntimeError: the processes of the run are about to do different things.
        """
        account, charge = self.account, Charge(event, **known)

        def book() -> None:
            conditions = account._conditions([charge])
            label, condition = charge.label or account.owner, "; ".join(conditions) or None
            account.accountant.charge(event, label=label, condition=condition)
            account.charges.append(charge)

        def paid() -> Any:
            book()
            return account.fresh_key(user_key)

        ledger = account.accountant
        stated = ledger.relation, ledger.budget, ledger.stated_delta, account.secure
        taken = stated, ledger.allow_conditional, str(event), tuple(charge[1:])
        self.meeting.agree(*taken, user_key, of, able=lambda: ledger.fits(event))
        key = key_of_first(paid)
        if not is_first():
            book()
        return key

    def charge_once(self, mechanism: PrivateSum, user_key: Any, *, of: Any = None) -> Any:
        """Charge one release of a sum, as :meth:`charge` does; returns the key of its noise."""
        paid = {"steps": 1, "total_variation": mechanism.tv_per_step}
        return self.charge(mechanism.event(1), user_key, of=(mechanism, of), **paid)

    def paid_key(self, user_key: Any, *, of: Any) -> Any:
        """The key of steps that an earlier charge of the object covers.

        :param of: as for :meth:`charge`.
        :raises RuntimeError: it was charged for nothing yet.
        """
        if not self.account.charges:
            raise RuntimeError(f"this {self.account.owner} object was charged for nothing yet")
        self.meeting.agree(user_key, of)
        return key_of_first(lambda: self.account.fresh_key(user_key))
