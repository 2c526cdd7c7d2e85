"""One of two processes, of which one comes to its end in the middle of a run.

``python -m tests.scale.ends ADDRESS NUMBER FOLDER HOW`` runs a chain that takes long, or until what
``HOW`` says happens: ``crash`` ends the first process between its charge and its word of it. What
another does is done to it from outside once its file ``begun`` is there.
"""

import os
import sys
import warnings
from pathlib import Path

import jax

import numpyro_dp as ndp
from tests.scale.protocol import X, Y, logistic

HEARTBEAT = 10


class _Crashing(ndp.Accountant):
    def charge(self, *args, **kwargs):
        super().charge(*args, **kwargs)
        os._exit(7)


def main(address, number, folder, how):
    jax.distributed.initialize(
        address, 2, int(number), heartbeat_timeout_seconds=HEARTBEAT
    )  # fmt: skip
    kind = _Crashing if how == "crash" else ndp.Accountant
    ledger = kind(ndp.Budget(4.0, 1e-5), path=Path(folder) / "ledger.db") if number == "0" else None
    ledger = ledger or ndp.Accountant(ndp.Budget(4.0, 1e-5))
    x, y = ndp.shard(X, Y)
    settings = {"step_size": 1e-5, "clip_norm": 1.0, "accountant": ledger}
    kernel = ndp.DPSGLD(logistic, privacy=ndp.Budget(1.0, 1e-6), **settings)
    mcmc = ndp.MCMC(kernel, num_warmup=0, num_samples=2_000_000, progress_bar=False)
    (Path(folder) / f"begun-{number}").touch()
    mcmc.run(jax.random.key(0), x, y)
    (Path(folder) / f"result-{number}").write_text(str(mcmc.get_samples()))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(*sys.argv[1:])
