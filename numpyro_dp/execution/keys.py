"""Keys at the driver's edge: what the caller gives, what outlives a run."""

from __future__ import annotations

import hashlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from jax.core import Tracer
from numpyro.util import is_prng_key

from numpyro_dp._quick_compile import quickly_jitted
from numpyro_dp.mechanisms.random import CHACHA20, scrubbed

INSECURE = (
    "the caller's key, of which the noise is a function (secure=False), is secret, random and used "
    "once"
)
RANDOMNESS = {
    True: "ChaCha20 keys from the operating system",
    False: "ChaCha20 keys derived from the caller's key (reproducible)",
}
"""Where the noise comes from, in words, by ``secure``."""


def scrub(state: Any) -> Any:
    """A state whose keys are zeros of the same kind; what has no key stays as it is."""
    key = getattr(state, "rng_key", None)
    return state if key is None else state._replace(rng_key=scrubbed(key))


def is_traced(*inputs: Any) -> bool:
    """Whether the caller is inside a JAX transformation.

    Under ``vmap`` something given (key, records, positions, state) is traced and fresh constants
    are not; under ``jit`` with nothing but constants it is the other way round.
    """
    return any(isinstance(value, Tracer) for value in [*jax.tree.leaves(inputs), jnp.zeros(())])


def as_typed_keys(rng_key: Any, num_chains: int) -> Any:
    """The caller's key (or keys, one for each chain) as a typed key array."""
    if isinstance(rng_key, jax.Array) and jnp.issubdtype(rng_key.dtype, jax.dtypes.prng_key):
        keys = rng_key
    else:
        words = np.asarray(rng_key) if isinstance(rng_key, (np.ndarray, jax.Array)) else None
        if words is None or words.dtype != np.uint32 or words.ndim not in (1, 2):
            raise ValueError(
                "rng_key must be a JAX key, such as jax.random.key(0) or jax.random.PRNGKey(0), "
                f"got {type(rng_key).__name__}"
            )
        try:
            keys = random.wrap_key_data(jnp.asarray(words))
        except TypeError as error:
            raise ValueError(
                f"rng_key of shape {words.shape} is not a key of JAX's default kind"
            ) from error
    if keys.shape not in ((), (num_chains,)):
        raise ValueError(
            f"rng_key holds {keys.shape} keys; give one key, or one for each of the {num_chains} "
            "chains"
        )
    return keys.reshape(()) if num_chains == 1 and keys.ndim else keys


def _folded(keys: Any, data: Any) -> Any:
    return random.fold_in(keys.reshape(-1)[0], data)


# One small program in place of several.
folded = quickly_jitted(_folded)
"""The first of some keys with a number folded in, of which nothing tells the key."""


_split = quickly_jitted(random.split, static_argnums=1)


def of_chains(rng_key: Any, num_chains: int) -> Any:
    """A key for each of several chains, as NumPyro's driver splits one; those of one stay as given.

    :param rng_key: one key of any kind, or as many as there are chains.
    """
    return _split(rng_key, num_chains) if num_chains > 1 and is_prng_key(rng_key) else rng_key


def of_default_kind(key: Any) -> Any:
    """The same randomness as a key of JAX's default kind, which programs are traced with."""
    if key.dtype == jax.eval_shape(lambda: random.key(0)).dtype:
        return key
    return random.wrap_key_data(random.bits(key, (2,), jnp.uint32))


def seeded_key(keys: Any) -> Any:
    """A noise key that is a one-way function of the caller's key (``secure=False``)."""
    material = b"numpyro_dp noise" + np.asarray(random.key_data(keys)).tobytes()
    words = np.frombuffer(hashlib.sha256(material).digest(), np.uint32)
    return random.wrap_key_data(jax.device_put(words), impl=CHACHA20)
