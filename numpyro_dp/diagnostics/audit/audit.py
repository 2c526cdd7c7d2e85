"""How private a kernel is *not*: an empirical lower bound on ε, to hold against the reported."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jax import random

from numpyro_dp import _validate
from numpyro_dp.accounting import Relation, check_relation, privacy_curve
from numpyro_dp.diagnostics.audit.chains import ChainsAttack, Score, attacked_chains
from numpyro_dp.diagnostics.audit.lower_bound import best_verdict, epsilon_from_counts
from numpyro_dp.diagnostics.audit.releases import attacked_releases
from numpyro_dp.diagnostics.plots import axes_or_new
from numpyro_dp.execution.keys import as_typed_keys, is_traced, seeded_key
from numpyro_dp.execution.progress import steps_bar
from numpyro_dp.mcmc.adaptation import AdaptingKernel
from numpyro_dp.mcmc.kernel import PrivateKernel
from numpyro_dp.mcmc.nuts import DPNUTS
from numpyro_dp.mechanisms._checks import refuse_several_processes
from numpyro_dp.scoring.release import LikelihoodRelease

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LEAST_CHAINS = 100


@dataclass(frozen=True)
class AuditResult:
    """What :func:`audit` found; no guarantee follows from it.

    :param epsilon_lower: the kernel is not (ε, δ)-private for any ε below this, with probability
        ``confidence`` over the runs of the audit; 0 when nothing was found.
    :param epsilon_reported: ε that the kernel's accounting states for one such chain or release.
    :param delta: δ of both.
    :param confidence: of the lower bound.
    :param relation: the neighbouring relation of the pair.
    :param num_chains: chains, or releases, on each of the two data sets.
    :param num_steps: private steps of one.
    :param positives: ``"data"`` or ``"neighbour"``: which data set the chosen test detects.
    :param threshold: of the chosen test, in units of the score.
    :param hits: judged chains above the threshold on the detected data set.
    :param false_hits: judged chains above it on the other one.
    :param judged: chains on each data set that judged the test; the others chose it.
    """

    epsilon_lower: float
    epsilon_reported: float
    delta: float
    confidence: float
    relation: Relation
    num_chains: int
    num_steps: int
    positives: str
    threshold: float
    hits: int
    false_hits: int
    judged: int

    @property
    def refutes(self) -> bool:
        """Whether the reported ε is too small, at the stated confidence."""
        return self.epsilon_lower > self.epsilon_reported

    @property
    def ceiling(self) -> float:
        """The largest ε that so many chains could have shown, were the two never confused."""
        return float(
            epsilon_from_counts(
                self.judged,
                0,
                self.judged,
                self.judged,
                delta=self.delta,
                confidence=self.confidence,
            )
        )

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw what was proved beside what is stated.

        :param ax: matplotlib axes to draw into; ``None`` makes new ones.
        :returns: the axes: a bar of all ε that are refuted, a line at the reported one, and a
            dotted one at what so many runs could have shown.
        :raises ImportError: when matplotlib is not installed.
        """
        axes = axes_or_new(ax)
        colour = "tab:red" if self.refutes else "tab:blue"
        axes.barh([0], [self.epsilon_lower], color=colour, height=0.5, label="refuted ε")
        axes.axvline(self.epsilon_reported, color="black", label="reported ε")
        axes.axvline(self.ceiling, color="grey", linestyle=":", label="most that could be shown")
        axes.set(yticks=[], ylim=(-1, 1), xlabel=f"ε at δ = {self.delta:.3g}")
        axes.set_xlim(left=0)
        axes.legend(loc="upper right", frameon=False)
        return axes

    def __str__(self) -> str:
        verdict = (
            f"The reported ε = {self.epsilon_reported:.4g} is REFUTED."
            if self.refutes
            else f"This does not contradict the reported ε = {self.epsilon_reported:.4g}."
        )
        text = (
            f"With {100 * self.confidence:g} % confidence no ε below {self.epsilon_lower:.4g} "
            f"holds at δ = {self.delta:.3g} ({self.relation}) for a run of {self.num_steps} "
            f"private steps. {verdict} A test on {self.num_chains} chains a data set flagged "
            f"{self.hits} of {self.judged} held-out runs on the {self.positives} and "
            f"{self.false_hits} on the other; so many could show at most ε = {self.ceiling:.3g}. "
            "A lower bound from one pair and one score is no guarantee: the true ε may be larger."
        )
        return textwrap.fill(text, 99)


