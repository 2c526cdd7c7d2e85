"""Which models are generalised linear ones, and what is said of them."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.infer.reparam import LocScaleReparam

import numpyro_dp as ndp
from numpyro_dp.families.glm import gaussian_prior, prior_curvature, recognise
from numpyro_dp.families.hinge import HuberHinge
from numpyro_dp.model.private_model import private_model

N, D = 12, 3
RNG = np.random.default_rng(3)
X = RNG.normal(size=(N, D)).astype(np.float32)
Y = RNG.integers(0, 2, N)
GROUP = RNG.integers(0, 4, N)
EXPOSURE = RNG.uniform(0.5, 2, N).astype(np.float32)


def weights(prior=None, name="w", size=D):
    return numpyro.sample(name, (prior or dist.Normal(0, 2)).expand([size]).to_event(1))


def outcome(likelihood, linear=None, prior=None):
    """A model whose outcome has the given distribution of ``linear(x, w)``."""

    def model(x, y):
        w = weights(prior)
        with numpyro.plate("people", x.shape[0]):
            numpyro.sample("y", likelihood((linear or jnp.matmul)(x, w)), obs=y)

    return model


def logistic(linear=None, prior=None):
    return outcome(lambda eta: dist.Bernoulli(logits=eta), linear, prior)


def intercept_and_slope(x, y):
    b = numpyro.sample("b", dist.Normal(1, 3))
    w = weights()
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=b + x @ w), obs=y)


def grouped(x, y, group):
    a = weights(name="a", size=4)
    w = weights()
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=a[group] + x @ w), obs=y)


def offset(x, y, exposure):
    w = weights()
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Poisson(jnp.exp(x @ w + jnp.log(exposure))), obs=y)


def subsampled(x, y):
    w = weights()
    with numpyro.plate("people", N, subsample_size=4) as rows:
        numpyro.sample("y", dist.Bernoulli(logits=x[rows] @ w), obs=y[rows])


def trials_of_each(x, y, n):
    w = weights()
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Binomial(n, logits=x @ w), obs=y)


def masked(x, y, kept):
    w = weights()
    with numpyro.plate("people", x.shape[0]), handlers.mask(mask=kept):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def weighted(x, y):
    w = weights()
    with numpyro.plate("people", x.shape[0]), handlers.scale(scale=0.5):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def uncentred(x, y):
    with handlers.reparam(config={"w": LocScaleReparam(0)}):
        w = weights(dist.Normal(1, 2))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def looped(x, y):
    w = weights()
    with numpyro.plate("people", x.shape[0]):
        step = lambda total, column: (total + column[0] * column[1], None)  # noqa: E731
        eta, _ = jax.lax.scan(step, jnp.zeros(x.shape[0]), (x.T, w))
        numpyro.sample("y", dist.Bernoulli(logits=eta), obs=y)


COUNTS = np.arange(N) % 4
ACCEPTED = {
    "logits": (logistic(), (X, Y)),
    "probs": (outcome(lambda e: dist.Bernoulli(probs=jax.nn.sigmoid(e))), (X, Y)),
    "binomial": (outcome(lambda e: dist.Binomial(3, logits=e)), (X, COUNTS)),
    "binomial-probs": (outcome(lambda e: dist.Binomial(3, probs=jax.nn.sigmoid(e))), (X, COUNTS)),
    "trials-of-each": (trials_of_each, (X, Y, COUNTS + 1)),
    "trials-as-floats": (
        trials_of_each,
        (X, np.float32(np.minimum(COUNTS, 1)), np.float32(COUNTS + 1)),
    ),
    "poisson": (outcome(lambda e: dist.Poisson(jnp.exp(e))), (X, COUNTS)),
    "offset": (offset, (X, COUNTS, EXPOSURE)),
    "normal": (outcome(lambda e: dist.Normal(e, 1.5)), (X, EXPOSURE)),
    "hinge": (outcome(lambda e: HuberHinge(e, 0.4)), (X, Y)),
    "intercept": (intercept_and_slope, (X, Y)),
    "grouped": (grouped, (X, Y, GROUP)),
    "features": (logistic(lambda x, w: jnp.tanh(x) @ w + jnp.sum(x**2, -1) * w[0]), (X, Y)),
    "affine": (logistic(lambda x, w: 2 * (x @ w) - w.mean() + 0.5), (X, Y)),
    "subsampled": (subsampled, (X, Y)),
    "masked": (masked, (X, Y, Y == 1)),
    "weighted": (weighted, (X, Y)),
    "uncentred": (uncentred, (X, Y)),
    "looped": (looped, (X, Y)),
    "own-name": (logistic(lambda x, w: jnp.einsum("ij,j->i", x, w)), (X, Y)),
}


OPTIONS = {
    "logits": {},
    "binomial": {},
    "trials-of-each": {"max_trials": 3},
    "trials-as-floats": {"max_trials": 3},
    "poisson": {"predictor_bounds": (-2.0, 1.5), "max_count": 6},
    "offset": {"predictor_bounds": (-2.0, 1.5), "max_count": 6},
    "normal": {"huber": 1.3},
    "hinge": {},
    "weighted": {},
}


def wall_of(model, args, **options):
    return private_model(model, args, check=False, **options)


QUICK = (
    "logits",
    "probs",
    "trials-of-each",
    "trials-as-floats",
    "offset",
    "normal",
    "hinge",
    "grouped",
    "masked",
    "uncentred",
)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=[] if case in QUICK else pytest.mark.slow)
        for case in sorted(ACCEPTED)
    ],
)
def test_accepted(case):
    # Acceptance itself compares loss and likelihood on made-up records.
    assert recognise(wall_of(*ACCEPTED[case])).loss(**OPTIONS.get(case, {})).lipschitz < np.inf


@pytest.mark.slow
@pytest.mark.parametrize("case", sorted(ACCEPTED))
def test_the_rows_and_the_loss_are_the_likelihood(case):
    model, args = ACCEPTED[case]
    wall = wall_of(model, args)
    glm, records = recognise(wall), wall.records(args)
    rows = glm.rows(records)
    z = [wall.init(jax.random.key(k)) for k in (0, 1)]
    flat = [jnp.concatenate([jnp.ravel(p[name]) for name in sorted(p)]) for p in z]

    def terms(position):
        one = lambda *leaves: wall.record_log_likelihood(position, [a[None] for a in leaves])  # noqa: E731
        return jax.vmap(one)(*records)

    def losses(q):
        return glm.raw_loss.value(rows.x @ q + rows.offset, rows)

    change = losses(flat[0]) - losses(flat[1])
    np.testing.assert_allclose(terms(z[1]) - terms(z[0]), change, atol=2e-4)
    np.testing.assert_allclose(
        glm.raw_loss.slope(rows.x @ flat[0] + rows.offset, rows)[:, None] * rows.x,
        jax.vmap(jax.grad(lambda q, r: glm.raw_loss.value(r.x @ q + r.offset, r)), (None, 0))(
            flat[0], rows
        ),
        atol=1e-4,
    )


def factor_in_plate(x, y):
    w = weights()
    with numpyro.plate("people", x.shape[0]):
        numpyro.factor("hinge", -jnp.maximum(0, 1 - (2 * y - 1) * (x @ w)))


def two_outcomes(x, y):
    w = weights()
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)
        numpyro.sample("z", dist.Bernoulli(logits=-(x @ w)), obs=1 - y)


def repeated(x, y):
    w = weights()
    with numpyro.plate("people", x.shape[0], dim=-2), numpyro.plate("visits", D):
        numpyro.sample("y", dist.Normal(w, 1), obs=x)


def learned_scale(x, y):
    w, s = weights(), numpyro.sample("s", dist.HalfNormal(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, s), obs=y)


def own_scale(x, y, s):
    w = weights()
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, s), obs=y)


def weight_of_each(x, y, s):
    w = weights()
    with numpyro.plate("people", x.shape[0]), handlers.scale(scale=s):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def mixture(x, y):
    w = weights()
    with numpyro.plate("people", x.shape[0]):
        k = numpyro.sample("k", dist.Bernoulli(0.5))
        numpyro.sample("y", dist.Bernoulli(logits=(2 * k - 1) * (x @ w)), obs=y)


def positive_weights(x, y):
    w = weights(dist.LogNormal(0, 1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def hierarchy_uncentred(x, y):
    tau = numpyro.sample("tau", dist.HalfNormal(1))
    w = weights(dist.Normal(0, 1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ (tau * w)), obs=y)


REFUSED = {
    "hinge": (factor_in_plate, (X, Y), "site `hinge`.*known to be convex"),
    "two-outcomes": (two_outcomes, (X, Y), "`y`, `z` all observe"),
    "repeated": (repeated, (X, Y), "several outcomes in one record"),
    "learned-scale": (learned_scale, (X, EXPOSURE), "noise scale that is not a known constant"),
    "own-scale": (own_scale, (X, EXPOSURE, EXPOSURE), "noise scale that is not a known constant"),
    "own-weight": (weight_of_each, (X, Y, EXPOSURE), "`y` has a weight"),
    "mixture": (mixture, (X, Y), "`k` makes each record's likelihood a mixture"),
    "positive": (positive_weights, (X, Y), "`y` is not provably linear"),
    "product": (hierarchy_uncentred, (X, Y), "not provably linear"),
    "network": (logistic(lambda x, w: jnp.tanh(x @ w)), (X, Y), "not provably linear"),
    "relu": (logistic(lambda x, w: jax.nn.relu(x @ w)), (X, Y), "not provably linear"),
    "clipped": (logistic(lambda x, w: jnp.clip(x @ w, -3, 3)), (X, Y), "not provably linear"),
    "floor": (logistic(lambda x, w: jnp.floor(x @ w)), (X, Y), "made-up records"),
    "stopped": (
        logistic(lambda x, w: x @ w + jax.lax.stop_gradient(w[0]) ** 2),
        (X, Y),
        "made-up records",
    ),
    "probit": (
        outcome(lambda e: dist.Bernoulli(probs=jax.scipy.stats.norm.cdf(e))),
        (X, Y),
        "behind its `probs`.*give `logits=`",
    ),
    "rate": (
        outcome(lambda e: dist.Poisson(jax.nn.softplus(e))),
        (X, COUNTS),
        "behind its `rate`.*`jnp.exp",
    ),
    "student": (outcome(lambda e: dist.StudentT(4, e, 1)), (X, EXPOSURE), "observes a StudentT"),
    "negative-binomial": (
        outcome(lambda e: dist.NegativeBinomial2(jnp.exp(e), 3.0)),
        (X, COUNTS),
        "NegativeBinomial2",
    ),
}


@pytest.mark.parametrize("case", sorted(REFUSED))
def test_everything_else_is_refused_by_site_and_cause(case):
    model, args, message = REFUSED[case]
    wall = wall_of(model, args, data_plate="people")
    with pytest.raises(ndp.UnsupportedModelError, match=message):
        recognise(wall)


def hierarchical_scale(x, y):
    tau = numpyro.sample("tau", dist.HalfNormal(1))
    w = weights(dist.Normal(0, tau))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def with_factor(x, y, sign):
    w = weights()
    numpyro.factor("ridge", sign * 2.0 * jnp.sum(w**2))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def correlated(x, y):
    covariance = jnp.array([[2.0, 0.5, 0.0], [0.5, 1.0, 0.0], [0.0, 0.0, 4.0]])
    w = numpyro.sample("w", dist.MultivariateNormal(jnp.ones(D), covariance))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


EIGENVALUES = np.linalg.eigvalsh([[2.0, 0.5, 0.0], [0.5, 1.0, 0.0], [0.0, 0.0, 4.0]])
CURVATURES = {
    "normal": (logistic(), (X, Y), 0.25, 0.25),
    "two-scales": (intercept_and_slope, (X, Y), 1 / 9, 0.25),
    "flat": (logistic(prior=dist.ImproperUniform(dist.constraints.real, (), ())), (X, Y), 0, 0),
    "factor": (with_factor, (X, Y, -1.0), 4.25, 4.25),
    "correlated": (correlated, (X, Y), 1 / EIGENVALUES[-1], 1 / EIGENVALUES[0]),
    "reparametrised": (uncentred, (X, Y), 1.0, 1.0),
}


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=[] if case == "correlated" else pytest.mark.slow)
        for case in sorted(CURVATURES)
    ],
)
def test_curvature_of_the_prior(case):
    model, args, least, most = CURVATURES[case]
    wall = wall_of(model, args)
    np.testing.assert_allclose(prior_curvature(wall), (least, most), rtol=1e-6, atol=1e-9)
    prior = gaussian_prior(wall)
    z = wall.init(jax.random.key(2))
    slope = jax.jit(jax.grad(wall.log_prior))(z)
    flat = jnp.concatenate([jnp.ravel(z[name]) for name in sorted(z)])
    expected = jnp.concatenate([jnp.ravel(slope[name]) for name in sorted(z)])
    np.testing.assert_allclose(jax.jit(prior.gradient)(flat), expected, atol=1e-5)


def test_a_curvature_that_passes_for_rounding_is_not_claimed_away():
    """Upwards by less than the tolerance beside a steep direction: made flat, not called flat."""

    def model(x, y):
        steep = numpyro.sample("steep", dist.Normal(0, 1e-3))
        flat = numpyro.sample("flat", dist.ImproperUniform(dist.constraints.real, (), ()))
        numpyro.factor("upwards", 0.45 * flat**2)
        with numpyro.plate("people", x.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=steep * x[:, 0] + flat * x[:, 1]), obs=y)

    prior = gaussian_prior(wall_of(model, (X, Y)))
    eigenvalues = np.linalg.eigvalsh(prior.precision)
    assert 0 <= prior.least <= eigenvalues[0]
    assert prior.most >= eigenvalues[-1]


@pytest.mark.parametrize(
    ("model", "args", "message"),
    [
        (logistic(prior=dist.StudentT(4, 0, 1)), (X, Y), "prior of site `w`.*Student-t"),
        (logistic(prior=dist.Cauchy(0, 1)), (X, Y), "prior of site `w`"),
        (logistic(prior=dist.Laplace(0, 1)), (X, Y), "prior of site `w`"),
        (logistic(prior=dist.Uniform(-1, 1)), (X, Y), "prior of site `w`"),
        (hierarchical_scale, (X, Y), "prior of site `tau`|prior of site `w`"),
        (with_factor, (X, Y, 1.0), "not log-concave"),
    ],
    ids=["student", "cauchy", "laplace", "uniform", "hierarchy", "upwards"],
)
def test_other_priors_are_refused_by_name(model, args, message):
    with pytest.raises(ndp.UnsupportedModelError, match=message):
        prior_curvature(wall_of(model, args))


@pytest.mark.parametrize("case", sorted(set(OPTIONS) - {"offset"}))
def test_derivative_bounds_hold_for_every_outcome_and_are_reached(case):
    model, args = ACCEPTED[case]
    glm = recognise(wall_of(model, args))
    loss = glm.loss(**OPTIONS[case])
    eta = jnp.linspace(-12, 12, 2401)
    outcomes = jnp.array([-50.0, 0.0, 1.0, 3.0, 6.0, 1e6])
    row = glm.row([a[:1] for a in glm.private_model.records(args)])

    def slopes(y, trials):
        many = row._replace(
            outcome=jnp.full_like(eta, y), trials=jnp.full_like(eta, trials), kept=eta == eta
        )
        return loss.slope(eta, many)

    found = np.asarray(jax.jit(jax.vmap(slopes, (0, None)))(outcomes, 50.0))
    assert np.abs(found).max() <= loss.lipschitz * (1 + 1e-6)
    assert np.abs(found).max() >= 0.98 * loss.lipschitz
    second = np.diff(found, axis=1) / float(eta[1] - eta[0])
    # Convex for every outcome: slopes never fall (float32 rounding of large slopes aside).
    assert second.min() >= -1e-3 * loss.lipschitz
    bulk = np.abs(second[:, :]) if case != "normal" else np.abs(second[1:4])
    assert 0.9 * loss.smoothness <= bulk.max() <= loss.smoothness + 0.02 * loss.lipschitz


@pytest.mark.parametrize(("case", "option"), [
    ("normal", "huber="), ("poisson", "predictor_bounds="), ("trials-of-each", "max_trials="),
])  # fmt: skip
def test_a_missing_bound_is_named(case, option):
    with pytest.raises(ndp.UnsupportedModelError, match=option):
        recognise(wall_of(*ACCEPTED[case])).loss()


def test_rows_are_projected_and_broken_ones_vanish():
    model, args = ACCEPTED["offset"]
    x = X.copy()
    x[0], x[1], x[2], x[5] = np.nan, np.inf, 3e38, 1e30
    x[3] = 1e-30
    counts = COUNTS.astype(float)
    counts[4] = np.nan
    args = (x, counts, EXPOSURE)
    glm = recognise(wall_of(model, args))
    rows = glm.rows(glm.private_model.records(args), row_norm=0.7)
    norms = np.linalg.norm(np.asarray(rows.x, float), axis=1)
    assert norms.max() <= 0.7
    assert norms[5] > 0.69
    np.testing.assert_array_equal(rows.kept[:5], [False, False, True, True, False])
    np.testing.assert_array_equal(rows.x[np.array([0, 1, 4])], 0)
    loss = glm.loss(predictor_bounds=(-1, 1), max_count=5)
    slopes = loss.slope(jnp.ones(N), rows)
    assert float(jnp.abs(slopes[jnp.array([0, 1, 4])]).max()) == 0
    np.testing.assert_allclose(rows.offset[5:], np.log(EXPOSURE[5:]), rtol=1e-5)
