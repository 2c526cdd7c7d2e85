"""What every private kernel is: a frozen configuration, and a bound kernel that does the steps.

A :class:`PrivateKernel` is what the user writes. It never runs: :meth:`PrivateKernel.bind` turns
it, for one model and one number of steps, into a :class:`BoundKernel` in which every calibrated
number is a static value, compared and hashed by value. NumPyro's loop only ever sees the bound
one, so no executable can be reused with a stale noise multiplier.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax, random
from numpyro.infer.mcmc import MCMCKernel

from numpyro_dp import _validate
from numpyro_dp.accounting import DEFAULT_DELTA, Accountant, Budget, Relation
from numpyro_dp.accounting.events import DpEvent
from numpyro_dp.accounting.report.facts import RunFacts
from numpyro_dp.execution.facts import assumed_public
from numpyro_dp.mcmc import plain
from numpyro_dp.mcmc.first import First
from numpyro_dp.model.private_model import PrivateModel

# What a run takes as public beside sizes and arguments.
OPTIONS = "the model, its priors and every option of the kernel"


class _Kernel(MCMCKernel):
    """What NumPyro asks of every kernel."""

    @property
    def sample_field(self) -> str:
        return "z"

    @property
    def default_fields(self) -> tuple[str, ...]:
        return ()

    def get_diagnostics_str(self, state: Any) -> str:
        return ""


@dataclass(frozen=True)
class BoundKernel(_Kernel):
    """A kernel with every number fixed: what runs inside NumPyro's loop.

    :param private_model: the model, split into a data-free prior and one term per record.
    :param steps_per_sample: private steps per call of :meth:`sample`.

    **Privacy.** The state holds released values and keys only; ``model_args`` is the flat list of
    record arrays, and reaches nothing but :meth:`advance`.
    """

    private_model: PrivateModel
    steps_per_sample: int

    # Whether a transition computes with records.
    asks_records: ClassVar[bool] = True
    # Whether rows that fill up the part of the last of several devices are masked.
    masks_padding: ClassVar[bool] = False
    # Whether rows that are stored elsewhere are fetched.
    fetches: ClassVar[bool] = False

    @property
    def model(self) -> None:
        """``None``: ArviZ's own converter would otherwise replay the model on the records."""

    @property
    def derived(self) -> tuple[str, ...]:
        """Fields of the state that are functions of released values, beside ``i`` and ``z``.

        What a state holds and no kernel declares is refused before a run: it would be seen.
        """
        return ()

    def postprocess_fn(self, model_args: Any, model_kwargs: Any) -> Callable[[dict], dict]:
        return self.constrained

    def told(self, state: Any) -> str:
        """Nothing: a chain that meets records has neither acceptance rate nor energy to show."""
        return ""

    def constrained(self, z: dict) -> dict:
        """Constrained latents and data-free deterministic sites of one unconstrained draw."""
        return {**self.private_model.constrain(z), **self.private_model.deterministics(z)}

    def init(
        self,
        rng_key: Any,
        num_warmup: int,
        init_params: Any,
        model_args: Any = (),
        model_kwargs: Any = None,
    ) -> Any:
        if rng_key.ndim:
            return jax.vmap(self.start)(rng_key, init_params)
        return self.start(rng_key, init_params)

    def sample(self, state: Any, model_args: Any, model_kwargs: Any = None) -> Any:
        records = list(model_args)
        return self.transition(state, self.record_caches(state, records), records)[0]

    def record_caches(self, state: Any, records: list) -> Any:
        """:meth:`record_cache` of one chain, or of vectorized ones.

        **Privacy.** It holds values of single records. It goes from step to step inside one
        compiled loop, and no loop returns it.
        """
        # NumPyro hands vectorized chains over as one batched state; the records are shared.
        one = partial(self.record_cache, records=records)
        return jax.vmap(one)(state) if is_batched(state) else one(state)

    def transition(self, state: Any, record_cache: Any, records: list) -> tuple[Any, Any]:
        """The steps of one sample, and what :meth:`record_caches` would now return."""
        step = partial(self._step_one_chain, records=records)
        advance = jax.vmap(step) if is_batched(state) else step
        if self.steps_per_sample == 1:
            return advance(state, record_cache)
        # The chains are batched within the loop: a loop that is batched as a whole is traced again,
        # outside of what a kernel asks for while it is traced, such as 64 bits.
        return lax.fori_loop(
            0, self.steps_per_sample, lambda _, carry: advance(*carry), (state, record_cache)
        )

    @staticmethod
    def keys(state: Any) -> tuple[Any, Any]:
        """The key of the state after this one, and that of the step between."""
        # A ratchet: children are one-way, so the last state's key tells nothing of the noise
        # already drawn. The counter is folded in so that resuming under a key that was used
        # before still draws fresh noise.
        carried, fresh = random.split(state.rng_key)
        return carried, random.fold_in(fresh, state.i)

    def _step_one_chain(self, state: Any, record_cache: Any, records: list) -> tuple[Any, Any]:
        carried, key = self.keys(state)
        state, record_cache = self.advance_from(key, state, record_cache, records)
        return state._replace(i=state.i + 1, rng_key=carried), record_cache

    def first(self, num_chains: int) -> First | None:
        """Releases from which the chains of a run start, if there are any."""
        return None

    def leaves(self, records: list) -> list:
        """The record leaves that the steps ask for."""
        return records

    @abstractmethod
    def start(self, rng_key: Any, z: dict) -> Any:
        """State of one chain at the public position ``z``; touches no record."""

    def resumed(self, state: Any) -> Any:
        """The state from which a further run goes on.

        Several runs may go on from one state, and each is charged for its own steps only: what a
        state holds that was paid for once must not be carried over.
        """
        return state

    @abstractmethod
    def advance(self, key: Any, state: Any, records: list) -> Any:
        """One private step of one chain; ``i`` and ``rng_key`` are replaced by the caller."""

    def record_cache(self, state: Any, records: list) -> Any:
        """What a step asks the records about the state it starts from, if anything."""
        return ()

    def advance_from(
        self, key: Any, state: Any, record_cache: Any, records: list
    ) -> tuple[Any, Any]:
        """:meth:`advance` with the state's record_cache at hand, and the next state's."""
        return self.advance(key, state, records), record_cache

    @abstractmethod
    def event(self, num_steps: int, *, start: int = 0, num_chains: int = 1) -> DpEvent:
        """The privacy event of ``num_steps`` private steps, shared equally by ``num_chains``.

        ``start`` steps lie behind each chain, which matters where the noise changes from step to
        step.
        """

    @abstractmethod
    def facts(self) -> RunFacts:
        """What the report says about a run of this kernel on any model."""

    def stated(self, *, private_size: bool) -> RunFacts:
        """The same of a run on this model."""
        model = self.private_model
        size = None if private_size else model.num_records
        public = assumed_public(size, OPTIONS, arguments=model.public_inputs)
        facts, released = self.facts(), ()
        if self.derived:
            released = (f"what follows from it alone: {', '.join(self.derived)}",)
        return replace(
            facts,
            released=facts.released + released,
            unit=model.unit,
            num_records=size,
            assumed_public=public,
        )


