"""One of several processes that run everything together, on records divided among them.

``python -m tests.scale.together ADDRESS NUMBER OF [CASE ...]`` runs algorithms of the leak scan and
prints a line of JSON for each: a digest of all numbers that its caller has, and what was charged.
With ``OF`` 1 it runs them alone, on records that are divided among nothing.
"""

import hashlib
import json
import sys
import warnings

import jax

import numpyro_dp as ndp


def ours(array):
    """The part of an array that this process holds, as its user would have it, in a global one."""
    mesh = jax.make_mesh((jax.device_count(),), ("people",))
    sharding = jax.NamedSharding(mesh, jax.P("people"))
    size = len(array) // jax.process_count()
    own = array[jax.process_index() * size :][:size]
    return jax.make_array_from_process_local_data(sharding, own)


def told(name, arrays, even):
    if jax.process_count() > 1:
        made = [ours(each) if even else ndp.shard(each) for each in arrays]
        arrays = tuple(made)
    try:
        numbers, cost = sharded.results(name, arrays)
    except Exception as error:
        return {"refused": f"{type(error).__name__}: {error}"}
    known = numbers.tolist() if len(numbers) < 1_000 else numbers[:1_000].tolist()
    digest = hashlib.sha256(numbers.tobytes()).hexdigest()
    return {"numbers": known, "digest": digest, "charged": cost}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    address, number, of, *names = sys.argv[1:]
    if int(of) > 1:
        jax.distributed.initialize(address, num_processes=int(of), process_id=int(number))
    # What they import computes with JAX, which must not have begun.
    from tests.scale import sharded

    for case in names or sharded.CASES:
        arrays = sharded.CASES[case].arrays
        even = len(arrays[0]) % 2 == 0
        print(json.dumps({"case": case, **told(case, arrays, even)}), flush=True)
