"""What processes say to each other: played by one of them; in earnest in tests/scale."""

import dataclasses
from functools import partial
from types import FunctionType, SimpleNamespace

import jax
import numpy as np
import pytest

import numpyro_dp as ndp
from numpyro_dp.accounting.events import GaussianDpEvent
from numpyro_dp.execution import processes
from numpyro_dp.execution.account import Account
from numpyro_dp.execution.facts import sum_facts
from numpyro_dp.execution.processes import fingerprint
from numpyro_dp.mcmc.nuts import Release
from numpyro_dp.mechanisms import PrivateSum
from numpyro_dp.model.private_model import PrivateModel
from tests.models import logistic

SUM = {
    "num_records": 8, "dim": 2, "sampling_rate": 0.5, "clip_norm": 1.0, "noise_multiplier": 2.0,
    "num_steps": 3, "delta": 1e-5,
}  # fmt: skip


def split(model=logistic, rows=8, *public):
    return PrivateModel(model, (np.ones((rows, 2), np.float32), np.ones(rows, np.int32), *public))


def scaled(by):
    def model(x, y):
        return logistic(by * x, y)

    return model


def test_equal_things_are_equal():
    pairs = [
        (PrivateSum.create(**SUM), PrivateSum.create(**SUM)),
        (split(), split()),
        (split(scaled(2.0)), split(scaled(2.0))),
        ({"a": 1, "b": {3, "x"}}, {"b": {"x", 3}, "a": 1}),
        (jax.random.key(1), jax.random.key(1)),
        (partial(logistic, y=1), partial(logistic, y=1)),
        # What is not known is not looked into.
        (object(), object()),
    ]
    for one, other in pairs:
        assert fingerprint(one) == fingerprint(other), one


def reading(**module):
    """A function that reads what it does not hold from a module, in a function of its own too."""
    code = (lambda x: [SCALE * each.OTHER for each in x]).__code__  # noqa: F821
    return FunctionType(code, module)


def test_numbers_of_a_functions_module_count_and_nothing_else_of_it():
    known = fingerprint(reading(SCALE=2.0))
    assert known != fingerprint(reading(SCALE=3.0))
    assert known != fingerprint(reading(SCALE=np.full(2, 2.0)))
    # What the function does not read, or what has an attribute of the same name.
    assert known == fingerprint(reading(SCALE=2.0, OTHER=1, MORE=3))
    hidden = SimpleNamespace(value=1), SimpleNamespace(value=2)
    assert fingerprint(reading(SCALE=hidden[0])) == fingerprint(reading(SCALE=hidden[1]))


class Reached(Exception):
    pass


def test_the_ways_of_a_run_are_told(monkeypatch):
    """Processes that go different ways would wait for each other after the charge."""
    told = []

    def agree(_, *of, able):
        told.append(fingerprint(*of))
        raise Reached

    monkeypatch.setattr(processes.Meeting, "agree", agree)
    x, y = np.ones((8, 2), np.float32), np.ones(8, np.int32)
    steps = {"step_size": 1e-3, "clip_norm": 1.0, "noise_multiplier": 2.0}
    counts = {"num_warmup": 2, "num_samples": 2, "num_chains": 2}
    ways = [("vectorized", "run")] * 2 + [("sequential", "run"), ("vectorized", "warmup")]
    for method, phase in ways:
        mcmc = ndp.MCMC(ndp.DPSGLD(logistic, **steps), **counts, chain_method=method)
        with pytest.raises(Reached):
            getattr(mcmc, phase)(jax.random.key(0), x, y)
    assert told[0] == told[1]
    assert len(set(told)) == 3


def shift(x, y, by):
    return logistic(x + by, y)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        *(
            (PrivateSum.create(**SUM), PrivateSum.create(**{**SUM, name: value}))
            for name, value in (("clip_norm", 1.5), ("noise_multiplier", 3.0), ("num_records", 9))
        ),
        (split(), split(rows=9)),
        (split(), split(scaled(1.0))),
        (split(scaled(1.0)), split(scaled(2.0))),
        (split(shift, 8, ndp.public(np.float32(1))), split(shift, 8, ndp.public(np.float32(2)))),
        (jax.random.key(1), jax.random.key(2)),
        (np.zeros(3), np.zeros(3, np.float32)),
        (1, 1.0),
        (True, 1),
        ((1, (2,)), (1, 2)),
        (lambda x: x + 1, lambda x: x + 2),
        (lambda x, y=1: x, lambda x, y=2: x),
    ],
)
def test_different_things_differ(one, other):
    assert fingerprint(one) != fingerprint(other)


def test_a_value_that_holds_itself_has_an_end():
    @dataclasses.dataclass
    class Ring:
        next: object = None

    ring = Ring()
    ring.next = [ring]
    assert fingerprint(ring) != fingerprint(Ring())


# --- one of two processes, to which the other's words are given


class Other:
    """Stands for the other process: what it says, and what it was told."""

    def __init__(self, monkeypatch, number, *, digest=None, told=b""):
        self.digest, self.told, self.asked = digest, told, []
        monkeypatch.setattr(processes, "several_processes", lambda: True)
        monkeypatch.setattr(jax, "process_index", lambda: number)
        talk = processes.multihost_utils
        monkeypatch.setattr(talk, "process_allgather", self.gathered)
        monkeypatch.setattr(talk, "broadcast_one_to_all", lambda said: self.heard(said, number))

    def gathered(self, said):
        self.asked.append(bytes(said))
        other = said if self.digest is None else np.frombuffer(self.digest, np.uint8)
        return np.stack([said, other])

    def heard(self, said, number):
        self.asked.append(bytes(said))
        return said if number == 0 else np.frombuffer(self.told.ljust(len(said), b"\0"), np.uint8)


