"""Latents whose entries may trade places, as the units of a network: told from made-up records.

Where two entries, exchanged in several latents at once, leave the prior and every record's
likelihood as they are, the posterior has that many modes again, and at the middle of the prior,
where rounds begin, no score tells one entry from the other.
"""

from __future__ import annotations

import math
from functools import lru_cache, partial
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from numpyro.infer import init_to_sample

from numpyro_dp._quick_compile import quickly_compiled
from numpyro_dp.errors import UnsupportedModelError
from numpyro_dp.families.silent_directions import made_up_inputs
from numpyro_dp.families.synthetic_records import simulator
from numpyro_dp.model.data_free import read_latents
from numpyro_dp.model.jaxprs import choices
from numpyro_dp.model.names import quoted
from numpyro_dp.model.private_model import PrivateModel

# Made-up records, at each of some draws of the prior (two units may be silent at one), and the most
# ways of choosing an axis of each latent that are tried.
_RECORDS, _DRAWS, _WAYS = 60, 6, 32
# Of what an exchange in one latent alone changes: what rounding leaves of none.
_NONE = 1e-3


def require_entries_apart(model: PrivateModel) -> None:
    """Refuse, before it is paid for, a model whose entries no score tells from each other.

    :raises UnsupportedModelError: with their names and the remedy.
    """
    if units := interchangeable(model):
        raise UnsupportedModelError(
            f"entries of latents {quoted(units)} may trade places, as the units of a network: two "
            "of them exchanged in all of these leave every record's likelihood and the prior as "
            "they are, so that no score tells one from the other where the rounds begin, and one "
            "Gaussian holds none of the modes. Use `DPSVI` with `optim` and `clip_norm`, begun at "
            "a draw of the prior (docs/tutorials/neural-net.md), or give each entry a prior centre "
            "of its own"
        )


@lru_cache(maxsize=16)
def interchangeable(model: PrivateModel) -> tuple[str, ...]:
    """Two or more latents in which exchanging two entries at once changes nothing, by name.

    :returns: the first such set; empty where there is none, too many ways to try, or some made-up
        record that is impossible, as a sequence may be.
    """
    ways = _ways(model)
    if not ways or not model.layout.arrays:
        return ()
    alone = list(dict.fromkeys((name, axis) for way in ways for name, axis in way.items()))
    exchanges = [{}, *({name: axis} for name, axis in alone), *ways]
    inputs = made_up_inputs(model, _RECORDS, np.random.default_rng(0))
    terms, priors = (np.asarray(x, float) for x in _told(model, exchanges, inputs))
    if not (np.isfinite(terms).all() and np.isfinite(priors).all()):
        return ()
    changed = np.max(np.abs(terms - terms[:, :1]), axis=(0, 2))
    changed += np.max(np.abs(priors - priors[:, :1]), axis=0)
    by_itself = dict(zip(alone, changed[1:], strict=False))
    for way, joint in zip(ways, changed[1 + len(alone) :], strict=True):
        least = min(by_itself[each] for each in way.items())
        if joint < _NONE * least:
            return tuple(sorted(way))
    return ()


def _ways(model: PrivateModel) -> list[dict[str, int]]:
    """Sets of two latents or more that records read, with an axis of the same length of each."""
    read = read_latents(model)
    shapes = {n: s.shape for n, s in sorted(model.structure.latents.items()) if n in read}
    # An index of a record tells one group from the other.
    chosen_by_index = set(choices(model.term, sorted(model.structure.latents)).sizes.values())
    found: list[dict[str, int]] = []
    for size in sorted({length for shape in shapes.values() for length in shape if length > 1}):
        axes = {
            name: [None, *(k for k, length in enumerate(shape) if length == size)]
            for name, shape in shapes.items()
            if size in shape
        }
        if size in chosen_by_index or math.prod(map(len, axes.values())) > _WAYS:
            continue
        chosen = (dict(zip(axes, way, strict=True)) for way in product(*axes.values()))
        some = ({n: k for n, k in way.items() if k is not None} for way in chosen)
        found += sorted((way for way in some if len(way) > 1), key=len, reverse=True)
    return found


def _told(model: PrivateModel, exchanges: list[dict[str, int]], inputs: list[Any]) -> tuple:
    """Log likelihoods of made-up records after each exchange, and log densities of the prior.

    Of shapes (draws, exchanges, records) and (draws, exchanges).
    """

    def at_draw(inputs: list[Any], key: Any) -> tuple[Any, Any]:
        at_key, outcome_key = random.split(key)
        z = model.init(at_key, init_to_sample)
        rows = [leaf[:, None] for leaf in inputs]
        keys = random.split(outcome_key, _RECORDS)
        records = jax.vmap(partial(simulator(model), z))(rows, keys)
        places = [{n: _exchanged(x, each.get(n)) for n, x in z.items()} for each in exchanges]
        stacked = jax.tree.map(lambda *xs: jnp.stack(xs), *places)

        def terms(z: Any) -> Any:
            return jax.vmap(partial(model.record_log_likelihood, z))(records)

        return jax.lax.map(terms, stacked), jax.lax.map(model.log_prior, stacked)

    def told(inputs: list[Any], keys: Any) -> tuple[Any, Any]:
        return jax.lax.map(partial(at_draw, inputs), keys)

    given = inputs, random.split(random.key(0), _DRAWS)
    return quickly_compiled(told, *given)(*given)


def _exchanged(entries: Any, axis: int | None) -> Any:
    """With the first two along an axis in each other's place."""
    if axis is None:
        return entries
    order = np.arange(np.shape(entries)[axis])
    order[:2] = 1, 0
    return jnp.take(entries, order, axis=axis)
