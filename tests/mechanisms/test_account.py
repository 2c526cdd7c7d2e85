"""What a run is charged: before it, with its tables, whatever fails, and never twice traced."""

import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import numpyro_dp as ndp
from numpyro_dp.accounting.events import ComposedDpEvent, GaussianDpEvent, TotalVariation
from numpyro_dp.execution.account import Account, require_chargeable
from numpyro_dp.execution.keys import INSECURE

FACTS = dict.fromkeys(("unit", "mechanism", "sampler", "arithmetic"), "as in the test") | {
    "num_records": 10,
    "sampling_rate": 1.0,
    "clip_norm": 1.0,
    "noise_multiplier": 4.0,
    "released": (),
    "assumed_public": (),
}


def charge(account, sd=4.0, tv=1e-9):
    event = ComposedDpEvent([GaussianDpEvent(sd), TotalVariation(tv)])
    account.charge(event, steps=3, total_variation=tv)


@pytest.mark.parametrize(
    "relation",
    ["replace_one", *(pytest.param(r, marks=pytest.mark.slow) for r in ("zero_out", "add_remove"))],
)
def test_ledger_and_report_count_every_charge_with_its_tables(relation):
    ledger = ndp.Accountant(relation=relation)
    account = Account("Study", ledger, secure=True)
    charge(account)
    charge(account, sd=6.0, tv=1e-7)
    found = account.report(delta=1e-5, **FACTS)
    assert (found.steps, found.relation) == (6, relation)
    assert found.overflow_delta == pytest.approx(1e-9 + 1e-7)
    assert found.epsilon == found.recompute() == ledger.epsilon(1e-5)
    # The tables take (1 + e^ε)·tv of δ, under every relation.
    alone = Account("Study", ndp.Accountant(relation=relation), secure=True)
    charge(alone, sd=(4.0**-2 + 6.0**-2) ** -0.5, tv=0.0)
    without = alone.report(delta=1e-5 - (1 + np.exp(found.epsilon)) * 1.01e-7, **FACTS).epsilon
    assert found.epsilon == pytest.approx(without, rel=1e-3)
    assert found.epsilon > 1.002 * alone.report(delta=1e-5, **FACTS).epsilon


def test_a_refused_charge_leaves_nothing():
    account = Account("Study", ndp.Accountant(ndp.Budget(1.0, 1e-5)), secure=True)
    with pytest.raises(ndp.BudgetExceededError):
        charge(account, sd=0.5)
    assert (account.steps, account.charges, account.accountant.entries) == (0, [], ())


def test_the_callers_key_makes_noise_only_on_a_condition():
    key = jax.random.key(0)
    ledger = ndp.Accountant(ndp.Budget(9.0, 1e-5))
    with pytest.raises(ndp.BudgetExceededError, match="allow_conditional"):
        charge(Account("Study", ledger, secure=False))
    assert ledger.entries == ()
    own, secret = (Account("Study", None, secure=secure) for secure in (False, True))
    charge(own)
    assert own.accountant.entries[0].condition == INSECURE
    assert own.report(delta=1e-5, **FACTS).conditions == (INSECURE,)
    words = [jax.random.key_data(each.noise_key(key)) for each in (own, own, secret, secret)]
    np.testing.assert_array_equal(words[0], words[1])
    assert np.all(words[2] != words[0])
    assert np.all(words[2] != words[3])


def test_copies_keep_the_charges_and_runs_exclude_each_other():
    account = Account("Study", None, secure=True)
    charge(account)
    for other in (copy.deepcopy(account), pickle.loads(pickle.dumps(account))):
        assert other.charges == account.charges
        assert other.accountant.epsilon(1e-5) == account.accountant.epsilon(1e-5)
    with account.alone(), pytest.raises(RuntimeError, match="already running"):
        account.alone().__enter__()
    with account.alone():
        pass


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
