"""One of two processes: what they say to each other, asked one question after another.

``python -m tests.scale.protocol ADDRESS NUMBER FOLDER`` prints a line of JSON.
"""

import contextlib
import io
import json
import sys
import warnings
from pathlib import Path

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist

import numpyro_dp as ndp
from tests.models import logistic

BUDGET = ndp.Budget(4.0, 1e-5)
RNG = np.random.default_rng(0)
X = RNG.normal(size=(41, 3)).astype(np.float32)
Y = (RNG.random(41) < 0.5).astype(np.int32)


def run(accountant, *arrays, key=0, num_samples=4, init_params=None, **settings):
    """A run of two chains; returns the object."""
    given = {"step_size": 1e-3, "clip_norm": 1.0, "noise_multiplier": 9.0, **settings}
    model = given.pop("model", logistic)
    secure = given.pop("secure", True)
    kernel = ndp.DPSGLD(model, batch_size=8, accountant=accountant, **given)
    mcmc = ndp.MCMC(kernel, num_warmup=2, num_samples=num_samples, num_chains=2, secure=secure)
    # NumPyro switches it off where tests are run.
    mcmc.progress_bar = True
    mcmc.run(jax.random.key(key), *arrays, init_params=init_params)
    return mcmc


def questions(number, folder):
    """Each is asked of both processes; answers and what was charged are printed."""
    x, y = ndp.shard(X, Y)
    mine = ndp.Accountant(BUDGET, path=folder / "ledger.db" if number == 0 else None)

    def fresh(**options):
        return ndp.Accountant(BUDGET, **options)

    def open_to_all():
        return ndp.Accountant(ndp.Budget(4.0, 1e-5), allow_conditional=True)

    def shifted(x, y, shift):
        return logistic(x + shift, y)

    def drifting(x, y):
        scale = 1.0 + jax.process_index()
        w = numpyro.sample("w", dist.Normal(0, scale).expand([3]).to_event(1))
        with numpyro.plate("people", x.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)

    def twice():
        mcmc = run(mine, x, y)
        mcmc.post_warmup_state = mcmc.last_state
        mcmc.run(jax.random.key(1), x, y)
        return mcmc.get_samples()["w"]

    def printed():
        with contextlib.redirect_stderr(io.StringIO()) as text:
            run(fresh(), x, y)
        return "charged" in text.getvalue()

    held = {}

    def asked(ledger, call):
        held["ledger"] = ledger
        return call(ledger)

    start = np.full((2, 3), float(number))
    return {
        "run": lambda: asked(mine, lambda _: twice().tolist()),
        "reproducible": lambda: asked(
            open_to_all(),
            lambda ledger: run(ledger, x, y, secure=False).get_samples()["w"].tolist(),
        ),
        "bar": lambda: asked(fresh(), lambda _: printed()),
        "budget": lambda: asked(
            fresh(), lambda ledger: run(ledger, x, y, noise_multiplier=2.0, num_samples=99)
        ),
        "ledger of others": lambda: asked(
            fresh(path=folder / f"own-{number}.db"), lambda ledger: run(ledger, x, y)
        ),
        "settings": lambda: asked(
            fresh(), lambda ledger: run(ledger, x, y, clip_norm=1.0 + number)
        ),
        "public": lambda: asked(
            fresh(),
            lambda ledger: run(ledger, x, y, ndp.public(np.float32(number)), model=shifted),
        ),
        "key": lambda: asked(fresh(), lambda ledger: run(ledger, x, y, key=number)),
        "one fails": lambda: asked(
            fresh(), lambda ledger: run(ledger, x, y if number == 0 else "outcomes")
        ),
        "records of its own": lambda: asked(fresh(), lambda ledger: run(ledger, X, Y)),
        "devices of its own": lambda: asked(
            fresh(), lambda ledger: run(ledger, *jax.device_put((X, Y), jax.local_devices()[0]))
        ),
        "starts": lambda: asked(
            fresh(), lambda ledger: run(ledger, x, y, init_params={"w": start})
        ),
        "drift": lambda: asked(fresh(), lambda ledger: run(ledger, x, y, model=drifting)),
    }, held


def answer(call, held):
    try:
        said = call()
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    return {"said": said, "charged": len(held["ledger"].entries)}


def main(address, number, folder):
    jax.distributed.initialize(address, num_processes=2, process_id=int(number))
    calls, held = questions(int(number), Path(folder))
    print(json.dumps({name: answer(call, held) for name, call in calls.items()}))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(*sys.argv[1:])
