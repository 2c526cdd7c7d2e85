"""Where a variational run starts: NumPyro's own start, without the records, or an earlier state."""

from __future__ import annotations

import contextlib
import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import random
from numpyro.infer import SVI
from numpyro.infer.svi import SVIState

from numpyro_dp._arrays import unplaced
from numpyro_dp.mechanisms import CHACHA20
from numpyro_dp.model.guided.guides import prepare, same_on, synthetic_arguments
from numpyro_dp.model.guided.model import Outline, VariationalModel
from numpyro_dp.svi.dpsvi.adapted import AdaptedFit, Frame
from numpyro_dp.svi.dpsvi.curvature import CurvatureRelease
from numpyro_dp.svi.dpsvi.fit import Carry, Fit
from numpyro_dp.svi.dpsvi.plan import ReleasePlan


class Ready(NamedTuple):
    """A run that needs only its charge to begin; the last ``tail`` steps are averaged."""

    target: VariationalModel
    records: tuple
    fit: Fit
    plan: ReleasePlan
    begin: Carry
    curvature: CurvatureRelease | None
    tail: int


def first_carry(fit: Fit, state: SVIState, num_steps: int) -> Carry:
    """What a run carries before its charge: no key of noise, and no released coordinates."""
    return Carry(
        state.optim_state[0],
        state.optim_state,
        state.rng_key,
        jax.eval_shape(lambda: random.key(0, impl=CHACHA20)),
        jax.tree.map(jnp.zeros_like, fit.optim.get_params(state.optim_state)),
        () if fit.elbo is None else jnp.zeros(num_steps),
        Frame.of(jnp.eye(fit.dim)) if isinstance(fit, AdaptedFit) else (),
    )


def fresh_state(
    svi: SVI, found: Outline, rng_key: Any, init_params: dict | None
) -> tuple[SVIState, Any]:
    """NumPyro's starting state for this key, on made-up records, and what constrains it.

    NumPyro runs model and guide outside of a program, where as many made-up records as there are
    would take their memory: of many, few stand for all wherever the start is the same.

    :param svi: whose model, guide, optimiser and loss are started; an autoguide is prepared.
    :param found: the outline of its arguments.
    :param rng_key: a JAX key.
    :param init_params: constrained starting values by name, used as they are.
    """

    def begun(rows: int | None, key: Any = rng_key) -> tuple[SVIState, Any]:
        args, kwargs = synthetic_arguments(found.layout, rows)
        plain = SVI(svi.model, svi.guide, svi.optim, svi.loss)
        state = plain.init(key, *args, init_params=unplaced(init_params), **kwargs)
        return state, plain.constrain_fn

    def computed(rows: int | None, key: Any) -> tuple[SVIState, Any]:
        state, constrain = begun(rows, key)
        return state, constrain(svi.optim.get_params(state.optim_state))

    def prepared(rows: int | None) -> tuple[SVIState, Any]:
        prepare(svi.guide, found.layout, found.plate, found.dropped, rows)
        return begun(rows)

    # Made-up records need not be what NumPyro asks of a parameter, such as whole trials.
    with warnings.catch_warnings(), dist.distribution.validation_enabled(False):
        # Discrete latents of a record are summed out, although the loss is Trace_ELBO.
        warnings.filterwarnings("ignore", message=".*discrete latent variables")
        few = found.start_rows(svi.guide)
        if few is not None:
            # Whatever model and guide make of few (a public array with one entry for each, say).
            with contextlib.suppress(Exception):
                begin = prepared(few)
                if same_on(few, computed, rng_key):
                    return begin
        return prepared(None)


def resumed_state(fresh: SVIState, given: SVIState, rng_key: Any) -> SVIState:
    """A given state, with a key of the caller's that its steps have not seen.

    :raises ValueError: it is of another model, guide or optimiser than ``fresh``.
    """
    shapes = [jax.tree.map(jnp.shape, s.optim_state) for s in (fresh, given)]
    if shapes[0] != shapes[1]:
        raise ValueError(
            "init_state does not fit this model, guide and optimiser: its shapes differ"
        )
    given = unplaced(given)
    return given._replace(rng_key=random.fold_in(rng_key, given.optim_state[0]))
