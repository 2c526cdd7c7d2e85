"""What one Gaussian likelihood would get wrong is refused before it is paid for, and no more."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.flatten_util import ravel_pytree
from numpyro.infer.reparam import LocScaleReparam

import numpyro_dp as ndp
from numpyro_dp.families.one_gaussian import (
    APART_BELOW,
    _stepped,
    blurred,
    closest,
    has_free_shares,
    overlap,
)
from numpyro_dp.model.private_model import PrivateModel
from numpyro_dp.scoring.released import _components_found, kind_of
from numpyro_dp.scoring.verdicts.kinds import foretold
from tests.model.examples import EXAMPLES
from tests.model.zoo import ACCEPTED

N, G, D = 2_000, 12, 3
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, D)).astype(np.float32)
GROUP = RNG.integers(0, G, N)
SIDE, COUNT = RNG.integers(0, 2, N), RNG.poisson(2.0, N)
REAL, SHARE = RNG.normal(size=N).astype(np.float32), RNG.beta(2, 3, N).astype(np.float32)


def normal(name, size=None):
    law = dist.Normal(0, 1)
    return numpyro.sample(name, law if size is None else law.expand([size]).to_event(1))


def scale(name):
    return numpyro.sample(name, dist.HalfNormal(1))


def observed(law, y):
    with numpyro.plate("people", len(y)):
        numpyro.sample("y", law, obs=y)


def factors_of_a_chosen_entry(x, group, y):
    mu, tau, z = normal("mu"), scale("tau"), normal("z", G)
    observed(dist.Bernoulli(logits=mu + tau * z[group]), y)


def factors_of_all_entries(x, group, y):
    mu, tau = normal("mu"), scale("tau")
    with numpyro.plate("groups", G):
        a = numpyro.deterministic("a", mu + tau * numpyro.sample("z", dist.Normal(0, 1)))
    observed(dist.Bernoulli(logits=a[group]), y)


def horseshoe(x, group, y):
    local = numpyro.sample("local", dist.HalfNormal(1).expand([D]).to_event(1))
    observed(dist.Bernoulli(logits=x @ (normal("z", D) * local * scale("tau"))), y)


def imperfect_test(x, group, y):
    share, found, spared = (
        numpyro.sample(name, dist.Beta(a, b))
        for name, a, b in (("share", 1, 1), ("found", 90, 10), ("spared", 95, 5))
    )
    chance = share * found + (1 - share) * (1 - spared)
    observed(dist.Bernoulli(jnp.broadcast_to(chance, y.shape)), y)


def slopes_of_groups(x, group, y):
    spread, z = scale("spread"), normal("z", G)
    observed(dist.Normal(spread * z[group] * x[:, 0], 1), y)


def written_centred(x, group, y):
    mu, tau = normal("mu"), scale("tau")
    with numpyro.plate("groups", G):
        a = numpyro.sample("a", dist.Normal(mu, tau))
    observed(dist.Bernoulli(logits=a[group]), y)


def linear(x, group, y):
    observed(dist.Normal(normal("a") + x @ normal("w", D), scale("sigma")), y)


def two_parameters_of_counts(x, group, y):
    mean, spread = (numpyro.sample(name, dist.LogNormal(0, 1)) for name in ("mean", "spread"))
    observed(dist.NegativeBinomial2(mean, spread), y)


def mean_times_precision(x, group, y):
    m, k = numpyro.sample("m", dist.Beta(2, 2)), numpyro.sample("k", dist.LogNormal(1, 1))
    observed(dist.Beta(m * k, (1 - m) * k), y)


def one_intercept_too_many(x, group, y):
    observed(dist.Bernoulli(logits=normal("b") + normal("a", G)[group]), y)


def counts_of_groups(x, group, y):
    spread = numpyro.sample("spread", dist.LogNormal(0, 1))
    observed(dist.NegativeBinomial2(jnp.exp(normal("a", G)[group]), spread), y)


def mixture(centres, spread=0.25):
    def model(x, group, y):
        share = numpyro.sample("share", dist.Dirichlet(jnp.ones(2)))
        law = dist.Normal(jnp.asarray(centres), spread).to_event(1)
        parts = dist.Normal(numpyro.sample("middle", law), scale("sigma"))
        observed(dist.MixtureSameFamily(dist.Categorical(share), parts), y)

    return model


def ordered_alone(x, group, y):
    """As a newcomer wrote it: 73 to 423 of its own sds off in four of five runs."""
    share = numpyro.sample("share", dist.Dirichlet(jnp.ones(2)))
    law = dist.Normal(4, 3).expand([2]).to_event(1)
    middle = numpyro.sample(
        "middle", dist.TransformedDistribution(law, dist.transforms.OrderedTransform())
    )
    spread = numpyro.sample("spread", dist.HalfNormal(2).expand([2]).to_event(1))
    parts = dist.Normal(middle, spread)
    observed(dist.MixtureSameFamily(dist.Categorical(share), parts), y)


def ordered_without_end(x, group, y):
    """OrderedTransform adds exp of the second number: of exam scores one lay at infinity."""
    share = numpyro.sample("share", dist.Dirichlet(jnp.ones(2)))
    law = dist.Normal(70, 20).expand([2]).to_event(1)
    middle = numpyro.sample(
        "middle", dist.TransformedDistribution(law, dist.transforms.OrderedTransform())
    )
    parts = dist.Normal(middle, scale("sigma"))
    observed(dist.MixtureSameFamily(dist.Categorical(share), parts), y)


def wide_about_narrow(x, group, y):
    """Components of one centre, of which the scales are apart: outliers among the rest."""
    share = numpyro.sample("share", dist.Beta(20, 2))
    scales = numpyro.sample("scales", dist.LogNormal(jnp.log(jnp.array([1.0, 8.0])), 0.25))
    parts = dist.Normal(normal("mean"), scales)
    weights = dist.Categorical(probs=jnp.stack([share, 1 - share]))
    observed(dist.MixtureSameFamily(weights, parts), y)


def effect_of_a_record_integrated_out(x, group, y):
    """Of a record whose columns are zero nothing was observed."""
    at = (x @ normal("w", D))[..., None] + scale("spread") * jnp.array([-1.7, 0.0, 1.7])
    parts = dist.Bernoulli(logits=at[..., None]).mask((group > 0)[..., None, None]).to_event(1)
    law = dist.MixtureSameFamily(dist.Categorical(probs=jnp.array([1, 4, 1]) / 6), parts)
    observed(law, y[..., None])


def kernel(model, accountant=None):
    return ndp.DPNUTS(model, privacy=ndp.Budget(1.0, 1e-5), accountant=accountant)


@pytest.mark.parametrize(
    ("model", "outcome", "named"),
    [
        (factors_of_a_chosen_entry, SIDE, r"product of latents `tau`, `z`"),
        pytest.param(
            factors_of_all_entries, SIDE, r"product of latents `tau`, `z`", marks=pytest.mark.slow
        ),
        pytest.param(
            horseshoe, SIDE, r"product of latents `local`, `tau`, `z`", marks=pytest.mark.slow
        ),
        pytest.param(
            slopes_of_groups, REAL, r"product of latents `spread`, `z`", marks=pytest.mark.slow
        ),
        (mixture([0.0, 0.0]), REAL, "components of mixture `y` begin alike"),
        (ordered_alone, REAL, "overlap: of two draws of them, in [789]% of pairs, a component"),
        (
            ordered_without_end,
            REAL,
            "draws of the prior [0-9]+% put a mixture's component beyond",
        ),
        pytest.param(mixture([-1.0, 1.0], 1.0), REAL, "overlap: ", marks=pytest.mark.slow),
    ],
)
def test_refused_before_anything_is_charged_with_the_change_that_mends_it(model, outcome, named):
    accountant = ndp.Accountant(ndp.Budget(1.0, 1e-5))
    mcmc = ndp.MCMC(kernel(model, accountant), num_warmup=5, num_samples=5, progress_bar=False)
    with pytest.raises(ndp.UnsupportedModelError, match=named) as error:
        mcmc.run(jax.random.key(0), X, GROUP, outcome)
    assert "dist.Normal(" in str(error.value)
    assert not accountant.entries


def test_a_product_of_single_numbers_is_not_called_a_hierarchy():
    """Prevalence by an imperfect test: records tell of the share of positive ones alone."""
    with pytest.raises(ndp.UnsupportedModelError, match="as of a share of positive") as error:
        kernel(imperfect_test).forecast(X, GROUP, SIDE)
    assert "Fix all but one of them at public numbers" in str(error.value)
    assert "hierarchy" not in str(error.value)


@pytest.mark.parametrize(
    ("model", "outcome"),
    [
        pytest.param(written_centred, SIDE, marks=pytest.mark.slow),
        (numpyro.handlers.reparam(written_centred, config={"a": LocScaleReparam(0)}), SIDE),
        (linear, REAL),
        pytest.param(two_parameters_of_counts, COUNT, marks=pytest.mark.slow),
        pytest.param(mean_times_precision, SHARE, marks=pytest.mark.slow),
        pytest.param(one_intercept_too_many, SIDE, marks=pytest.mark.slow),
        pytest.param(counts_of_groups, COUNT, marks=pytest.mark.slow),
        (mixture([-1.0, 1.0]), REAL),
        (effect_of_a_record_integrated_out, SIDE),
    ],
)
def test_what_records_tell_apart_is_taken(model, outcome):
    assert kernel(model).forecast(X, GROUP, outcome).verdict != "not"


def test_a_wrap_outside_is_sampled_and_one_inside_is_a_product():
    wrapped = numpyro.handlers.reparam(written_centred, config={"a": LocScaleReparam(0)})
    release = ndp.LikelihoodRelease(wrapped, privacy=ndp.Budget(1.0, 1e-5))
    with pytest.raises(ndp.UnsupportedModelError, match="product of latents"):
        release.run(jax.random.key(0), X, GROUP, SIDE, progress_bar=False)


@pytest.mark.parametrize(
    ("model", "low", "high"),
    [
        (mixture([0.0, 0.0]), 0.45, 0.5),
        # The normal law of a distance of four, three and two standard deviations of the prior.
        (mixture([-1.0, 1.0], 0.5), 0.0005, 0.006),
        (mixture([-1.0, 2.0], 1.0), 0.01, 0.025),
        (mixture([-1.0, 1.0], 1.0), 0.06, 0.10),
        (wide_about_narrow, 0.0, 0.001),
    ],
)
def test_how_much_the_priors_of_components_overlap(model, low, high):
    assert low <= overlap(PrivateModel(model, (X, GROUP, REAL))) <= high


@pytest.mark.parametrize(
    ("model", "low", "high"),
    [
        # Two at a distance of 2 ± .7 and 4 ± .7, whose sd is above half of it; twelve sds of 512.
        (mixture([-1.0, 1.0], 0.5), 0.25, 0.45),
        (mixture([-2.0, 2.0], 0.5), 0.0, 0.13),
        (wide_about_narrow, 0.0, 0.0),
        (linear, None, None),
    ],
)
def test_how_often_components_lie_closer_than_two_of_their_sds(model, low, high):
    found = blurred(PrivateModel(model, (X, GROUP, REAL)))
    assert np.isnan(found) if low is None else low <= found <= high


def test_the_note_on_mixtures_tells_how_its_components_lie_in_what_was_released():
    """Of releases with no other note those were wrong whose components met, or had no share."""
    split = PrivateModel(mixture([-1.0, 1.0], 0.5), (X, GROUP, REAL))
    at = {name: jnp.zeros(each.shape) for name, each in split.structure.latents.items()}
    ends = at | {"middle": jnp.array([-2.0, 2.0])}
    np.testing.assert_allclose(closest(split, ends), (4.0, 0.5), rtol=1e-5)

    def found(z):
        row = ravel_pytree(dict(sorted(z.items())))[0]
        return _components_found(split, tuple(map(float, row)))

    assert "none was wrong" in found(ends)
    assert "4.0 of their own sds apart, and the smallest share is 50%" in found(ends)
    assert "were wrong" in found(ends | {"share": jnp.array([5.0])})
    assert "were wrong" in found(ends | {"middle": jnp.array([-0.1, 0.1])})


def two_normals(centres, general):
    def model(x, group, y):
        share = numpyro.sample("share", dist.Beta(5, 5))
        each = [normal(name) + centre for name, centre in zip("ab", centres, strict=True)]
        weights = dist.Categorical(jnp.stack([share, 1 - share]))
        if general:
            parts = [dist.Normal(centre, 0.3) for centre in each]
            observed(dist.MixtureGeneral(weights, parts), y)
        else:
            observed(dist.MixtureSameFamily(weights, dist.Normal(jnp.stack(each), 0.3)), y)

    return model


@pytest.mark.parametrize(("centres", "apart"), [((0.0, 9.0), True), ((0.0, 1.5), False)])
def test_a_mixture_is_judged_alike_however_it_is_written(centres, apart):
    """Components of one family in a list had a note that no prior could take away."""
    listed, together = (
        PrivateModel(two_normals(centres, how), (X, GROUP, REAL)) for how in (True, False)
    )
    assert overlap(listed) == pytest.approx(overlap(together), abs=1e-3)
    assert (overlap(listed) < APART_BELOW) == apart
    assert any("mixture" in note for note in foretold(kind_of(listed))) != apart


def two_mixtures():
    for name, number in (("y", 2), ("z", 3)):
        share = numpyro.sample(f"{name}_share", dist.Dirichlet(5 * jnp.ones(number)))
        law = dist.Normal(4.0 * jnp.arange(number), 0.5).to_event(1)
        parts = dist.Normal(numpyro.sample(f"{name}_middle", law), 0.5)
        yield name, dist.MixtureSameFamily(dist.Categorical(share), parts)


def test_mixtures_of_other_numbers_of_components_are_judged_one_by_one():
    def model(x, group, y):
        laws = list(two_mixtures())
        with numpyro.plate("N", len(y)):
            for name, law in laws:
                numpyro.sample(name, law, obs=y)

    split = PrivateModel(model, (X, GROUP, REAL))
    assert overlap(split) < APART_BELOW
    assert blurred(split) < 0.01


def test_a_mixture_whose_components_blur_is_named_though_its_centres_are_apart():
    split = PrivateModel(mixture([-1.0, 1.0], 0.5), (X, GROUP, REAL))
    assert overlap(split) < APART_BELOW
    (said,) = foretold(kind_of(split))
    assert said.startswith("with care: of a mixture the rounds may agree")
    # In which of the two ways is said, with its share.
    assert re.search(r"tells \(in \d\d% of its prior's draws two lie within two of their own", said)
    assert "swap" not in said
    assert foretold(kind_of(PrivateModel(mixture([-3.0, 3.0], 0.5), (X, GROUP, REAL)))) == ()


@pytest.mark.parametrize(
    ("law", "said"),
    [
        (lambda rate, scatter: dist.NegativeBinomial2(rate, scatter), True),
        (lambda rate, scatter: dist.Poisson(rate * scatter), False),
        # As of sites of which some are occupied; expanded to the gates.
        (lambda rate, scatter: dist.Binomial(5, rate / (1 + rate)), False),
    ],
)
def test_zeros_of_a_gate_over_a_scattered_law_are_named(law, said):
    """Of outcomes without a gate it lay up to eleven of its own sds off, most under no note."""

    def model(x, group, y):
        rate = numpyro.sample("rate", dist.Exponential(1))
        scatter = numpyro.sample("scatter", dist.LogNormal(0, 1))
        gate = numpyro.sample("gate", dist.Beta(1, 1))
        with numpyro.plate("N", len(y)):
            gates = jnp.full(len(y), gate)
            fn = dist.ZeroInflatedDistribution(law(rate, scatter), gate=gates)
            numpyro.sample("y", fn, obs=y)

    split = PrivateModel(model, (X, GROUP, np.ones(len(X), np.int32)))
    named = [text for text in foretold(kind_of(split)) if "may come by its gate" in text]
    assert bool(named) == said


@pytest.mark.parametrize(
    ("model", "outcome", "free"),
    [
        (mixture([-1.0, 2.0]), REAL, True),
        (effect_of_a_record_integrated_out, SIDE, False),
        (linear, REAL, False),
    ],
)
def test_a_mixture_is_one_whose_shares_are_latent(model, outcome, free):
    assert has_free_shares(PrivateModel(model, (X, GROUP, outcome))) is free


@pytest.mark.parametrize(("law", "said"), [("quantile", True), ("laplace", False)])
def test_a_law_that_stands_for_a_quantile_is_named(law, said):
    """Of a .9 quantile it lay up to ten of its own sds off, three times in ten under no note."""

    def model(x, group, y):
        at, spread = x @ normal("w", D), scale("spread")
        chosen = dist.AsymmetricLaplaceQuantile(at, spread, 0.9)
        observed(chosen if law == "quantile" else dist.Laplace(at, spread), y)

    notes = kernel(model).forecast(X, GROUP, REAL).notes
    assert any("where y stands for a quantile" in note for note in notes) == said


def step(x, group, y):
    at = numpyro.sample("at", dist.Uniform(-2, 2))
    w = normal("w", 2)
    observed(dist.Normal(jnp.where(x[:, 0] < at, w[0], w[1]), 1.0), y)


def rounded_up(x, group, y):
    at = numpyro.sample("at", dist.Normal(0, 1))
    observed(dist.Normal(x @ normal("w", D) + jnp.ceil(at), 1.0), y)


def slope(x, group, y):
    at = numpyro.sample("at", dist.Uniform(-2, 2))
    w = normal("w", 2)
    observed(dist.Normal(w[0] + w[1] * jax.nn.sigmoid((x[:, 0] - at) / 0.1), 1.0), y)


def kink(x, group, y):
    """Beyond a knot that hardly a made-up record reaches; its slope is not nothing by its form."""
    at = numpyro.sample("at", dist.Normal(50, 10))
    observed(dist.Normal(normal("w", 1)[0] * jnp.maximum(x[:, 0] - at, 0), 1.0), y)


@pytest.mark.parametrize(
    ("model", "method", "options"),
    [(step, ndp.DPNUTS, {}), (rounded_up, ndp.DPNUTS, {}), (step, ndp.DPSGLD, {"num_steps": 10})],
)
def test_what_records_tell_by_steps_alone_is_refused(model, method, options):
    with pytest.raises(ndp.UnsupportedModelError, match=r"latent\(s\) `at` by a comparison or by"):
        method(model, privacy=ndp.Budget(1.0, 1e-5)).forecast(X, GROUP, REAL, **options)


def test_a_loop_without_a_gradient_is_refused_before_a_charge():
    def looping(x, group, y):
        w = normal("w", D)
        total = jax.lax.while_loop(lambda t: t < 5, lambda t: t + 1.0, jnp.sum(w) / 100)
        observed(dist.Normal(total, 1.0), y)

    with pytest.raises(ndp.UnsupportedModelError, match=r"no gradient \(Reverse.*DPFastMH"):
        kernel(looping).forecast(X, GROUP, REAL)


def straight(x, group, y):
    """A slope of one everywhere hangs on nothing, and is one all the same."""
    rate = numpyro.sample("rate", dist.LogNormal(0, 1))
    observed(dist.Uniform(0, jnp.exp(5 - jnp.log(rate))).mask(True), jnp.abs(y))


@pytest.mark.parametrize("model", [slope, kink, straight])
def test_slopes_are_taken(model):
    assert kernel(model).forecast(X, GROUP, REAL).verdict != "not"


def test_a_walk_over_public_months_is_known_by_its_prior():
    def months(x, group, y):
        w = numpyro.sample("w", dist.GaussianRandomWalk(scale("step"), num_steps=12))
        observed(dist.Bernoulli(logits=w[group]), y)

    assert kind_of(PrivateModel(months, (X, GROUP, SIDE))).walks == ["w"]
    assert kind_of(PrivateModel(linear, (X, GROUP, REAL))).walks == []


@pytest.mark.parametrize(
    ("law", "cases", "scatters"),
    [
        (lambda at: dist.Bernoulli(logits=at), True, False),
        (lambda at: dist.Poisson(jnp.exp(at)), True, False),
        (lambda at: dist.NegativeBinomial2(jnp.exp(at), 2.0), True, True),
        (lambda at: dist.ZeroInflatedPoisson(0.3, rate=jnp.exp(at)), True, True),
        (lambda at: dist.Normal(at, 1.0), False, True),
        (lambda at: dist.LogNormal(at, 1.0), False, True),
    ],
)
def test_which_laws_have_cases_and_which_may_scatter(law, cases, scatters):
    def model(x, group, y):
        observed(law(x @ normal("w", D) + scale("size")), y)

    split = PrivateModel(model, (X, GROUP, SIDE.astype(np.int32)))
    assert kernel(model).forecast(X, GROUP, SIDE.astype(np.int32)).cases == cases
    # Of what may be a dispersion then; neither coefficients nor their own scales may.
    assert list(kind_of(split).scales) == ["size"] * scatters


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:deterministic site")
def test_no_model_that_others_wrote_is_taken_for_one_of_steps():
    """NumPyro's own examples and the zoo, with discrete latents, loops and masks among them."""
    for case in (*ACCEPTED, *EXAMPLES):
        model, args, kwargs = case.build()
        split = PrivateModel(model, args, kwargs, data_plate=case.data_plate)
        assert not _stepped(split), case.name
