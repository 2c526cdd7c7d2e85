"""A plan: what a private run will cost and whether its noise leaves anything of the signal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from numpyro_dp import _validate
from numpyro_dp.accounting import Budget, Relation, privacy_curve, rounded_up
from numpyro_dp.diagnostics.plan.affordable import affordable
from numpyro_dp.diagnostics.plan.remedies import FINE, Fault, Verdict, found_out
from numpyro_dp.diagnostics.plan.subject import PlannedRun, planned_run
from numpyro_dp.diagnostics.plots import axes_or_new
from numpyro_dp.execution.account import provided
from numpyro_dp.execution.facts import conditions_of
from numpyro_dp.mcmc.kernel import PrivateKernel
from numpyro_dp.mcmc.sgmcmc.bias import SiteBias
from numpyro_dp.scoring.forecast import Forecast, promised
from numpyro_dp.svi import DPSVI

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDTH = 88


@dataclass(frozen=True)
class Plan:
    """What :func:`plan` found; every figure comes from public values.

    :param kernel: name of the kernel, or of ``DPSVI`` and its guide.
    :param num_records: number of records N, or its public bound where it is private.
    :param dim: coordinates of the unconstrained position.
    :param num_steps: private steps of all chains.
    :param relation: neighbouring relation of ε.
    :param epsilon: ε of the run at ``delta``.
    :param delta: δ.
    :param noise_multiplier: noise standard deviation over ``clip_norm``.
    :param expected_batch: expected records in a step.
    :param clip_norm: the kernel's.
    :param suggested_clip_norm: what balances bias against noise, on made-up records: of the worst
        coordinate, the squares of both are least together. Of a centred clip, which has no bias
        under the model, the median gradient norm.
    :param clipped: share of made-up records whose gradient is longer than ``clip_norm``.
    :param signal_to_noise: length of the first step's clipped sum over that of its noise.
    :param gain: share of what the data could teach that is expected to come through, in [0, 1], if
        the records lie to one another like the made-up ones; far too low where their columns are
        correlated.
    :param gain_at_best: the same share where the records are as favourable as can be: all of their
        information along one direction. What comes of a noisy plan lies anywhere between the two,
        or below zero, and the text says so.
    :param influence: bound, in [0, 1], on what the records can change in the probability of
        anything that the run may give, whatever they are: its total variation from the same run
        without any record.
    :param bias: how far clipping moves each site of the model, in posterior standard deviations,
        the largest first; empty for a centred clip.
    :param verdict: ``"fine"``, or what is worst: ``"swamped"``, ``"unstable"``, ``"biased"`` or
        ``"noisy"``.
    :param faults: all that is wrong, in order of harm; empty when fine.
    :param step_size: the kernel's; ``None`` for a schedule or an optimiser.
    :param free_step_size: largest step size at which the privacy noise is no more than the
        noise that the sampler asks for; ``None`` for an optimiser, or where every step is.
    :param stable_step_size: largest step size at which draws are at most twice as wide as the
        posterior in its steepest direction, where long steps overshoot and mini-batches shake;
        ``None`` for an optimiser or a schedule, or where every step is.
    :param relaxation_times: of the slowest direction, in one chain; ``None`` for an optimiser or a
        schedule.
    :param affordable: pairs (ε, steps): about how many steps of all chains this noise allows at ε;
        at usual values of ε, or at ¼ to 4 times ``epsilon`` where those are far off.
    :param remedies: what would mend a plan that is not fine.
    :param norms: gradient norms of the made-up records.
    :param released: what :class:`~numpyro_dp.DPNUTS` would promise at the same ε; ``None`` where
        it does not take the model, or ε is not positive and finite.
    :param conditions: what ε depends on, but for the key of ``secure=False``.

    **Privacy.** Computed from shapes, public values and made-up records: free.

    **References**: see :func:`plan`.

    **Example**: see :func:`plan`.
    """

    kernel: str
    num_records: int
    dim: int
    num_steps: int
    relation: Relation
    epsilon: float
    delta: float
    noise_multiplier: float
    expected_batch: float
    clip_norm: float
    suggested_clip_norm: float
    clipped: float
    signal_to_noise: float
    gain: float
    gain_at_best: float
    influence: float
    bias: tuple[SiteBias, ...]
    verdict: Verdict
    faults: tuple[Fault, ...]
    step_size: float | None
    free_step_size: float | None
    stable_step_size: float | None
    relaxation_times: float | None
    affordable: tuple[tuple[float, int], ...]
    remedies: tuple[str, ...]
    norms: tuple[float, ...]
    released: Forecast | None = None
    conditions: tuple[str, ...] = ()

    def __str__(self) -> str:
        steps = ", ".join(f"{count} at ε = {epsilon:g}" for epsilon, count in self.affordable)
        marks = f"about {steps} (steps of all chains at this noise)" if steps else (
            "no ε between a sixteenth and 16 times these steps is positive and finite"
        )  # fmt: skip
        of_chain = [
            ("step size", None if self.relaxation_times is None else self._step_size()),
            ("slowest", None if self.relaxation_times is None else self._slowest()),
        ]
        lines = [
            ("plan", f"{self.kernel}, {self.num_steps} private steps on {self.num_records} records"
             f" of which each step sees {self.expected_batch:.4g}, {self.dim} parameters"),
            ("verdict", f"{' and '.join(self.faults) or 'fine'}: {self._share()}"),
            *[("remedy", remedy) for remedy in self.remedies],
            ("cost", f"ε = {rounded_up(self.epsilon)} at δ = {self.delta:.3g} ({self.relation}"
             f"{provided(self.conditions)})"),
            ("clip norm", f"{self.clip_norm:.3g}, by which {self.clipped:.0%} of made-up records "
             f"would be clipped; suggested {self.suggested_clip_norm:.3g}"),
            ("bias", self._bias()),
            ("noise", f"multiplier {self.noise_multiplier:.4g}; the first step's signal is "
             f"{self.signal_to_noise:.2g} times its noise"),
            *[(name, text) for name, text in of_chain if text],
            ("affordable", marks),
            *[("DPNUTS", f"at the same ε: {found.promise}") for found in (self.released,) if found],
        ]  # fmt: skip
        rows = [
            fill(f"{name:<12}{text}", _WIDTH, subsequent_indent=" " * 12) for name, text in lines
        ]
        return "\n".join(rows)

    def _share(self) -> str:
        """The expected share alone would say more of correlated records than it knows."""
        if self.verdict == "swamped":
            most = max(math.ceil(100 * self.influence), 1)
            return (
                "whatever the records are, the run ends as it would without any: they change no "
                f"outcome's probability by more than {most}%"
            )
        if self.verdict == "fine":
            where = [each.where for each in self.bias if each.share]
            unless = f", unless {where[0] or 'moved by the clip'} (see bias)" if where else ""
            return (
                f"about {self.gain:.0%} of what the data could teach is expected to come through, "
                f"if they are like the model's own{unless}"
            )
        if self.verdict != "noisy":
            return "what comes out is not the model's posterior, whatever the noise"
        if self.gain >= FINE and self.relaxation_times is not None:
            return (
                f"{self.gain:.0%} of what the data could teach may come through, but the draws "
                "show noise or the chain's way rather than a posterior"
            )
        return (
            f"from {self.gain:.0%} (records that lie like made-up ones) to {self.gain_at_best:.0%} "
            "(all along one direction) of what the data could teach may come through, or less "
            "than nothing: the result can predict worse than the prior"
        )

    def _bias(self) -> str:
        if not self.bias:
            return "none under the model: the clip is centred"
        sites = [f"{each.site!r} {each}" for each in self.bias if each.upper > 0]
        if not sites:
            return "clipping moves no site by as much as these made-up records can tell"
        return (
            f"clipping moves {', '.join(sites)} posterior sds (its worst coordinate, from the "
            "median to the worst of eight likely truths)"
        )

    def _step_size(self) -> str:
        limits = [
            (self.free_step_size, "the privacy noise is free up to"),
            (self.stable_step_size, "steps are stable up to"),
        ]
        said = [f"{text} {size:.3g}" for size, text in limits if size is not None]
        return "; ".join([f"{self.step_size:.3g}", *said])

    def _slowest(self) -> str:
        return (
            f"a chain spans about {self.relaxation_times:.2g} relaxation times of its slowest "
            "direction; below about ten the draws show its way rather than a posterior"
        )

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the gradient norms of made-up records with the clip norms.

        :param ax: matplotlib axes to draw into; ``None`` makes new ones.
        :returns: the axes.
        """
        ax = axes_or_new(ax)
        ax.hist(self.norms, bins=40, color="0.7")
        ax.axvline(self.clip_norm, color="C0", label=f"clip norm {self.clip_norm:.3g}")
        suggested = f"suggested {self.suggested_clip_norm:.3g}"
        ax.axvline(self.suggested_clip_norm, color="C1", linestyle="--", label=suggested)
        ax.set(xlabel="gradient norm of a made-up record", ylabel="made-up records")
        ax.set_title(f"ε = {rounded_up(self.epsilon, 3)}: {self.verdict}")
        ax.legend()
        return ax


