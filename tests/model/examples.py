"""The model functions of NumPyro's examples/, written anew as private models.

Names are those of the example and its function. A plate or a public size is added where the
original has none; what the wall refuses for a real reason is listed at the end.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro import handlers
from numpyro.contrib.control_flow import scan

from numpyro_dp.model.records import public

from .refusals import Built, Refused
from .zoo import Case, D, N, binary, counts, design, labels, real, rng

EXAMPLES: list[Case] = []
REFUSED_EXAMPLES: list[Refused] = []


def example(data_plate: str | None = None, **options: Any):
    def enter(build):
        EXAMPLES.append(Case(build.__name__, build, data_plate, **options))
        return build

    return enter


def refused_example(*patterns: str, data_plate: str | None = None):
    def enter(build):
        REFUSED_EXAMPLES.append(Refused(build.__name__, build, patterns, data_plate))
        return build

    return enter


def at_bats() -> np.ndarray:
    return rng().integers(20, 40, N)


@example()
def baseball_fully_pooled() -> Built:
    def model(at_bats, hits=None):
        phi = numpyro.sample("phi", dist.Uniform(0, 1))
        with numpyro.plate("num_players", at_bats.shape[0]):
            return numpyro.sample("obs", dist.Binomial(at_bats, probs=phi), obs=hits)

    return model, (at_bats(), rng().integers(3, 15, N)), {}


@example()
def bnn() -> Built:
    def model(x, y, hidden, outputs=1):
        w1 = numpyro.sample("w1", dist.Normal(jnp.zeros((D, hidden)), jnp.ones((D, hidden))))
        z1 = jnp.tanh(jnp.matmul(x, w1))
        w2 = numpyro.sample(
            "w2", dist.Normal(jnp.zeros((hidden, hidden)), jnp.ones((hidden, hidden)))
        )
        z2 = jnp.tanh(jnp.matmul(z1, w2))
        w3 = numpyro.sample("w3", dist.Normal(jnp.zeros((hidden, outputs)), 1.0))
        precision = numpyro.sample("prec_obs", dist.Gamma(3.0, 1.0))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Normal(z2 @ w3, precision**-0.5).to_event(1), obs=y)

    return model, (design(), real()[:, None], 4), {}


@example(subsampled=True)
def covtype() -> Built:
    def model(data, labels, subsample_size=None):
        coefs = numpyro.sample("coefs", dist.Normal(jnp.zeros(D), jnp.ones(D)))
        with numpyro.plate("N", data.shape[0], subsample_size=subsample_size) as idx:
            logits = jnp.dot(data[idx], coefs)
            return numpyro.sample("obs", dist.Bernoulli(logits=logits), obs=labels[idx])

    return model, (design(), binary(), 7), {}


@example(subsampled=True)
def hmcecs() -> Built:
    def model(data, obs, subsample_size):
        n, m = data.shape
        theta = numpyro.sample("theta", dist.Normal(jnp.zeros(m), 0.5 * jnp.ones(m)))
        with numpyro.plate("N", n, subsample_size=subsample_size):
            batch = numpyro.subsample(data, event_dim=1)
            seen = numpyro.subsample(obs, event_dim=0)
            numpyro.sample("obs", dist.Bernoulli(logits=theta @ batch.T), obs=seen)

    return model, (design(), binary(), 6), {}


@example(dropped=("lift",))
def proportion_test() -> Built:
    def model(design_matrix, outcome=None):
        intercept = numpyro.sample("intercept", dist.Normal(-1.0, 0.5))
        b = numpyro.sample("b", dist.Normal(jnp.zeros(D), 0.3))
        odds = intercept + design_matrix @ b
        numpyro.deterministic("lift", jax.nn.sigmoid(odds) - jax.nn.sigmoid(intercept))
        with numpyro.plate("data", design_matrix.shape[0]):
            return numpyro.sample("y", dist.Bernoulli(logits=odds), obs=outcome)

    return model, (design(), binary()), {}


@example()
def zero_inflated_poisson() -> Built:
    def model(x, y):
        n, d = x.shape
        b1 = numpyro.sample("b1", dist.Normal(0, 1).expand([d]).to_event(1))
        b2 = numpyro.sample("b2", dist.Normal(0, 1).expand([d]).to_event(1))
        with numpyro.plate("obs", n):
            gate = jax.nn.sigmoid(x @ b1)
            numpyro.sample("y", dist.ZeroInflatedPoisson(gate, rate=jnp.exp(0.3 * x @ b2)), obs=y)

    return model, (design(), counts()), {}


@example(enum=True)
def toy_mixture_enum() -> Built:
    def model(y, parts):
        weights = numpyro.sample("weights", dist.Dirichlet(0.5 * jnp.ones(parts)))
        scale = numpyro.sample("scale", dist.LogNormal(0.0, 2.0))
        with numpyro.plate("components", parts):
            locs = numpyro.sample("locs", dist.Normal(0.0, 10.0))
        with numpyro.plate("data", y.shape[0]):
            which = numpyro.sample("assignment", dist.Categorical(weights))
            numpyro.sample("obs", dist.Normal(locs[which], scale), obs=y)

    return model, (real(), 2), {}


@example()
def ucbadmit() -> Built:
    def model(dept, male, applications, admit, num_departments):
        v_mu = numpyro.sample("v_mu", dist.Normal(0, jnp.array([4.0, 1.0])))
        sigma = numpyro.sample("sigma", dist.HalfNormal(jnp.ones(2)))
        rho = numpyro.sample("L_Rho", dist.LKJCholesky(2, concentration=2))
        with numpyro.plate("dept", num_departments):
            z = numpyro.sample("z", dist.Normal(jnp.zeros(2), 1).to_event(1))
        v = jnp.dot(sigma[:, None] * rho, z.T).T
        with numpyro.plate("applicants", dept.shape[0]):
            logits = v_mu[0] + v[dept, 0] + (v_mu[1] + v[dept, 1]) * male
            numpyro.sample("admit", dist.Binomial(applications, logits=logits), obs=admit)

    return model, (labels(6), binary(), at_bats(), counts(), 6), {}


def horseshoe(likelihood):
    def model(x, y):
        lambdas = numpyro.sample("lambdas", dist.HalfCauchy(jnp.ones(D)))
        tau = numpyro.sample("tau", dist.HalfCauchy(jnp.ones(1)))
        unscaled = numpyro.sample("unscaled_betas", dist.Normal(0.0, jnp.ones(D)))
        betas = numpyro.deterministic("betas", tau * lambdas * unscaled)
        with numpyro.plate("data", x.shape[0]):
            likelihood(x @ betas, y)

    return model


@example()
def horseshoe_normal() -> Built:
    def model(x, y):
        precision = numpyro.sample("prec_obs", dist.Gamma(3.0, 1.0))
        horseshoe(lambda mean, y: numpyro.sample("Y", dist.Normal(mean, precision**-0.5), obs=y))(
            x, y
        )

    return model, (design(), real()), {}


@example()
def horseshoe_bernoulli() -> Built:
    model = horseshoe(lambda mean, y: numpyro.sample("Y", dist.Bernoulli(logits=mean), obs=y))
    return model, (design(), binary()), {}


@example()
def minipyro() -> Built:
    def model(data):
        loc = numpyro.sample("loc", dist.Normal(0.0, 1.0))
        with numpyro.plate("data", data.shape[0]):
            numpyro.sample("obs", dist.Normal(loc, 1.0), obs=data)

    return model, (real(),), {}


def annotations() -> tuple[np.ndarray, np.ndarray]:
    generator = rng()
    positions = np.tile(np.arange(5), (N, 1))
    return positions, generator.integers(0, 3, (N, 5))


@example("item", enum=True)
def annotation_multinomial() -> Built:
    def model(annotations, classes):
        pi = numpyro.sample("pi", dist.Dirichlet(jnp.ones(classes)))
        with numpyro.plate("class", classes):
            zeta = numpyro.sample("zeta", dist.Dirichlet(jnp.ones(classes)))
        with numpyro.plate("item", annotations.shape[0], dim=-2):
            c = numpyro.sample("c", dist.Categorical(pi))
            with numpyro.plate("position", annotations.shape[-1]):
                numpyro.sample("y", dist.Categorical(zeta[c]), obs=annotations)

    return model, (annotations()[1], 3), {}


@example("item", enum=True)
def annotation_dawid_skene() -> Built:
    def model(positions, annotations, annotators, classes):
        with numpyro.plate("annotator", annotators, dim=-2), numpyro.plate("class", classes):
            beta = numpyro.sample("beta", dist.Dirichlet(jnp.ones(classes)))
        pi = numpyro.sample("pi", dist.Dirichlet(jnp.ones(classes)))
        with numpyro.plate("item", annotations.shape[0], dim=-2):
            c = numpyro.sample("c", dist.Categorical(pi))
            with numpyro.plate("position", annotations.shape[-1]):
                numpyro.sample("y", dist.Categorical(beta[positions, c, :]), obs=annotations)

    return model, (*annotations(), 5, 3), {}


@example("item", enum=True)
def annotation_mace() -> Built:
    def model(positions, annotations, annotators, classes):
        with numpyro.plate("annotator", annotators):
            epsilon = numpyro.sample("epsilon", dist.Dirichlet(jnp.full(classes, 10.0)))
            theta = numpyro.sample("theta", dist.Beta(0.5, 0.5))
        with numpyro.plate("item", annotations.shape[0], dim=-2):
            c = numpyro.sample("c", dist.DiscreteUniform(0, classes - 1))
            with numpyro.plate("position", annotations.shape[-1]):
                s = numpyro.sample("s", dist.Bernoulli(1 - theta[positions]))
                probs = jnp.where(s[..., None] == 0, jax.nn.one_hot(c, classes), epsilon[positions])
                numpyro.sample("y", dist.Categorical(probs), obs=annotations)

    return model, (*annotations(), 5, 3), {}


@example("item", enum=True)
def annotation_hierarchical_dawid_skene() -> Built:
    def model(positions, annotations, annotators, classes):
        with numpyro.plate("class", classes):
            zeta = numpyro.sample("zeta", dist.Normal(0, 1).expand([classes - 1]).to_event(1))
            omega = numpyro.sample("Omega", dist.HalfNormal(1).expand([classes - 1]).to_event(1))
        with numpyro.plate("annotator", annotators, dim=-2), numpyro.plate("class", classes):
            raw = numpyro.sample("beta", dist.Normal(zeta, omega).to_event(1))
        beta = jnp.pad(raw, [(0, 0)] * (jnp.ndim(raw) - 1) + [(0, 1)])
        pi = numpyro.sample("pi", dist.Dirichlet(jnp.ones(classes)))
        with numpyro.plate("item", annotations.shape[0], dim=-2):
            c = numpyro.sample("c", dist.Categorical(pi))
            with numpyro.plate("position", annotations.shape[-1]):
                logits = beta[positions, c, :]
                numpyro.sample("y", dist.Categorical(logits=logits), obs=annotations)

    return model, (*annotations(), 5, 3), {}


@example()
def mortality() -> Built:
    def model(age, area, population, deaths, lookup, num_ages, num_areas, num_regions):
        beta = numpyro.sample("beta", dist.Normal(-4, 1))
        sigma = numpyro.sample("sigma", dist.HalfNormal(1).expand([2]).to_event(1))
        with numpyro.plate("ages", num_ages):
            a = numpyro.sample("alpha_age", dist.Normal(0, 1))
        with numpyro.plate("regions", num_regions):
            r = numpyro.sample("alpha_region", dist.Normal(0, sigma[0]))
        with numpyro.plate("areas", num_areas):
            s = numpyro.sample("alpha_area", dist.Normal(r[lookup], sigma[1]))
        with numpyro.plate("N", deaths.shape[0]):
            mu = jnp.exp(beta + a[age] + s[area])
            numpyro.sample("deaths", dist.Poisson(population * mu), obs=deaths)

    lookup = public(np.array([0, 0, 1, 1, 2]))
    population = rng().uniform(50, 100, N)
    return model, (labels(4), labels(5), population, counts(), lookup, 4, 5, 3), {}


def sequences() -> tuple[np.ndarray, np.ndarray]:
    generator = rng()
    return generator.integers(0, 2, (N, 4, 3)), generator.integers(2, 5, N)


def hidden_markov(order: int):
    """Variants 1, 2 and 3 of hmm_enum: emissions that look back, or a factorial chain."""

    def model(sequences, lengths, hidden, tones):
        probs_x = numpyro.sample("probs_x", dist.Dirichlet(jnp.ones((hidden, hidden))).to_event(1))
        shape = (hidden, tones) if order == 1 else (hidden, 2, tones)
        probs_y = numpyro.sample("probs_y", dist.Beta(1.5, 1.5).expand(shape).to_event(len(shape)))
        size = sequences.shape[0]

        def transition(carry, y_t):
            x, before, t = carry
            active = (t < lengths)[..., None]
            with numpyro.plate("sequences", size, dim=-2), handlers.mask(mask=active):
                x = numpyro.sample("x", dist.Categorical(probs_x[x]))
                with numpyro.plate("tones", tones, dim=-1):
                    tone = jnp.arange(tones)
                    chosen = probs_y[x, tone] if order == 1 else probs_y[x, before, tone]
                    numpyro.sample("y", dist.Bernoulli(chosen), obs=y_t)
            return (x, y_t, t + 1), None

        start = (jnp.zeros((size, 1), jnp.int32), jnp.zeros((size, tones), jnp.int32), 0)
        scan(transition, start, jnp.swapaxes(sequences, 0, 1))

    return model


@example("sequences", enum=True)
def hmm_enum_1() -> Built:
    return hidden_markov(1), (*sequences(), 2, 3), {}


@example("sequences", enum=True)
def hmm_enum_2() -> Built:
    return hidden_markov(2), (*sequences(), 2, 3), {}


def capture_history() -> np.ndarray:
    history = rng().integers(0, 2, (N, 4))
    history[:, 0] = 1
    return history


def capture_recapture(survival, capture):
    """Animals alive or dead, seen or not; ``survival`` and ``capture`` give the probabilities."""

    def model(history, sex, options):
        phi_of, rho_of = survival(options), capture(options)

        def transition(carry, y_t):
            first, z, t = carry
            with numpyro.plate("animals", history.shape[0], dim=-1), handlers.mask(mask=first):
                alive = z * phi_of(t, sex)
                z = numpyro.sample("z", dist.Bernoulli(dist.util.clamp_probs(alive)))
                seen = dist.Bernoulli(dist.util.clamp_probs(rho_of(t, sex) * z))
                numpyro.sample("y", seen, obs=y_t)
            return (first | (y_t == 1), z, t + 1), None

        n = history.shape[0]
        start = (history[:, 0] == 1, jnp.ones(n, jnp.int32), 0)
        scan(transition, start, jnp.swapaxes(history[:, 1:], 0, 1))

    return model


def constant(name):
    def build(options):
        p = numpyro.sample(name, dist.Uniform(0.0, 1.0))
        return lambda t, sex: p

    return build


def by_time(name):
    def build(options):
        with numpyro.plate(f"{name}_times", options["intervals"]):
            p = numpyro.sample(name, dist.Uniform(0.0, 1.0))
        return lambda t, sex: p[t]

    return build


def by_sex(name):
    def build(options):
        p = numpyro.sample(name, dist.Uniform(0.0, 1.0).expand([2]).to_event(1))
        return lambda t, sex: p[sex]

    return build


def smooth_in_time(name):
    def build(options):
        mean = numpyro.sample(f"{name}_logit_mean", dist.Normal(0, 1))
        with numpyro.plate(f"{name}_times", options["intervals"]):
            shift = numpyro.sample(f"{name}_logit", dist.Normal(0, 1))
        return lambda t, sex: jax.nn.sigmoid(mean + shift[t])

    return build


def animals() -> tuple[Any, ...]:
    return capture_history(), binary(), {"intervals": 3}


@example(enum=True)
def capture_recapture_1() -> Built:
    return capture_recapture(constant("phi"), constant("rho")), animals(), {}


@example(enum=True)
def capture_recapture_2() -> Built:
    return capture_recapture(by_time("phi"), constant("rho")), animals(), {}


@example(enum=True)
def capture_recapture_3() -> Built:
    return capture_recapture(smooth_in_time("phi"), constant("rho")), animals(), {}


@example(enum=True)
def capture_recapture_4() -> Built:
    return capture_recapture(by_sex("phi"), constant("rho")), animals(), {}


@example(enum=True)
def capture_recapture_5() -> Built:
    return capture_recapture(by_time("phi"), by_time("rho")), animals(), {}


@example(subsampled=True)
def stein_bnn() -> Built:
    def model(x, y, hidden, subsample_size):
        precision = numpyro.sample("prec", dist.Gamma(1.0, 0.1))
        w1 = numpyro.sample("w1", dist.Normal(0, precision**-0.5).expand([D, hidden]).to_event(2))
        b1 = numpyro.sample("b1", dist.Normal(0, 1).expand([hidden]).to_event(1))
        w2 = numpyro.sample("w2", dist.Normal(0, precision**-0.5).expand([hidden]).to_event(1))
        noise = numpyro.sample("prec_obs", dist.Gamma(1.0, 0.1))
        with numpyro.plate("data", x.shape[0], subsample_size=subsample_size):
            batch = numpyro.subsample(x, event_dim=1)
            loc = jnp.maximum(batch @ w1 + b1, 0) @ w2
            numpyro.sample("y", dist.Normal(loc, noise**-0.5), obs=numpyro.subsample(y, 0))

    return model, (design(), real(), 5, 8), {}


@example()
def ssbvm_mixture_angles() -> Built:
    def model(angles, parts):
        weights = numpyro.sample("mix_weights", dist.Dirichlet(jnp.ones(parts)))
        with numpyro.plate("parts", parts):
            mean = numpyro.sample("mean", dist.VonMises(0.0, 2.0))
            kappa = numpyro.sample("kappa", dist.HalfNormal(1.0))
        with numpyro.plate("obs_plate", angles.shape[0]):
            mixture = dist.MixtureSameFamily(
                dist.Categorical(weights), dist.VonMises(mean, 0.5 + kappa)
            )
            numpyro.sample("phi_psi", mixture, obs=angles)

    return model, (rng().uniform(-3, 3, N), 2), {}


# --- refused, each for a real reason


@refused_example("continuous latent site.s. `phi` inside plate", "DPSVI")
def baseball_not_pooled() -> Built:
    def model(at_bats, hits):
        with numpyro.plate("num_players", at_bats.shape[0]):
            phi = numpyro.sample("phi", dist.Uniform(0, 1))
            numpyro.sample("obs", dist.Binomial(at_bats, probs=phi), obs=hits)

    return model, (at_bats(), counts()), {}


@refused_example("continuous latent site.s. `phi` inside plate", "DPSVI")
def baseball_partially_pooled() -> Built:
    def model(at_bats, hits):
        m = numpyro.sample("m", dist.Uniform(0, 1))
        kappa = numpyro.sample("kappa", dist.Pareto(1, 1.5))
        with numpyro.plate("num_players", at_bats.shape[0]):
            phi = numpyro.sample("phi", dist.Beta(m * kappa, (1 - m) * kappa))
            numpyro.sample("obs", dist.Binomial(at_bats, probs=phi), obs=hits)

    return model, (at_bats(), counts()), {}


@refused_example("no plate encloses observed site")
def ar2_for_loop() -> Built:
    def model(y):
        a = numpyro.sample("a", dist.Normal(0, 1).expand([2]).to_event(1))
        for t in range(2, len(y)):
            loc = a[0] * y[t - 1] + a[1] * y[t - 2]
            numpyro.sample(f"y_{t}", dist.Normal(loc, 1.0), obs=y[t])

    return model, (real(),), {}


@refused_example("`s` have an entry for each of 24 records", "random walk")
def stochastic_volatility() -> Built:
    def model(returns):
        step = numpyro.sample("sigma", dist.Exponential(50.0))
        s = numpyro.sample("s", dist.GaussianRandomWalk(scale=step, num_steps=returns.shape[0]))
        nu = numpyro.sample("nu", dist.Exponential(0.1))
        numpyro.sample("r", dist.StudentT(nu, 0.0, jnp.exp(s)).to_event(1), obs=returns)

    return model, (real(),), {}


@refused_example("`Y` is one joint event of 24 records", "Gaussian process")
def gaussian_process() -> Built:
    def model(x, y):
        var = numpyro.sample("kernel_var", dist.LogNormal(0.0, 10.0))
        k = var * jnp.exp(-0.5 * (x[:, None] - x) ** 2) + 0.1 * jnp.eye(x.shape[0])
        numpyro.sample("Y", dist.MultivariateNormal(jnp.zeros(x.shape[0]), k), obs=y)

    return model, (real(), real()), {}
