"""Models that the wall must split exactly, written the way NumPyro users write them.

Every builder returns ``(model, args, kwargs)`` on ``N`` made-up records. Each model is checked
against ``numpyro.infer.util.potential_energy``, which knows nothing of records.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro import handlers
from numpyro.contrib.control_flow import scan
from numpyro.infer.reparam import LocScaleReparam, TransformReparam

import numpyro_dp.model.records as records

N, D = 24, 3
Built = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class Case:
    """A model of the zoo; ``enum`` marks discrete latents, ``quick`` the default test run."""

    name: str
    build: Callable[[], Built]
    data_plate: str | None = None
    enum: bool = False
    quick: bool = False
    subsampled: bool = False
    dropped: tuple[str, ...] = ()
    # Gradient bound in units of the common one; only with agreement shown in double precision.
    rounding: float = 1.0


ACCEPTED: list[Case] = []


def accepted(
    data_plate: str | None = None,
    *,
    enum: bool = False,
    quick: bool = False,
    subsampled: bool = False,
    dropped: tuple[str, ...] = (),
    rounding: float = 1.0,
) -> Callable[[Callable[[], Built]], Callable[[], Built]]:
    """Enter a builder in the list of accepted models."""

    def enter(build: Callable[[], Built]) -> Callable[[], Built]:
        flags = (enum, quick, subsampled)
        ACCEPTED.append(Case(build.__name__, build, data_plate, *flags, dropped, rounding))
        return build

    return enter


def rng() -> np.random.Generator:
    return np.random.default_rng(20240229)


def design() -> np.ndarray:
    return rng().normal(size=(N, D))


def real() -> np.ndarray:
    return rng().normal(size=N) + 0.3


def binary() -> np.ndarray:
    return rng().integers(0, 2, N)


def counts() -> np.ndarray:
    return rng().poisson(3.0, N)


def labels(k: int) -> np.ndarray:
    return rng().integers(0, k, N)


def coefficients(dim: int = D) -> Any:
    return numpyro.sample("w", dist.Normal(0, 1).expand([dim]).to_event(1))


# --- generalised linear models, and every way of saying how many records there are


@accepted(quick=True)
def normal() -> Built:
    def model(x, y):
        w = coefficients(x.shape[-1])
        b = numpyro.sample("b", dist.Cauchy(0, 2.0))
        sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Normal(x @ w + b, sigma), obs=y)

    return model, (design(), real()), {}


@accepted(quick=True)
def logistic() -> Built:
    def model(x, y=None):
        w = coefficients(x.shape[-1])
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)

    return model, (design(),), {"y": binary()}


@accepted()
def size_is_an_argument() -> Built:
    def model(n, x, y):
        w = coefficients()
        with numpyro.plate("data", n):
            numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)

    return model, (N, design(), binary()), {}


@accepted()
def size_is_a_closure() -> Built:
    def model(x, y):
        w = coefficients()
        with numpyro.plate("data", N):
            numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)

    return model, (design(), binary()), {}


@accepted(quick=True, subsampled=True)
def subsampled_by_index() -> Built:
    def model(x, y):
        w = coefficients()
        with numpyro.plate("data", x.shape[0], subsample_size=5) as ind:
            numpyro.sample("y", dist.Bernoulli(logits=x[ind] @ w), obs=y[ind])

    return model, (design(), binary()), {}


@accepted(subsampled=True)
def subsampled_by_statement() -> Built:
    def model(x, y):
        w = coefficients()
        with numpyro.plate("data", x.shape[0], subsample_size=5):
            batch = numpyro.subsample(x, event_dim=1)
            numpyro.sample(
                "y", dist.Bernoulli(logits=batch @ w), obs=numpyro.subsample(y, event_dim=0)
            )

    return model, (design(), binary()), {}


@accepted()
def subsample_statement_without_subsampling() -> Built:
    def model(x, y):
        w = coefficients()
        with numpyro.plate("data", N):
            numpyro.sample(
                "y",
                dist.Bernoulli(logits=numpyro.subsample(x, event_dim=1) @ w),
                obs=numpyro.subsample(y, event_dim=0),
            )

    return model, (design(), binary()), {}


@accepted(quick=True)
def poisson() -> Built:
    def model(x, y):
        w = coefficients()
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Poisson(jnp.exp(0.3 * (x @ w))), obs=y)

    return model, (design(), counts()), {}


@accepted()
def negative_binomial() -> Built:
    def model(x, y):
        w = coefficients()
        phi = numpyro.sample("phi", dist.Gamma(2.0, 1.0))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.NegativeBinomial2(jnp.exp(0.3 * (x @ w)), phi), obs=y)

    return model, (design(), counts()), {}


@accepted()
def binomial_with_totals() -> Built:
    def model(x, total, y):
        w = coefficients()
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Binomial(total, logits=x @ w), obs=y)

    return model, (design(), counts() + 3, counts()), {}


@accepted()
def student_t() -> Built:
    def model(x, y):
        w = coefficients()
        nu = numpyro.sample("nu", dist.Gamma(2.0, 0.1))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.StudentT(nu, x @ w, 1.0), obs=y)

    return model, (design(), real()), {}


@accepted()
def beta_outcome() -> Built:
    def model(x, y):
        w = coefficients()
        kappa = numpyro.sample("kappa", dist.InverseGamma(3.0, 10.0))
        with numpyro.plate("data", x.shape[0]):
            mean = jax.nn.sigmoid(x @ w)
            numpyro.sample("y", dist.Beta(1 + mean * kappa, 1 + (1 - mean) * kappa), obs=y)

    return model, (design(), rng().uniform(0.1, 0.9, N)), {}


@accepted()
def gamma_outcome() -> Built:
    def model(x, y):
        w = coefficients()
        shape = numpyro.sample("shape", dist.LogNormal(0.0, 0.5))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Gamma(shape, jnp.exp(-0.3 * (x @ w))), obs=y)

    return model, (design(), rng().gamma(2.0, 1.0, N)), {}


@accepted()
def weibull_survival_by_where() -> Built:
    def model(x, time, event):
        w = coefficients()
        k = numpyro.sample("k", dist.LogNormal(0.0, 0.3))
        with numpyro.plate("data", x.shape[0]):
            scale = jnp.exp(0.2 * (x @ w))
            hazard = jnp.log(k / scale) + (k - 1) * jnp.log(time / scale)
            numpyro.factor("life", jnp.where(event, hazard, 0.0) - (time / scale) ** k)

    return model, (design(), rng().weibull(1.5, N) + 0.1, binary() == 1), {}


@accepted()
def von_mises() -> Built:
    def model(angle):
        mean = numpyro.sample("mean", dist.VonMises(0.0, 1.0))
        kappa = numpyro.sample("kappa", dist.HalfCauchy(1.0))
        with numpyro.plate("data", angle.shape[0]):
            numpyro.sample("angle", dist.VonMises(mean, kappa), obs=angle)

    return model, (rng().uniform(-3, 3, N),), {}


@accepted()
def heteroscedastic() -> Built:
    def model(x, y):
        w = coefficients()
        v = numpyro.sample("v", dist.Normal(0, 0.3).expand([D]).to_event(1))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Normal(x @ w, jnp.exp(x @ v)), obs=y)

    return model, (design(), real()), {}


# --- categories, ranks, vectors


@accepted()
def softmax_regression() -> Built:
    def model(x, y):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([D, 4]).to_event(2))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Categorical(logits=x @ w), obs=y)

    return model, (design(), labels(4)), {}


@accepted()
def ordinal() -> Built:
    def model(x, y):
        w = coefficients()
        cuts = numpyro.sample(
            "cuts",
            dist.TransformedDistribution(
                dist.Normal(0, 2).expand([3]).to_event(1), dist.transforms.OrderedTransform()
            ),
        )
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.OrderedLogistic(x @ w, cuts), obs=y)

    return model, (design(), labels(4)), {}


@accepted()
def multivariate_normal_outcome() -> Built:
    def model(y):
        mean = numpyro.sample("mean", dist.Normal(0, 1).expand([D]).to_event(1))
        scale = numpyro.sample("scale", dist.HalfNormal(1.0).expand([D]).to_event(1))
        factor = numpyro.sample("factor", dist.LKJCholesky(D, 2.0))
        with numpyro.plate("data", y.shape[0]):
            numpyro.sample(
                "y", dist.MultivariateNormal(mean, scale_tril=scale[:, None] * factor), obs=y
            )

    return model, (design(),), {}


@accepted()
def dirichlet_outcome() -> Built:
    def model(y):
        a = numpyro.sample("a", dist.Gamma(2.0, 1.0).expand([D]).to_event(1))
        with numpyro.plate("data", y.shape[0]):
            numpyro.sample("y", dist.Dirichlet(a), obs=y)

    return model, (rng().dirichlet([2.0, 3.0, 4.0], N),), {}


@accepted()
def categorical_with_dirichlet_prior() -> Built:
    def model(y):
        p = numpyro.sample("p", dist.Dirichlet(jnp.ones(5)))
        with numpyro.plate("data", y.shape[0]):
            numpyro.sample("y", dist.Categorical(p), obs=y)

    return model, (labels(5),), {}


@accepted()
def multinomial_rows() -> Built:
    def model(y):
        p = numpyro.sample("p", dist.Dirichlet(jnp.array([1.0, 2.0, 3.0])))
        with numpyro.plate("data", y.shape[0]):
            numpyro.sample("y", dist.Multinomial(10, p), obs=y)

    return model, (rng().multinomial(10, [0.2, 0.3, 0.5], N),), {}


@accepted()
def pairwise_comparisons() -> Built:
    def model(left, right, won):
        skill = numpyro.sample("skill", dist.Normal(0, 1).expand([50]).to_event(1))
        with numpyro.plate("games", left.shape[0]):
            numpyro.sample("won", dist.Bernoulli(logits=skill[left] - skill[right]), obs=won)

    return model, (labels(50), (labels(50) + 7) % 50, binary()), {}


@accepted()
def plackett_luce_ranks() -> Built:
    def model(ranking):
        theta = numpyro.sample("theta", dist.Normal(0, 1).expand([6]).to_event(1))
        with numpyro.plate("voters", ranking.shape[0]):
            ordered = theta[ranking]
            rest = jax.lax.cumlogsumexp(ordered, axis=ordered.ndim - 1, reverse=True)
            numpyro.factor("rank", jnp.sum(ordered - rest, -1))

    draw = rng()
    ranking = np.stack([draw.permutation(6) for _ in range(N)])
    return model, (ranking,), {}


# --- hierarchies


@accepted()
def counties() -> Built:
    def model(county, floor, y, num_counties):
        mu = numpyro.sample("mu", dist.Normal(0, 5))
        tau = numpyro.sample("tau", dist.HalfCauchy(1))
        slope = numpyro.sample("slope", dist.Normal(0, 1))
        with numpyro.plate("counties", num_counties):
            a = numpyro.sample("a", dist.Normal(mu, tau))
        with numpyro.plate("data", y.shape[0]):
            numpyro.sample("y", dist.Normal(a[county] + slope * floor, 1.0), obs=y)

    return model, (labels(6), binary(), real(), 6), {}


@accepted()
def random_slopes_lkj() -> Built:
    def model(group, x, y):
        scale = numpyro.sample("scale", dist.HalfNormal(1).expand([2]).to_event(1))
        corr = numpyro.sample("corr", dist.LKJCholesky(2, 1.0))
        with numpyro.plate("groups", 5):
            b = numpyro.sample(
                "b", dist.MultivariateNormal(jnp.zeros(2), scale_tril=scale[:, None] * corr)
            )
        with numpyro.plate("data", y.shape[0]):
            numpyro.sample("y", dist.Normal(b[group, 0] + b[group, 1] * x, 0.5), obs=y)

    return model, (labels(5), real(), real()), {}


@accepted(quick=True, dropped=("mu",))
def horseshoe_with_deterministics() -> Built:
    def model(x, y):
        tau = numpyro.sample("tau", dist.HalfCauchy(1))
        lam = numpyro.sample("lam", dist.HalfCauchy(1).expand([D]).to_event(1))
        z = numpyro.sample("z", dist.Normal(0, 1).expand([D]).to_event(1))
        w = numpyro.deterministic("w", tau * lam * z)
        numpyro.deterministic("shrink", 1 / (1 + lam**2))
        mu = numpyro.deterministic("mu", x @ w)
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)

    return model, (design(), real()), {}


@accepted()
def non_centred_by_reparam() -> Built:
    def model(group, y):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        tau = numpyro.sample("tau", dist.HalfNormal(1))
        with numpyro.plate("groups", 4):
            a = numpyro.sample("a", dist.Normal(mu, tau))
        with numpyro.plate("data", y.shape[0]):
            numpyro.sample("y", dist.Normal(a[group], 1.0), obs=y)

    return handlers.reparam(model, config={"a": LocScaleReparam(0)}), (labels(4), real()), {}


@accepted()
def transform_reparam() -> Built:
    def model(y):
        with handlers.reparam(config={"a": TransformReparam()}):
            a = numpyro.sample(
                "a",
                dist.TransformedDistribution(
                    dist.Normal(0, 1), dist.transforms.AffineTransform(1.0, 3.0)
                ),
            )
        with numpyro.plate("data", y.shape[0]):
            numpyro.sample("y", dist.Normal(a, 1.0), obs=y)

    return model, (real(),), {}


@accepted()
def scoped() -> Built:
    def inner(y):
        m = numpyro.sample("m", dist.Normal(0, 1))
        with numpyro.plate("data", N):
            numpyro.sample("y", dist.Normal(m, 1.0), obs=y)

    return handlers.scope(inner, prefix="part"), (real(),), {}


# --- mixtures and discrete latents


@accepted()
def mixture_marginal() -> Built:
    def model(y):
        p = numpyro.sample("p", dist.Dirichlet(jnp.ones(2)))
        loc = numpyro.sample("loc", dist.Normal(0, 2).expand([2]).to_event(1))
        with numpyro.plate("data", y.shape[0]):
            mixture = dist.MixtureSameFamily(dist.Categorical(p), dist.Normal(loc, 1.0))
            numpyro.sample("y", mixture, obs=y)

    return model, (real(),), {}


@accepted(enum=True, quick=True)
def mixture_enumerated() -> Built:
    def model(y):
        p = numpyro.sample("p", dist.Dirichlet(jnp.ones(2)))
        with numpyro.plate("parts", 2):
            loc = numpyro.sample("loc", dist.Normal(0, 2))
        with numpyro.plate("data", y.shape[0]):
            k = numpyro.sample("k", dist.Categorical(p))
            numpyro.sample("y", dist.Normal(loc[k], 1.0), obs=y)

    return model, (real(),), {}


@accepted(enum=True, subsampled=True)
def mixture_enumerated_and_subsampled() -> Built:
    def model(y):
        p = numpyro.sample("p", dist.Dirichlet(jnp.ones(2)))
        loc = numpyro.sample("loc", dist.Normal(0, 2).expand([2]).to_event(1))
        with numpyro.plate("data", N, subsample_size=6) as ind:
            k = numpyro.sample("k", dist.Categorical(p), infer={"enumerate": "parallel"})
            numpyro.sample("y", dist.Normal(loc[k], 1.0), obs=y[ind])

    return model, (real(),), {}


@accepted(enum=True)
def mixture_multivariate() -> Built:
    def model(y):
        p = numpyro.sample("p", dist.Dirichlet(jnp.ones(3)))
        loc = numpyro.sample("loc", dist.Normal(0, 2).expand([3, D]).to_event(2))
        with numpyro.plate("data", y.shape[0]):
            k = numpyro.sample("k", dist.Categorical(p))
            numpyro.sample("y", dist.Normal(loc[k], 1.0).to_event(1), obs=y)

    return model, (design(),), {}


# 168 enumerated words: 4e-6 apart in single precision, 1e-14 in double.
@accepted("docs", enum=True, rounding=4.0)
def topics() -> Built:
    def model(words):
        with numpyro.plate("topics", 2):
            topic = numpyro.sample("topic", dist.Dirichlet(jnp.ones(5)))
        share = numpyro.sample("share", dist.Dirichlet(jnp.ones(2)))
        with (
            numpyro.plate("docs", words.shape[0], dim=-2),
            numpyro.plate("words", words.shape[1], dim=-1),
        ):
            z = numpyro.sample("z", dist.Categorical(share))
            numpyro.sample("w", dist.Categorical(topic[z]), obs=words)

    return model, (rng().integers(0, 5, (N, 7)),), {}


@accepted(enum=True)
def hidden_markov_chain_within_a_record() -> Built:
    def model(y):
        probs = numpyro.sample("probs", dist.Dirichlet(jnp.ones((2, 2))).to_event(1))
        loc = numpyro.sample("loc", dist.Normal(0, 2).expand([2]).to_event(1))

        def step(state, y_t):
            with numpyro.plate("data", y.shape[0], dim=-1):
                state = numpyro.sample("state", dist.Categorical(probs[state]))
                numpyro.sample("y", dist.Normal(loc[state], 1.0), obs=y_t)
            return state, None

        scan(step, jnp.zeros(y.shape[0], jnp.int32), jnp.swapaxes(y, 0, 1))

    return model, (rng().normal(size=(N, 5)),), {}


@accepted(enum=True)
def two_discrete_sites() -> Built:
    def model(x, y):
        p = numpyro.sample("p", dist.Beta(2, 2))
        w = coefficients()
        with numpyro.plate("data", x.shape[0]):
            flipped = numpyro.sample("flipped", dist.Bernoulli(p))
            shifted = numpyro.sample("shifted", dist.Bernoulli(0.3))
            loc = (x @ w) * (1 - 2 * flipped) + shifted
            numpyro.sample("y", dist.Normal(loc, 1.0), obs=y)

    return model, (design(), real()), {}


@accepted()
def zero_inflated() -> Built:
    def model(x, y):
        gate = numpyro.sample("gate", dist.Beta(1, 3))
        w = coefficients()
        with numpyro.plate("data", x.shape[0]):
            rate = jnp.exp(0.3 * (x @ w))
            numpyro.sample("y", dist.ZeroInflatedPoisson(gate, rate=rate), obs=y)

    return model, (design(), counts()), {}


# --- plates, masks, scales, factors


@accepted("users", quick=True)
def users_with_repeats() -> Built:
    def model(y, seen):
        m = numpyro.sample("m", dist.Normal(0, 1))
        with (
            numpyro.plate("users", y.shape[0], dim=-2),
            numpyro.plate("visits", y.shape[1], dim=-1),
            handlers.mask(mask=seen),
        ):
            numpyro.sample("y", dist.Normal(m, 1.0), obs=y)

    return model, (rng().normal(size=(N, 5)), rng().random((N, 5)) < 0.8), {}


@accepted("users")
def repeats_outside_users() -> Built:
    def model(y):
        with numpyro.plate("visits", y.shape[1], dim=-1):
            m = numpyro.sample("m", dist.Normal(0, 1))
            with numpyro.plate("users", y.shape[0], dim=-2):
                numpyro.sample("y", dist.Normal(m, 1.0), obs=y)

    return model, (rng().normal(size=(N, 5)),), {}


@accepted()
def masked() -> Built:
    def model(x, y, known):
        w = coefficients()
        with numpyro.plate("data", x.shape[0]), handlers.mask(mask=known):
            numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)

    return model, (design(), real(), binary() == 1), {}


@accepted(quick=True)
def weighted_records() -> Built:
    def model(x, y, weight):
        w = coefficients()
        with numpyro.plate("data", x.shape[0]), handlers.scale(scale=weight):
            numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)

    return model, (design(), real(), rng().uniform(0.5, 2.0, N)), {}


@accepted(subsampled=True)
def outer_scale() -> Built:
    def model(x, y):
        w = coefficients()
        with numpyro.plate("data", x.shape[0], subsample_size=7) as ind:
            numpyro.sample("y", dist.Normal(x[ind] @ w, 1.0), obs=y[ind])

    return handlers.scale(model, scale=0.25), (design(), real()), {}


@accepted()
def two_sites_one_scaled() -> Built:
    def model(x, y, c):
        w = coefficients()
        with numpyro.plate("data", N) as ind:
            numpyro.sample("y", dist.Normal(x[ind] @ w, 1.0), obs=y[ind])
            with handlers.scale(scale=0.5):
                numpyro.sample("c", dist.Poisson(jnp.exp(0.2 * (x[ind] @ w))), obs=c[ind])

    return model, (design(), real(), counts()), {}


@accepted()
def one_plate_entered_twice() -> Built:
    def model(x, y, c):
        w = coefficients()
        people = numpyro.plate("people", x.shape[0])
        with people:
            numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)
        with people:
            numpyro.sample("c", dist.Bernoulli(logits=x @ w), obs=c)

    return model, (design(), real(), binary()), {}


@accepted()
def factor_in_the_plate() -> Built:
    def model(x, y):
        w = coefficients()
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)
            numpyro.factor("huber", -0.1 * jnp.abs(y - x @ w))

    return model, (design(), real()), {}


@accepted(quick=True)
def penalties_outside_the_plate() -> Built:
    def model(x, y):
        w = coefficients()
        numpyro.factor("ridge", -0.5 * jnp.sum(w**2))
        numpyro.sample("soft", dist.Normal(jnp.sum(w), 0.1), obs=0.0)
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)

    return model, (design(), real()), {}


# --- supports, improper priors, sizes in the prior


@accepted(quick=True)
def prior_and_support_use_the_number_of_records() -> Built:
    def model(x, y):
        n = x.shape[0]
        w = numpyro.sample("w", dist.Normal(0, 1 / np.sqrt(n)).expand([D]).to_event(1))
        u = numpyro.sample("u", dist.Uniform(0, n))
        with numpyro.plate("data", n):
            numpyro.sample("y", dist.Normal(x @ w + u, 1.0), obs=y)

    return model, (design(), real()), {}


@accepted()
def improper() -> Built:
    def model(x, y):
        w = numpyro.sample("w", dist.ImproperUniform(dist.constraints.real, (), (D,)))
        s = numpyro.sample("s", dist.ImproperUniform(dist.constraints.positive, (), ()))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Normal(x @ w, s), obs=y)

    return model, (design(), real()), {}


@accepted()
def bounded_latents() -> Built:
    def model(y):
        low = numpyro.sample("low", dist.Uniform(-2, 0))
        high = numpyro.sample("high", dist.TruncatedNormal(low + 1.0, 1.0, low=1.0))
        with numpyro.plate("data", y.shape[0]):
            numpyro.sample("y", dist.Normal(low + high, 1.0), obs=y)

    return model, (real(),), {}


@accepted()
def support_depends_on_a_latent() -> Built:
    def model(y):
        width = numpyro.sample("width", dist.Gamma(3.0, 1.0))
        u = numpyro.sample("u", dist.Uniform(0, width))
        with numpyro.plate("data", y.shape[0]):
            numpyro.sample("y", dist.Normal(u, 1.0), obs=y)

    return model, (real(),), {}


# --- neural, sequential, structured arguments


@accepted()
def small_neural_network() -> Built:
    def model(x, y, hidden):
        w1 = numpyro.sample("w1", dist.Normal(0, 1).expand([D, hidden]).to_event(2))
        w2 = numpyro.sample("w2", dist.Normal(0, 1).expand([hidden]).to_event(1))
        precision = numpyro.sample("precision", dist.Gamma(3.0, 1.0))
        with numpyro.plate("data", x.shape[0]):
            f = jnp.tanh(x @ w1) @ w2
            numpyro.sample("y", dist.Normal(f, precision**-0.5), obs=y)

    return model, (design(), real(), 5), {}


@accepted()
def autoregression_within_a_record() -> Built:
    def model(y):
        rho = numpyro.sample("rho", dist.Uniform(-1, 1))
        with numpyro.plate("series", y.shape[0]):
            loc = jnp.pad(rho * y[..., :-1], ((0, 0), (1, 0)))
            numpyro.sample("y", dist.Normal(loc, 1.0).to_event(1), obs=y)

    return model, (rng().normal(size=(N, 6)),), {}


@accepted()
def lax_scan_within_a_record() -> Built:
    def model(y):
        decay = numpyro.sample("decay", dist.Beta(2, 2))
        level = jax.lax.scan(
            lambda c, v: ((1 - decay) * c + decay * v, c), jnp.zeros(y.shape[0]), y.T
        )[1]
        with numpyro.plate("series", y.shape[0]):
            numpyro.sample("y", dist.Normal(level.T, 1.0).to_event(1), obs=y)

    return model, (rng().normal(size=(N, 6)),), {}


@accepted()
def control_flow_scan_with_the_plate_in_its_body() -> Built:
    def model(y):
        rho = numpyro.sample("rho", dist.Uniform(-1, 1))

        def step(previous, y_t):
            with numpyro.plate("series", y.shape[0]):
                numpyro.sample("y", dist.Normal(rho * previous, 1.0), obs=y_t)
            return y_t, None

        scan(step, jnp.zeros(y.shape[0]), y.T)

    return model, (rng().normal(size=(N, 6)),), {}


@accepted()
def global_latents_in_a_scan() -> Built:
    def model(period, y):
        def step(level, _):
            level = numpyro.sample("level", dist.Normal(level, 0.5))
            return level, level

        _, levels = scan(step, 0.0, None, length=4)
        with numpyro.plate("data", y.shape[0]):
            numpyro.sample("y", dist.Normal(levels[period], 1.0), obs=y)

    return model, (labels(4), real()), {}


@accepted()
def dictionary_arguments() -> Built:
    def model(data, *, options):
        w = coefficients()
        with numpyro.plate("data", data["x"].shape[0]):
            loc = data["x"] @ w + (options["shift"] if options["on"] else 0.0)
            numpyro.sample("y", dist.Normal(loc, 1.0), obs=data["more"][0])

    data = {"x": design(), "more": [real()]}
    return model, (data,), {"options": {"on": True, "shift": 0.5}}


@accepted(quick=True)
def public_lookup_table() -> Built:
    def model(age, table, y):
        slope = numpyro.sample("slope", dist.Normal(0, 1))
        with numpyro.plate("data", y.shape[0]):
            numpyro.sample("y", dist.Normal(slope * table[age], 1.0), obs=y)

    table = records.public(jnp.linspace(0, 1, N))
    return model, (labels(N), table, real()), {}


@accepted()
def public_spline_knots() -> Built:
    def model(x, knots, y):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([len(knots)]).to_event(1))
        basis = jnp.maximum(x[..., None] - jnp.asarray(np.sort(knots)), 0.0)
        with numpyro.plate("data", y.shape[0]):
            numpyro.sample("y", dist.Normal(basis @ w, 1.0), obs=y)

    return model, (real(), records.public(np.array([-1.0, 1.0, 0.0])), real()), {}


@accepted()
def partial_with_public_options() -> Built:
    def model(x, y, *, link):
        w = coefficients()
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Bernoulli(link(x @ w)), obs=y)

    return functools.partial(model, link=jax.nn.sigmoid), (design(), binary()), {}


@accepted(dropped=("fitted", "average"))
def deterministics_of_records_are_dropped() -> Built:
    def model(x, y):
        w = coefficients()
        numpyro.deterministic("norm", jnp.sum(w**2))
        numpyro.deterministic("scaled", x.shape[0] * w[0])
        numpyro.deterministic("average", jnp.mean(y))
        with numpyro.plate("data", x.shape[0]):
            fitted = numpyro.deterministic("fitted", x @ w)
            numpyro.sample("y", dist.Normal(fitted, 1.0), obs=y)

    return model, (design(), real()), {}


@accepted()
def measurement_error() -> Built:
    def model(x, sd, y):
        a = numpyro.sample("a", dist.Normal(0, 1))
        b = numpyro.sample("b", dist.Normal(0, 1))
        with numpyro.plate("data", y.shape[0]):
            numpyro.sample("y", dist.Normal(a + b * x, jnp.sqrt(1.0 + b**2 * sd**2)), obs=y)

    return model, (real(), rng().uniform(0.1, 0.5, N), real()), {}


@accepted()
def censored() -> Built:
    def model(time, event):
        rate = numpyro.sample("rate", dist.Gamma(2.0, 2.0))
        with numpyro.plate("data", time.shape[0]):
            log_hazard = jnp.where(event, jnp.log(rate), 0.0)
            numpyro.sample("unit", dist.Unit(log_hazard - rate * time), obs=jnp.zeros(0))

    return model, (rng().exponential(1.0, N), binary() == 1), {}