def plan(
    kernel: PrivateKernel | DPSVI,
    *args: Any,
    num_steps: int,
    privacy: Budget | None = None,
    num_chains: int = 1,
    inputs: Sequence[Any] | None = None,
    **kwargs: Any,
) -> Plan:
    """Say before a run what it costs and whether its noise will swamp the signal.

    :param kernel: a stochastic-gradient kernel, such as :class:`~numpyro_dp.DPSGLD`, or
        :class:`~numpyro_dp.DPSVI` with ``AutoDelta``, or with ``AutoNormal`` or
        ``AutoDiagonalNormal`` and scales from the curvature.
    :param args: arguments of the model: the records, of which nothing but shape and dtype is
        looked at, or ``jax.ShapeDtypeStruct`` in their place.
    :param num_steps: private steps of one chain, warm-up included; or of the fit.
    :param privacy: a budget to plan for instead of the kernel's own noise or budget.
    :param num_chains: chains; 1 for a fit.
    :param inputs: positional arguments of the same structure that hold *public or made-up* records,
        any number of rows; outcomes are redrawn from the model. By default inputs are made up from
        their shapes (0 or 1, or between 0.1 and 0.9), which says little of standardised or sparse
        ones.
    :param kwargs: keyword arguments of the model.
    :returns: the plan; ``print`` it, or look at ``plan.plot()``.
    :raises UnsupportedModelError: the model's own message, for a model that cannot be split; for a
        guide whose parameters are not known to be places of the latents.
    :raises ValueError: for a kernel without a private sum of gradients, such as a Metropolis one
        (the message states what the run would cost), or inputs that do not fit.

    The expected share of what the data could teach is that of a linearised posterior. With F the
    information of the clipped gradients of N made-up records (score identity: E[clip(g)gᵀ]), an
    eigenvalue h of it, τ the typical distance from start to prior draw in one coordinate, r the
    privacy noise in one step's gradient, s² = r²/T over T steps of size η and
    t = max(ηr²/4, 1)/(1 − ηh/4) the temperature of the draws, a direction comes through with
    a²/(a² + s² + h(t − 1)), where a, its gradient at the start, is hτ, but no more than the sum of
    the clipped gradients' norms; if the chain is long enough to get there: of a quadratic gain it
    has 1 − exp(−ηhT/2) after half of its steps.
    Directions are weighted by log(1 + hτ²).

    An optimiser is rehearsed instead: it runs twice from its start, with and without noise of the
    private size, on the gradient F·(truth − z), each record's part of it no longer than
    ``clip_norm``, with the prior and the average of the fit itself. In a direction in which the
    quiet run misses the posterior's place by m of the way hτ²/(1 + hτ²)·τ, and noise moves its end
    by n of it, (1 − m²)/(1 + n²) comes through. The draws of the guide are public and left out.

    If this share is 0.9 or more, the fit is rehearsed again, on the model's own gradients, which
    may grow faster than any quadratic's: made-up records, each standing for an equal part of all,
    with the run's own clip, optimiser, prior, average and guide, and ordinary noise of the size of
    its batches' and its privacy's. It takes as long as 16 runs on so many records. What it
    gains of the mean log likelihood of these records, from its start to their truth and over all
    draws, is the share if it is the smaller figure.

    **Bias.** Clipping takes more from long gradients than from short ones, and moves the posterior
    where they do not balance: scales and counts first. ``bias`` has it in posterior standard
    deviations, on thousands of made-up records: one scoring step from the truth with clipped
    gradients less that with whole ones, for each of eight likely truths, less twice its standard
    error. These are chosen out of many prior draws so that each site's values lie in all parts of
    the prior. What the right clip is may hang on them, as on the size of a scale; ``bias`` says at
    how many it is too small and, if one number tells them apart, at which. Poisson, binomial and
    multinomial counts are taken to be 2.5 times as far from their means as the model says, since
    real ones mostly are. Records unlike the model's in other ways are moved farther. A centred clip
    has no bias under the model.

    **Stability.** Along the steepest direction of the clipped records' curvature, of the median of
    the truths, ``stable_step_size`` makes the variance of the draws four times the posterior's:
    long steps overshoot, up to running away, and mini-batches bring noise that no kernel but
    ``DPSGNHT`` and ``DPSGFS`` counts in.

    A plan is *unstable* where the step size is longer than that, and *biased* where a coordinate is
    moved by more than 1.5 posterior standard deviations at more than two of the eight truths, or
    most records are clipped where they came from. It is *fine* if neither is so, the privacy noise
    puts the draws at no temperature above 4, the steps span ten relaxation times of the slowest
    direction, and half of them bring it within 3 posterior standard deviations of its place; and if
    all of what follows holds.

    The verdict is *fine* only when this share is 0.9 or more, so that a run is expected, under the
    prior predictive, to gain over the prior nine tenths of what one without privacy gains (a
    learning rate at which the fit runs away on likely records of the model is not fine, even where
    records turn out milder than the prior thinks); and when the noise of the curvature's release is
    no larger than the curvature; and when the bound below is 1, without which no nine tenths can
    have come from the records.

    It is *swamped* when the run cannot be told from one without any record, whatever the records
    are: no event, such as that its result predicts better than the prior, is likelier by more than
    0.1. With B expected records in each of T steps, q the sampling rate and nm the noise
    multiplier, the total variation between both is at most ½·√(T·(B² + B(1 − q)))/nm, by Pinsker's
    inequality (a release of curvature or of losses adds its own square). This holds for any
    optimiser, step size and geometry, and of ranks (accuracy) as of probabilities. What such a run
    predicts better than the prior, it has from its start.

    Everything else that lets too little through is *noisy*: how much is learnt depends on the
    records, and it may be less than nothing: draws that are still near their start, or spread
    widely by a step size far above ``free_step_size``, can predict worse than the prior. How
    records lie to one another is private, and correlated columns are learnt through more noise than
    the independent ones of made-up inputs; ``gain_at_best`` has all information along one
    direction: h is the trace of F, and the draws are those of the last step. An optimiser is
    rehearsed along it too, on 1, 1/8, 1/64 and 1/512 of the information, and the best of these
    counts if it is the smaller figure: in the luckiest run of ten, whose noise moves it by n/8,
    1 − m² − (n/8)² comes through.

    **Privacy.** Nothing of any record but its shape is looked at: free. What stands in ``inputs``
    is taken as public.

    **References.** *How far to trust a plan* (docs/explanation/how-far-to-trust-a-plan.md).

    **Example**::

        >>> import jax, jax.numpy as jnp, numpyro, numpyro.distributions as dist
        >>> import numpyro_dp as ndp
        >>> def model(x):
        ...     mu = numpyro.sample("mu", dist.Normal(0, 1))
        ...     with numpyro.plate("people", x.shape[0]):
        ...         numpyro.sample("x", dist.Normal(mu, 1), obs=x)
        >>> kernel = ndp.DPSGLD(model, step_size=2e-5, batch_size=50, clip_norm=2.0,
        ...                     noise_multiplier=4.0)
        >>> found = ndp.plan(kernel, jax.ShapeDtypeStruct((5000,), jnp.float32), num_steps=400)
        >>> found.num_records, found.verdict
        (5000, 'fine')
    """
    if isinstance(inputs, str) or not isinstance(inputs, Sequence | None):
        raise ValueError(f"inputs must be a tuple of arguments, got {inputs!r}")
    num_steps = _validate.positive_int("num_steps", num_steps)
    num_chains = _validate.positive_int("num_chains", num_chains)
    studied = planned_run(
        kernel,
        args,
        kwargs,
        num_steps=num_steps,
        privacy=privacy,
        num_chains=num_chains,
        inputs=inputs,
    )
    return _judged(studied)


