"""``numpyro_dp.MCMC``: NumPyro's driver, with the budget charged before the records are touched."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
from jax import random
from jax.sharding import NamedSharding

from numpyro_dp import _validate
from numpyro_dp._arrays import unplaced
from numpyro_dp._moved import mcmc_state
from numpyro_dp.execution.account import Account, ChargedRun
from numpyro_dp.execution.keys import as_typed_keys, of_chains, scrub
from numpyro_dp.execution.processes import is_first, on_each, require_same
from numpyro_dp.execution.progress import EpsilonTable, pieces, steps_bar
from numpyro_dp.mcmc.first import needed_first
from numpyro_dp.mcmc.kernel import BoundKernel, PrivateKernel
from numpyro_dp.mcmc.loop import at_once, collect, cut, over_devices, runs_apart
from numpyro_dp.mcmc.nuts import DPNUTS, Release
from numpyro_dp.mcmc.nuts_loop import NUTSProgram, numbers_of
from numpyro_dp.mcmc.progress import ChainsCost, cents_up
from numpyro_dp.mcmc.report import GIVEN_START, GIVEN_STATE, Described, Reported
from numpyro_dp.mcmc.reserved import Reserved, steps_behind
from numpyro_dp.mcmc.setup import (
    check_kernel,
    check_options,
    prepare,
    require_one_division,
    require_resumable,
)
from numpyro_dp.mechanisms import CHACHA20
from numpyro_dp.scoring.released import ReleasedLikelihood

_BAR_UPDATES = 50


class MCMC(Reported):
    """Markov chain Monte Carlo with a private kernel: ``numpyro.infer.MCMC`` and a privacy report.

    Everything of NumPyro's class keeps working (``run``, ``warmup``, ``get_samples``,
    ``get_extra_fields``, ``print_summary``, ``post_warmup_state``, thinning, ``Predictive`` on the
    samples); the differences are all about privacy.

    :param kernel: a numpyro_dp kernel. With :class:`~numpyro_dp.DPNUTS` one release is charged, and
        warm-up, draws and chains are free; every other looks at the records in each step.
    :param int num_warmup: warm-up draws; charged like any other, except with ``DPNUTS``.
    :param int num_samples: draws kept.
    :param int num_chains: chains; each one is charged, except with ``DPNUTS``.
    :param int thinning: keep every ``thinning``-th draw. Thinned-away draws are paid for (except
        with ``DPNUTS``), so the default is to keep them all.
    :param postprocess_fn: function of one unconstrained draw (a dict) in place of constraining.
    :param chain_method: ``"vectorized"`` (default), all in one program; ``"sequential"``, or
        ``"parallel"``: one chain a device, the records copied to each.
    :param bool progress_bar: show a bar with the ε reached so far of this run's charge.
    :param bool jit_model_args: must stay ``True``: records are arguments of the compiled loop,
        never constants of it, which would be written to JAX's compilation cache.
    :param bool secure: ``True`` draws all noise keys from the operating system, and the key given
        to :meth:`run` governs initial values only. ``False`` makes runs reproducible from that
        key; the guarantee then holds on the condition that the key is secret, random and used
        once, and an accountant with a budget refuses it unless ``allow_conditional=True``.
    :raises ValueError: for a kernel that is not private, or an option that would leak.

    ``get_samples()`` gives one array a site, on its own support, of shape (chains · draws, ...),
    with ``group_by_chain=True`` (chains, draws, ...), where draws are num_samples // thinning.
    ``get_extra_fields()`` has the same leading axes.

    Whether the draws are worth having is in :attr:`verdicts`, all in one place.

    **Privacy.** ``run`` counts the private steps (of ``DPNUTS`` those of its release), fixes the
    noise, charges the accountant (durably, all or nothing), and only then lets the compiled loop
    see the records. A run that fails or is interrupted afterwards stays charged. ``warmup`` charges
    the samples too, and the ``run`` that follows it charges nothing more; any further ``run`` is a
    charge of its own (of ``DPNUTS`` further draws of the same release, free). The unit, the
    relation, δ and every condition are in :attr:`privacy`.

    **References.** The interface: Phan, Pradhan and Jankowiak, *Composable Effects for Flexible and
    Accelerated Probabilistic Programming in NumPyro* (2019). What is charged, and when: *How a step
    is released* (docs/explanation/how-a-step-is-released.md).

    **Example**: see :class:`~numpyro_dp.DPNUTS`.
    """

    # Of DPNUTS, within a run.
    _program: NUTSProgram | None = None

    # The user's kernel; within a run, NumPyro finds the bound one in its place.
    sampler: Any

    def __init__(
        self,
        kernel: PrivateKernel | DPNUTS,
        *,
        num_warmup: int,
        num_samples: int,
        num_chains: int = 1,
        thinning: int = 1,
        postprocess_fn: Callable[[dict], dict] | None = None,
        chain_method: str = "vectorized",
        progress_bar: bool = True,
        progress_rate: int | None = None,
        jit_model_args: bool = True,
        secure: bool = True,
    ) -> None:
        check_options(kernel, jit_model_args=jit_model_args, chain_method=chain_method)
        num_chains = _validate.positive_int("num_chains", num_chains)
        counts = (num_warmup, num_samples, thinning)
        num_warmup, num_samples, thinning = _validate.python_number(counts)
        super().__init__(
            kernel,
            num_warmup=num_warmup,
            num_samples=num_samples,
            num_chains=num_chains,
            thinning=thinning,
            postprocess_fn=postprocess_fn,
            chain_method=chain_method,
            progress_bar=progress_bar,
            progress_rate=progress_rate,
            jit_model_args=True,
        )
        # The noise belongs to one complete run as announced here; later runs reuse it.
        self._planned_steps = (num_warmup + num_samples) * kernel.steps_per_sample * num_chains
        self._given_accountant = kernel.accountant
        self._account = Account("MCMC", kernel.accountant, secure=secure)
        self._reserved: Reserved | None = None
        self._bound: BoundKernel | None = None
        self._described: Described | None = None
        self._given: dict[str, None] = {}
        self._epsilon_table: EpsilonTable = ()
        self._steps_before_chain = 0
        self._spread: NamedSharding | None = None
        self._release = Release()

    @property
    def released(self) -> ReleasedLikelihood:
        """What :class:`~numpyro_dp.DPNUTS` released; its ``.model`` is free to use."""
        return self._release.known

    @property
    def secure(self) -> bool:
        """Whether the noise comes from keys of the operating system; fixed at construction."""
        return self._account.secure

    @property
    def post_warmup_state(self) -> Any:
        """The state from which the next :meth:`run` goes on, as in NumPyro; ``None``: from a start.

        A state that this object did not leave behind itself was paid for elsewhere, and the
        report says that its ε does not cover it.
        """
        return self._warmup_state

    @post_warmup_state.setter
    def post_warmup_state(self, state: Any) -> None:
        if state is not None and state is not self._last_state and state is not self._warmup_state:
            self._given[GIVEN_STATE] = None
        self._warmup_state = state

    def run(
        self,
        rng_key: Any,
        *args: Any,
        extra_fields: Sequence[str] = (),
        init_params: dict | None = None,
        **kwargs: Any,
    ) -> None:
        """Charge the accountant for this run, then draw.

        :param rng_key: a JAX key (or one for each chain). With ``secure=True`` it governs initial
            values only.
        :param args: arguments of the model; arrays whose leading axis is the private plate are
            records, everything else is public or must be wrapped in ``numpyro_dp.public``.
        :param extra_fields: further state fields to collect, such as ``"i"`` or ``"z.<site>"``.
        :param init_params: unconstrained initial position, one array for each latent (with a
            leading chain axis for several chains). It is used as it is: a value computed from the
            records is a release of yours that nothing here accounts for.
        :param kwargs: keyword arguments of the model.
        :raises BudgetExceededError: the accountant refuses; nothing was charged.
        :raises UnsupportedModelError: the model cannot be split into records.
        :raises ValueError: an argument is out of range, or of the wrong kind.
        """
        inputs = (args, kwargs, init_params)
        with self._account.opened("MCMC.run", rng_key, *inputs, self._warmup_state) as charged:
            fields = self._default_fields
            check_kernel(self.sampler, self._given_accountant, self.num_warmup, fields)
            steps = isinstance(self.sampler, PrivateKernel)
            way = self._charge_and_run if steps else self._release_and_run
            earlier = self._states, self._states_flat, self._last_state
            try:
                way(charged, rng_key, *inputs, tuple(extra_fields))
                charged.require_unchanged()
            except BaseException:
                self._states, self._states_flat, self._last_state = earlier
                raise
            finally:
                self._forget()
        if self._described is not None and is_first():
            # Where the bar is shown too, and a script's own output is not.
            self._described = self._described.show(sys.stderr, also_nothing=self.progress_bar)

    def _release_and_run(
        self, charged: ChargedRun, rng_key, args, kwargs, init_params, extra_fields
    ) -> None:
        """Release unless that was done, then run NumPyro's own loop without data."""
        kernel, keys = self.sampler, as_typed_keys(rng_key, int(self.num_chains))
        inputs = kernel, charged, keys, args, kwargs
        released = self._release.made(*inputs, progress_bar=self.progress_bar)
        self._described = Described(released.facts, 1, judged=True)
        if init_params is not None:
            self._given[GIVEN_START] = None
        if not self._collection_params["phase"]:
            # NumPyro counts draws at the end of a run: more of them came with the run after next.
            self._set_collection_params()
        with self._sampling(*kernel.chains(released, int(self.num_warmup))):
            keys = of_chains(rng_key, int(self.num_chains))
            super().run(keys, extra_fields=extra_fields, init_params=init_params)
        self._described = self._described.mixed(self._states)

    def _charge_and_run(
        self, charged: ChargedRun, rng_key, args, kwargs, init_params, extra_fields
    ) -> None:
        kernel, chains = self.sampler, int(self.num_chains)
        keys, relation = as_typed_keys(rng_key, chains), self._account.relation
        inputs = (kernel, relation, keys, args, kwargs, init_params)
        fixed = (self._planned_steps, chains, extra_fields, self.postprocess_fn, charged.reading)
        bound, first, start, records = charged.prepared(prepare, *inputs, *fixed)
        require_one_division(bound, self.chain_method)
        resumed = self._warmup_state is not None
        if resumed:
            require_resumable(bound, chains, start, self._warmup_state)
        transitions = self.num_samples if resumed else self._collection_params["upper"]
        # The attributes can be set to numbers that wrap around, or that pay others' steps.
        announced = int(self.num_samples)
        if announced < 0 or int(self.num_warmup) < 0:
            raise ValueError("num_warmup and num_samples must not be negative")
        each = bound.steps_per_sample * chains
        steps = int(transitions) * each
        paid = self._take_reserved(bound, steps)
        first = needed_first(first, resumed=resumed, steps=steps)
        if steps and not paid:
            later = announced * each if self._collection_params["phase"] == "warmup" else 0
            noise_key = self._charge(charged, keys, bound, steps, first, later, start)
        else:
            # Where nothing is drawn there is nothing to hide.
            noise_key = charged.paid_key(keys, of=bound) if paid else random.key(0, impl=CHACHA20)
        # What was said of the start holds as long as chains go on from it.
        given = init_params is not None
        notes = self._described.started if resumed and self._described else ()
        if first is not None:
            noise_key, first_key = random.split(noise_key)
            start, notes = first.begin(first_key, start, records, given, self.progress_bar)
        self._bound = bound
        facts = bound.stated(private_size=self._account.private_size)
        self._described = Described.of(facts, notes, bound.steps_per_sample)
        if given:
            self._given[GIVEN_START] = None
        self._steps_before_chain = paid
        with self._sampling(bound) as everywhere:
            if everywhere is not None:
                records = jax.device_put(records, everywhere)
            keys = of_chains(noise_key, chains)
            super().run(keys, *records, extra_fields=extra_fields, init_params=start)
        if self.postprocess_fn is None:
            self._described = self._described.after(
                bound, self._states, self._last_state, self.thinning
            )

    @contextmanager
    def _sampling(
        self, sampler: Any, program: NUTSProgram | None = None
    ) -> Generator[NamedSharding | None]:
        """Stand in for the kernel; yields where data belong that every device needs, if several."""
        kernel, method, everywhere = self.sampler, self.chain_method, None
        try:
            self.sampler, self._program = sampler, program
            if method != "sequential" and self.num_chains > 1:
                self.chain_method = at_once
                if method == "parallel":
                    # NumPyro would pmap, which makes the records constants of the executable.
                    self._spread, everywhere = over_devices(self.num_chains)
            yield everywhere
        finally:
            self.sampler, self._program = kernel, None
            self.chain_method, self._spread = method, None

    def _take_reserved(self, bound: BoundKernel, steps: int) -> int:
        """Steps behind this run if its own were charged with them by ``warmup``; 0 if not."""
        reserved, self._reserved = self._reserved, None
        state = self._warmup_state
        if reserved is None or state is None or state is not self._last_state:
            return 0
        return reserved.done if reserved.covers(bound, steps, self.num_chains, state) else 0

    def _charge(
        self, charged: ChargedRun, keys, bound: BoundKernel, steps: int, first, later: int, start
    ) -> Any:
        """Charge ``steps``, and those that :meth:`run` will take ``later`` with them."""
        chains, in_turn = self.num_chains, self.chain_method == "sequential"
        state = self._warmup_state
        behind = 0 if state is None else steps_behind(state)
        cost = ChainsCost(bound, first, (steps + later) // chains, behind, chains, in_turn)
        # Without a bar now, one that is switched on later must not show another charge.
        table = cost.table(self._account.relation, self.sampler.delta, self.progress_bar)
        # Chains take turns twice: only the end of the table is sure to be reached by none.
        self._epsilon_table = table[-1:] if in_turn and later else table
        warmup = self.num_warmup * bound.steps_per_sample if state is None else 0
        paid = cost.charge(type(self.sampler).__name__, warmup)._asdict()
        key = charged.charge(user_key=keys, of=(cost, start, later, scrub(state)), **paid)
        self._reserved = cost.reserved(steps, later)
        return key

    def _single_chain_mcmc(self, init, args, kwargs, collect_fields, remove_sites):
        rng_key, state, z = init
        if self._program is not None:
            bound, args = self._program, numbers_of(self._release.known)
            state = bound.init(rng_key, z, args) if state is None else state
        elif state is None:
            bound, state = self.sampler, self.sampler.init(rng_key, self.num_warmup, z)
        else:
            bound, state = self.sampler, self.sampler.resumed(unplaced(state))
        if self._spread is not None:
            state = jax.device_put(state, self._spread)
        known = self._collection_params
        upper, lower, size = known["upper"], known["lower"], known["collection_size"]
        size = (upper - lower if size is None else size) // self.thinning
        together = callable(self.chain_method)
        apart = together and self._spread is None and runs_apart(bound, int(self.num_chains))
        chunks = collect(
            bound,
            state,
            args,
            lower=lower,
            upper=upper,
            size=size,
            thinning=self.thinning,
            fields=collect_fields,
            removed=remove_sites,
            postprocess=self.postprocess_fn,
            # Without a bar a few pieces remain, so that Ctrl-C is answered.
            chunks=pieces(_BAR_UPDATES, 10, self.progress_bar),
            apart=apart,
        )
        shown = self.progress_bar and upper > 0
        with steps_bar(upper, self._epsilon_table, shown=shown, form=cents_up) as show:
            for done, state, collection in chunks:  # noqa: B007 - the last one is the result
                require_same(state.z)
                if shown:
                    jax.block_until_ready(state.i)
                    show(done, *self._reached(done, lower), lambda now=state: bound.told(now))
        if self.chain_method == "sequential":
            self._steps_before_chain += upper * bound.steps_per_sample
        return on_each((cut(collection, size, together, apart), state))

    def _reached(self, done: int, lower: int) -> tuple[int, str]:
        """Steps of all chains by now, and the phase they are in."""
        phase = self._collection_params["phase"] or ("warmup" if done <= lower else "sample")
        parallel = 1 if self.chain_method == "sequential" else self.num_chains
        steps = done * (self._program or self.sampler).steps_per_sample * parallel
        return self._steps_before_chain + steps, phase

    def _forget(self) -> None:
        """Leave neither records nor keys in this object, whatever happened."""
        self._set_collection_params()
        self._args, self._kwargs = (), {}
        self._cache, self._init_state_cache = {}, {}
        self._last_state = scrub(self._last_state)
        self._warmup_state = scrub(self._warmup_state)

    def __getstate__(self) -> dict:
        state = super().__getstate__()
        state.update(
            _args=(),
            _kwargs={},
            _init_state_cache={},
            _epsilon_table=(),
            # Two copies would each take the samples that were charged once.
            **dict.fromkeys(("_bound", "_program", "_reserved")),
            _last_state=scrub(self._last_state),
            _warmup_state=scrub(self._warmup_state),
        )
        return state

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update({"_release": Release()} | mcmc_state(state))