class Terms(NamedTuple):
    """What a run is bound for, beside its model.

    - **num_steps**: private steps over all chains.
    - **num_chains**: chains.
    - **relation**: neighbouring relation.
    - **delta**: δ at which ε is stated.
    """

    num_steps: int
    num_chains: int
    relation: Relation
    delta: float


@dataclass(frozen=True, kw_only=True, eq=False)
class PrivateKernel(_Kernel):
    """A private kernel as the user writes it; frozen, and run only through :meth:`bind`."""

    model: Any = field(kw_only=False, repr=False)
    privacy: Budget | None = None
    accountant: Accountant | None = None
    init_strategy: Any = None
    data_plate: str | None = None
    steps_per_sample: int = 1
    num_steps: int | None = None
    init_kernel: PrivateKernel | None = None
    _model: Any = field(init=False, repr=False, default=None)

    takes_warmup: ClassVar[bool] = True
    """Whether warm-up draws make sense; a run of a kernel that says no refuses them."""

    def __post_init__(self) -> None:
        _validate.own_numbers(self)
        if not callable(self.model):
            given = _validate.shown(self.model)
            raise ValueError(f"model must be a NumPyro model (a callable), got {given}")
        # The attribute that ArviZ and NumPyro look up must not lead to the model: they would
        # replay it on the records.
        object.__setattr__(self, "_model", self.model)
        object.__setattr__(self, "model", None)
        if self.privacy is not None and not isinstance(self.privacy, Budget):
            given = _validate.shown(self.privacy)
            raise ValueError(f"privacy must be a numpyro_dp.Budget(epsilon, delta), got {given}")
        if self.accountant is not None and not isinstance(self.accountant, Accountant):
            given = _validate.shown(self.accountant)
            raise ValueError(f"accountant must be a numpyro_dp.Accountant, got {given}")
        if self.init_strategy is not None and not callable(self.init_strategy):
            given = _validate.shown(self.init_strategy)
            raise ValueError(
                f"init_strategy must be one of NumPyro's, such as init_to_uniform(), got {given}"
            )
        _validate.positive_int("steps_per_sample", self.steps_per_sample)
        _validate.given(_validate.positive_int, num_steps=self.num_steps)
        if self.init_kernel is not None:
            self._check_init_kernel(self.init_kernel)

    @staticmethod
    def _check_init_kernel(first: Any) -> None:
        if not isinstance(first, PrivateKernel):
            raise ValueError(
                f"init_kernel must be a numpyro_dp kernel, got {type(first).__name__}: run an "
                "estimator before, on the same accountant, and pass its result by init_params="
            )
        if getattr(first, "adapts", False):
            raise ValueError(
                "init_kernel needs settings of its own: a kernel that adapts is run by itself"
            )
        if first.accountant is not None or first.init_kernel is not None:
            raise ValueError(
                "init_kernel takes neither an accountant nor an init_kernel of its own: both "
                "kernels are charged together, to the accountant of the main one"
            )

    @property
    def user_model(self) -> Callable:
        """The NumPyro model this kernel was built on."""
        return self._model

    def bind(
        self,
        model: PrivateModel,
        *,
        num_steps: int,
        relation: Relation,
        delta: float,
        num_chains: int = 1,
        records: Sequence[Any] = (),
    ) -> BoundKernel:
        """Fix every number for a run of ``num_steps`` private steps over all chains.

        :param records: the record arguments as they were given, where they are at hand.
        :raises UnsupportedModelError: when an option is a function whose code names the records.
        """
        for name, option in self._functions():
            model.refuse_captured_arrays(name, option, records)
        return self._bind(model, Terms(num_steps, num_chains, relation, delta))

    @abstractmethod
    def _bind(self, model: PrivateModel, terms: Terms) -> BoundKernel:
        """What :meth:`bind` returns, once the options are known to be free of data."""

    def _functions(self) -> Iterator[tuple[str, Callable]]:
        """Options that are functions of the caller's: schedules, bounds, moves, strategies."""
        for option in fields(self):
            given = getattr(self, option.name)
            if option.name == "_model" or isinstance(given, PrivateKernel):
                continue
            parts = given if isinstance(given, tuple) else (given,)
            yield from ((option.name, part) for part in parts if callable(part))

    @property
    def relation(self) -> Relation:
        """Neighbouring relation: the ledger's."""
        return "zero_out" if self.accountant is None else self.accountant.relation

    @property
    def delta(self) -> float:
        """δ at which ε is stated: that of ``privacy``, else the ledger's, else 1e-6."""
        if self.privacy is not None:
            return self.privacy.delta
        return DEFAULT_DELTA if self.accountant is None else self.accountant.stated_delta

    def init(
        self,
        rng_key: Any,
        num_warmup: int,
        init_params: Any,
        model_args: tuple,
        model_kwargs: dict,
    ) -> plain.ChargedState:
        """Called by plain ``numpyro.infer.MCMC`` only: charges ``num_steps``, then starts."""
        return plain.begin(self, rng_key, init_params, model_args, model_kwargs)

    def sample(self, state: Any, model_args: tuple, model_kwargs: dict) -> plain.ChargedState:
        """Called by plain ``numpyro.infer.MCMC`` only; NaN once the charged steps are done."""
        return plain.proceed(self, state, model_args, model_kwargs)

    def postprocess_fn(self, model_args: tuple, model_kwargs: dict) -> Callable[[dict], dict]:
        return plain.bound_for(self, 0, model_args, model_kwargs).constrained


def is_batched(state: Any) -> bool:
    """Whether a state carries several vectorized chains."""
    return jnp.ndim(state.i) > 0
