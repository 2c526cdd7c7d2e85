"""One run of a private kernel in plain ``numpyro.infer.MCMC``.

NumPyro calls ``init`` once a chain and then steps as often as it likes, so ``init`` charges the
``num_steps`` that the kernel was given before it returns, and the chain stops touching the records
after that many. NumPyro also swaps keys when it resumes; a chain whose key was swapped would draw
its noise from a key that the caller knows, so it turns NaN instead.
"""

from __future__ import annotations

import warnings
from hashlib import sha256
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random
from jaxtyping import Array, Bool, Float, Int, UInt32

from numpyro_dp._compilation_cache import is_on
from numpyro_dp.execution.account import Account
from numpyro_dp.execution.keys import as_typed_keys, is_traced
from numpyro_dp.mcmc.start import starting_positions
from numpyro_dp.mechanisms import CHACHA20, scrubbed
from numpyro_dp.mechanisms._checks import refuse_several_processes
from numpyro_dp.model.private_model import private_model

_DIGEST_WORDS = 4


class ChargedState(NamedTuple):
    """A chain under plain NumPyro.

    - **i**, **z**: as in the kernel's own state.
    - **rng_key**: a decoy, compared with **tag**; NumPyro overwrites it on resuming.
    - **tag**: the decoy as it was.
    - **charged**: digest of the bound kernel that was charged; another one must not step on.
    - **inner**: the kernel's own state, its key zeroed once the charged steps are done.
    """

    i: Int[Array, "..."]
    z: dict[str, Float[Array, "..."]]
    rng_key: Any
    tag: UInt32[Array, "..."]
    charged: UInt32[Array, "..."]
    inner: Any


# Its name in states that the last version pickled.
MeteredState = ChargedState


def begin(kernel: Any, rng_key: Any, init_params: Any, args: tuple, kwargs: dict) -> ChargedState:
    """Charge ``num_steps`` for each key, then start the chains; see the module's docstring."""
    name, inputs = type(kernel).__name__, (rng_key, args, kwargs, init_params)
    if is_traced(*inputs):
        raise ValueError(
            f"{name} cannot start inside a JAX transformation (chain_method='parallel' or a "
            "callable): use numpyro_dp.MCMC, or 'sequential' or 'vectorized' chains"
        )
    if _typed(rng_key) and random.key_impl(rng_key) == CHACHA20:
        # NumPyro's own example resumes with post_warmup_state.rng_key. A state can be resumed
        # twice, and noise that two runs share is no noise in their difference.
        raise ValueError(
            f"{name} was given the key of a chain's state, which would let several runs go on with "
            "the same noise: use numpyro_dp.MCMC to resume, or start a new run with a key of yours"
        )
    if getattr(kernel, "adapts", False):
        raise ValueError(
            f"{name} without {kernel.instead} runs in numpyro_dp.MCMC, which charges and "
            "makes the release that gives them: replace numpyro.infer.MCMC by numpyro_dp.MCMC"
        )
    if kernel.num_steps is None or kernel.accountant is None:
        raise ValueError(
            f"{name} runs in numpyro_dp.MCMC, which charges the privacy budget before the records "
            "are touched: replace numpyro.infer.MCMC by numpyro_dp.MCMC. For one run in plain "
            f"numpyro.infer.MCMC, give {name} both num_steps= (num_warmup + num_samples, times "
            "steps_per_sample) and accountant="
        )
    if kernel.init_kernel is not None:
        raise ValueError(f"{name} with init_kernel= runs in numpyro_dp.MCMC only")
    if is_on() and kernel.relation == "add_remove":
        raise ValueError(
            "with relation='add_remove' the number of records is private, and the program that "
            "numpyro.infer.MCMC compiles tells it to JAX's compilation cache, which is on: replace "
            "numpyro.infer.MCMC by numpyro_dp.MCMC, which then keeps nothing there, or call "
            "jax.config.update('jax_enable_compilation_cache', False) first"
        )
    if is_on():
        warnings.warn(
            "JAX's compilation cache is on: pass jit_model_args=True to numpyro.infer.MCMC, or "
            "the records are written to that cache as constants of the program",
            stacklevel=4,
        )
    keys = as_typed_keys(rng_key, rng_key.shape[0] if _batched(rng_key) else 1)
    chains = max(keys.size, 1)

    def ready() -> tuple[Any, dict]:
        bound = bound_for(kernel, keys, args, kwargs)
        layout = bound.private_model.layout
        if layout.shards is not None or layout.storage is not None:
            raise ValueError(
                "numpyro.infer.MCMC hands records over as values that do not tell where they lie: "
                "for records that are divided among devices or fetched from a store use "
                "numpyro_dp.MCMC"
            )
        return bound, starting_positions(
            bound.private_model, kernel.init_strategy, keys, init_params, chains
        )

    with Account(name, kernel.accountant, secure=True).opened(name, *inputs) as charged:
        bound, z = charged.prepared(ready)
        facts, steps = bound.facts(), kernel.num_steps * chains
        key = charged.charge(
            bound.event(steps, num_chains=chains),
            keys,
            of=bound,
            steps=steps,
            total_variation=facts.overflow_delta * steps,
            conditions=facts.conditions,
        )
    # Siblings tell nothing of each other, and the decoy is seen.
    secret, decoy = random.split(key)
    if keys.ndim:
        secret, decoy = (random.split(each, keys.shape) for each in (secret, decoy))
    inner = bound.init(secret, 0, z)
    digest = jnp.broadcast_to(_digest(kernel, bound, chains), (*keys.shape, _DIGEST_WORDS))
    return ChargedState(inner.i, inner.z, decoy, random.key_data(decoy), digest, inner)


