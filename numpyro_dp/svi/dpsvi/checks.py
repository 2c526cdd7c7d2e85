"""What DPSVI asks of its loss, its optimiser and its keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from numpyro.infer import Trace_ELBO
from numpyro.optim import SGD, Minimize, _NumPyroOptim

from numpyro_dp.errors import UnsupportedModelError
from numpyro_dp.execution.keys import as_typed_keys, of_default_kind
from numpyro_dp.model.checks.closures import refuse_captured_arrays
from numpyro_dp.model.guided.model import Outline
from numpyro_dp.model.jaxprs import constants, prune, trace_program
from numpyro_dp.svi.dpsvi.settings import INSTEAD

_REMEDY = "It has to be free of data: compute its schedule from public numbers alone"


def check_loss(loss: Any, adapts: bool) -> None:
    """Refuse every loss but the plain bound; of one draw where the run adapts."""
    plain = type(loss) is Trace_ELBO and loss.sum_sites and not loss.multi_sample_guide
    if not plain:
        raise ValueError(
            f"DPSVI takes numpyro.infer.Trace_ELBO(num_particles=...), got {type(loss).__name__}: "
            "other bounds are no sum over records, or are not split here"
        )
    if adapts and loss.num_particles != 1:
        raise ValueError(
            f"num_particles={loss.num_particles} goes with {INSTEAD}: without them a step takes "
            "one draw, whose own noise is taken off again"
        )


def usable_key(rng_key: Any) -> Any:
    """The caller's key, as JAX's default kind, which programs are traced with."""
    return of_default_kind(as_typed_keys(rng_key, 1))


def require_blind(optim: Any, optim_state: Any, params: dict, num_records: int) -> None:
    """Refuse an optimiser whose update reads the loss, or an array of as many rows as records.

    :raises ValueError: it looks at the loss: there is none to give it.
    :raises UnsupportedModelError: it closes over such an array, by whatever way.
    """

    def update(value: Any, gradient: Any, state: Any) -> Any:
        return optim.update(gradient, state, value=value)

    flat = ravel_pytree(params)[0]
    program = trace_program(update, jnp.zeros((), flat.dtype), params, optim_state)
    if prune(program).used[0]:
        raise ValueError(
            "the optimiser looks at the loss (a line search, or a rate reduced on plateaus), "
            "which is private: use one that takes gradients only"
        )
    for array in constants(program.closed.jaxpr, program.closed.consts):
        if array.shape[:1] == (num_records,):
            raise UnsupportedModelError(
                "the optimiser's update computes with an array that holds one row for each "
                f"record. {_REMEDY}"
            )


def given_optimiser(optim: Any, adapts: bool) -> Any:
    """The user's optimiser, or the one of a run that adapts.

    :raises ValueError: none was given to a run that does not.
    """
    if optim is not None:
        return optim
    if not adapts:
        raise ValueError(
            "clip_norm= goes with an optimiser whose step size suits it: give optim=, such as "
            f"optax.sgd(1e-3); or leave out {INSTEAD}, which makes DPSVI adapt"
        )
    return SGD(_step_size)


def _step_size(step: Any) -> Any:
    """Of natural gradients: long ones arrive, and shorter ones let the average rest."""
    return 0.5 / jnp.sqrt(1.0 + step)


def check_optimiser(optim: Any) -> None:
    """Refuse optimisers that evaluate the loss themselves."""
    if isinstance(optim, Minimize):
        raise ValueError("Minimize evaluates the loss of all records: use another optimiser")


def require_data_free(optim: Any, found: Outline, records: Sequence[Any] = ()) -> None:
    """Refuse an optimiser whose schedule, or another part, names the records: it is not charged.

    :param records: the record arguments as they were given.
    :raises UnsupportedModelError: with the array's name and the remedy.
    """
    parts = [optim.init, optim.update, optim.get_params]
    if isinstance(optim, _NumPyroOptim):
        parts += [optim.init_fn, optim.update_fn, optim.get_params_fn]
    for part in parts:
        refuse_captured_arrays(
            part,
            found.layout,
            found.num_records,
            records,
            whose="the optimiser",
            remedy=_REMEDY,
        )
