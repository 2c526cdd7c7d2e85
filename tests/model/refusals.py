"""Models that must be refused, each with the cause and the remedy its message has to give."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro import handlers
from numpyro.contrib.control_flow import scan

from .zoo import D, N, binary, coefficients, counts, design, labels, real, rng

Built = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class Refused:
    """A refused model and the regular expressions that its message must match, all of them."""

    name: str
    build: Callable[[], Built]
    patterns: tuple[str, ...]
    data_plate: str | None = None
    quick: bool = False


REFUSED: list[Refused] = []


def refused(
    *patterns: str, data_plate: str | None = None, quick: bool = False
) -> Callable[[Callable[[], Built]], Callable[[], Built]]:
    """Enter a builder in the list of refused models."""

    def enter(build: Callable[[], Built]) -> Callable[[], Built]:
        REFUSED.append(Refused(build.__name__, build, patterns, data_plate, quick))
        return build

    return enter


def regression(x, y, loc=lambda x, w: x @ w):
    w = coefficients()
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(loc(x, w), 1.0), obs=y)


# --- the plate


@refused(
    "no plate encloses observed site",
    "`y`",
    r'numpyro.plate\("data", x.shape\[0\]\)',
    quick=True,
)
def no_plate() -> Built:
    def model(x, y):
        numpyro.sample("y", dist.Normal(x @ coefficients(), 1.0), obs=y)

    return model, (design(), real()), {}


@refused("`users` .24.", "`visits` .5.", "data_plate=", quick=True)
def ambiguous_plates() -> Built:
    def model(y):
        m = numpyro.sample("m", dist.Normal(0, 1))
        with numpyro.plate("users", N, dim=-2), numpyro.plate("visits", 5, dim=-1):
            numpyro.sample("y", dist.Normal(m, 1.0), obs=y)

    return model, (rng().normal(size=(N, 5)),), {}


@refused(
    "cannot be traced",
    r"`x` .24, 3.",
    "`y` .23,.",
    "plain Python value",
    "rows are not aligned: `x` has 24, `y` 23",
    quick=True,
)
def one_outcome_short() -> Built:
    return regression, (design(), real()[:-1]), {}


@refused("does not take these arguments", "unexpected keyword argument 'secure'", quick=True)
def setting_among_the_arguments() -> Built:
    return regression, (design(), real()), {"secure": False}


@refused("names no plate", "`data`", data_plate="people")
def unknown_plate_name() -> Built:
    return regression, (design(), real()), {}


@refused("encloses no observed site", "`y`", data_plate="groups")
def named_plate_without_observations() -> Built:
    def model(group, y):
        with numpyro.plate("groups", 4):
            a = numpyro.sample("a", dist.Normal(0, 1))
        with numpyro.plate("data", y.shape[0]):
            numpyro.sample("y", dist.Normal(a[group], 1.0), obs=y)

    return model, (labels(4), real()), {}


@refused("no single plate", "`left`", "`right`", "one plate")
def two_plates_for_two_outcomes() -> Built:
    def model(y, c):
        m = numpyro.sample("m", dist.Normal(0, 1))
        with numpyro.plate("left", y.shape[0]):
            numpyro.sample("y", dist.Normal(m, 1.0), obs=y)
        with numpyro.plate("right", c.shape[0]):
            numpyro.sample("c", dist.Bernoulli(logits=m), obs=c)

    return model, (real(), binary()), {}


@refused("no observed site", "pass the outcome", quick=True)
def outcome_left_out() -> Built:
    return regression, (design(), None), {}


@refused("plate `visits` subsamples .2 of 5.", "only the private plate", data_plate="users")
def another_plate_subsamples() -> Built:
    def model(y):
        m = numpyro.sample("m", dist.Normal(0, 1))
        with (
            numpyro.plate("users", y.shape[0], dim=-2),
            numpyro.plate("visits", 5, subsample_size=2, dim=-1) as ind,
        ):
            numpyro.sample("y", dist.Normal(m, 1.0), obs=y[:, ind])

    return model, (rng().normal(size=(N, 5)),), {}


# --- the arguments


@refused(r"argument `z` \(3, 4\) has no record axis", r"numpyro_dp\.public\(z\)", quick=True)
def unknown_array() -> Built:
    def model(x, y, z):
        regression(x, y, lambda x, w: x @ w + z.sum())

    return model, (design(), real(), np.ones((3, 4))), {}


@refused(r"argument `x` \(3, 24\)", "axis 1 has that length", "transpose")
def records_on_the_last_axis() -> Built:
    def model(x, y):
        w = coefficients()
        with numpyro.plate("data", N):
            numpyro.sample("y", dist.Normal(w @ x, 1.0), obs=y)

    return model, (design().T, real()), {}


@refused(
    "argument `m` is an array scalar",
    "known without the records, or released before",
    "Python number",
    r"public\(m\)",
    "does not make it public",
    quick=True,
)
def array_scalar() -> Built:
    def model(x, y, m):
        regression(x, y, lambda x, w: x @ w + m)

    return model, (design(), real()), {"m": real().mean()}


@refused("argument `m` is an array scalar")
def jax_scalar() -> Built:
    def model(x, y, m):
        regression(x, y, lambda x, w: x @ w + m)

    return model, (design(), real(), jnp.mean(real())), {}


@refused(
    "argument `data` is a SimpleNamespace", "NumPy or JAX arrays", r"public\(data\)", quick=True
)
def opaque_object() -> Built:
    def model(data):
        regression(data.x, data.y)

    return model, (SimpleNamespace(x=design(), y=real()),), {}


@refused("argument `x` is an array of dtype <U5", "encode it as numbers")
def strings() -> Built:
    return regression, (np.array(["north"] * N), real()), {}


@refused("argument `y` is a masked array", "mask")
def masked_array() -> Built:
    return regression, (design(), np.ma.masked_array(real(), binary())), {}


@refused(r"argument `x` \(0, 3\) has no rows", "at least one record", quick=True)
def zero_rows() -> Built:
    return regression, (design()[:0], real()[:0]), {}


@refused("argument `y` holds a Python list with 24 entries", "NumPy or JAX array")
def list_of_numbers() -> Built:
    def model(x, y):
        regression(x, jnp.array(y))

    return model, (design(), real().tolist()), {}


@refused("no argument holds records", "not by a closure")
def no_arguments_at_all() -> Built:
    x, y = design(), real()
    return (lambda: regression(x, y)), (), {}


# --- what may not depend on records


@refused(
    "prior of latent site `w` depends on record argument", "`x`", "everyone's data", quick=True
)
def g_prior() -> Built:
    def model(x, y):
        w = numpyro.sample("w", dist.MultivariateNormal(jnp.zeros(D), precision_matrix=x.T @ x))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)

    return model, (design(), real()), {}


@refused("`f` have an entry for each of 24 records", "Gaussian process", "public basis functions")
def latent_gaussian_process() -> Built:
    def model(x, y):
        kernel = jnp.exp(-((x[:, None] - x) ** 2)) + 1e-3 * jnp.eye(x.shape[0])
        f = numpyro.sample("f", dist.MultivariateNormal(jnp.zeros(x.shape[0]), kernel))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Normal(f, 1.0), obs=y)

    return model, (real(), real()), {}


@refused("`y` is one joint event of 24 records", "Gaussian process", "hsgp")
def marginal_gaussian_process() -> Built:
    def model(x, y):
        length = numpyro.sample("length", dist.LogNormal(0, 1))
        kernel = jnp.exp(-((x[:, None] - x) ** 2) / length) + 0.1 * jnp.eye(x.shape[0])
        numpyro.sample("y", dist.MultivariateNormal(jnp.zeros(x.shape[0]), kernel), obs=y)

    return model, (real(), real()), {}


@refused(
    "support of latent site `u` depends on record argument", "`y`", "public bounds", quick=True
)
def data_dependent_support() -> Built:
    def model(y):
        u = numpyro.sample("u", dist.Uniform(0.0, 1.0 + jnp.max(y)))
        with numpyro.plate("data", y.shape[0]):
            numpyro.sample("y", dist.Normal(u, 1.0), obs=y)

    return model, (real(),), {}


@refused("`w` have an entry for each of 24 records", "public groups")
def prior_scale_of_length_n() -> Built:
    def model(weight, y):
        with numpyro.plate("coefficients", N):
            w = numpyro.sample("w", dist.Normal(0, weight))
        with numpyro.plate("data", y.shape[0]):
            numpyro.sample("y", dist.Normal(w.sum(), 1.0), obs=y)

    return model, (rng().uniform(1, 2, N), real()), {}


@refused("site `f` lies outside plate `data`", "`x`", "`y`", "move it into the plate", quick=True)
def factor_outside() -> Built:
    def model(x, y):
        w = coefficients()
        numpyro.factor("f", -jnp.sum((y - x @ w) ** 2))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)

    return model, (design(), real()), {}


@refused("site `average` lies outside plate `data`", "`y`")
def observed_mean_outside() -> Built:
    def model(y):
        m = numpyro.sample("m", dist.Normal(0, 1))
        numpyro.sample("average", dist.Normal(m, 0.1), obs=jnp.mean(y))
        with numpyro.plate("data", y.shape[0]):
            numpyro.sample("y", dist.Normal(m, 1.0), obs=y)

    return model, (real(),), {}


# --- latents


@refused(
    "continuous latent site.s. `e` inside plate `data`", "Integrate it out", "DPSVI", quick=True
)
def local_random_effect() -> Built:
    def model(y):
        with numpyro.plate("data", y.shape[0]):
            e = numpyro.sample("e", dist.Normal(0, 1))
            numpyro.sample("y", dist.Poisson(jnp.exp(e)), obs=y)

    return model, (counts(),), {}


@refused("discrete latent site `k` outside plate `data`", "relaxation")
def global_discrete() -> Built:
    def model(y):
        k = numpyro.sample("k", dist.Categorical(jnp.ones(3) / 3))
        loc = numpyro.sample("loc", dist.Normal(0, 1).expand([3]).to_event(1))
        with numpyro.plate("data", y.shape[0]):
            numpyro.sample("y", dist.Normal(loc[k], 1.0), obs=y)

    return model, (real(),), {}


@refused("discrete latent site `k` inside plate `data` has infinite support")
def local_poisson() -> Built:
    def model(y):
        rate = numpyro.sample("rate", dist.Gamma(1.0, 1.0))
        with numpyro.plate("data", y.shape[0]):
            k = numpyro.sample("k", dist.Poisson(rate))
            numpyro.sample("y", dist.Normal(k, 1.0), obs=y)

    return model, (real(),), {}


@refused("param site `b`", "give it a prior", "DPSVI")
def param_site() -> Built:
    def model(y):
        m = numpyro.sample("m", dist.Normal(0, 1))
        b = numpyro.param("b", 0.0)
        with numpyro.plate("data", y.shape[0]):
            numpyro.sample("y", dist.Normal(m + b, 1.0), obs=y)

    return model, (real(),), {}


@refused("`obs_mask` at site.s. `y`", "handlers.mask")
def obs_mask() -> Built:
    def model(y, known):
        m = numpyro.sample("m", dist.Normal(0, 1))
        with numpyro.plate("data", y.shape[0]):
            numpyro.sample("y", dist.Normal(m, 1.0), obs=y, obs_mask=known)

    return model, (real(), binary() == 1), {}


@refused("no continuous latent site", "numpyro.sample")
def nothing_to_learn() -> Built:
    def model(y):
        with numpyro.plate("data", y.shape[0]):
            numpyro.sample("y", dist.Normal(0.0, 1.0), obs=y)

    return model, (real(),), {}


# --- values, closures, randomness


@refused("looks at the values of its data", "np.unique", "Python numbers", quick=True)
def numpy_on_values() -> Built:
    def model(group, y):
        a = numpyro.sample("a", dist.Normal(0, 1).expand([len(np.unique(group))]).to_event(1))
        with numpyro.plate("data", y.shape[0]):
            numpyro.sample("y", dist.Normal(a[group], 1.0), obs=y)

    return model, (labels(4), real()), {}


@refused("looks at the values of its data", "if y.mean")
def branch_on_values() -> Built:
    def model(x, y):
        if y.mean() > 0:
            regression(x, y)
        else:
            regression(x, -y)

    return model, (design(), real()), {}


@refused("entries along plate `data` when run on one record", "not an argument", quick=True)
def closure_of_predictors() -> Built:
    x = jnp.asarray(design())

    def model(y):
        w = coefficients()
        with numpyro.plate("data", N):
            numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)

    return model, (real(),), {}


@refused(r"closes over an array \(24, 3\)", "pass it as an argument")
def closure_indexed_by_the_plate() -> Built:
    x = jnp.asarray(design())

    def model(y):
        w = coefficients()
        with numpyro.plate("data", N) as ind:
            numpyro.sample("y", dist.Normal(x[ind] @ w, 1.0), obs=y[ind])

    return model, (real(),), {}


@refused("looks at the values of its data", "closure")
def numpy_closure_indexed_by_the_plate() -> Built:
    x = design()

    def model(y):
        w = coefficients()
        with numpyro.plate("data", N) as ind:
            numpyro.sample("y", dist.Normal(x[ind] @ w, 1.0), obs=y[ind])

    return model, (real(),), {}


@refused("entries along plate `data` when run on one record")
def partial_over_predictors() -> Built:
    def model(x, y):
        w = coefficients()
        with numpyro.plate("data", N):
            numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)

    return functools.partial(model, design()), (), {"y": real()}


@refused("entries along plate `data` when run on one record")
def outcome_by_condition() -> Built:
    def model(x):
        w = coefficients()
        with numpyro.plate("data", N):
            numpyro.sample("y", dist.Normal(x @ w, 1.0))

    return handlers.condition(model, data={"y": jnp.asarray(real())}), (design(),), {}


@refused(r"closes over an array \(24,\)", "public")
def closure_in_the_prior() -> Built:
    other = jnp.asarray(real())

    def model(y):
        m = numpyro.sample("m", dist.Normal(other.mean(), 1))
        with numpyro.plate("data", y.shape[0]):
            numpyro.sample("y", dist.Normal(m, 1.0), obs=y)

    return model, (real(),), {}


@refused("draws random numbers", "latent site")
def dropout() -> Built:
    def model(x, y):
        keep = jax.random.bernoulli(numpyro.prng_key(), 0.5, (D,))
        regression(x, y, lambda x, w: (x * keep) @ w)

    return model, (design(), real()), {}


@refused("side effects", "jax.debug.print")
def prints_values() -> Built:
    def model(x, y):
        w = coefficients()
        with numpyro.plate("data", x.shape[0]):
            jax.debug.print("{}", y)
            numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)

    return model, (design(), real()), {}


# --- records that know of each other


@refused("not a sum over records", "site `y`", "other records", "public number", quick=True)
def batch_mean() -> Built:
    def model(x, y):
        regression(x, y, lambda x, w: (x - x.mean(0)) @ w)

    return model, (design(), real()), {}


@refused("not a sum over records")
def batch_standard_deviation() -> Built:
    def model(x, y):
        regression(x, y, lambda x, w: x / (1 + x.std(0)) @ w)

    return model, (design(), real()), {}


@refused("not a sum over records", "number of records")
def likelihood_uses_the_number_of_records() -> Built:
    def model(x, y):
        regression(x, y, lambda x, w: x @ w / x.shape[0])

    return model, (design(), real()), {}


@refused("not a sum over records")
def autoregression_over_records() -> Built:
    def model(y):
        rho = numpyro.sample("rho", dist.Uniform(-1, 1))
        with numpyro.plate("data", y.shape[0]):
            before = jnp.concatenate([jnp.zeros(1), y[:-1]])
            numpyro.sample("y", dist.Normal(rho * before, 1.0), obs=y)

    return model, (real(),), {}


@refused("`a` have an entry for each of 24 records", "public groups")
def latent_indexed_by_row() -> Built:
    def model(y):
        a = numpyro.sample("a", dist.Normal(0, 1).expand([N]).to_event(1))
        with numpyro.plate("data", N) as ind:
            numpyro.sample("y", dist.Normal(a[ind], 1.0), obs=y[ind])

    return model, (real(),), {}


@refused("cannot be run on one record of plate `data`", r"x\.shape\[0\]")
def constant_size_in_a_reshape() -> Built:
    def model(x, y):
        regression(x, y, lambda x, w: x.reshape(N, D) @ w)

    return model, (design(), real()), {}


@refused("cannot be run on one record of plate `data`")
def scan_body_with_a_constant_size() -> Built:
    def model(y):
        rho = numpyro.sample("rho", dist.Uniform(-1, 1))

        def step(previous, y_t):
            with numpyro.plate("data", N):
                numpyro.sample("y", dist.Normal(rho * previous, 1.0), obs=y_t)
            return y_t, None

        scan(step, jnp.zeros(N), y.T)

    return model, (rng().normal(size=(N, 6)),), {}


@refused("support of latent site `spread`", "public number", "likewise at `mean`", quick=True)
def prior_and_support_of_statistics() -> Built:
    def model(y):
        mean = numpyro.sample("mean", dist.Normal(y.mean(), 1.0))
        spread = numpyro.sample("spread", dist.Uniform(0.0, 10 * y.std()))
        with numpyro.plate("data", y.shape[0]):
            numpyro.sample("y", dist.Normal(mean, spread), obs=y)

    return model, (real(),), {}


@refused("plate `24 records` encloses nothing when .* one record", "the same name", quick=True)
def plate_named_after_its_size() -> Built:
    def model(y):
        mean = numpyro.sample("mean", dist.Normal(0, 1))
        with numpyro.plate(f"{len(y)} records", len(y)):
            numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    return model, (real(),), {}


# --- data_plate="auto"


def mean_of(y):
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


@refused(
    "`y` has batch shape .24, 3.", r"`\.expand..3..\.to_event.1.`", data_plate="auto", quick=True
)
def rows_of_several_numbers() -> Built:
    return mean_of, (design(),), {}


@refused("`y` has batch shape .3, 24.", "from its own row", data_plate="auto")
def records_in_the_second_axis() -> Built:
    def across(y):
        mean = numpyro.sample("mean", dist.Normal(0, 1).expand([3]))
        numpyro.sample("y", dist.Normal(mean[:, None], 1.0), obs=jnp.stack([y, y, y]))

    return across, (real(),), {}


@refused("`total` has batch shape ..:", "leave out the sum", data_plate="auto", quick=True)
def one_factor_of_all_rows() -> Built:
    def model(y):
        mean = numpyro.sample("mean", dist.Normal(0, 1))
        numpyro.factor("total", dist.Normal(mean, 1.0).log_prob(y).sum())

    return model, (real(),), {}


@refused("`knots` have other rows than `y`", r"numpyro_dp\.public", data_plate="auto")
def table_beside_the_records() -> Built:
    def model(y, knots):
        mean = numpyro.sample("mean", dist.Normal(knots.sum(), 1))
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    return model, (real(), np.linspace(0, 1, 5)), {}


@refused("plate `records` of its own", "another name", data_plate="auto")
def name_of_the_plate_taken() -> Built:
    def model(y):
        with numpyro.plate("records", 4):
            effect = numpyro.sample("effect", dist.Normal(0, 1))
        numpyro.sample("y", dist.Normal(effect.sum(), 1.0), obs=y)

    return model, (real(),), {}


@refused("no observed site reads a record argument", "pass the data", data_plate="auto")
def outcome_in_a_closure() -> Built:
    y = real()

    def model(x):
        w = coefficients()
        numpyro.sample("y", dist.Normal(w.sum(), 1.0), obs=y)

    return model, (design(),), {}


@refused("does not reach site.s. `y`", "`block_plates`", data_plate="auto")
def outcome_that_blocks_plates() -> Built:
    def model(y):
        mean = numpyro.sample("mean", dist.Normal(0, 1))
        blocked = {"block_plates": ["records"]}
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=y, infer=blocked)

    return model, (real(),), {}


@refused("no observed site: pass the outcome", data_plate="auto")
def nothing_observed() -> Built:
    def model(y):
        numpyro.sample("y", dist.Normal(numpyro.sample("mean", dist.Normal(0, 1)), 1.0))

    return model, (real(),), {}


@refused(
    "discrete latent site.s. `z` have an entry for each of 24", "summed out", data_plate="auto"
)
def components_without_a_plate() -> Built:
    def model(y):
        mean = numpyro.sample("mean", dist.Normal(0, 1).expand([2]))
        z = numpyro.sample("z", dist.Bernoulli(0.5).expand([N]))
        numpyro.sample("y", dist.Normal(mean[z], 1.0), obs=y)

    return model, (real(),), {}


@refused("`effect` have an entry for each of 24 records", "public groups", data_plate="auto")
def an_effect_for_each_row() -> Built:
    def model(y):
        effect = numpyro.sample("effect", dist.Normal(0, 1).expand([N]))
        numpyro.sample("y", dist.Normal(effect, 1.0), obs=y)

    return model, (real(),), {}


@refused("`y` is one event of 24 records", r"take `\.to_event` off", data_plate="auto")
def one_event_of_all_rows() -> Built:
    def model(y):
        mean = numpyro.sample("mean", dist.Normal(0, 1))
        numpyro.sample("y", dist.Normal(mean, 1.0).expand([N]).to_event(1), obs=y)

    return model, (real(),), {}


@refused("not a sum over records", "values of other records", data_plate="auto")
def mean_of_the_rows_without_a_plate() -> Built:
    def model(y):
        slope = numpyro.sample("slope", dist.Normal(0, 1))
        numpyro.sample("y", dist.Normal(slope * y.mean(), 1.0), obs=y)

    return model, (real(),), {}
