"""One of two processes of ``jax.distributed``: tries everything that touches records.

Run as a script with the coordinator's address and its own number; prints a line of JSON: what each
entry point said, and how often its ledger was charged.
"""

import json
import sys
import warnings
from functools import partial

import jax
import numpy as np
import numpyro.infer
import optax
from numpyro.infer.autoguide import AutoDelta

import numpyro_dp as ndp
from numpyro_dp.mechanisms import PrivateSum, os_key
from tests.models import logistic, normal_mean

X = np.ones((8, 2), np.float32)
Y = np.ones(8, np.int32)
FIRST_NULL = (np.arange(8) > 0).astype(np.float32)[:, None]
STEPS = {"step_size": 1e-3, "clip_norm": 1.0, "noise_multiplier": 2.0}
WALK = {"step_size": 0.3, "lipschitz": 2.0, "max_move": 0.6}
COUNTS = {"num_warmup": 0, "num_samples": 2}
CHECKS = (
    "private_log_predictive_density",
    "private_accuracy",
    "private_calibration_curve",
    "private_posterior_predictive_check",
)


def entry_points(accountant):
    """Every way to a record, none of which has run."""
    key = jax.random.key(0)  # here, for JAX may do nothing before the processes know each other

    def mcmc(kernel):
        return ndp.MCMC(kernel, **COUNTS, progress_bar=False)

    langevin = ndp.DPSGLD(logistic, **STEPS, accountant=accountant)
    metered = ndp.DPSGLD(logistic, **STEPS, accountant=accountant, num_steps=2)
    draw = ndp.OPS(
        logistic, guarantee=ndp.BoundedLikelihood(-2.0, 0.0), sampler=ndp.Rejection(),
        likelihood_power=0.1, accountant=accountant,
    )  # fmt: skip
    walk = mcmc(ndp.DPFastMH(logistic, **WALK))
    conjugate = ndp.guides.ConjugateGuide(normal_mean, row_norm=3.0, outcome_bound=3.0)
    svi = ndp.DPSVI(
        logistic, AutoDelta(logistic), optax.sgd(1e-3), clip_norm=1.0, noise_multiplier=2.0,
        accountant=accountant,
    )  # fmt: skip
    vips = ndp.VIPS(normal_mean, conjugate, noise_multiplier=2.0, accountant=accountant)
    centre = ndp.PrivateCentre(row_norm=3.0, noise_multiplier=2.0, accountant=accountant)
    output = ndp.OutputPerturbation(
        logistic, row_norm=3.0, noise_multiplier=2.0, accountant=accountant
    )
    objective = ndp.ObjectivePerturbation(
        logistic, row_norm=3.0, noise_multiplier=2.0, accountant=accountant
    )
    return {
        "MCMC.run": lambda: mcmc(langevin).run(key, X, Y),
        "MCMC.warmup": lambda: mcmc(langevin).warmup(key, X, Y),
        "OPS": lambda: mcmc(draw).run(key, X, Y),
        "DPSGLD": lambda: numpyro.infer.MCMC(metered, **COUNTS, progress_bar=False).run(key, X, Y),
        "DPSVI.run": lambda: svi.run(key, 2, X, Y, progress_bar=False),
        "VIPS.run": lambda: vips.run(key, 2, X, progress_bar=False),
        "PrivateCentre.run": lambda: centre.run(key, X),
        "OutputPerturbation.run": lambda: output.run(key, X, Y),
        "ObjectivePerturbation.run": lambda: objective.run(key, X, Y),
        "clipping_rate": lambda: ndp.clipping_rate(
            key, walk, X, Y, noise_multiplier=2.0, accountant=accountant
        ),
        "count_missing": lambda: ndp.count_missing(
            key, X, noise_multiplier=2.0, accountant=accountant
        ),
        **{
            name: partial(
                getattr(ndp, name),
                key,
                logistic,
                {"w": np.ones((4, 2), np.float32)},
                X,
                Y,
                noise_multiplier=2.0,
                accountant=accountant,
                allow_unresolved=True,
            )
            for name in CHECKS
        },
        "PrivateSum.release": lambda: PrivateSum.create(
            num_records=8,
            dim=2,
            sampling_rate=1.0,
            clip_norm=1.0,
            noise_multiplier=2.0,
            num_steps=1,
            delta=1e-5,
        ).release(os_key(), lambda record: record[0][0], [X]),
        "audit": lambda: ndp.audit(
            ndp.DPSGLD(logistic, **STEPS), key, (X, Y), (X * FIRST_NULL, Y), num_chains=100
        ),
    }


def said(call):
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "accepted"


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    jax.distributed.initialize(sys.argv[1], num_processes=2, process_id=int(sys.argv[2]))
    ledger = ndp.Accountant()
    answers = {name: said(call) for name, call in entry_points(ledger).items()}
    print(json.dumps({"answers": answers, "charges": len(ledger.entries)}))
