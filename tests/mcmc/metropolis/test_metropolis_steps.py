"""What a step of DP-Fast MH tells: bits, and nothing that it saw or remembers on the way."""

import itertools
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import numpyro_dp as ndp
from numpyro_dp.mcmc.loop import collect
from numpyro_dp.mcmc.metropolis import step as metropolis_step
from numpyro_dp.mechanisms.accept import pick as picking
from numpyro_dp.mechanisms.accept.rules import Barker
from tests.contract.surfaces import leaks, surfaces
from tests.mcmc.metropolis.bound_kernels import FIXED, bound
from tests.models import logistic


@pytest.fixture
def data(records):
    return records["x"], records["y"]


def test_a_direction_averaged_term_stays_within_that_of_its_predictor(data):
    """|u| ≤ |x·δ| for every record, rows longer than the bound projected to it."""
    kernel = bound(data, step_size=0.1, lipschitz=0.5)
    position, candidate = jnp.array([0.3, -0.2, 0.1]), jnp.array([0.5, 0.1, -0.4])

    @jax.jit
    def terms(position, move, record):
        change = kernel._predictor_change(position, move)
        # One with what the record said of the position, the others with what it never said.
        return change.term(record), change.step(record, 1e30)[0], change.step(record, -1e30)[0]

    # Positions near 2^20 are an eighth apart: such a move takes them farther than it is long.
    far, short = jnp.full(3, 2.0**20), jnp.full(3, 0.07)
    for row in ([1.0, 0.5, -0.5], [1e6, 2e6, -1e6], [0.1, 0.0, 0.2]):
        x = np.asarray(row)
        x = x * min(1, 0.5 / np.linalg.norm(x))
        for y in (0, 1):
            record = [jnp.asarray([row], jnp.float32), jnp.asarray([y])]
            u, *wild = terms(position, candidate - position, record)
            assert np.max(np.abs([u, *wild])) <= abs(x @ (candidate - position)) * (1 + 1e-5)
            assert np.max(np.abs(terms(far, short, record))) <= abs(x @ short) * (1 + 1e-5)
            logits = np.array([x @ np.asarray(position), x @ np.asarray(candidate)])
            exact = np.diff(y * logits - np.log1p(np.exp(logits)))[0]
            assert u == pytest.approx(exact, rel=1e-3)


def test_neither_a_batch_nor_its_size_leaves_a_step(data):
    """A mini-batch step tells one bit: its state is one of two that no record has a part in."""
    kernel = bound(data, likelihood_power=0.1, batch_size=100, **FIXED)
    state = kernel.init(jax.random.key(3), 0, {"w": jnp.zeros(3)})
    step = jax.jit(lambda state, records: kernel.sample(state, records))
    accepted = []
    for count in range(20):
        before, carried = state, jax.random.split(state.rng_key)[0]
        fresh = jax.random.fold_in(jax.random.split(state.rng_key)[1], count)
        walk_key = jax.random.split(jax.random.split(fresh)[0], 3)[0]
        move = kernel.walk.draw(walk_key, before.i, before.z["w"], 1)[0]
        state = step(before, [jnp.asarray(a) for a in data])
        accepted.append(bool(np.any(state.z["w"] != before.z["w"])))
        there = before.z["w"] + move * accepted[-1]
        np.testing.assert_allclose(state.z["w"], there, rtol=1e-5, atol=1e-7)
        assert state.rng_key == carried
        assert (int(state.i), state.allowance.tolist()) == (count + 1, [0, 0])
    assert state._fields == ("i", "z", "rng_key", "allowance", "adapt_state")
    assert state.adapt_state is None
    # Both outcomes of a bit near one half: false alarm 2e-6.
    assert 0 < sum(accepted) < 20


