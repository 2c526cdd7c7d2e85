"""Attacks on a released likelihood: by the ratio of all its sums, on data sets that nearly reach
what is charged."""

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import numpyro_dp as ndp
from numpyro_dp.mechanisms import private_sum as mechanism

DELTA, N = 1e-5, 100


def slope(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=w * x), obs=y)


# Both outcomes are equally likely and x is alike, so that the first rounds ask near zero and clip
# at a little more than the size of 1.2 / 2. There a record of x = 1.4 has a score at its clip and
# an information at its bound; one that is not a number is in no sum.
Y = (np.arange(N) % 2).astype(np.int32)
X = np.full(N, 1.2, np.float32)
LOUD, NULL, OPPOSITE = (X.copy() for _ in range(3))
LOUD[1], NULL[1], OPPOSITE[1] = 1.4, np.nan, -1.4


def attack(data=(LOUD, Y), neighbour=(NULL, Y), *, epsilon=2.0, num_rounds=1, **options):
    release = ndp.LikelihoodRelease(
        slope, privacy=ndp.Budget(epsilon, DELTA), num_rounds=num_rounds
    )
    options = {"num_chains": 100, **options}
    return ndp.audit(release, jax.random.key(7), data, neighbour, **options)


@pytest.mark.slow
def test_a_release_is_attacked_and_reported_at_its_budget():
    result = attack()
    assert 1.98 < result.epsilon_reported <= 2.0
    assert (result.num_steps, result.num_chains, result.judged) == (2, 100, 50)
    assert not result.refutes
    assert "releases" not in str(result)
    assert "for a run of 2 private steps" in " ".join(str(result).split())


# The lower bounds hold with 95 % each; seeds are fixed, so an honest release would fail
# `not refutes` with a probability below 5 % once, when the seed was chosen.


@pytest.mark.slow
def test_the_bound_nears_the_reported_epsilon_and_stays_below():
    """Of two classes no record has a tail: the loudest uses .94 of the squared bound."""
    result = attack(num_chains=40_000)
    assert not result.refutes
    assert result.epsilon_lower >= 0.35 * result.epsilon_reported


@pytest.mark.slow
@pytest.mark.parametrize("relation", ["zero_out", "replace_one"])
def test_all_rounds_together_are_no_more_than_is_charged(relation):
    """At δ = 1 %, where 150 judged releases could show ε = 3.2, on four rounds."""
    neighbour = (NULL if relation == "zero_out" else OPPOSITE, Y)
    result = attack(
        neighbour=neighbour, num_rounds=4, relation=relation, num_chains=300, delta=1e-2
    )
    assert result.num_steps == 5
    assert result.epsilon_lower <= result.epsilon_reported < 1.0


@pytest.mark.slow
def test_halved_noise_is_refuted(monkeypatch):
    honest = mechanism.floor_noise
    monkeypatch.setattr(mechanism, "floor_noise", lambda *a: honest(*a) // 2)
    # An ε of its own, so that no executable of the honest release is found again.
    result = attack(epsilon=2.125, num_chains=6_000, delta=1e-2)
    assert result.refutes


def test_the_kernel_on_it_is_attacked_as_its_release(monkeypatch):
    seen = []

    def stop(release, *_):
        seen.append(release)
        raise KeyError("stop")

    module = importlib.import_module("numpyro_dp.diagnostics.audit.audit")
    monkeypatch.setattr(module, "attacked_releases", stop)
    kernel = ndp.DPNUTS(slope, privacy=ndp.Budget(2.0, DELTA))
    with pytest.raises(KeyError, match="stop"):
        ndp.audit(kernel, jax.random.key(0), (LOUD, Y), (NULL, Y))
    (release,) = seen
    assert release.delta == DELTA


@pytest.mark.parametrize(
    ("neighbour", "options", "message"),
    [
        ((LOUD, Y), {}, "exactly one record"),
        ((OPPOSITE, Y), {}, "adding nothing to any sum"),
        ((NULL, Y), {"num_samples": 2}, "as a whole"),
        ((NULL, Y), {"init_params": {"w": jnp.zeros(())}}, "as a whole"),
        ((NULL, Y), {"score": lambda draws: 0.0}, "as a whole"),
        ((NULL[:99], Y[:99]), {"relation": "add_remove"}, "zero_out"),
    ],
)
def test_what_is_no_attack_on_a_release_is_refused(neighbour, options, message):
    with pytest.raises(ValueError, match=message):
        attack(neighbour=neighbour, **options)


def test_a_release_with_a_ledger_is_refused():
    accountant = ndp.Accountant()
    budget = ndp.Budget(2.0, DELTA)
    for made in (ndp.DPNUTS, ndp.LikelihoodRelease):
        subject = made(slope, privacy=budget, accountant=accountant)
        with pytest.raises(ValueError, match="without accountant="):
            ndp.audit(subject, jax.random.key(0), (LOUD, Y), (NULL, Y))
    assert accountant.entries == ()
