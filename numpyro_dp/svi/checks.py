"""What DPSVI asks of its loss, its optimiser and its keys."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import random
from jax.flatten_util import ravel_pytree
from numpyro.infer import Trace_ELBO
from numpyro.optim import Minimize

from numpyro_dp._prune import prune, trace_program
from numpyro_dp.mechanisms.keys import as_typed_keys

__all__ = ["check_loss", "check_optimiser", "require_blind", "usable_key"]


def check_loss(loss: Any) -> None:
    """Refuse every loss but the plain bound."""
    plain = type(loss) is Trace_ELBO and loss.sum_sites and not loss.multi_sample_guide
    if not plain:
        raise ValueError(
            f"DPSVI takes numpyro.infer.Trace_ELBO(num_particles=...), got {type(loss).__name__}: "
            "other bounds are no sum over records, or are not split here"
        )


def usable_key(rng_key: Any) -> Any:
    """The caller's key, as JAX's default kind, which programs are traced with."""
    key = as_typed_keys(rng_key, 1)
    if key.dtype == random.key(0).dtype:
        return key
    return random.wrap_key_data(random.bits(key, (2,), jnp.uint32))


def require_blind(optim: Any, optim_state: Any, params: dict) -> None:
    """Refuse an optimiser whose update reads the loss: there is none to give it."""

    def update(value: Any, gradient: Any, state: Any) -> Any:
        return optim.update(gradient, state, value=value)

    flat = ravel_pytree(params)[0]
    program = trace_program(update, jnp.zeros((), flat.dtype), params, optim_state)
    if prune(program, [True] * len(jax.tree.leaves(program.out))).used[0]:
        raise ValueError(
            "the optimiser looks at the loss (a line search, or a rate reduced on plateaus), "
            "which is private: use one that takes gradients only"
        )


def check_optimiser(optim: Any) -> None:
    """Refuse optimisers that evaluate the loss themselves."""
    if isinstance(optim, Minimize):
        raise ValueError("Minimize evaluates the loss of all records: use another optimiser")
