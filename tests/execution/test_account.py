"""What a run is charged: before it, with its tables, whatever fails, and never twice traced."""

import copy
import pickle
import traceback

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import numpyro_dp as ndp
from numpyro_dp.accounting.events import ComposedDpEvent, GaussianDpEvent, TotalVariation
from numpyro_dp.accounting.report.facts import RunFacts
from numpyro_dp.execution.account import Account, require_chargeable
from numpyro_dp.execution.keys import INSECURE

FACTS = RunFacts(
    **dict.fromkeys(("unit", "mechanism", "sampler", "arithmetic"), "as in the test"),
    num_records=10,
    sampling_rate=1.0,
    clip_norm=1.0,
    noise_multiplier=4.0,
    released=(),
)
KEY = jax.random.key(0)


def charge(account, sd=4.0, tv=1e-9, **known):
    event = ComposedDpEvent([GaussianDpEvent(sd), TotalVariation(tv)])
    with account.opened("Study.run", KEY) as run:
        return run.charge(event, KEY, of=event, steps=3, total_variation=tv, **known)


@pytest.mark.parametrize(
    "relation",
    ["replace_one", *(pytest.param(r, marks=pytest.mark.slow) for r in ("zero_out", "add_remove"))],
)
def test_ledger_and_report_count_every_charge_with_its_tables(relation):
    ledger = ndp.Accountant(relation=relation)
    account = Account("Study", ledger, secure=True)
    charge(account)
    charge(account, sd=6.0, tv=1e-7)
    found = account.report(FACTS, delta=1e-5)
    assert (found.steps, found.relation) == (6, relation)
    assert found.overflow_delta == pytest.approx(1e-9 + 1e-7)
    assert found.epsilon == found.recompute() == ledger.epsilon(1e-5)
    # The tables take (1 + e^ε)·tv of δ, under every relation.
    alone = Account("Study", ndp.Accountant(relation=relation), secure=True)
    charge(alone, sd=(4.0**-2 + 6.0**-2) ** -0.5, tv=0.0)
    without = alone.report(FACTS, delta=1e-5 - (1 + np.exp(found.epsilon)) * 1.01e-7).epsilon
    assert found.epsilon == pytest.approx(without, rel=1e-3)
    assert found.epsilon > 1.002 * alone.report(FACTS, delta=1e-5).epsilon


def test_a_refused_charge_leaves_nothing():
    account = Account("Study", ndp.Accountant(ndp.Budget(1.0, 1e-5)), secure=True)
    with pytest.raises(ndp.BudgetExceededError):
        charge(account, sd=0.5)
    assert (account.charges, account.accountant.entries) == ([], ())


def test_the_callers_key_makes_noise_only_on_a_condition():
    ledger = ndp.Accountant(ndp.Budget(9.0, 1e-5))
    with pytest.raises(ndp.BudgetExceededError, match="allow_conditional"):
        charge(Account("Study", ledger, secure=False))
    assert ledger.entries == ()
    own, secret = (Account("Study", None, secure=secure) for secure in (False, True))
    words = [jax.random.key_data(charge(each)) for each in (own, own, secret, secret)]
    assert own.accountant.entries[0].condition == INSECURE
    assert own.report(FACTS, delta=1e-5).conditions == (INSECURE,)
    np.testing.assert_array_equal(words[0], words[1])
    assert np.all(words[2] != words[0])
    assert np.all(words[2] != words[3])


def test_copies_keep_the_charges_and_runs_exclude_each_other():
    account = Account("Study", None, secure=True)
    charge(account)
    for other in (copy.deepcopy(account), pickle.loads(pickle.dumps(account))):
        assert other.charges == account.charges
        assert other.accountant.epsilon(1e-5) == account.accountant.epsilon(1e-5)
    with account.opened("Study.run"), pytest.raises(RuntimeError, match="already running"):
        charge(account)
    charge(account)


def test_conditions_of_every_charge_stand_in_every_report():
    account = Account("Study", ndp.Accountant(allow_conditional=True), secure=True)
    charge(account, conditions=("the sampler is exact",), label="first", warmup_steps=2)
    charge(account)
    entry, other = account.accountant.entries
    assert (entry.condition, entry.label) == ("the sampler is exact", "first")
    assert (other.condition, other.label) == (None, "Study")
    found = account.report(FACTS, delta=1e-5, given=("a start",))
    assert found.conditions == ("the sampler is exact",)
    assert (found.steps, found.warmup_steps) == (6, 2)
    assert found.assumed_public == ("a start",)


def test_conditions_go_with_an_epsilon_in_one_line_too():
    account = Account("Study", None, secure=False)

    def fail():
        with account.opened("Study.run", KEY) as run:
            known = {"steps": 1, "total_variation": 0.0, "conditions": ("exact",)}
            run.charge(GaussianDpEvent(4.0), KEY, of=None, **known)
            raise ValueError("after the charge")

    with pytest.raises(ValueError, match="after the charge") as caught:
        fail()
    (note,) = caught.value.__notes__
    report = account.report(FACTS, delta=1e-5)
    for line in (note, account.in_short(report), account.unfinished(account.charges)):
        assert f", if exact; and if {INSECURE})" in line
    # What an earlier run depended on is no matter of this one.
    charge(account)
    assert "exact" not in account.unfinished(account.charges[1:])


def test_nothing_stays_in_the_frames_of_whatever_an_error_was_raised_from():
    def fail(message):
        secret = message
        raise ValueError(secret)

    def run(account):
        with account.opened("Study.run", KEY) as opened:
            opened.charge(GaussianDpEvent(4.0), KEY, of=None, steps=1, total_variation=0.0)
            try:
                fail("cause")
            except ValueError as error:
                cause = error
            try:
                fail("context")
            except ValueError:
                raise RuntimeError("outer") from cause

    with pytest.raises(RuntimeError, match="outer") as caught:
        run(Account("Study", None, secure=True))
    outer = caught.value
    for each, message in ((outer.__cause__, "cause"), (outer.__context__, "context")):
        assert str(each) == message
        frames = [frame for frame, _ in traceback.walk_tb(each.__traceback__)]
        assert "secret" not in frames[-1].f_locals


def test_where_the_size_is_private_no_error_of_the_preparation_tells_it():
    def prepare():
        raise TypeError("400 records do not fit")

    for relation, seen in (("add_remove", "… records"), ("zero_out", "400 records")):
        account = Account("Study", ndp.Accountant(relation=relation), secure=True)
        with pytest.raises((TypeError, ValueError), match=seen), account.opened("Study") as run:
            run.prepared(prepare)


def test_a_call_inside_a_transformation_is_refused():
    def called(x):
        require_chargeable("Study.run", jax.random.key(0), x)
        return x

    called(jnp.ones(3))
    for transformed in (jax.jit(called), jax.vmap(called), jax.grad(lambda x: called(x).sum())):
        with pytest.raises(ValueError, match=r"Study\.run was called inside"):
            transformed(jnp.ones(3))
    with pytest.raises(ValueError, match="inside a JAX transformation"):
        jax.jit(lambda: called(np.ones(3)))()


def test_nothing_gives_a_key_before_a_charge():
    account = Account("Study", None, secure=True)
    with account.opened("Study.run") as run, pytest.raises(RuntimeError, match="charged for"):
        run.paid_key(KEY, of=None)
    charge(account)
    with account.opened("Study.run") as run:
        assert run.paid_key(KEY, of=None).shape == ()
