"""Wrong outcomes and inputs: how often a note says so, and how far off the answer lies.

For docs/howto/is-it-worth-having.md: what passes in silence. Each release is set beside the mode of
the records without the wrong ones, and of all as they are, which NUTS's means are close to.

    python tests/benchmarks/bench_wrong_data.py --releases 8
"""

import argparse
import json

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.flatten_util import ravel_pytree
from numpyro.infer.util import initialize_model
from scipy.optimize import minimize

import numpyro_dp as ndp

RECORDS = 6_000
SLOPES = np.array([0.4, -0.3, 0.2])
LAWS = {
    "Poisson": lambda eta, _: dist.Poisson(jnp.exp(eta)),
    "Bernoulli": lambda eta, _: dist.Bernoulli(logits=eta),
    "Normal": dist.Normal,
    "StudentT(4)": lambda eta, sigma: dist.StudentT(4, eta, sigma),
    "Exponential": lambda eta, _: dist.Exponential(jnp.exp(-eta)),
}
# What is wrong, the law, the shares, and what wrong ones show in place of x and y.
CASES = [
    ("99 for no answer", "Poisson", (0.003, 0.007, 0.015), lambda x, y: (x, 0 * y + 99)),
    ("9 for no answer", "Poisson", (0.01, 0.02, 0.05), lambda x, y: (x, 0 * y + 9)),
    ("9 for no answer", "Bernoulli", (0.01, 0.02, 0.05), lambda x, y: (x, 0 * y + 9)),
    ("ten times as much", "Normal", (0.002, 0.008, 0.02), lambda x, y: (x, 10 * y)),
    ("ten times as much", "StudentT(4)", (0.002, 0.008, 0.02), lambda x, y: (x, 10 * y)),
    ("a time of 0", "Exponential", (0.01, 0.02, 0.05), lambda x, y: (x, 0 * y)),
    ("99 in a column of sd 1", "Normal", (0.002, 0.01, 0.05), lambda x, y: (last(x, 99), y)),
    ("99 in a column of sd 1", "Poisson", (0.002, 0.01, 0.05), lambda x, y: (last(x, 99), y)),
]


def last(x, value):
    return np.column_stack([x[:, :-1], np.full(len(x), value)])


def regression(x, law, y=None):
    a = numpyro.sample("a", dist.Normal(0, 2))
    b = numpyro.sample("b", dist.Normal(0, 1).expand([3]).to_event(1))
    scaled = law in ("Normal", "StudentT(4)")
    sigma = numpyro.sample("sigma", dist.HalfNormal(3)) if scaled else None
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", LAWS[law](a + x @ b, sigma), obs=y)


def made_up(rng, law, share, wrong):
    """Inputs, outcomes and which of them are wrong."""
    x = rng.normal(size=(RECORDS, 3))
    eta = 0.5 + x @ SLOPES
    y = np.array(LAWS[law](eta, 1.0).sample(jax.random.key(rng.integers(1 << 30))), float)
    bad = rng.random(RECORDS) < share
    x[bad], y[bad] = wrong(x[bad], y[bad])
    return x.astype(np.float32), y.astype(np.float32), bad


def mode(x, law, y):
    with jax.enable_x64(True):
        given = x.astype(float), law, y.astype(float)
        info = initialize_model(
            jax.random.key(0), regression, model_args=given, validate_grad=False
        )
        start, unravel = ravel_pytree(info.param_info.z)
        slope = jax.jit(jax.value_and_grad(lambda u: info.potential_fn(unravel(u))))
        found = minimize(lambda u: [np.asarray(each) for each in slope(u)], 0 * start, jac=True)
        return found.x


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--releases", type=int, default=8)
    parser.add_argument("--epsilon", type=float, default=1.0)
    given = parser.parse_args()
    release = ndp.LikelihoodRelease(
        regression, privacy=ndp.Budget(given.epsilon, 1e-5), secure=False
    )
    for name, law, shares, wrong in CASES:
        for share in shares:
            noted, beside, clean = 0, [], []
            for seed in range(given.releases):
                x, y, bad = made_up(np.random.default_rng(seed), law, share, wrong)
                private = release.run(jax.random.key(seed), x, law, y, progress_bar=False)
                at = private.located
                ranks = {each.rank for each in private.diagnostics.verdicts}
                noted += bool(ranks & {"do not use", "with care"})
                sds = np.sqrt(np.diag(at.covariance))
                clean.append(np.max(np.abs(at.mean - mode(x[~bad], law, y[~bad])) / sds))
                # Where an outcome has no likelihood NUTS has no answer.
                if law not in ("Bernoulli", "Exponential"):
                    beside.append(np.max(np.abs(at.mean - mode(x, law, y)) / sds))
            case = {"noted": noted, "off_without_them": round(float(np.median(clean)), 1)}
            if beside:
                case["off_with_them"] = round(float(np.median(beside)), 1)
            print(json.dumps({**vars(given), "law": law, "wrong": name, "share": share, **case}))


if __name__ == "__main__":
    main()
