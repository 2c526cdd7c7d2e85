"""What a caller claims of a model, tried on made-up positions and records before any charge."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from numpyro_dp.errors import UnsupportedModelError
from numpyro_dp.families.glm import recognise
from numpyro_dp.mcmc.metropolis.proposals import Move
from numpyro_dp.model.private_model import PrivateModel

_TRIES = 2
_TOLERANCE = 1e-3


def require_linear(model: PrivateModel, need: str) -> None:
    """Refuse a model whose records are no functions of a linear predictor with a bounded slope."""
    other = "give max_move=, or smoothness=, a bound on the curvature of one record"
    try:
        glm = recognise(model)
    except UnsupportedModelError as error:
        raise ValueError(need + f"generalised linear models: {other} ({error})") from None
    try:
        slope = glm.loss().lipschitz
    except UnsupportedModelError:
        # What it asks for instead, bounds on predictors or counts, are options of other kernels.
        slope = math.inf
    if not math.isfinite(slope):
        raise ValueError(
            need + f"losses of bounded slope, which the {glm.family} one of site `{glm.site}` is "
            f"not: {other}"
        )


def require_slopes(model: PrivateModel) -> None:
    """Refuse a model without gradients while nothing is charged."""
    z = model.init(random.key(0))
    record = model.dummy_records(random.key(0), 1)
    try:
        jax.eval_shape(jax.grad(model.record_log_likelihood), z, record)
    except (TypeError, ValueError, NotImplementedError):
        raise ValueError(
            "smoothness= needs the gradient of a record's log likelihood, as adaptation does, "
            "which this model does not have (a loop of unknown length, integers?): give "
            "step_size= with max_move= or record_bound="
        ) from None


@lru_cache(maxsize=64)
def try_record_bound(model: PrivateModel, record_bound: Callable[[dict, dict], Any]) -> None:
    """Refuse a bound that is none between two made-up positions: a chain would never move."""
    here, there = (model.init(random.key(seed)) for seed in range(2))
    found = jax.jit(record_bound)(here, there)
    if jnp.shape(found) != () or not found >= 0:
        given = f"shape {jnp.shape(found)}" if jnp.shape(found) else f"{float(found):.4g}"
        raise ValueError(
            "record_bound must return one number, at least 0, for any two unconstrained positions: "
            f"between two made-up ones it gave {given}"
        )


@lru_cache(maxsize=64)
def check_public_moves(model: PrivateModel, moves: tuple[Move, ...]) -> None:
    """Try every public move on made-up positions and records.

    :param model: the model.
    :param moves: functions from an unconstrained position to another.
    :raises ValueError: for a move that is no involution, changes volume, or changes the likelihood
        of a made-up record.
    """
    for place, move in enumerate(moves):
        _check_one(model, move, f"public_moves[{place}]")


def _check_one(model: PrivateModel, move: Move, name: str) -> None:
    unravel = ravel_pytree(model.init(random.key(0)))[1]

    def moved(flat: Float[Array, " dim"]) -> Float[Array, " dim"]:
        new = move(unravel(flat))
        if set(new) != set(model.latents):
            raise ValueError(f"{name} must return every latent, got {sorted(new)}")
        return ravel_pytree({site: new[site] for site in sorted(new)})[0]

    @jax.jit
    def tried(here: Float[Array, " dim"], record: list) -> tuple[Array, Array, Array, Array]:
        there = moved(here)
        before, after = (model.record_log_likelihood(unravel(z), record) for z in (here, there))
        return moved(there), jax.jacobian(moved)(here), before, after

    for seed in range(_TRIES):
        # Public randomness: it says where a claim is tried, before any charge.
        start_key, spread_key, record_key = random.split(random.key(seed), 3)
        position = ravel_pytree(model.init(start_key))[0]
        position = position + random.normal(spread_key, position.shape, position.dtype)
        _require_public(name, position, tried(position, model.dummy_records(record_key, 1)))


def _require_public(
    name: str, position: Float[Array, " dim"], found: tuple[Array, Array, Array, Array]
) -> None:
    """Refuse a move by where it leads twice, its slopes, and a record's likelihood around it."""
    back, slopes, before, after = found
    if not np.allclose(back, position, rtol=_TOLERANCE, atol=_TOLERANCE):
        raise ValueError(f"{name} is not an involution: applied twice it must lead back")
    volume = np.linalg.det(np.asarray(slopes, float))
    if not np.isclose(abs(volume), 1, rtol=_TOLERANCE):
        raise ValueError(
            f"{name} changes volume in the unconstrained coordinates (|det| ≠ 1): such a move "
            "would need a correction; state it in coordinates in which it has none"
        )
    if not np.allclose(after, before, rtol=_TOLERANCE, atol=_TOLERANCE):
        raise ValueError(
            f"{name} changes the likelihood of a made-up record: only moves that leave every "
            "record's likelihood as it is are public; leave it out"
        )