@pytest.fixture
def account():
    return Account("MCMC", ndp.Accountant(ndp.Budget(1.0, 1e-5)), secure=True)


def charged(account, noise_multiplier=9.0, fails=False):
    event = GaussianDpEvent(noise_multiplier)
    with account.opened("run") as run:
        key = run.charge(event, jax.random.key(0), of=None, steps=1, total_variation=0.0)
        if fails:
            raise ValueError("late")
        return key


WORDS = np.arange(8, dtype=np.uint32)


def test_the_first_process_charges_and_the_others_get_its_key(monkeypatch, account):
    made = []
    Other(monkeypatch, 1, told=b"\1" + WORDS.tobytes())
    monkeypatch.setattr(Account, "fresh_key", lambda *_: made.append(1) or jax.random.key(0))
    key = charged(account)
    assert made == []
    np.testing.assert_array_equal(jax.random.key_data(key), WORDS)
    assert len(account.accountant.entries) == len(account.charges) == 1


def test_the_key_of_the_first_process_is_the_one_that_it_tells(monkeypatch, account):
    other = Other(monkeypatch, 0)
    key = charged(account)
    assert np.asarray(jax.random.key_data(key)).tobytes() in other.asked[-1]
    assert len(account.accountant.entries) == 1


@pytest.mark.parametrize("number", [0, 1])
def test_what_the_first_refuses_is_refused_by_all(monkeypatch, account, number):
    other = Other(monkeypatch, number, told=b"\0BudgetExceededError: too much")
    with pytest.raises(ndp.BudgetExceededError) as refused:
        charged(account, 0.1)
    assert not account.accountant.entries
    assert not account.charges
    # In the first the reason is its own, and the others are told.
    assert (str(refused.value) == "too much") == (number == 1)
    assert (str(refused.value).encode()[:50] in other.asked[-1]) == (number == 0)


def test_a_ledger_that_fails_in_the_first_is_an_error_of_all(monkeypatch, account):
    Other(monkeypatch, 1, told=b"\0OSError: disk full")
    with pytest.raises(RuntimeError, match=r"could not charge this run \(OSError\): disk full"):
        charged(account)
    assert not account.accountant.entries


@pytest.mark.parametrize(
    ("digest", "expected"),
    [(b"\1" + bytes(32), "differ in what"), (bytes(33), r"by process \[1\]")],
)
def test_processes_that_differ_charge_nothing(monkeypatch, account, digest, expected):
    Other(monkeypatch, 0, digest=digest)
    with pytest.raises(RuntimeError, match=expected):
        charged(account)
    assert not account.accountant.entries


def test_a_ledger_of_others_that_has_no_room_is_known_before_the_charge(monkeypatch, account):
    other = Other(monkeypatch, 1, told=b"\1" + WORDS.tobytes())
    account.accountant.charge(GaussianDpEvent(5.0), label="elsewhere")
    monkeypatch.setattr(other, "gathered", lambda said: np.stack([[1, *said[1:]], said]))
    monkeypatch.setattr(processes.multihost_utils, "process_allgather", other.gathered)
    with pytest.raises(ndp.BudgetExceededError, match=r"ledger of process \[1\] has no room"):
        charged(account, 5.0)
    assert len(account.accountant.entries) == 1


def test_what_others_than_the_first_say_of_the_whole_ledger(monkeypatch, account):
    Other(monkeypatch, 1, told=b"\1" + WORDS.tobytes())
    charged(account)
    facts = sum_facts(PrivateSum.create(**SUM), "numbers", released=("a sum",), unit="a row",
                      num_records=8, assumed_public=())  # fmt: skip
    report = account.report(facts, delta=1e-5)
    assert "process 0" in str(report)
    assert "left" not in account.in_short(report)
    monkeypatch.undo()
    assert "left" in account.in_short(account.report(facts, delta=1e-5))


def test_a_mistake_before_the_charge_is_told_to_the_others_once(monkeypatch, account):
    other = Other(monkeypatch, 1)
    with pytest.raises(ValueError, match="mine"), account.opened("run"):
        raise ValueError("mine")
    assert other.asked == [bytes(33)]
    # Afterwards they have met: who fails then ends, and the others notice.
    other.told = b"\1" + WORDS.tobytes()
    with pytest.raises(ValueError, match="late"):
        charged(account, fails=True)
    assert len(other.asked) == 3


def test_where_nothing_is_charged_nobody_is_waited_for(monkeypatch, account):
    other, release = Other(monkeypatch, 0), Release()
    release.released = object()
    with pytest.raises(ValueError, match="another kernel"), account.opened("run") as run:
        release.made(object(), run, jax.random.key(0), (), {}, progress_bar=False)
    assert not other.asked


def test_an_interrupt_waits_for_nobody(monkeypatch, account):
    other = Other(monkeypatch, 0)
    with pytest.raises(KeyboardInterrupt), account.opened("run"):
        raise KeyboardInterrupt
    assert not other.asked


def test_released_values_are_compared_to_the_last_bit(monkeypatch):
    values = {"w": np.ones(3), "key": jax.random.key(0)}
    Other(monkeypatch, 0)
    processes.require_same(values)
    Other(monkeypatch, 0, digest=bytes(32))
    with pytest.raises(RuntimeError, match="not the same on all processes"):
        processes.require_same(values)