def audit(
    kernel: PrivateKernel | DPNUTS | LikelihoodRelease,
    rng_key: Any,
    data: tuple[Any, ...],
    neighbour: tuple[Any, ...],
    *,
    num_samples: int = 1,
    num_chains: int = 20_000,
    init_params: dict | None = None,
    score: Score | None = None,
    relation: Relation = "zero_out",
    delta: float | None = None,
    confidence: float = 0.95,
    progress_bar: bool = True,
) -> AuditResult:
    """Attack a kernel on two neighbouring data sets, and say how much ε the attack proves.

    Many independent chains run on each data set, every one from the same start. A score of what
    each chain releases is compared with a threshold; how often it is passed on either data set
    bounds ε from below. A bound above the reported ε shows a mistake in mechanism or accounting.
    One far below shows nothing: a better score, a worse pair or more chains may raise it.

    The bound is most telling on a pair in which one record contributes exactly ``clip_norm`` in
    every step and all others nothing: :func:`~numpyro_dp.loudest_pair` makes one up for any model.
    What is scored by default is what is charged: the noisy sums of a gradient kernel, without the
    noise that it adds for the sake of its temperature, and the accept bits of a Metropolis kernel.

    Of a released likelihood (``DPNUTS``, ``LikelihoodRelease``) the releases are repeated in place
    of chains, whatever its forecast says of so few records, and scored by the log likelihood ratio
    of the histogram and of every round's sum. There a record far out, against one that is nowhere
    a number, tells most. The rounds are found on the host: of the order of a millisecond each.

    :param kernel: a numpyro_dp kernel or ``LikelihoodRelease``, without an accountant.
    :param rng_key: a JAX key; the audit is reproducible from it.
    :param data: positional arguments of the model, **made up**.
    :param neighbour: the same with one record changed as ``relation`` says; under ``zero_out`` one
        of the two records must be null (its gradient zero or not a number), under ``add_remove``
        one data set must lack it.
    :param num_samples: draws of each chain, ``steps_per_sample`` private steps each; 1 for a
        released likelihood, whose draws are all of one release.
    :param num_chains: chains on each data set, at least 100; half of them choose the test.
    :param init_params: unconstrained start of every chain; drawn from ``init_strategy`` if absent.
        A release starts at its prior.
    :param score: a JAX function of one chain's draws (a dict as ``get_samples`` gives, leading
        axis ``num_samples``) to a number, large on one of the data sets. The default, for gradient
        kernels and for Metropolis kernels of one candidate on all records, is the log likelihood
        ratio of every step. A release has no other than its own.
    :param relation: the neighbouring relation that is claimed.
    :param delta: δ of the claim; default that of the kernel's ``privacy``, else 1e-6.
    :param confidence: of the lower bound.
    :param progress_bar: show a bar of the chains done on both data sets.
    :returns: :class:`AuditResult`; ``print`` it, or draw it with ``plot()``.
    :raises ValueError: for a kernel with an accountant or an ``init_kernel``, data sets that are
        no neighbours under ``relation``, a kernel without default score, a score that is not a
        finite number, or chains' options for a release.
    :raises UnsupportedModelError: the model cannot be split into records.

    **Privacy.** Nothing is charged and nothing is protected: the default score is computed from
    the records themselves. For made-up data only; a kernel that carries an accountant is refused,
    since its ledger stands for real records. The result is **not a guarantee** and must not be
    stated as one: only ``epsilon_reported`` is an upper bound.

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
    _check(subject, rng_key, num_samples, num_chains, confidence)
    relation = check_relation(relation)
    delta = subject.delta if delta is None else _validate.probability("delta", delta)
    num_samples, num_chains = int(num_samples), int(num_chains)
    key, both = as_typed_keys(rng_key, 1), (_positional(data), _positional(neighbour))
    noise_keys = random.split(seeded_key(key))
    own = num_samples != 1 or init_params is not None or score is not None
    if isinstance(subject, LikelihoodRelease) and own:
        raise ValueError(
            "a released likelihood is attacked as a whole, by a score of its own: leave out "
            "num_samples=, init_params= and score="
        )
    with steps_bar(2 * num_chains, (), shown=progress_bar) as show:
        if isinstance(subject, LikelihoodRelease):
            found = attacked_releases(subject, both, relation, noise_keys, num_chains, show)
        else:
            chains = ChainsAttack(num_samples, num_chains, init_params, score, show)
            found = attacked_chains(subject, both, relation, delta, key, noise_keys, chains)
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


def _check(
    kernel: object, rng_key: Any, num_samples: int, num_chains: int, confidence: float
) -> None:
    if not isinstance(kernel, PrivateKernel | LikelihoodRelease):
        raise ValueError(
            "audit takes a numpyro_dp kernel such as numpyro_dp.DPSGLD, or a "
            f"numpyro_dp.LikelihoodRelease, not {type(kernel).__name__}"
        )
    if kernel.accountant is not None:
        raise ValueError(
            "audit charges nothing and is for made-up data, but this kernel has an accountant, "
            "whose ledger stands for real records: make the kernel without accountant="
        )
    if isinstance(kernel, PrivateKernel) and kernel.init_kernel is not None:
        raise ValueError("audit runs one kernel: audit init_kernel and the main one each by itself")
    if isinstance(kernel, AdaptingKernel) and kernel.adapts:
        raise ValueError(
            f"audit runs a kernel's own steps: give it {kernel.instead}, and audit what "
            "would choose them as a numpyro_dp.LikelihoodRelease"
        )
    refuse_several_processes("audit")
    if is_traced(rng_key):
        raise ValueError("audit cannot run inside a JAX transformation")
    _validate.positive_int("num_samples", num_samples)
    if _validate.positive_int("num_chains", num_chains) < _LEAST_CHAINS:
        raise ValueError(f"num_chains must be at least {_LEAST_CHAINS}, got {num_chains}")
    if _validate.probability("confidence", confidence) <= 0.5:
        raise ValueError(f"confidence must lie in (0.5, 1), got {confidence!r}")


def _positional(arguments: object) -> tuple[Any, ...]:
    if not isinstance(arguments, tuple):
        raise ValueError(
            "data and neighbour are tuples of the model's positional arguments, got "
            f"{type(arguments).__name__}"
        )
    return arguments
