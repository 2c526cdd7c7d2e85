"""Attacks on everything that releases: none proves more than is charged, and half the noise is."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.infer.autoguide import AutoDelta, AutoNormal

import numpyro_dp as ndp
from numpyro_dp.estimators import noise, release as output_noise
from numpyro_dp.mechanisms import private_sum as mechanism

BUDGET = ndp.Budget(2.0, 1e-5)
KEY = jax.random.key(7)


def logistic(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def mean(x):
    mu = numpyro.sample("mu", dist.Normal(0, 10))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("x", dist.Normal(mu, 1), obs=x)


def slope(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1e4).expand([1]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def coins(y):
    p = numpyro.sample("p", dist.Beta(1, 1))
    with numpyro.plate("people", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(p), obs=y)


def topics(counts):
    table = numpyro.sample("topics", dist.Dirichlet(jnp.full((2, 5), 0.3)).to_event(1))
    with numpyro.plate("documents", len(counts)):
        theta = numpyro.sample("theta", dist.Dirichlet(jnp.full(2, 0.2)))
        numpyro.sample("words", dist.Multinomial(counts.sum(-1), theta @ table), obs=counts)


def network(x):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([4, 2]).to_event(2))
    b = numpyro.sample("b", dist.Normal(0, 3).expand([4]).to_event(1))
    with numpyro.plate("images", x.shape[0]):
        z = numpyro.sample("z", dist.Bernoulli(logits=jnp.zeros(2)).to_event(1))
        numpyro.sample("x", dist.Bernoulli(logits=z @ w.T + b).to_event(1), obs=x)


def pair(*loud, other=np.nan):
    """One record beside a null one, against ``other`` values in its place."""

    def filled(value):
        return tuple(jnp.stack([jnp.asarray(v, jnp.float32), jnp.full_like(n, np.nan)])
                     for v, n in zip(value, map(jnp.asarray, loud), strict=True))  # fmt: skip

    return filled(loud), filled([np.full(np.shape(one), other, np.float32) for one in loud])


def made_up(model, relation="zero_out"):
    arguments = jnp.ones((4, 2)), jnp.ones(4, int)
    return tuple(ndp.loudest_pair(model, *arguments, relation=relation))


def svi(guide=AutoNormal, **options):
    return ndp.DPSVI(
        logistic, guide(logistic), optax.sgd(0.01), clip_norm=1.0, privacy=BUDGET, **options
    )


def vips(kind, model, **options):
    return ndp.VIPS(model, kind(model, **options), privacy=BUDGET)


def polya(design):
    return vips(ndp.guides.PolyaGammaGuide, slope, row_norm=1.0, design=design, centre=False)


FAR = pair(1e4)
LONG = pair([0.999], 1.0)
CENTRE = ndp.PrivateCentre(row_norm=1.0, privacy=BUDGET)

# What is audited, a pair, how, and the share of ε that it must prove at least: what each proved
# with its seed, less a tenth or more. Pairs on which a record is not heard in all that is released
# prove less.
CASES = {
    "DPSVI": (svi, made_up(logistic), {"num_steps": 4}, 0.35),
    "DPSVI maximum": (lambda: svi(AutoDelta), made_up(logistic), {"num_steps": 5}, 0.35),
    "DPSVI centred": (lambda: svi(clip="centred"), made_up(logistic), {"num_steps": 4}, 0.35),
    "DPSVI mini-batch": (
        lambda: svi(sampling_rate=0.5),
        made_up(logistic),
        {"num_steps": 8},
        0.35,
    ),
    "DPSVI curvature": (lambda: svi(scale="curvature"), made_up(logistic), {"num_steps": 3}, 0.35),
    "DPSVI losses, replaced": (
        lambda: svi(elbo=ndp.ElboTrace(every=2, lower=-5.0, upper=0.0)),
        made_up(logistic, "replace_one"),
        {"num_steps": 4, "relation": "replace_one"},
        0.2,
    ),
    "DPSVI one fewer": (
        lambda: svi(sampling_rate=0.5, max_records=4),
        made_up(logistic, "add_remove"),
        {"num_steps": 5, "relation": "add_remove"},
        0.35,
    ),
    "VIPS coins": (
        lambda: vips(ndp.guides.ConjugateGuide, coins),
        pair(1.0),
        {"num_steps": 6},
        0.05,
    ),
    "VIPS topics": (
        lambda: vips(ndp.guides.LDAGuide, topics, document_length=6, inner_steps=2),
        pair([6.0, 0, 0, 0, 0], other=0.0),
        {"num_steps": 6, "num_chains": 4000},
        0.15,
    ),
    "VIPS network": (
        lambda: vips(ndp.guides.SigmoidBeliefNetworkGuide, network, record_norm=2.0, inner_steps=2),
        pair(np.ones(4)),
        {"num_steps": 6, "num_chains": 4000},
        0.15,
    ),
    "VIPS full": (lambda: polya("full"), LONG, {"num_steps": 4}, 0.1),
    "VIPS diagonal": (lambda: polya("diagonal"), LONG, {"num_steps": 3}, 0.1),
    "VIPS paper": (lambda: polya("paper"), LONG, {"num_steps": 2}, 0.1),
    "output perturbation": (
        lambda: ndp.OutputPerturbation(mean, row_norm=1.0, huber=1.5, privacy=BUDGET),
        FAR,
        {},
        0.4,
    ),
    "output perturbation, replaced": (
        lambda: ndp.OutputPerturbation(mean, row_norm=1.0, huber=1.5, privacy=BUDGET),
        pair(1e4, other=-1e4),
        {"relation": "replace_one"},
        0.15,
    ),
    "objective perturbation": (
        lambda: ndp.ObjectivePerturbation(logistic, row_norm=1.0, privacy=BUDGET),
        made_up(logistic),
        {},
        0.3,
    ),
    "objective perturbation, gamma": (
        lambda: ndp.ObjectivePerturbation(logistic, row_norm=1.0, noise="gamma", privacy=BUDGET),
        made_up(logistic),
        {"num_chains": 2000},
        0.2,
    ),
    "last iterate": (
        lambda: ndp.OPS(
            mean, guarantee=ndp.StronglyLogConcave(row_norm=1.0, huber=1.5), privacy=BUDGET
        ),
        FAR,
        {"num_chains": 40_000},
        0.4,
    ),
    "posterior draw": (
        lambda: ndp.OPS(
            mean,
            guarantee=ndp.BoundedLikelihood(-2.0, 0.0),
            sampler=ndp.Grid({"mu": np.linspace(-30, 30, 101)}),
            privacy=BUDGET,
        ),
        pair(0.0),
        {"num_chains": 1000},
        0.05,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_an_attack_proves_no_more_than_is_charged(name):
    """One false alarm in twenty seeds is what 95 % means; these are fixed."""
    make, data, options, share = CASES[name]
    result = ndp.audit(make(), KEY, *data, progress_bar=False, **options)
    assert 1.9 < result.epsilon_reported <= 2.0
    assert not result.refutes
    assert result.epsilon_lower >= share * result.epsilon_reported


def halved(monkeypatch):
    """Half the noise of every sum, of linear terms and of minimisers."""
    fair, tilt, output = mechanism.floor_noise, noise.Gaussian.draw, output_noise.floor_noise
    monkeypatch.setattr(mechanism, "floor_noise", lambda *given: fair(*given) // 2)
    monkeypatch.setattr(output_noise, "floor_noise", lambda *given: output(*given) // 2)
    monkeypatch.setattr(noise.Gaussian, "draw", lambda *given: tilt(*given) / 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["output perturbation"])
def test_half_the_noise_is_proved(name, monkeypatch):
    """In nine of ten audits at least, at more runs than the default."""
    halved(monkeypatch)
    jax.clear_caches()
    make, data, options, _ = CASES[name]
    options = options | {"num_chains": 40_000}
    found = [
        ndp.audit(make(), jax.random.key(seed), *data, progress_bar=False, **options).refutes
        for seed in range(10)
    ]
    assert sum(found) >= 9


def test_a_private_centre_is_audited_and_half_its_noise_refuted(monkeypatch):
    data = ([3.0, 4.0],)
    fair = ndp.audit(CENTRE, KEY, *pair(*data), progress_bar=False)
    assert 0.4 * 1.9 < fair.epsilon_lower <= fair.epsilon_reported <= 2.0
    assert (fair.num_steps, fair.delta) == (1, BUDGET.delta)
    halved(monkeypatch)
    jax.clear_caches()
    # Another shape: nothing compiled before is used again.
    other = ndp.audit(CENTRE, KEY, *pair([3.0, 4.0, 0.0]), num_chains=40_000, progress_bar=False)
    assert other.refutes


def test_any_function_with_a_report_can_be_audited():
    def counted(key, x):
        return ndp.count_missing(key, x, privacy=BUDGET, secure=False)

    def attack(run=counted, score=lambda found: found.count, **options):
        data = (np.array([1.0, np.nan]),), (np.array([1.0, 1.0]),)
        return ndp.audit(
            run, KEY, *data, score=score, num_chains=100, progress_bar=False, **options
        )

    # Neither row is a null one: of these two the claim is that of replace_one, which is louder.
    result = attack()
    assert not result.refutes
    assert (result.num_steps, result.delta) == (1, BUDGET.delta)
    assert 1.9 < result.epsilon_reported <= 2.0
    with pytest.raises(ValueError, match="audited by score="):
        attack(score=None)
    with pytest.raises(ValueError, match="same number for every result"):
        attack(score=lambda found: 1.0)
    with pytest.raises(ValueError, match=r"whose \.privacy is a report"):
        attack(lambda key, x: 3.0)
    with pytest.raises(ValueError, match="'replace_one' is audited"):
        attack(relation="replace_one")
    # The charges of one object add up from call to call.
    one = ndp.PrivateCentre(row_norm=1.0, privacy=BUDGET)
    with pytest.raises(ValueError, match="anew in each call"):
        attack(lambda key, x: one.run(key, x[:, None]), score=lambda found: found.shift[0])


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (lambda: svi(accountant=ndp.Accountant()), {}, "without accountant="),
        (lambda: ndp.DPSVI(logistic, AutoNormal(logistic), privacy=BUDGET), {}, "own steps"),
        (svi, {"num_samples": 3}, "as a whole"),
        (svi, {"score": lambda found: 0.0}, "as a whole"),
        (lambda: CENTRE, {"num_steps": 2}, "variational"),
        (lambda: ndp.DPSVI, {}, "audit takes what releases"),
    ],
)
def test_what_is_no_attack_is_refused(make, options, message):
    with pytest.raises(ValueError, match=message):
        ndp.audit(make(), KEY, *made_up(logistic), progress_bar=False, **options)


def test_a_pair_without_a_null_record_is_refused():
    data = pair([3.0, 4.0], other=1.0)
    with pytest.raises(ValueError, match="must be null"):
        ndp.audit(CENTRE, KEY, *data, num_chains=100, progress_bar=False)
    assert ndp.audit(
        CENTRE, KEY, *data, num_chains=100, relation="replace_one", progress_bar=False
    ).relation == "replace_one"  # fmt: skip


def test_functions_and_minimisers_are_given_neighbours_of_the_relation():
    def counted(key, x):
        return ndp.count_missing(key, x, privacy=BUDGET, secure=False)

    rows = np.arange(4.0)
    options = {"score": lambda found: found.count, "num_chains": 100, "progress_bar": False}
    with pytest.raises(ValueError, match="exactly one record"):
        ndp.audit(counted, KEY, (rows,), (rows + 1,), **options)
    with pytest.raises(ValueError, match="must be independent"):
        ndp.audit(
            lambda key, x: counted(jax.random.key(0), x), KEY, (rows,), (rows * [1, 1, 1, np.nan],),
            **options,
        )  # fmt: skip
    estimator = ndp.OutputPerturbation(mean, row_norm=1.0, huber=1.5, privacy=BUDGET)
    with pytest.raises(ValueError, match="must be null"):
        ndp.audit(estimator, KEY, *pair(1e4, other=-1e4), num_chains=100, progress_bar=False)