def _judged(studied: PlannedRun) -> Plan:
    mechanism, synthetic, clip = studied.mechanism, studied.synthetic, studied.mechanism.clip_norm
    steps, step = studied.num_steps, studied.step_size
    norms = np.linalg.norm(
        np.concatenate([synthetic.at_truth, synthetic.at_start], 1) * studied.weights, axis=-1
    )
    norms = norms[np.isfinite(norms)]
    signal_model = studied.signal_model()
    found = found_out(studied, signal_model, norms)
    wrong, chain = found.faults(), found.chain
    epsilon = privacy_curve(studied.event(steps), studied.relation).epsilon(studied.delta)
    return Plan(
        kernel=studied.name,
        num_records=studied.num_records,
        dim=synthetic.spread.shape[1],
        num_steps=steps,
        relation=studied.relation,
        epsilon=epsilon,
        delta=studied.delta,
        noise_multiplier=mechanism.noise_multiplier,
        expected_batch=mechanism.expected_batch,
        clip_norm=clip,
        suggested_clip_norm=found.balanced,
        clipped=float(np.mean(norms > clip)),
        signal_to_noise=signal_model.signal_to_noise(),
        gain=found.gain,
        gain_at_best=found.gains.at_best,
        influence=studied.influence,
        bias=found.bias,
        verdict=wrong[0] if wrong else "fine",
        faults=wrong,
        step_size=step,
        free_step_size=_limit(studied.free_step_size),
        stable_step_size=None if chain is None else _limit(chain.stable_size()),
        relaxation_times=None if chain is None else chain.times(),
        affordable=affordable(studied, epsilon),
        remedies=found.remedies() if wrong else (),
        norms=tuple(norms.ravel().tolist()),
        released=promised(studied.model, epsilon, studied.delta, studied.relation),
        conditions=conditions_of(mechanism),
    )


def _limit(size: float | None) -> float | None:
    return size if size is not None and math.isfinite(size) else None