def test_steps_are_free_of_the_noise_seed_of_their_neighbours(data):
    """Two records apart, a chain differs in bits alone: the proposals are the same."""
    other = data[0].copy()
    other[7] = [1.0, 0.9, -0.9]
    kernel = bound(data, **FIXED)
    step = jax.jit(lambda state, records: kernel.sample(state, records))
    keys = jax.random.split(jax.random.key(3), 20)
    start = kernel.init(keys, 0, {"w": jnp.zeros((20, 3))})
    ends = [step(start, [jnp.asarray(x), jnp.asarray(data[1])]) for x in (data[0], other)]
    assert set(ends[0]._fields) == {"i", "z", "rng_key", "allowance", "adapt_state"}
    moved = [np.asarray(end.z["w"]) for end in ends]
    both = np.any(moved[0], axis=1) & np.any(moved[1], axis=1)
    # Bits near one half: false alarm 1e-6.
    assert both.any(), "no proposal was seen"
    np.testing.assert_array_equal(moved[0][both], moved[1][both], "proposals")


def product(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("x", dist.Normal(jnp.prod(w), 1).expand([3]).to_event(1), obs=x)
        numpyro.sample("y", dist.Bernoulli(logits=jnp.sum(w)), obs=y)


@pytest.mark.parametrize(
    "arguments",
    [
        {**FIXED, "steps_per_sample": 3},
        pytest.param({"step_size": 0.1, "lipschitz": 0.5}, marks=pytest.mark.slow),
        pytest.param(
            {**FIXED, "model": product, "public_moves": (lambda z: {"w": z["w"][::-1]},)},
            marks=pytest.mark.slow,
        ),
    ],
    ids=["moves of bounded length", "direction averaged", "public moves"],
)
def test_what_a_loop_remembers_changes_no_decision_and_stays_in_it(data, arguments):
    """One loop, several, or single samples: the same chain. No array of N leaves any."""
    kernel = bound(data, **arguments)
    records = tuple(jnp.asarray(a) for a in data)
    state = kernel.init(jax.random.key(3), 0, {"w": jnp.zeros(3)})
    settings = dict(lower=0, upper=12, size=12, thinning=1, fields=("z",), removed=())
    step = jax.jit(lambda state, records: kernel.sample(state, records))
    one_by_one, current = [], state
    for _ in range(12):
        current = step(current, list(records))
        one_by_one.append(current.z["w"])
    for chunks in (1, 3):
        *_, (_, last, kept) = collect(
            kernel, state, records, postprocess=None, chunks=chunks, **settings
        )
        shapes = [leaf.shape for leaf in jax.tree.leaves((last, kept))]
        assert not any(len(data[1]) in shape for shape in shapes)
        by_loop = np.asarray(kept["z"]["w"])[:12]
        np.testing.assert_allclose(by_loop, np.asarray(one_by_one), rtol=1e-5, atol=1e-7)
    # A chain that stays where it is would agree with anything: chance 2^-36 where nothing flips.
    assert np.any(np.diff(by_loop, axis=0) != 0)


@pytest.mark.slow
def test_nothing_but_released_draws_differs_between_neighbours(records):
    other = {k: v.copy() for k, v in records.items()}
    other["x"][7] = [40.0, 36.0, -36.0]
    other["y"][7] = 1 - other["y"][7]
    arguments = {"step_size": 0.3, "lipschitz": 60.0, "max_move": 1.0, "acceptance": "penalty"}
    kernel = ndp.DPFastMH(logistic, noise_scale=1.0, **arguments)
    one, two = (surfaces(kernel, (d["x"], d["y"]), seed=3) for d in (records, other))
    assert leaks(one, two) == []
    assert any(p.startswith(".samples") and one[p] != two[p] for p in one), "nothing differs"


# States on a ring, the last but one excluded by the prior; a record is its own log likelihoods.
# All on the grid of the kernel below, so that nothing is rounded and only the rule is judged.
RING = 5
RING_UNIT = Barker.create(1.0 - picking.PICK_MARGIN).grid.unit
RING_PRIOR = np.rint(np.array([0.3, -0.4, 0.1, -np.inf, 0.0]) / RING_UNIT) * RING_UNIT
STRIDES = {-1: 0.25, 0: 0.5, 1: 0.25}


def ring(x):
    z = numpyro.sample("z", dist.ImproperUniform(dist.constraints.real, (), ()))
    state = jnp.mod(jnp.rint(z).astype(jnp.int32), RING)
    numpyro.factor("prior", jnp.asarray(RING_PRIOR, jnp.float32)[state])
    with numpyro.plate("people", x.shape[0]):
        numpyro.factor("x", x[:, state])


@dataclass(frozen=True)
class Strides:
    """A walk that goes where it is told: to the centre first, then to the candidates."""

    centre: object
    candidates: object

    def draw(self, key, step, position, count):
        moves = self.centre[None] if count == 1 else self.candidates
        return moves.astype(position.dtype)[:, None]


def test_choices_among_candidates_are_reversible(monkeypatch):
    """Two candidates around a centre on a ring of states, everything drawn enumerated.

    A choice follows from one 64-bit word and rises with it: where it rises, found by halving, is
    its law exactly as the kernel decides it. Every flow equals its reverse to a relative 1e-6.
    """
    told, chosen = [], []

    def seen(*arguments):
        chosen.append(picking.pick(*arguments))
        return chosen[-1]

    monkeypatch.setattr(picking, "word_pairs", lambda key, count: told[-1])
    monkeypatch.setattr(metropolis_step, "pick", seen)
    kernel = bound(
        (np.zeros((12, RING), np.float32),),
        model=ring, step_size=0.1, lipschitz=2.5, max_move=0.2, num_candidates=2,
    )  # fmt: skip
    assert kernel.plan.test.grid.unit == RING_UNIT
    x = np.random.default_rng(0).uniform(-0.24, 0.24, (12, RING))
    x = np.rint(x / RING_UNIT) * RING_UNIT
    state = kernel.init(jax.random.key(0), 0, {"z": jnp.zeros(())})

    @jax.jit
    @jax.vmap
    def step(here, strides, high, low):
        """Where a step leads, and which of the three points that is."""
        told.append((high[None], low[None]))
        walking = replace(kernel, walk=Strides(strides[0], strides[1:]))
        z, _ = walking._choose(
            jax.random.key(0), state._replace(z={"z": here}), [jnp.asarray(x, jnp.float32)]
        )
        return z["z"], chosen[-1]

    drawn = list(itertools.product(range(RING), *[STRIDES] * 3, range(3)))
    here, strides, place = np.split(np.array(drawn), [1, 4], axis=1)
    here, place = here[:, 0].astype(np.float32), place[:, 0]

    def at(words):
        return step(here, strides, (words >> np.uint64(32)).astype(np.uint32), words.astype("u4"))

    # The least word that leads past ``place``, bit by bit; past the last one there is none.
    least = np.zeros(len(drawn), np.uint64)
    for bit in range(63, -1, -1):
        tried = least + np.uint64(1 << bit)
        least = np.where(np.asarray(at(tried - np.uint64(1))[1]) <= place, tried, least)
    below = np.where(place == 2, 1.0, least / 2.0**64).reshape(-1, 3)
    chance = np.diff(below, axis=1, prepend=0.0).ravel()
    # A word of this choice, where it has any, shows where it leads.
    there = np.asarray(at(least - np.uint64(1))[0])
    likely = [np.prod([STRIDES[s] for s in each]) for each in strides.tolist()]
    flows = np.zeros((RING, RING))
    np.add.at(flows, (here.astype(int) % RING, np.rint(there).astype(int) % RING), likely * chance)
    np.testing.assert_allclose(flows.sum(1), 1, rtol=1e-12)
    target = np.exp(x.sum(0) + RING_PRIOR)
    flows *= target[:, None]
    np.testing.assert_allclose(flows, flows.T, rtol=1e-6)
    assert target.max() > 2 * np.sort(target)[1], "a flat target would show no rule"
