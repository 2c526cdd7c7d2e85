"""Directions that no record tells are found from the model alone, and no others."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

from numpyro_dp.families.silent_directions import chosen_scores, meetings, silent_directions
from numpyro_dp.model.private_model import PrivateModel

N, G, H, D = 400, 6, 3, 2
SHAPES = (
    jax.ShapeDtypeStruct((N, D), jnp.float32),
    jax.ShapeDtypeStruct((N,), jnp.int32),
    jax.ShapeDtypeStruct((N,), jnp.int32),
    jax.ShapeDtypeStruct((N,), jnp.float32),
)


def normal(name, size=None, sd=1.0):
    law = dist.Normal(0, sd)
    return numpyro.sample(name, law if size is None else law.expand([size]).to_event(1))


def groups(name="a", size=G):
    spread = numpyro.sample(f"{name}_sd", dist.Exponential(1))
    with numpyro.plate(f"{name}s", size):
        return numpyro.sample(name, dist.Normal(0, spread))


def outcome(mean, y, sigma=1.0):
    with numpyro.plate("people", N):
        numpyro.sample("y", dist.Normal(mean, sigma), obs=y)


def an_intercept_and_groups(x, g, h, y):
    outcome(normal("mu", sd=5.0) + groups()[g] + x @ normal("w", D), y)


def two_crossed_factors(x, g, h, y):
    outcome(normal("mu") + groups()[g] + groups("c", H)[h], y)


def a_slope_of_all_and_of_groups(x, g, h, y):
    ab = numpyro.sample("ab", dist.Normal(0, 1).expand([G, 2]).to_event(2))
    outcome(ab[g, 0] + ab[g, 1] * x[:, 0] + x @ normal("w", D), y)


def centred_groups(x, g, h, y):
    mu, tau = normal("mu"), numpyro.sample("tau", dist.Exponential(1))
    with numpyro.plate("groups", G):
        a = numpyro.sample("a", dist.Normal(mu, tau))
    outcome(a[g] + x @ normal("w", D), y, numpyro.sample("sigma", dist.Exponential(1)))


def a_bend_far_out(x, g, h, y):
    """Two slopes that differ only for inputs below -8."""
    w = normal("w", 2)
    outcome(w[0] * x[:, 0] + w[1] * jnp.maximum(x[:, 0], -8.0) + groups()[g], y)


def a_step_in_a_year(x, g, h, y):
    outcome(groups()[g] + normal("before") * (h <= 2020), y)


def abilities_and_difficulties(x, g, h, y):
    """A Rasch model, of groups numbered from one."""
    outcome(normal("ability", G)[g - 1] - normal("difficulty", H)[h], y)


def groups_within_regions(x, g, h, y):
    region = jnp.array([0, 0, 1, 1, 2, 2])
    outcome(normal("a", G)[g] + normal("r", H)[region[g]], y)


def an_intercept_and_a_table(x, g, h, y):
    """Of a table for two indices of which one is shorter."""
    outcome(
        normal("mu") + numpyro.sample("t", dist.Normal(0, 1).expand([H, G]).to_event(2))[h, g], y
    )


def treated(x, g, h, y):
    """An effect that only some records read is no part of an intercept."""
    outcome(
        normal("a", G)[g] + normal("effect") * (h == 1) + normal("bend") * x[:, 0] * (h == 1), y
    )


def linear(x, g, h, y):
    outcome(normal("b") + x @ normal("w", D), y)


def scales_of_groups(x, g, h, y):
    """A variance tells of the sum, so that the same latents are silent in both."""
    outcome(normal("b"), y, jnp.exp(normal("s") + groups()[g]))


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (an_intercept_and_groups, [{"a_sd": 1}, {"mu": 1, "a": -1}]),
        (two_crossed_factors, [{"a_sd": 1}, {"c_sd": 1}, {"mu": 1, "a": -1}, {"mu": 1, "c": -1}]),
        (a_slope_of_all_and_of_groups, [{"w": [1, 0], "ab": [[0, -1]] * G}]),
        (scales_of_groups, [{"a_sd": 1}, {"s": 1, "a": -1}]),
        (centred_groups, [{"mu": 1}, {"tau": 1}]),
        (a_bend_far_out, [{"a_sd": 1}]),
        (a_step_in_a_year, [{"a_sd": 1}]),
        (abilities_and_difficulties, [{"ability": 1, "difficulty": 1}]),
        (
            groups_within_regions,
            [{"a": np.arange(G) // 2 == k, "r": -1.0 * (np.arange(H) == k)} for k in range(H)],
        ),
        (an_intercept_and_a_table, [{"mu": 1, "t": -1}]),
        (treated, []),
        (linear, []),
    ],
)
def test_directions_that_no_record_tells(model, expected):
    private = PrivateModel(model, SHAPES)
    latents = sorted(private.structure.latents.items())
    wanted = [
        np.concatenate([np.broadcast_to(e.get(n, 0), s.shape).ravel() for n, s in latents])
        for e in expected
    ]
    dim = sum(int(np.prod(shape.shape)) for _, shape in latents)
    # Spreads as unlike as priors are.
    sd = np.geomspace(0.05, 20, dim)
    silent = silent_directions(private, chosen_scores(private, np.zeros(dim), sd))
    assert silent.shape == (len(expected), dim)
    np.testing.assert_allclose(silent @ silent.T, np.eye(len(expected)), atol=1e-12)
    # In units of the prior they span what is wanted in those of the latents.
    for each in wanted:
        inside = each / np.linalg.norm(each / sd) / sd
        np.testing.assert_allclose(silent.T @ (silent @ inside), inside, atol=1e-4)


@pytest.mark.parametrize("places", [8, 12, 30])
@pytest.mark.parametrize("sd", [0.5, 1.0, 2.0])
def test_a_rate_of_one_group_far_out_hides_no_direction_of_the_others(sd, places):
    """Intervals of one level of twelve a third of NUTS's; under a GP all 4 to 12 own sds off."""

    def counts(x, g, y):
        mean = normal("a", sd=2.0) + normal("b") * x + normal("k", places, sd)[g]
        with numpyro.plate("people", N):
            numpyro.sample("y", dist.Poisson(jnp.exp(mean)), obs=y)

    model = PrivateModel(counts, (jax.ShapeDtypeStruct((N,), jnp.float32), *SHAPES[1:3]))
    spread = np.r_[2.0, 1.0, np.full(places, sd)]
    silent = silent_directions(model, chosen_scores(model, np.zeros(places + 2), spread))
    wanted = np.r_[1, 0, -np.ones(places)] / spread
    assert len(silent) == 1
    assert abs(silent[0] @ wanted) / np.linalg.norm(wanted) == pytest.approx(1, abs=1e-6)


