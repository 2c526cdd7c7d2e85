"""The account of one object: what its runs were charged, before they touched a record."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, NamedTuple

from numpyro_dp import _validate
from numpyro_dp.accounting import Accountant, Budget, PrivacyReport, Relation
from numpyro_dp.accounting.events import DpEvent
from numpyro_dp.execution.keys import INSECURE, RANDOMNESS, is_traced, seeded_key
from numpyro_dp.mechanisms._checks import refuse_several_processes
from numpyro_dp.mechanisms.random import os_key


def require_chargeable(called: str, *inputs: Any) -> None:
    """Refuse a call that one charge would not cover: under a trace, or in several processes.

    :param called: what was called, for the message.
    :param inputs: everything it was given.
    :raises ValueError: something given, or fresh, is traced: charged once, it would run many times.
    :raises RuntimeError: this is one of several processes.
    """
    refuse_several_processes(called)
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
    """

    event: DpEvent
    steps: int
    total_variation: float


class Account:
    """What the runs of one object were charged, and what all of them have in common.

    The object asks it for a charge, then for the key of the noise, and at the end for the report.

    :param owner: class of the object, which labels its charges.
    :param accountant: the ledger that must agree; ``None`` for an unbounded one of its own.
    :param secure: whether noise comes from keys of the operating system; if not, every charge is
        conditional.
    :raises ValueError: ``accountant`` is something else.

    **Privacy.** A charge is durable before :meth:`charge` returns and is never taken back; each
    one is part of every later report of the object. Copies and pickles take the charges along.
    """

    def __init__(self, owner: str, accountant: Accountant | None, *, secure: bool) -> None:
        if accountant is not None and not isinstance(accountant, Accountant):
            given = _validate.shown(accountant)
            raise ValueError(f"accountant must be a numpyro_dp.Accountant, got {given}")
        self.owner, self.secure = owner, secure
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
    def steps(self) -> int:
        """Private steps charged so far."""
        return sum(charge.steps for charge in self.charges)

    def delta(self, privacy: Budget | None) -> float:
        """δ at which ε is stated: that of ``privacy``, else the ledger's, else 1e-6."""
        return self.accountant.stated_delta if privacy is None else privacy.delta

    @contextmanager
    def alone(self) -> Generator[None]:
        """Hold off other runs of the same object.

        :raises RuntimeError: one is under way.
        """
        if not self._lock.acquire(blocking=False):
            raise RuntimeError(f"this {self.owner} object is already running in another thread")
        try:
            yield
        finally:
            self._lock.release()

    def charge(self, event: DpEvent, *, steps: int, total_variation: float) -> None:
        """Charge a run before it touches a record.

        :raises BudgetExceededError: the ledger refuses; nothing was charged.
        """
        condition = None if self.secure else INSECURE
        self.accountant.charge(event, label=self.owner, condition=condition)
        self.charges.append(Charge(event, steps, total_variation))

    def noise_key(self, user_key: Any) -> Any:
        """A fresh key for noise and batches, or one that is a function of the caller's."""
        return os_key() if self.secure else seeded_key(user_key)

    def report(self, *, delta: float, **facts: Any) -> PrivacyReport:
        """The report of all charges.

        :param facts: what else :meth:`PrivacyReport.build` takes; there are no chains.
        """
        return PrivacyReport.build(
            entries=[(self.owner, charge.event) for charge in self.charges],
            relation=self.relation,
            delta=delta,
            steps=self.steps,
            warmup_steps=0,
            num_chains=1,
            overflow_delta=sum(charge.total_variation for charge in self.charges),
            conditions=() if self.secure else (INSECURE,),
            randomness=RANDOMNESS[self.secure],
            accountant=self.accountant,
            **facts,
        )

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()