def proceed(kernel: Any, state: ChargedState, args: tuple, kwargs: dict) -> ChargedState:
    """One sample; NaN, without touching the records, once the charge is used up."""
    bound = bound_for(kernel, state.i, args, kwargs)
    records = bound.private_model.records(args, kwargs)
    limit = _limit(kernel)

    def step(inner):
        inner = bound.sample(inner, records)
        done = jnp.all(inner.i + bound.steps_per_sample > limit)
        spent = scrubbed(inner.rng_key)
        key = lax.cond(done, lambda: spent, lambda: inner.rng_key)
        return inner._replace(rng_key=key)

    def exhausted(inner):
        z = jax.tree.map(lambda x: jnp.full_like(x, jnp.nan), inner.z)
        return inner._replace(z=z, i=inner.i + bound.steps_per_sample)

    # One predicate for all chains and outside their vmap: inside, both branches would run and the
    # records would be touched after all.
    inner = lax.cond(_may_step(kernel, bound, state), step, exhausted, state.inner)
    return state._replace(i=inner.i, z=inner.z, inner=inner)


def _may_step(kernel: Any, bound: Any, state: ChargedState) -> Bool[Array, ""]:
    words = random.key_data(state.rng_key)
    if words.shape != state.tag.shape:
        return jnp.zeros((), bool)  # a key of another kind: NumPyro resumed with the caller's
    own_key = jnp.all(words == state.tag)
    digest = _digest(kernel, bound, max(jnp.size(state.i), 1))
    own_kernel = jnp.all(state.charged == digest)
    return own_key & own_kernel & jnp.all(state.i + bound.steps_per_sample <= _limit(kernel))


def bound_for(kernel: Any, chains: Any, args: tuple, kwargs: dict) -> Any:
    """The bound kernel for these arguments; found again in caches, under a trace too.

    All that touches records comes through here, in ``init`` and in each step.
    """
    refuse_several_processes(type(kernel).__name__)
    private_size = kernel.relation == "add_remove"
    model = private_model(
        kernel.user_model, args, kwargs, data_plate=kernel.data_plate, private_size=private_size
    )
    num_chains = max(jnp.size(chains), 1)
    return kernel.bind(
        model,
        num_steps=max(_limit(kernel), 1) * num_chains,
        relation=kernel.relation,
        delta=kernel.delta,
        num_chains=num_chains,
    )


def _digest(kernel: Any, bound: Any, num_chains: int) -> UInt32[Array, " words"]:
    """What was charged, in a few words that a state can carry."""
    event = bound.event(max(_limit(kernel), 1) * num_chains, num_chains=num_chains)
    text = repr((event, bound.facts(), bound.private_model.plate))
    return jnp.asarray(np.frombuffer(sha256(text.encode()).digest(), np.uint32)[:_DIGEST_WORDS])


def _batched(rng_key: Any) -> bool:
    return rng_key.ndim > (0 if _typed(rng_key) else 1)


def _typed(rng_key: Any) -> bool:
    return jnp.issubdtype(rng_key.dtype, jax.dtypes.prng_key)


def _limit(kernel: Any) -> int:
    return 0 if kernel.num_steps is None else kernel.num_steps