def neighbours(x, g, h, y):
    """A record touches an entry and the one before it."""
    a = normal("a", G)
    outcome(a[g] - a[jnp.maximum(g - 1, 0)] + x @ normal("w", D), y)


def met_in(model):
    private = PrivateModel(model, SHAPES)
    latents = sorted(private.structure.latents.items())
    sizes = [int(np.prod(shape.shape)) for _, shape in latents]
    found = meetings(private, chosen_scores(private, np.zeros(sum(sizes)), np.ones(sum(sizes))))
    ends = np.cumsum(sizes)
    return found, {
        name: slice(e - n, e) for (name, _), n, e in zip(latents, sizes, ends, strict=True)
    }


@pytest.mark.parametrize("sd", [1.0, 5.0, 10.0, 100.0])
@pytest.mark.parametrize(("cuts", "weights"), [(6, 2), (4, 4), (6, 5)])
def test_cutpoints_are_told_of_however_wide_their_prior_is(sd, cuts, weights):
    """Farther out every answer is certain: two of four seemed to be told of by nobody."""

    def answers(x, y):
        w, ordered = normal("w", weights), dist.transforms.OrderedTransform()
        law = dist.Normal(0, sd).expand([cuts]).to_event(1)
        c = numpyro.sample("c", dist.TransformedDistribution(law, ordered))
        with numpyro.plate("people", N):
            numpyro.sample("y", dist.OrderedLogistic(x @ w, c), obs=y)

    inputs = jax.ShapeDtypeStruct((N, weights), jnp.float32)
    model = PrivateModel(answers, (inputs, SHAPES[1]))
    middle, spread = np.zeros(cuts + weights), np.r_[np.full(cuts, sd), np.ones(weights)]
    assert len(silent_directions(model, chosen_scores(model, middle, spread))) == 0


def test_of_groups_a_record_touches_one():
    (met, alike), at = met_in(centred_groups)
    np.testing.assert_array_equal(met[at["a"], at["a"]], np.eye(G))
    # What is read by every record meets all of them.
    assert met[at["a"], at["w"]].all()
    assert met[at["sigma"], at["a"]].all()
    assert len(set(alike[at["a"]])) == 1
    assert len(set(alike)) == 1 + len(alike) - G


def test_entries_of_two_factors_may_all_meet():
    (met, alike), at = met_in(two_crossed_factors)
    for one, other in (("a", "a"), ("c", "c")):
        np.testing.assert_array_equal(met[at[one], at[other]], np.eye(len(met[at[one]])))
    assert met[at["a"], at["c"]].all()
    assert met[at["mu"], at["a"]].all()
    assert alike[at["a"]][0] != alike[at["c"]][0]


def test_a_group_s_intercept_meets_its_own_slope():
    (met, alike), at = met_in(a_slope_of_all_and_of_groups)
    np.testing.assert_array_equal(met[at["ab"], at["ab"]], np.kron(np.eye(G), np.ones((2, 2))))
    np.testing.assert_array_equal(alike[at["ab"]], np.tile(alike[at["ab"]][:2], G))


@pytest.mark.parametrize("model", [neighbours, linear])
def test_what_records_may_touch_together_is_not_taken_apart(model):
    assert met_in(model)[0] is None
