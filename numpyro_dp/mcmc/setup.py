"""All of a run that comes before its charge: a mistake met here costs nothing and tells nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import random
from jaxtyping import Array

from numpyro_dp._sources import Reading
from numpyro_dp.accounting import Accountant, Relation
from numpyro_dp.accounting.events import DpEvent
from numpyro_dp.execution.processes import on_each
from numpyro_dp.mcmc.first import Begun, First
from numpyro_dp.mcmc.kernel import BoundKernel, PrivateKernel
from numpyro_dp.mcmc.nuts import DPNUTS
from numpyro_dp.mcmc.start import starting_positions
from numpyro_dp.model.private_model import private_model
from numpyro_dp.model.records import read_arguments

_SECRET = ("rng_key",)


def check_options(kernel: Any, *, jit_model_args: bool, chain_method: Any) -> None:
    """Refuse what numpyro_dp's driver cannot run, and options that would leak.

    :raises ValueError: naming it.
    """
    if not isinstance(kernel, PrivateKernel | DPNUTS):
        raise ValueError(
            f"numpyro_dp.MCMC runs private kernels such as numpyro_dp.DPSGLD, not "
            f"{type(kernel).__name__}: use numpyro.infer.MCMC for that one"
        )
    if not jit_model_args:
        raise ValueError(
            "jit_model_args=False would compile the records into the executable, and into "
            "JAX's compilation cache on disk: leave it at True"
        )
    if callable(chain_method):
        raise ValueError(
            "chain_method must be 'vectorized', 'sequential' or 'parallel': under a callable "
            "the charge would be traced, made once and spent many times"
        )


def check_kernel(
    kernel: PrivateKernel | DPNUTS,
    given: Accountant | None,
    num_warmup: int,
    fields: Sequence[str],
) -> None:
    """Refuse a kernel that would charge elsewhere than the driver's, or cannot do what it does.

    :param given: the accountant of the kernel that the driver was made with.
    :param fields: what of that kernel's state NumPyro's driver collects unasked.
    """
    if kernel.accountant is not given:
        raise ValueError(
            "the kernel of this MCMC object was exchanged for one with another accountant: "
            "make a new numpyro_dp.MCMC for it, so that its charges go where they belong"
        )
    if not set(fields) <= set(kernel.default_fields):
        raise ValueError(
            "the kernel of this MCMC object was exchanged for one whose state has other fields: "
            f"make a new numpyro_dp.MCMC for {type(kernel).__name__}"
        )
    if num_warmup and not kernel.takes_warmup:
        raise ValueError(
            f"every draw of {type(kernel).__name__} is a finished one and charged: set num_warmup=0"
        )


def require_one_division(bound: BoundKernel, chain_method: object) -> None:
    """Refuse to divide both the chains and the records among devices.

    :raises ValueError: both are asked for, or the records are fetched from a store.
    """
    if chain_method == "parallel" and bound.private_model.layout.storage is not None:
        raise ValueError(
            "chain_method='parallel' puts all records on every device, and these are fetched from "
            "a store: use chain_method='vectorized', whose chains fetch theirs together"
        )
    if chain_method == "parallel" and bound.private_model.shards is not None:
        raise ValueError(
            "chain_method='parallel' puts all records on every device, and these are divided among "
            "devices: use chain_method='vectorized', with which each device sees its own records "
            "for all chains"
        )


def check_fields(bound: BoundKernel, z: dict, extra_fields: Sequence[str]) -> None:
    """Refuse what is not a field of the kernel's state, or is a secret of the run.

    :param bound: the bound kernel.
    :param z: starting positions, for their shapes.
    :param extra_fields: names as given to ``MCMC.run``.
    :raises ValueError: for a key, or a name that the state does not have.
    """
    state = jax.eval_shape(lambda z: bound.start(jax.random.key(0), z), z)
    known = {"i", "z", *_SECRET, *bound.derived}
    # Nothing stands where a kernel does not adapt.
    fields = [name for name in state._fields if getattr(state, name) is not None]
    for name in fields:
        if name not in known:
            raise ValueError(
                f"the state of {type(bound).__name__} has a field {name!r} that is no key and not "
                "declared as derived from released values: whoever wrote the kernel must say so"
            )
    for name in extra_fields:
        if name.startswith("~"):
            continue
        field = name.split(".")[0]
        if field in _SECRET:
            raise ValueError(
                f"extra_fields: {name!r} is a secret of the run; a key tells the noise, and with "
                "it the records"
            )
        if field not in fields or ("." in name and name.split(".", 1)[1] not in z):
            public = [f for f in fields if f not in _SECRET]
            raise ValueError(
                f"extra_fields: the state has no field {name!r}; it has {', '.join(public)} "
                f"and z.<site> for the sites {', '.join(z)}"
            )


def require_resumable(bound: BoundKernel, num_chains: int, start: dict, state: Any) -> None:
    """Refuse a state from which this kernel cannot go on, while nothing is charged.

    :param num_chains: of this run.
    :param start: positions of as many chains, for their shapes.
    :raises ValueError: it is of another kernel, model or number of chains, or no number.
    """
    key = random.key(0)
    keys = key if num_chains == 1 else random.split(key, num_chains)
    fresh = jax.eval_shape(lambda keys, z: bound.init(keys, 0, z), keys, start)
    if type(state) is type(fresh):
        state = bound.resumed(state)
        given, expected = (
            jax.tree.map(jnp.shape, each._replace(rng_key=None)) for each in (state, fresh)
        )
        floats = [x for x in jax.tree.leaves(state._replace(rng_key=None)) if _is_float(x)]
        if given == expected and all(bool(jnp.all(jnp.isfinite(x))) for x in floats):
            return
    raise ValueError(
        "post_warmup_state does not fit: it is of another kernel, model or number of chains, or "
        "holds what is no number. Give the last_state of a run like this one, or begin anew"
    )


def _is_float(leaf: Any) -> bool:
    return jnp.issubdtype(jnp.asarray(leaf).dtype, jnp.floating)


@dataclass(frozen=True)
class FirstSample:
    """One sample of another kernel for every chain.

    :param kernel: that kernel, bound.
    :param name: what the user calls it.
    :param num_chains: chains to start.
    """

    kernel: BoundKernel
    name: str
    num_chains: int

    @property
    def label(self) -> str:
        return f" after {self.name}"

    @property
    def event(self) -> DpEvent:
        return self.kernel.event(self.steps, num_chains=self.num_chains)

    @property
    def steps(self) -> int:
        return self.kernel.steps_per_sample * self.num_chains

    @property
    def total_variation(self) -> float:
        return self.kernel.facts().overflow_delta * self.steps

    @property
    def conditions(self) -> tuple[str, ...]:
        return self.kernel.facts().conditions

    def begin(
        self, rng_key: Any, start: Any, records: tuple, given: bool, progress_bar: bool
    ) -> Begun:
        several = self.num_chains > 1
        keys = random.split(rng_key, self.num_chains) if several else rng_key
        return Begun(on_each(_one_sample(self.kernel, self.kernel.init(keys, 0, start), records)))


@partial(jax.jit, static_argnums=0)
def _one_sample(kernel: Any, state: Any, records: tuple) -> dict:
    return kernel.sample(state, records).z


class Ready(NamedTuple):
    """A run that needs only its charge to begin.

    - **bound**: the bound kernel.
    - **first**: releases from which the chains start, if any.
    - **start**: public starting positions.
    - **records**: record arrays.
    """

    bound: BoundKernel
    first: First | None
    start: dict[str, Array]
    records: tuple[Array, ...]


def prepare(
    kernel: PrivateKernel,
    relation: Relation,
    keys: Any,
    args: tuple,
    kwargs: dict,
    init_params: Any,
    num_steps: int,
    num_chains: int,
    extra_fields: Sequence[str],
    postprocess_fn: Callable[[dict], dict] | None,
    reading: Reading,
) -> Ready:
    """Split the model, fix every number, start the chains at public positions.

    :param kernel: the kernel as the user wrote it.
    :param relation: the ledger's neighbouring relation.
    :param keys: one typed key, or one for each chain, for the starting positions.
    :param args: arguments of the model.
    :param kwargs: keyword arguments of the model.
    :param init_params: positions that the caller gives.
    :param num_steps: private steps of all chains that the noise is fixed for.
    :param num_chains: chains.
    :param extra_fields: fields of the state to be collected.
    :param postprocess_fn: what the caller makes of a draw.
    :param reading: by which records that are stored elsewhere are fetched.
    :raises UnsupportedModelError: when the model cannot be split, or code names the records.
    :raises ValueError: when anything else does not fit.
    """
    private_size = relation == "add_remove"
    model = private_model(
        kernel.user_model, args, kwargs, data_plate=kernel.data_plate, private_size=private_size
    )
    given = read_arguments(kernel.user_model, args, kwargs)[1]
    if postprocess_fn is not None:
        model.refuse_captured_arrays("postprocess_fn", postprocess_fn, given)

    def bind(each: PrivateKernel, num_steps: int) -> BoundKernel:
        return each.bind(
            model,
            num_steps=num_steps,
            relation=relation,
            delta=kernel.delta,
            num_chains=num_chains,
            records=given,
        )

    bound, own = bind(kernel, num_steps), kernel.init_kernel
    first, fetches = bound.first(num_chains), bound.fetches
    if own is not None:
        one = bind(own, num_chains * own.steps_per_sample)
        first, fetches = FirstSample(one, type(own).__name__, num_chains), fetches and one.fetches
    start = starting_positions(model, kernel.init_strategy, keys, init_params, num_chains)
    check_fields(bound, start, extra_fields)
    # The first sample is made of the same rows as the steps behind it.
    masked = bound.masks_padding and (own is None or one.masks_padding)
    by = reading if fetches else None
    records = model.records(args, kwargs, padded=masked, reading=by)
    return Ready(bound, first, start, tuple(bound.leaves(records)))
