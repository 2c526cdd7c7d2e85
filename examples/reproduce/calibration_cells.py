"""The cells of ``calibration.py``: models, inputs, budgets, and what ``DPNUTS`` is to reach."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer.reparam import LocScaleReparam

COUNTS = jnp.array([1.0, 0.4, 0.4, 0.4, 0.4])
GROUPS = 8


def weights(size, scale=1.0):
    """Independent normal coefficients."""
    return numpyro.sample("w", dist.Normal(0, scale).expand([size]).to_event(1))


def logistic(x, y):
    w = weights(x.shape[1])
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def log_mean(x):
    """Of counts and waiting times: within what single precision holds."""
    w = numpyro.sample("w", dist.Normal(0, COUNTS).to_event(1))
    return jnp.clip(x @ w, -20, 12)


def poisson(x, y):
    mean = jnp.exp(log_mean(x))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Poisson(mean), obs=y)


def linear(x, y):
    w = weights(x.shape[1])
    sigma = numpyro.sample("sigma", dist.LogNormal(0, 0.5))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, sigma), obs=y)


def negative_binomial(x, y):
    mean = jnp.exp(log_mean(x))
    concentration = numpyro.sample("concentration", dist.LogNormal(0, 1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.NegativeBinomial2(mean, concentration), obs=y)


def ordinal(x, y):
    w = weights(x.shape[1] - 1)
    steps = dist.Normal(jnp.array([-1.0, 0.0, 0.0]), jnp.array([1.0, 0.5, 0.5])).to_event(1)
    ordered = dist.transforms.OrderedTransform()
    cuts = numpyro.sample("cuts", dist.TransformedDistribution(steps, ordered))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.OrderedLogistic(x[:, 1:] @ w, cuts), obs=y)


def categorical(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[1], 2]).to_event(2))
    logits = jnp.concatenate([jnp.zeros((x.shape[0], 1)), x @ w], axis=1)
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Categorical(logits=logits), obs=y)


def gamma(x, y):
    mean = jnp.exp(log_mean(x))
    shape = numpyro.sample("shape", dist.LogNormal(0.5, 0.5))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Gamma(shape, shape / mean), obs=y)


def hierarchy(x, group, y):
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    tau = numpyro.sample("tau", dist.HalfNormal(1))
    with numpyro.plate("groups", GROUPS):
        a = numpyro.sample("a", dist.Normal(mu, tau))
    w = weights(x.shape[1])
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=a[group] + x @ w), obs=y)


uncentred = numpyro.handlers.reparam(hierarchy, config={"a": LocScaleReparam(0)})


def columns(family: Callable[..., Any], scale: float) -> Callable[..., Any]:
    """A regression on the one-hot table with a prior of this scale."""

    def regression(x, y):
        w = weights(x.shape[1], scale)
        predictor = jnp.clip(x @ w, -20, 12)
        with numpyro.plate("people", x.shape[0]):
            numpyro.sample("y", family(predictor), obs=y)

    return regression


def yes(predictor):
    return dist.Bernoulli(logits=predictor)


def counts(predictor):
    return dist.Poisson(jnp.exp(predictor))


def uniform(num_records: int, dim: int = 5, *, outcome: Any = np.int32) -> tuple[Any, ...]:
    """An intercept and uniform inputs of variance 1; the outcome is a shape."""
    rng = np.random.default_rng(0)
    x = np.ones((num_records, dim), np.float32)
    x[:, 1:] = rng.uniform(-(3**0.5), 3**0.5, (num_records, dim - 1))
    return x, jax.ShapeDtypeStruct((num_records,), outcome)


def grouped(num_records: int) -> tuple[Any, ...]:
    """Two inputs and the group of each record."""
    x, y = uniform(num_records, 3)
    return x[:, 1:], np.arange(num_records, dtype=np.int32) % GROUPS, y


def one_hot(num_records: int) -> tuple[Any, ...]:
    """An intercept, five of six groups, two rare binary columns and two collinear ones."""
    rng = np.random.default_rng(0)
    shares = [0.40, 0.25, 0.15, 0.12, 0.07, 0.01]
    group = rng.choice(6, num_records, p=shares)
    first, other = rng.normal(size=(2, num_records))
    x = np.stack(
        [
            np.ones(num_records),
            *(group == k for k in range(1, 6)),
            rng.random(num_records) < 0.015,
            rng.random(num_records) < 0.003,
            first,
            0.99 * first + 0.14 * other,
            rng.uniform(-(3**0.5), 3**0.5, num_records),
        ],
        axis=1,
    )
    return x.astype(np.float32), jax.ShapeDtypeStruct((num_records,), np.int32)


@dataclass(frozen=True)
class Bar:
    """What ``DPNUTS`` is to reach in a cell, each judged two standard errors in its favour.

    :param margin: by how much less than the reference it may cover.
    :param widths: by budget, how many times as wide its intervals may be in the median.
    :param both_sides: whether it must not cover more by as much, either.
    :param each_site: whether the margin holds for every site.
    :param errors: by budget, how many times as large errors may be.
    :param own: whether it is judged by distances from the reference's mean in its own standard
        deviations instead: 2.5 in 99 % of coordinates and 4 in all.
    """

    margin: float = 0.04
    widths: tuple[float, ...] = (1.7,)
    both_sides: bool = False
    each_site: bool = False
    errors: tuple[float, ...] = ()
    own: bool = False

    def missed(self, line: dict[str, Any], budget: int) -> str:
        """What of it a line of the log misses; empty where it is met."""
        if self.own:
            shares, largest = line["own_z"]["within 2.5"], line["own_z"]["largest"]
            return "" if shares >= 0.99 and largest <= 4 else "distance"
        parts = {"": line["pooled"]}
        if self.each_site:
            parts = line["sites"]
        found = []
        for name, part in parts.items():
            low = part["difference"] + 2 * part["difference_error"] < -self.margin
            high = part["difference"] - 2 * part["difference_error"] > self.margin
            if low or (high and self.both_sides):
                found.append(f"coverage {name}".strip())
        if line["pooled"]["width"] > self.widths[budget]:
            found.append("width")
        if self.errors and line["pooled"]["rmse"] > self.errors[budget]:
            found.append("error")
        return ", ".join(found)

    def __str__(self) -> str:
        """In words."""
        if self.own:
            return "own distance ≤ 2.5 in 99 %, ≤ 4 in all"
        held = "within" if self.both_sides else "≥ exact −"
        widths = " / ".join(f"{width:g}" for width in self.widths)
        text = f"{held} {self.margin:g}{' each site' if self.each_site else ''}; ≤ {widths}"
        return text + (f"; error ≤ {' / '.join(map(str, self.errors))}" if self.errors else "")


@dataclass(frozen=True)
class Cell:
    """A model, its inputs and the budgets to try.

    :param model: where truths and outcomes come from.
    :param inputs: arguments of the model; outcomes as shapes.
    :param epsilons: budgets.
    :param bar: what is to be reached.
    :param fitted: the model that is fitted, where that is another.
    :param exact: the model that the reference fits, where that is another form.
    :param by_mode: whether the reference is the normal at the mode.
    :param only: methods that take it; empty for all.
    """

    model: Callable[..., Any]
    inputs: Callable[[], tuple[Any, ...]]
    epsilons: tuple[float, ...]
    bar: Bar = Bar()
    fitted: Callable[..., Any] | None = None
    exact: Callable[..., Any] | None = None
    by_mode: bool = False
    only: tuple[str, ...] = ("DPNUTS",)


def _inputs(of: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[[], tuple[Any, ...]]:
    return functools.partial(of, *args, **kwargs)


def _columns(family: Callable[..., Any], num_records: int) -> Cell:
    narrow, wide = columns(family, 0.5), columns(family, 2.5)
    inputs, bar = _inputs(one_hot, num_records), Bar(own=True)
    return Cell(narrow, inputs, (1.0,), bar, fitted=wide, by_mode=True)


_REAL = np.float32
EVERY = ("DPNUTS", "DPSGLD", "DPFastMH", "DPSVI", "DPSVI by hand", "VIPS")
_HIERARCHY = Bar(margin=0.05, widths=(1.6,), each_site=True)
CELLS = {
    "logistic-1000": Cell(
        logistic,
        _inputs(uniform, 1_000),
        (0.5, 1.0, 4.0),
        Bar(margin=0.03, widths=(2.1, 1.45, 1.2)),
        only=EVERY,
    ),
    "logistic-5000": Cell(
        logistic,
        _inputs(uniform, 5_000),
        (0.5, 1.0),
        Bar(widths=(1.4, 1.25), both_sides=True),
        only=EVERY,
    ),
    "poisson-1000": Cell(
        poisson, _inputs(uniform, 1_000), (1.0, 4.0), Bar(margin=0.02, widths=(1.55, 1.3))
    ),
    "linear-1000": Cell(
        linear,
        _inputs(uniform, 1_000, outcome=_REAL),
        (1.0, 4.0),
        Bar(widths=(1.6, 1.35), both_sides=True, errors=(4.5, 1.4)),
    ),
    "negative-binomial": Cell(negative_binomial, _inputs(uniform, 2_000), (1.0,)),
    "ordinal": Cell(ordinal, _inputs(uniform, 2_000), (1.0,)),
    "categorical": Cell(categorical, _inputs(uniform, 2_000), (1.0,)),
    "gamma": Cell(gamma, _inputs(uniform, 2_000, outcome=_REAL), (1.0,)),
    "hierarchy": Cell(hierarchy, _inputs(grouped, 2_000), (1.0,), _HIERARCHY, exact=uncentred),
    "hierarchy-uncentred": Cell(uncentred, _inputs(grouped, 2_000), (1.0,), _HIERARCHY),
    "logistic-20": Cell(
        logistic,
        _inputs(uniform, 20_000, 20),
        (1.0,),
        Bar(widths=(1.25,), both_sides=True),
        by_mode=True,
    ),
    "one-hot-logistic-5000": _columns(yes, 5_000),
    "one-hot-logistic-20000": _columns(yes, 20_000),
    "one-hot-poisson-5000": _columns(counts, 5_000),
    "one-hot-poisson-20000": _columns(counts, 20_000),
}
