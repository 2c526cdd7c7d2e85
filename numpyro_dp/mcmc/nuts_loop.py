"""NUTS on a released likelihood, whose numbers are arguments: compiled once for one model.

NumPyro's driver compiles anew for every run, since each has a kernel of its own. Here the released
numbers are arguments of one program, so that another object of the same model, settings and shapes
finds it compiled, and a further run does.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.infer
from jax import dtypes, random
from jax.flatten_util import ravel_pytree
from numpyro import handlers
from numpyro.infer.reparam import (
    CircularReparam,
    LocScaleReparam,
    ProjectedNormalReparam,
    TransformReparam,
)
from numpyro.infer.util import ParamInfo, constrain_fn, potential_energy

from numpyro_dp._quick_compile import quickly_jitted
from numpyro_dp.mcmc.kernel import is_batched
from numpyro_dp.mcmc.loop import runs_apart
from numpyro_dp.model.private_model import PrivateModel
from numpyro_dp.scoring.released import ReleasedLikelihood, ReleasedModel
from numpyro_dp.scoring.statistic import unravelled


class Numbers(NamedTuple):
    """What a released likelihood holds, as arrays.

    :param design: (n, dim).
    :param response: (n,).
    :param mean: of the unconstrained latents, (dim,).
    :param covariance: of them, (dim, dim); **root**: its lower triangular root.
    """

    design: Any
    response: Any
    mean: Any
    covariance: Any
    root: Any


# Folded into a chain's key for its start.
_START = 0x53544152
# Draws for a start, as many as NumPyro takes; the first of them of the released approximation.
_TRIES, _NEAR = 100, 20
# How far apart coordinates are held at least in the first metric.
_APART = 1e-3
# Of these NumPyro reads nothing but their attributes.
_PLAIN_REPARAMS = (CircularReparam, LocScaleReparam, ProjectedNormalReparam, TransformReparam)


class _Compared:
    """What has no hash, compared by what it says: of tables, arrays and NumPyro's plain
    reparametrisations; all else by whether it is the same object."""

    def __init__(self, value: Any) -> None:
        # A copy: what a table says now is what is compiled.
        self.value = dict(value) if isinstance(value, Mapping) else value
        self._said = _said(value)

    def __hash__(self) -> int:
        return hash(self._said)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Compared) and self._said == other._said


class _Same:
    """One object, compared by identity; kept alive, so that no other takes its place."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __hash__(self) -> int:
        return id(self._value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._value is other._value


def _said(value: Any) -> Hashable:
    kind = type(value)
    if isinstance(value, Mapping):
        return kind, tuple((name, _said(each)) for name, each in sorted(value.items()))
    if isinstance(value, (list, tuple)):
        return kind, tuple(map(_said, value))
    if isinstance(value, (np.ndarray, jax.Array)) and value.dtype != object:
        return kind, value.shape, str(value.dtype), np.asarray(value).tobytes()
    if kind in _PLAIN_REPARAMS:
        return kind, _said(vars(value))
    try:
        hash(value)
    except TypeError:
        return _Same(value)
    return kind, value


def _hashed(value: Any) -> Any:
    try:
        hash(value)
    except TypeError:
        return _Compared(value)
    return value


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, _Compared) else value


@dataclass(frozen=True)
class NUTSProgram:
    """Everything that a compiled program of NUTS depends on; made by :meth:`of`.

    :param private_model: the split model, which holds no record.
    :param reparam: the configuration of ``handlers.reparam``, or ``None``.
    :param options: names and values of NUTS's own options.
    :param num_warmup: draws in which it adapts.
    """

    steps_per_sample: ClassVar[int] = 1
    asks_records: ClassVar[bool] = False

    private_model: PrivateModel
    reparam: Any
    options: tuple[tuple[str, Any], ...]
    num_warmup: int

    @classmethod
    def of(
        cls, model: PrivateModel, reparam: Any, options: Mapping[str, Any], num_warmup: int
    ) -> NUTSProgram:
        """The program of a model and settings, equal where these are."""
        items = tuple((name, _hashed(options[name])) for name in sorted(options))
        return cls(model, _hashed(reparam), items, num_warmup)

    def init(self, rng_key: Any, init_params: Any, numbers: Numbers) -> Any:
        """NUTS's first state of one chain, or of as many as there are keys."""
        return _init(self, rng_key, init_params, numbers)

    def transition(self, state: Any, record_cache: Any, numbers: Numbers) -> tuple[Any, Any]:
        """One transition of every chain."""
        batched = is_batched(state)
        z = jax.tree.map(lambda x: x[0], state.z) if batched else state.z
        potential = partial(potential_energy, _seeded(self._model(numbers)), (), {})
        options = self._options | {"dense_mass": self._blocks(z)}
        sampler = numpyro.infer.NUTS(potential_fn=potential, **options)
        # Its functions are made by it. The state that it makes as well is not wanted: no gradient
        # is asked for, and nothing of it is compiled.
        given = ParamInfo(z, jnp.zeros(()), z)
        jax.eval_shape(lambda: sampler.init(random.key(0), self.num_warmup, given))

        def once(state: Any) -> Any:
            return sampler.sample(state, (), {})

        return (jax.vmap(once) if batched else once)(state), record_cache

    def record_caches(self, state: Any, numbers: Numbers) -> tuple:
        """There are no records."""
        return ()

    def told(self, state: Any) -> str:
        """What NumPyro's own bar says of a chain; of several, their means."""
        numbers = state.num_steps, state.adapt_state.step_size, state.mean_accept_prob
        steps, size, rate = (float(np.mean(each)) for each in numbers)
        return f"{steps:.0f} steps of size {size:.2e}. acc. prob={rate:.2f}"

    def constrained(self, z: Any) -> dict[str, Any]:
        """Sites at an unconstrained position; none of them depends on the released numbers."""
        nothing = jnp.zeros((1, len(ravel_pytree(z)[0])))
        model = self._model(Numbers(nothing, nothing[:, 0], None, None, None))
        return constrain_fn(_seeded(model), (), {}, z, return_deterministic=True)

    @property
    def _options(self) -> dict[str, Any]:
        return {name: _plain(value) for name, value in self.options}

    def _blocks(self, z: Any) -> list:
        dense = self._options.get("dense_mass", False)
        if isinstance(dense, bool):
            return [tuple(sorted(z))] if dense else []
        return dense

    def _model(self, numbers: Numbers) -> Any:
        model: Any = ReleasedModel(self.private_model, numbers)
        if self.reparam is not None:
            model = handlers.reparam(model, config=_plain(self.reparam))
        return model


