"""What releases, with data on which one record is as loud as it may be; and half its noise."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from numpyro.infer.autoguide import AutoDelta, AutoNormal

import numpyro_dp as ndp
from numpyro_dp.estimators import noise, release as output_noise
from numpyro_dp.mcmc.posterior import langevin
from numpyro_dp.mechanisms import private_sum as mechanism
from numpyro_dp.mechanisms.accept.rules import Barker
from tests.svi.vips.test_vips_surfaces import coins, logistic, plain_network, topics

BUDGET = ndp.Budget(2.0, 1e-5)
KEY = jax.random.key(7)


def mean(x):
    mu = numpyro.sample("mu", dist.Normal(0, 10))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("x", dist.Normal(mu, 1), obs=x)


def slope(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1e4).expand([1]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def surprised(x, y):
    w = numpyro.sample("w", dist.Normal(5, 0.1).expand([1]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


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
LONG, UNLIKELY = pair([0.999], 1.0), pair([0.999], 0.0)
NETWORK = ndp.guides.SigmoidBeliefNetworkGuide
MANY, MORE = {"num_chains": 40_000}, {"num_chains": 80_000}
CENTRE = ndp.PrivateCentre(row_norm=1.0, privacy=BUDGET)

# What is audited, a pair, how, and the share of ε that it must prove at least. Where a record is
# heard in all that is released, enough runs prove .4 and more; elsewhere it is what each proved
# with its seed, less a tenth or more.
CASES = {
    "DPSVI": (svi, made_up(logistic), {"num_steps": 4, **MORE}, 0.4),
    "DPSVI maximum": (
        lambda: svi(AutoDelta),
        made_up(logistic),
        {"num_steps": 5, **MANY},
        0.4,
    ),
    "DPSVI centred": (
        lambda: svi(clip="centred"),
        made_up(logistic),
        {"num_steps": 4, **MORE},
        0.4,
    ),
    "DPSVI mini-batch": (
        lambda: svi(sampling_rate=0.5),
        made_up(logistic),
        {"num_steps": 8, **MANY},
        0.4,
    ),
    "DPSVI curvature": (
        lambda: svi(scale="curvature"),
        made_up(logistic),
        {"num_steps": 3, **MORE},
        0.4,
    ),
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
        {"num_steps": 6, **MANY},
        0.4,
    ),
    "VIPS topics": (
        lambda: vips(ndp.guides.LDAGuide, topics, document_length=6, inner_steps=2),
        pair([6.0, 0, 0, 0, 0], other=0.0),
        {"num_steps": 6, **MANY},
        0.4,
    ),
    "VIPS network": (
        lambda: vips(
            ndp.guides.SigmoidBeliefNetworkGuide, plain_network, record_norm=2.0, inner_steps=2
        ),
        pair(np.ones(4)),
        {"num_steps": 6, **MANY},
        0.4,
    ),
    "VIPS full": (lambda: polya("full"), LONG, {"num_steps": 4, **MANY}, 0.4),
    "VIPS diagonal": (lambda: polya("diagonal"), LONG, {"num_steps": 3, **MANY}, 0.4),
    "VIPS paper": (lambda: polya("paper"), LONG, {"num_steps": 2, **MANY}, 0.4),
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
        lambda: ndp.ObjectivePerturbation(surprised, row_norm=1.0, privacy=BUDGET),
        UNLIKELY,
        {"num_chains": 100_000},
        0.4,
    ),
    "objective perturbation, gamma": (
        lambda: ndp.ObjectivePerturbation(surprised, row_norm=1.0, noise="gamma", privacy=BUDGET),
        UNLIKELY,
        {"num_chains": 4000},
        0.5,
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


def halved(monkeypatch):
    """Half the noise of sums, accept bits, linear terms, minimisers and moving particles."""
    for module in (mechanism, output_noise, langevin):
        fair = module.floor_noise
        monkeypatch.setattr(module, "floor_noise", lambda *given, fair=fair: fair(*given) // 2)
    for tilt in (noise.Gaussian, noise.GammaNorm):
        draw = tilt.draw
        monkeypatch.setattr(tilt, "draw", lambda *given, draw=draw: draw(*given) / 2)

    def decide(self, key, log_ratio, public):
        added = self.grid.public(public), self.threshold(key)
        return self.grid.nonnegative(log_ratio, log_ratio, *added)

    monkeypatch.setattr(Barker, "decide", decide)
    # Else what was compiled before would run.
    jax.clear_caches()
