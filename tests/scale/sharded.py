"""Records on several devices of one machine: a process of its own, since JAX fixes their number.

``python -m tests.scale.sharded DEVICES [even|uneven] [CASE ...]`` runs algorithms of the leak scan
on records that are divided among forced host devices and on records that are not, and prints a line
of JSON for each.
"""

import contextlib
import io
import json
import pickle
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np

import numpyro_dp as ndp
from tests.leaks import cases

# A store's rows are at hand for nobody, and divided among nothing.
CASES = {name: case for name, case in cases.CASES.items() if name != "RecordSource"}
# They solve on a copy of all records, or add floats: the number must fit the devices.
WHOLE = ("OPS", "ObjectivePerturbation", "OutputPerturbation")


def results(name, arrays):
    """All numbers that a run gives its caller, and what it was charged."""
    held = {}
    accountant = ndp.Accountant()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        CASES[name].run(held, accountant, False, *arrays)
        for kept in ("mcmc", "result", "released", "report"):
            if kept in held:
                pickle.loads(pickle.dumps(held[kept]))
    seen = [held.get(each) for each in ("samples", "draws", "found")]
    result = held.get("result")
    seen += [getattr(result, each, None) for each in ("params", "losses")]
    if "released" in held:
        seen += [held["released"].log_likelihood({"w": jnp.full(3, w)}) for w in (0.0, 1.0)]
    seen += [vars(each) for each in seen if hasattr(each, "__dict__")]
    leaves = [leaf for leaf in jax.tree.leaves(seen) if isinstance(leaf, (float, int, jax.Array))]
    numbers = [np.asarray(leaf, float).ravel() for leaf in leaves if not is_key(leaf)]
    return np.concatenate(numbers), [str(entry.event) for entry in accountant.entries]


def is_key(leaf):
    return jnp.issubdtype(getattr(leaf, "dtype", float), jax.dtypes.prng_key)


def compared(name, num_devices, even):
    arrays = CASES[name].arrays
    size = len(arrays[0]) + -len(arrays[0]) % num_devices + (0 if even else 1)
    arrays = tuple(np.concatenate([array, array])[:size] for array in arrays)
    devices = jax.devices()[:num_devices]
    divided = ndp.shard(*arrays, devices=devices)
    divided = divided if isinstance(divided, tuple) else (divided,)
    assert all(isinstance(each, jax.Array) == even for each in divided)
    if not even and name in WHOLE:
        try:
            results(name, divided)
        except ndp.UnsupportedModelError as error:
            return {"refused": str(error)}
        raise AssertionError(f"{name} takes rows that are no records")
    (one, cost), (other, same) = results(name, arrays), results(name, divided)
    apart = np.abs(one - other) / (1e-3 + np.abs(one))
    return {
        "numbers": len(one),
        "apart": float(np.nanmax(apart)),
        "differing": float(np.mean(apart > 0)),
        "charged": [len(cost), len(same)],
        "finite": bool(np.all(np.isfinite(one) == np.isfinite(other))),
    }


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    number, how, *names = sys.argv[1:]
    # Batches of this one are as large as the number of its records allows.
    fitting = [each for each in CASES if how == "even" or each != "DPFastMH mini-batch"]
    for case in names or fitting:
        print(json.dumps({"case": case, **compared(case, int(number), how == "even")}), flush=True)