def _seeded(model: Any) -> Any:
    """A model of which every latent is given: nothing is drawn with the key."""
    return handlers.seed(model, random.key(0))


def numbers_of(released: ReleasedLikelihood) -> Numbers:
    """The released numbers in the precision that chains compute in."""
    at = released.located
    variance = np.diag(np.diag(at.covariance))
    # In float32 a matrix of coordinates that hang together closely has no root.
    covariance = at.covariance + _APART * (variance - at.covariance)
    try:
        root = np.linalg.cholesky(covariance)
    except np.linalg.LinAlgError:
        # A place to begin only: what was paid for does not fail by it.
        covariance, root = variance, np.sqrt(variance)
    dtype = jnp.result_type(float)
    # On the host no program is compiled for it.
    numbers = at.design, at.response, at.mean, covariance, root
    return Numbers(*jax.device_put([np.asarray(x, dtype) for x in numbers]))


def begun(
    model: Any, options: Mapping[str, Any], reparam: Any, covariance: Any
) -> numpyro.infer.NUTS:
    """NumPyro's NUTS, whose warm-up begins in the metric that the release tells.

    From the unit metric its first trajectories have hundreds of steps where scales differ.

    :param covariance: of the unconstrained latents, (dim, dim).
    """
    dense = options.get("dense_mass", False)
    if reparam is None and isinstance(dense, bool) and options.get("inverse_mass_matrix") is None:
        metric = covariance if dense else covariance.diagonal()
        options = {**options, "inverse_mass_matrix": metric}
    return numpyro.infer.NUTS(model, **options)


def _firsts(program: NUTSProgram, rng_key: Any, init_params: Any, numbers: Numbers) -> Any:
    """NUTS's first states, of several chains one after another where their steps are so taken."""
    chains = _number_of(rng_key)
    if not (chains and runs_apart(program, chains)):
        return _first(program, rng_key, init_params, numbers)
    return jax.lax.map(lambda given: _first(program, *given, numbers), (rng_key, init_params))


def _number_of(rng_key: Any) -> int:
    """How many keys there are; 0 for a single one that has no axis."""
    typed = jnp.issubdtype(rng_key.dtype, dtypes.prng_key)
    return len(rng_key) if jnp.ndim(rng_key) > (0 if typed else 1) else 0


def _first(program: NUTSProgram, rng_key: Any, init_params: Any, numbers: Numbers) -> Any:
    options = program._options
    sampler = begun(program._model(numbers), options, program.reparam, numbers.covariance)
    if init_params is None and program.reparam is None and "init_strategy" not in options:
        init_params = _starts(program, rng_key, numbers)
    return sampler.init(rng_key, program.num_warmup, init_params, model_args=(), model_kwargs={})


def _starts(program: NUTSProgram, rng_key: Any, numbers: Numbers) -> dict[str, Any]:
    """A draw of the released normal approximation for each key: of released numbers alone.

    NumPyro's start, uniform within two of zero, is hundreds of standard deviations away where a
    model is in natural units. What warm-up learns on the way from there freezes the chains. As
    there, a start that the model forbids is drawn again; where all draws are such, NumPyro's.
    """
    potential = partial(potential_energy, _seeded(program._model(numbers)), (), {})

    def drawn(key: Any, turn: Any) -> dict[str, Any]:
        key, shape = random.fold_in(key, turn), numbers.mean.shape
        normal = random.normal(key, shape, numbers.mean.dtype)
        near = numbers.mean + numbers.root @ normal
        # Uniform within two of zero, without a second draw to compile.
        own = 2 * jax.lax.erf(normal / np.sqrt(2).astype(numbers.mean.dtype))
        return unravelled(program.private_model, jnp.where(turn < _NEAR, near, own))

    def start(key: Any) -> dict[str, Any]:
        key = random.fold_in(key, _START)

        def vain(tried: tuple[Any, Any]) -> Any:
            turn, z = tried
            return (turn < _TRIES) & ~jnp.isfinite(potential(z))

        def again(tried: tuple[Any, Any]) -> tuple[Any, Any]:
            return tried[0] + 1, drawn(key, tried[0])

        nowhere = unravelled(program.private_model, jnp.nan * numbers.mean)
        return jax.lax.while_loop(vain, again, (0, nowhere))[1]

    return (jax.vmap(start) if _number_of(rng_key) else start)(rng_key)


_init = quickly_jitted(_firsts, static_argnums=0)
