"""``DPSVI``: NumPyro's SVI on noisy sums of clipped per-record gradients."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from typing import Any

import jax
from jax import random
from numpyro.infer import Trace_ELBO
from numpyro.infer.svi import SVIState

from numpyro_dp import _validate
from numpyro_dp._arrays import x64
from numpyro_dp._sources import Reading, require_read
from numpyro_dp.accounting import Accountant, Budget
from numpyro_dp.errors import redacted
from numpyro_dp.execution.account import ChargedRun
from numpyro_dp.execution.keys import as_typed_keys
from numpyro_dp.execution.processes import on_each, require_same
from numpyro_dp.execution.progress import epsilon_table, pieces, steps_bar
from numpyro_dp.mechanisms import scrubbed
from numpyro_dp.model.guided.guides import require_public_start
from numpyro_dp.model.guided.model import Outline, VariationalModel, outline, variational_model
from numpyro_dp.model.records import read_arguments
from numpyro_dp.scoring.release import refuse_private_size
from numpyro_dp.svi.dpsvi.adapted import AdaptedFit, bind_adapted, refuse_given
from numpyro_dp.svi.dpsvi.charged import ChargedSVI
from numpyro_dp.svi.dpsvi.checks import (
    check_loss,
    check_optimiser,
    given_optimiser,
    require_blind,
    require_data_free,
    usable_key,
)
from numpyro_dp.svi.dpsvi.curvature import CurvatureRelease, held_scales
from numpyro_dp.svi.dpsvi.elbo import ElboTrace
from numpyro_dp.svi.dpsvi.fit import Fit, run_steps, trace_steps
from numpyro_dp.svi.dpsvi.plan import ReleasePlan
from numpyro_dp.svi.dpsvi.report import (
    GIVEN_PARAMS,
    GIVEN_STATE,
    resolution_notes,
    run_facts,
    unresolved_matrix,
)
from numpyro_dp.svi.dpsvi.settings import ADAPTATION, DPSVISettings
from numpyro_dp.svi.dpsvi.start import Ready, first_carry, fresh_state, resumed_state
from numpyro_dp.svi.result import DPSVIRunResult

_BAR_UPDATES, _PIECES = 50, 10


class DPSVI(ChargedSVI):
    """Differentially private stochastic variational inference.

    Each step releases the noisy sum of clipped gradients of the records' own terms of the bound,
    adds the data-free gradient of the prior and of the guide's entropy, and hands both to the
    optimiser. What worked in our measurements: full batches, about 100 steps, ``clip_norm`` half
    of a typical row norm with ``clip="centred"``, momentum, and the average of the last 70 %.

    **Without** ``clip_norm`` **it adapts**, for ``AutoNormal``, ``AutoDiagonalNormal`` and
    ``AutoMultivariateNormal``: a share of the budget locates the posterior first, in 10 rounds of
    private scoring. Steps then begin there, and the optimiser is given *natural* gradients of the
    location, in which a step size of order 1 suits every model. Scales are not learnt but follow
    from what was released, privacy noise included, so that intervals hold.

    :param model: a NumPyro model whose observations lie in one plate; one slice of that plate is
        the unit of privacy. ``numpyro.param`` sites outside the plate are learnt with the guide's.
    :param guide: an autoguide (set up here, without data; make it for this object only) or any
        NumPyro guide whose parameters are shared by all records. Latents of single records are
        taken from a guide that draws them inside the plate from the record itself (amortised).
        ``AutoDelta`` gives a private MAP estimate.
    :param optim: a NumPyro or optax optimiser that does not look at the loss, and whose schedule
        is free of data. ``None``, where it adapts: SGD with step sizes .5/√(1 + step).
    :param loss: ``Trace_ELBO``, with any number of particles.
    :param clip_norm: L2 bound C on one record's gradient over all unconstrained parameters;
        ``None`` to adapt: C is then a public number of released coordinates.
    :param batch_size: *expected* size of a Poisson batch; or
    :param sampling_rate: inclusion probability q of a record, in (0, 1]. Neither: full batches.
    :param privacy: :class:`~numpyro_dp.Budget` of one :meth:`run`, from which the noise is
        calibrated; or
    :param noise_multiplier: standard deviation of a step's noise divided by ``clip_norm``.
    :param accountant: the ledger that must agree to every run. Without one each object keeps its
        own unbounded account.
    :param data_plate: name of the plate whose slices are the records, when several enclose the
        observations; ``"auto"`` takes each row for one, where no plate does.
    :param clip: ``"plain"``, or ``"centred"``: a record's gradient is first shifted so that, over
        the outcomes that the model thinks possible for it, the clipped gradient has mean zero. A
        small ``clip_norm`` then costs no bias where the model is right. Outcomes are listed where
        there are at most 64, else 16 are drawn from the model in each step, which costs as many
        gradients. ``None``: centred where outcomes can be listed.
    :param scale: how ``AutoNormal`` and ``AutoDiagonalNormal`` get their scales: ``"curvature"``
        (from one noisy release of the likelihood's curvature at the end, which takes a tenth of
        the squared privacy loss; privacy noise drowns their gradients) or ``"gradient"``. ``None``:
        curvature where the guide is one of these and the model has no parameters of its own.
    :param curvature_clip: L2 bound on the diagonal of one record's curvature; default
        ``clip_norm**2``.
    :param average: share of the last steps whose unconstrained parameters are averaged into the
        result; 0 returns the last step's, as NumPyro does.
    :param elbo: an :class:`~numpyro_dp.ElboTrace`, which says when a noisy loss is released and
        paid for; ``None`` for no losses.
    :param microbatch_size: rows whose gradients are held in memory at a time; default all.
    :param max_records: public upper bound on the number of records, needed where that number is
        private (an accountant with ``relation="add_remove"``).
    :param secure: ``True`` draws all keys of noise and batches from the operating system, and the
        key given to :meth:`run` governs starting values and the guide's draws. ``False`` makes
        runs reproducible from that key; the guarantee then holds on the condition that the key is
        secret, random and used once.
    :param adaptation: share of the squared privacy loss that locates the posterior, in (0, 1).
    :param static_kwargs: further keyword arguments of model and guide, as in NumPyro; no records,
        which belong in :meth:`run`.
    :raises ValueError: for arguments out of range, both or neither of ``privacy`` and
        ``noise_multiplier``, another loss, an optimiser that looks at the loss.

    **Privacy.** Released: the optimiser's state after every step, and the curvature and losses if
    asked for; where it adapts, before that the sums of a :class:`~numpyro_dp.LikelihoodRelease`, in
    one charge with the steps. Mechanism: Poisson-subsampled Gaussian mechanism on the clipped
    gradient sum, sensitivity ``clip_norm`` under zero-out and add/remove and twice that under
    replace-one; event ``SelfComposed(Poisson(q, Gaussian(noise_multiplier)), steps)``, one Gaussian
    for the curvature, a ``Poisson(q, Gaussian)`` for each loss, those of adaptation, and the total
    variation of tables and room. Draws of the guide are public: a record's clipped gradient is
    bounded whatever they are. Without ``elbo`` no loss is computed. Adaptation refuses add/remove,
    for the number of records is in its formulas. ``noise_multiplier=0`` with ``clip_norm=inf``
    switches privacy off, for tests, and charges ε = ∞.

    **References.** Jälkö, Dikmen, Honkela, *Differentially Private Variational Inference for
    Non-conjugate Models* (UAI 2017), with exact accounting in place of its moments bound;
    for the centred clip *How a step is released* (docs/explanation/how-a-step-is-released.md).

    **Example**::

        >>> import jax, jax.numpy as jnp, numpyro, numpyro.distributions as dist, optax
        >>> import numpyro_dp as ndp
        >>> from numpyro.infer.autoguide import AutoNormal
        >>> def model(x):
        ...     mu = numpyro.sample("mu", dist.Normal(0, 1))
        ...     with numpyro.plate("people", x.shape[0]):
        ...         numpyro.sample("x", dist.Normal(mu, 1), obs=x)
        >>> guide = AutoNormal(model)
        >>> svi = ndp.DPSVI(model, guide, optax.sgd(1e-3), clip_norm=2.0,
        ...                 privacy=ndp.Budget(1.0, 1e-5))
        >>> x = jnp.linspace(-1.0, 3.0, 500)
        >>> result = svi.run(jax.random.key(0), 50, x, progress_bar=False)
        >>> draws = guide.sample_posterior(jax.random.key(1), result.params, sample_shape=(100,))
        >>> draws["mu"].shape, result.privacy.epsilon <= 1.0
        ((100,), True)
    """

    def __init__(
        self,
        model: Callable[..., Any],
        guide: Callable[..., Any],
        optim: Any = None,
        loss: Any = None,
        *,
        clip_norm: float | None = None,
        batch_size: float | None = None,
        sampling_rate: float | None = None,
        privacy: Budget | None = None,
        noise_multiplier: float | None = None,
        accountant: Accountant | None = None,
        data_plate: str | None = None,
        clip: str | None = None,
        scale: str | None = None,
        curvature_clip: float | None = None,
        average: float = 0.7,
        elbo: ElboTrace | None = None,
        microbatch_size: int | None = None,
        max_records: int | None = None,
        secure: bool = True,
        adaptation: float = ADAPTATION,
        **static_kwargs: Any,
    ) -> None:
        settings = DPSVISettings(
            clip_norm=clip_norm,
            batch_size=batch_size,
            sampling_rate=sampling_rate,
            privacy=privacy,
            noise_multiplier=noise_multiplier,
            data_plate=data_plate,
            clip=clip,
            scale=scale,
            curvature_clip=curvature_clip,
            average=average,
            microbatch_size=microbatch_size,
            max_records=max_records,
            elbo=elbo,
            secure=secure,
            adaptation=adaptation,
        )
        loss = Trace_ELBO() if loss is None else loss
        check_loss(loss, settings.adapts)
        optim = given_optimiser(optim, settings.adapts)
        super().__init__(
            model, guide, optim, loss, settings=settings, accountant=accountant, **static_kwargs
        )
        check_optimiser(self.optim)
        self._given: dict[str, None] = {}
        self._last_state: SVIState | None = None

    def init(
        self, rng_key: Any, *args: Any, init_params: dict | None = None, **kwargs: Any
    ) -> SVIState:
        """The starting state: NumPyro's own for this key, computed without the records.

        :param rng_key: a JAX key.
        :param args: arguments of model and guide; only their shapes are used.
        :param init_params: constrained starting values by name, used as they are: a value computed
            from the records is a release of yours that nothing here accounts for.
        :param kwargs: keyword arguments of model and guide.
        """
        given = (usable_key(rng_key), args, kwargs, init_params)
        _, state = redacted(self._account.private_size, self._begun, *given)
        return state

    def _begun(
        self, rng_key: Any, args: tuple, kwargs: dict, init_params: dict | None = None
    ) -> tuple[VariationalModel, SVIState]:
        """Model and guide judged, and the starting state."""
        given = {**kwargs, **self.static_kwargs}
        found = outline(
            self.model,
            args,
            given,
            data_plate=self._settings.data_plate,
            private_size=self._account.private_size,
        )
        _, records = read_arguments(self.model, args, given)
        require_public_start(self.guide, found.layout, found.num_records, records, self.model)
        require_data_free(self.optim, found, records)
        # First the start: an autoguide must not be set up inside the judgement's trace.
        state, self.constrain_fn = fresh_state(self, found, rng_key, init_params)
        return self._target(found), state

    def run(
        self,
        rng_key: Any,
        num_steps: int,
        *args: Any,
        progress_bar: bool = True,
        stable_update: bool = False,
        forward_mode_differentiation: bool = False,
        init_state: SVIState | None = None,
        init_params: dict | None = None,
        **kwargs: Any,
    ) -> DPSVIRunResult:
        """Charge the accountant for this run, then optimise.

        :param rng_key: a JAX key; governs starting values and the guide's draws.
        :param num_steps: private steps.
        :param args: arguments of the model; arrays whose leading axis is the private plate are
            records, everything else is public or must be wrapped in ``numpyro_dp.public``.
        :param progress_bar: show a bar with the ε reached so far of this run's charge.
        :param init_state: go on from the state of an earlier run.
        :param init_params: constrained starting values by name; see :meth:`init`.
        :param kwargs: keyword arguments of the model.
        :returns: parameters, state, losses (``None`` without ``elbo``); and ``.privacy``.
        :raises BudgetExceededError: the accountant refuses; nothing was charged.
        :raises UnsupportedModelError: model or guide cannot be split into records.
        :raises ValueError: an argument is out of range, or of the wrong kind.

        Warns, before the charge, of a full-rank guide or a flow whose matrix drowns in the noise.
        """
        if stable_update or forward_mode_differentiation:
            raise ValueError(
                "stable_update looks at the loss, which is private, and forward mode is not "
                "offered: leave both at False"
            )
        inputs = (args, kwargs, init_state, init_params)
        with self._account.opened("DPSVI.run", rng_key, *inputs) as run:
            num_steps = _validate.positive_int("num_steps", num_steps)
            with steps_bar(num_steps, (), shown=progress_bar, leave=False):
                ready = run.prepared(self.prepared, rng_key, num_steps, *inputs, run.reading)
            # While nothing is spent yet: whoever turns warnings into errors keeps the budget.
            unresolved = unresolved_matrix(self.guide, ready.plan, num_steps)
            if unresolved is not None:
                warnings.warn(unresolved, stacklevel=2)
            return self._charge_and_run(run, rng_key, ready, num_steps, progress_bar)

    def prepared(
        self,
        rng_key: Any,
        num_steps: int,
        args: tuple,
        kwargs: dict,
        init_state: SVIState | None = None,
        init_params: dict | None = None,
        reading: Reading | None = None,
    ) -> Ready:
        """All of a run that comes before its charge: mistakes are met here and cost nothing."""
        if self._settings.adapts:
            refuse_given(init_state, init_params)
            refuse_private_size(self._account.relation)
        target, state = self._begun(usable_key(rng_key), args, kwargs, init_params)
        if init_state is not None:
            state = resumed_state(state, init_state, usable_key(rng_key))
            if init_state is not self._last_state:
                self._given[GIVEN_STATE] = None
        if init_params is not None:
            self._given[GIVEN_PARAMS] = None
        # What a run adapts to is released without fetching.
        by = None if self._settings.adapts else reading
        records = tuple(target.records(args, {**kwargs, **self.static_kwargs}, by))
        fit, plan = self._bind(target, state, num_steps)
        begin = first_carry(fit, state, num_steps)
        # What only a trace shows.
        trace_steps(fit, begin, records)
        curvature = None if plan.curvature is None else CurvatureRelease(target, plan.curvature)
        if curvature is not None:
            curvature.trace(self.guide, fit.optim.get_params(state.optim_state), records)
        tail = self._settings.averaged(num_steps)
        if isinstance(fit, AdaptedFit):
            fit.require_settling(begin, num_steps, tail)
        return Ready(target, records, fit, plan, begin, curvature, tail)

    def _target(self, found: Outline) -> VariationalModel:
        given = (self._settings.data_plate, self._account.private_size)
        return variational_model(self.model, self.guide, found, *given, x64())

    def _charge_and_run(
        self, run: ChargedRun, rng_key: Any, ready: Ready, num_steps: int, progress_bar: bool
    ) -> DPSVIRunResult:
        target, records, fit, plan, begin, curvature, tail = ready
        paid = {**plan.paid(num_steps), "of": (plan, target, begin)}
        key = run.charge(plan.event(num_steps), as_typed_keys(rng_key, 1), **paid)
        other_key, noise_key = random.split(key)
        begin, scales, said = begin._replace(noise_key=noise_key), {}, ()
        if isinstance(fit, AdaptedFit):
            begin, found = fit.begun(other_key, begin, records, progress_bar)
        last = begin
        table = epsilon_table(plan, num_steps, self._account.relation, self.delta, progress_bar)
        with steps_bar(num_steps, table, shown=progress_bar) as show:
            for done, last in run_steps(
                fit, begin, records, num_steps, tail, pieces(_BAR_UPDATES, _PIECES, progress_bar)
            ):
                jax.block_until_ready(last.i)
                require_same(last.optim_state)
                show(done)
        last = on_each(last)
        constrained = target.constrain(fit.end(last, tail))
        if isinstance(fit, AdaptedFit):
            scales, said = fit.scales(found, begin, last, num_steps, tail)
        if curvature is not None:
            key = random.fold_in(other_key, last.i)
            scales = on_each(curvature.scales(self.guide, constrained, key, records))
            require_read(records, scales)
        self._last_state = SVIState(last.optim_state, None, scrubbed(last.draws_key))
        known, centred = (plan, num_steps, self._settings.average), fit.outcomes is not None
        notes = *said, *resolution_notes(self.guide, fit.held, *known, centred=centred)
        private_size = self._account.private_size
        facts = run_facts(target, plan, private_size=private_size, centred=centred, notes=notes)
        report = self._account.report(facts, delta=self.delta, given=tuple(self._given))
        losses = None if plan.elbo is None else plan.elbo.spread(last.losses)
        constrained |= scales
        return DPSVIRunResult(constrained, self._last_state, losses, report, target.redacted())

    def _bind(
        self, target: VariationalModel, state: SVIState, num_steps: int
    ) -> tuple[Fit, ReleasePlan]:
        """Fix every number of a run; nothing is charged or touched."""
        params = self.optim.get_params(state.optim_state)
        require_blind(self.optim, state.optim_state, params, target.num_records)
        if self._settings.adapts:
            return bind_adapted(
                self._settings, target, self.optim, num_steps, self._account.relation
            )
        held = held_scales(self.guide, target, self._settings.scale, self._account.private_size)
        outcomes = self._settings.outcomes(target)
        dim = sum(v.size for k, v in params.items() for v in jax.tree.leaves(v) if k not in held)
        plan = self._settings.plan(
            num_records=target.num_records,
            shards=target.layout.shards,
            storage=target.layout.storage,
            dim=dim,
            curvature_dim=sum(params[name].size for name in held),
            num_steps=num_steps,
            delta=self.delta,
            relation=self._account.relation,
        )
        particles = self.loss.num_particles
        fit = Fit(target, self.optim, plan.gradient, particles, held, outcomes, plan.elbo)
        return fit, plan

    def _prepared(
        self, num_steps: int, args: tuple, kwargs: dict, privacy: Budget | None = None
    ) -> tuple[DPSVI, Fit, ReleasePlan, SVIState]:
        """What :meth:`run` would do, from shapes alone; nothing is charged or touched."""
        svi = copy(self)
        if privacy is not None:
            svi._settings = replace(self._settings, privacy=privacy, noise_multiplier=None)
        given = (random.key(0), args, kwargs)
        target, state = redacted(svi._account.private_size, svi._begun, *given)
        fit, plan = svi._bind(target, state, num_steps)
        # Losses are part of the cost; nobody who prepares has records to take them from.
        return svi, replace(fit, elbo=None), plan, state
