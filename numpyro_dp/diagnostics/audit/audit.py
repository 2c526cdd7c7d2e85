"""How private a release is *not*: an empirical lower bound on ε, to hold against the reported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jax import random

from numpyro_dp import _validate
from numpyro_dp.accounting import Relation, check_relation, privacy_curve
from numpyro_dp.accounting.budget import DEFAULT_DELTA
from numpyro_dp.diagnostics.audit.calls import attacked_calls
from numpyro_dp.diagnostics.audit.chains import ChainsAttack, attacked_chains
from numpyro_dp.diagnostics.audit.fronts import attacked_runs
from numpyro_dp.diagnostics.audit.lower_bound import (
    LowerBound,
    best_verdict,
    epsilon_from_counts,
)
from numpyro_dp.diagnostics.audit.minimisers import attacked_minimisers
from numpyro_dp.diagnostics.audit.releases import Attacked, attacked_releases
from numpyro_dp.estimators.perturbation import PerturbationEstimator
from numpyro_dp.execution.keys import as_typed_keys, is_traced, seeded_key
from numpyro_dp.execution.progress import steps_bar
from numpyro_dp.mcmc.adaptation import AdaptingKernel
from numpyro_dp.mcmc.kernel import PrivateKernel
from numpyro_dp.mcmc.nuts import DPNUTS
from numpyro_dp.mechanisms._checks import refuse_several_processes
from numpyro_dp.scoring.release import LikelihoodRelease
from numpyro_dp.svi import DPSVI, VIPS, PrivateCentre

_LEAST_CHAINS = 100


@dataclass(frozen=True)
class AuditResult(LowerBound):
    """What :func:`audit` found; no guarantee follows from it.

    :param epsilon_lower: what was audited is not (ε, δ)-private for any ε below this, with
        probability ``confidence`` over the runs of the audit; 0 when nothing was found.
    :param epsilon_reported: ε that the accounting states for one such run.
    :param delta: δ of both.
    :param confidence: of the lower bound.
    :param relation: the neighbouring relation of the pair.
    :param num_chains: runs on each of the two data sets.
    :param num_steps: private steps of one.
    :param positives: ``"data"`` or ``"neighbour"``: which data set the chosen test detects.
    :param threshold: of the chosen test, in units of the score.
    :param hits: judged runs above the threshold on the detected data set.
    :param false_hits: judged runs above it on the other one.
    :param judged: runs on each data set that judged the test; the others chose it.

    **Privacy.** Made-up records only: nothing private is in it.

    **References**: see :func:`audit`.

    **Example**: see :func:`audit`.
    """

    relation: Relation
    num_chains: int
    num_steps: int
    positives: str
    threshold: float
    hits: int
    false_hits: int
    judged: int

    @property
    def ceiling(self) -> float:
        """The largest ε that so many runs could have shown, were the two never confused."""
        counts = self.judged, 0, self.judged, self.judged
        return float(epsilon_from_counts(*counts, delta=self.delta, confidence=self.confidence))

    def __str__(self) -> str:
        return self._said(
            f"({self.relation}) for a run of {self.num_steps} private steps",
            f"A test on {self.num_chains} runs a data set flagged {self.hits} of {self.judged} "
            f"held-out runs on the {self.positives} and {self.false_hits} on the other",
            "A lower bound from one pair and one score is no guarantee: the true ε may be larger.",
        )


def audit(
    kernel: Any,
    rng_key: Any,
    data: tuple[Any, ...],
    neighbour: tuple[Any, ...],
    *,
    num_samples: int = 1,
    num_steps: int | None = None,
    num_chains: int = 20_000,
    init_params: dict | None = None,
    score: Callable[[Any], Any] | None = None,
    relation: Relation = "zero_out",
    delta: float | None = None,
    confidence: float = 0.95,
    progress_bar: bool = True,
) -> AuditResult:
    """Attack what releases on two neighbouring data sets, and say how much ε the attack proves.

    Many independent runs are made on each data set, every one from the same start. A score of what
    each releases is compared with a threshold; how often it is passed on either data set bounds ε
    from below. A bound above the reported ε shows a mistake in mechanism or accounting. One far
    below shows nothing: a better score, a worse pair or more runs may raise it.

    The bound is most telling on a pair in which one record contributes all that it may in every
    step and all others nothing: :func:`~numpyro_dp.loudest_pair` makes one up for any model. Where
    the law of what is released is known, the score is its log likelihood ratio, of a whole run:

    - gradient kernels: the noisy sums, without the noise added for the sake of a temperature;
    - Metropolis kernels of one candidate on all records: the accept bits;
    - ``OPS``: the draws, by what the record adds to their log density;
    - ``DPNUTS`` and ``LikelihoodRelease``: the histogram and every round's sum, whatever the
      forecast says of so few records (a record far out, against one that is nowhere a number,
      tells most; each round of a run is found on the host, of the order of a millisecond, so
      that ``num_rounds=1`` and a larger ``delta`` show more in the same time);
    - ``DPSVI`` with a ``clip_norm``, ``VIPS``: every sum, of gradients, losses, curvature or
      statistics; ``PrivateCentre``: its one sum;
    - estimators: the noise on the minimiser, or the linear term that explains it.

    Anything else is a function of a key and the data whose result has a report as ``.privacy``,
    with ``score=`` from a result to a number. It is called once a run, so that tens of milliseconds
    a call want a smaller ``num_chains``. That one of its two records is null is not checked.

    Mistakes in the size of the noise are found by fewer runs at a larger δ: at ``delta=1e-2`` some
    4,000 refute half the noise, at 1e-5 ten times as many.

    :param kernel: a numpyro_dp kernel, ``LikelihoodRelease``, ``DPSVI``, ``VIPS``,
        ``PrivateCentre`` or estimator, without an accountant; or a function.
    :param rng_key: a JAX key; the audit is reproducible from it.
    :param data: positional arguments of the model, **made up**.
    :param neighbour: the same with one record changed as ``relation`` says; under ``zero_out`` one
        of the two records must be null (its gradient zero or not a number), under ``add_remove``
        one data set must lack it.
    :param num_samples: draws of each chain, ``steps_per_sample`` private steps each.
    :param num_steps: private steps of a run of ``DPSVI``, 1 by default, or ``VIPS``, whose guide
        has a number of its own.
    :param num_chains: runs on each data set, at least 100; half of them choose the test.
    :param init_params: unconstrained start of every chain; drawn from ``init_strategy`` if absent.
        What has no chains starts where it always does.
    :param score: for a kernel, a JAX function of one chain's draws (a dict as ``get_samples``
        gives, leading axis ``num_samples``) to a number, large on one of the data sets; needed
        where none of the above is known. For a function, from its result to a number.
    :param relation: the neighbouring relation that is claimed.
    :param delta: δ of the claim; default that of ``privacy``, else 1e-6.
    :param confidence: of the lower bound.
    :param progress_bar: show a bar of the runs done on both data sets.
    :returns: :class:`AuditResult`; ``print`` it, or draw it with ``plot()``.
    :raises ValueError: for an object with an accountant or an ``init_kernel``, data sets that are
        no neighbours under ``relation``, a kernel without default score, a score that is not a
        finite number, or options of something else.
    :raises UnsupportedModelError: the model cannot be split into records.

    **Privacy.** Nothing is charged and nothing is protected: the default score is computed from
    the records themselves. For made-up data only; what carries an accountant is refused, since its
    ledger stands for real records (a function charges what it charges). The result is **not a
    guarantee** and must not be stated as one: only ``epsilon_reported`` is an upper bound.

    **References.** Jagielski, Ullman, Oprea, *Auditing Differentially Private Machine Learning*
    (NeurIPS 2020); Nasr et al., *Adversary Instantiation* (IEEE S&P 2021). Clopper-Pearson limits
    on held-out runs at joint level ``confidence``; both orders of the pair follow from the event
    and its complement.

    **Example**::

        >>> import jax, jax.numpy as jnp, numpyro, numpyro.distributions as dist
        >>> import numpyro_dp as ndp
        >>> def model(x):
        ...     mu = numpyro.sample("mu", dist.Normal(0, 1000))
        ...     with numpyro.plate("people", x.shape[0]):
        ...         numpyro.sample("x", dist.Normal(mu, 1), obs=x)
        >>> kernel = ndp.DPSGLD(model, step_size=1.0, clip_norm=1.0, noise_multiplier=2.0)
        >>> pair = ndp.loudest_pair(model, jnp.ones(2))
        >>> result = ndp.audit(kernel, jax.random.key(0), *pair, num_chains=2000,
        ...                    progress_bar=False)
        >>> 0 <= result.epsilon_lower <= result.epsilon_reported
        True
    """
    subject = kernel.release(secure=False) if isinstance(kernel, DPNUTS) else kernel
    options = Options(num_samples, num_steps, num_chains, init_params, score, confidence)
    _check(subject, rng_key, options)
    relation = check_relation(relation)
    # Of a function it is known when it has been called.
    stated = getattr(subject, "delta", None)
    if delta is not None:
        stated = _validate.probability("delta", delta)
    num_chains, key = int(num_chains), as_typed_keys(rng_key, 1)
    both = _positional(data), _positional(neighbour)
    with steps_bar(2 * num_chains, (), shown=progress_bar) as show:
        found = _attacked(subject, both, relation, stated, key, options, show)
    if not all(np.all(np.isfinite(each)) for each in found.scores):
        raise ValueError("a run was scored by no finite number: its parameters ran away")
    delta = found.delta if stated is None else stated
    if delta is None:
        delta = DEFAULT_DELTA
    verdict = best_verdict(*found.scores, delta=delta, confidence=confidence)
    return AuditResult(
        epsilon_lower=verdict.epsilon,
        epsilon_reported=privacy_curve(found.event, relation).epsilon(delta),
        delta=delta,
        confidence=confidence,
        relation=relation,
        num_chains=num_chains,
        num_steps=found.num_steps,
        positives="data" if verdict.first else "neighbour",
        threshold=verdict.threshold,
        hits=verdict.hits,
        false_hits=verdict.false_hits,
        judged=verdict.runs,
    )


class Options(NamedTuple):
    """What :func:`audit` was asked to do."""

    num_samples: int
    num_steps: int | None
    num_chains: int
    init_params: dict | None
    score: Callable[[Any], Any] | None
    confidence: float


def _attacked(
    subject: Any,
    both: tuple[tuple[Any, ...], tuple[Any, ...]],
    relation: Relation,
    delta: float | None,
    key: Any,
    options: Options,
    show: Callable[[int], None],
) -> Attacked:
    """Many runs of ``subject`` on either data set, scored."""
    noise_keys, runs = random.split(seeded_key(key)), int(options.num_chains)
    if isinstance(subject, PrivateKernel):
        chains = ChainsAttack(
            int(options.num_samples), runs, options.init_params, options.score, show
        )
        stated = DEFAULT_DELTA if delta is None else delta
        return attacked_chains(subject, both, relation, stated, key, noise_keys, chains)
    given = subject, both, relation
    if isinstance(subject, LikelihoodRelease):
        return attacked_releases(*given, noise_keys, runs, show)
    if isinstance(subject, PerturbationEstimator):
        return attacked_minimisers(*given, noise_keys, runs, show)
    if isinstance(subject, DPSVI | VIPS | PrivateCentre):
        steps = options.num_steps
        return attacked_runs(*given, key, noise_keys, steps, runs, show)
    return attacked_calls(*given, noise_keys, options.score, runs, show)


def _check(subject: Any, rng_key: Any, options: Options) -> None:
    kernel = isinstance(subject, PrivateKernel)
    whole = isinstance(
        subject, LikelihoodRelease | PerturbationEstimator | DPSVI | VIPS | PrivateCentre
    )
    function = callable(subject) and not isinstance(subject, type)
    if not (kernel or whole or function):
        raise ValueError(
            "audit takes what releases: a numpyro_dp kernel, DPNUTS, LikelihoodRelease, DPSVI, "
            "VIPS, PrivateCentre, an estimator, or a function of a key and the data that returns "
            f"a result with a report; not {type(subject).__name__}"
        )
    ledger = getattr(subject, "accountant", None)
    if isinstance(subject, DPSVI | VIPS):
        ledger = subject._account.given
    if ledger is not None:
        raise ValueError(
            "audit charges nothing and is for made-up data, but this object has an accountant, "
            "whose ledger stands for real records: make it without accountant="
        )
    if kernel and subject.init_kernel is not None:
        raise ValueError("audit runs one kernel: audit init_kernel and the main one each by itself")
    if isinstance(subject, AdaptingKernel | DPSVI) and subject.adapts:
        raise ValueError(
            f"audit runs an algorithm's own steps: give it {subject.instead}, and audit what "
            "would choose them as a numpyro_dp.LikelihoodRelease"
        )
    refuse_several_processes("audit")
    if is_traced(rng_key):
        raise ValueError("audit cannot run inside a JAX transformation")
    _validate.positive_int("num_samples", options.num_samples)
    _validate.given(_validate.positive_int, num_steps=options.num_steps)
    if _validate.positive_int("num_chains", options.num_chains) < _LEAST_CHAINS:
        raise ValueError(f"num_chains must be at least {_LEAST_CHAINS}, got {options.num_chains}")
    if _validate.probability("confidence", options.confidence) <= 0.5:
        raise ValueError(f"confidence must lie in (0.5, 1), got {options.confidence!r}")
    if not kernel and (options.num_samples != 1 or options.init_params is not None):
        raise ValueError(
            "this is attacked as a whole: num_samples= and init_params= are for a kernel's chains"
        )
    if options.score is not None and not callable(options.score):
        raise ValueError(f"score= is a function to a number, got {options.score!r}")
    if whole and options.score is not None:
        raise ValueError("this is attacked as a whole, by a score of its own: leave out score=")
    if options.num_steps is not None and not isinstance(subject, DPSVI | VIPS):
        raise ValueError("num_steps= is for variational runs: a chain has num_samples=")


def _positional(arguments: object) -> tuple[Any, ...]:
    if not isinstance(arguments, tuple):
        raise ValueError(
            "data and neighbour are tuples of the model's positional arguments, got "
            f"{type(arguments).__name__}"
        )
    return arguments
