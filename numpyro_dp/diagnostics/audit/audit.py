"""How private a kernel is *not*: an empirical lower bound on ε, to hold against the reported."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random
from jaxtyping import Array, Float

from numpyro_dp import _validate
from numpyro_dp.accounting import Relation, check_relation, privacy_curve
from numpyro_dp.diagnostics.audit.likelihood_ratio import move_score
from numpyro_dp.diagnostics.audit.lower_bound import best_verdict, epsilon_from_counts
from numpyro_dp.diagnostics.audit.neighbours import NeighbourPair, check_null, take_apart
from numpyro_dp.diagnostics.audit.releases import Attacked, attacked_releases
from numpyro_dp.execution.keys import as_typed_keys, is_traced, seeded_key
from numpyro_dp.mcmc.kernel import BoundKernel, PrivateKernel
from numpyro_dp.mcmc.nuts import DPNUTS
from numpyro_dp.mcmc.sgmcmc.integrator import BoundGradientKernel
from numpyro_dp.mcmc.sgmcmc.kernel import GradientKernel
from numpyro_dp.mcmc.start import starting_positions
from numpyro_dp.mechanisms._checks import refuse_several_processes
from numpyro_dp.model.private_model import PrivateModel, private_model
from numpyro_dp.scoring.release import LikelihoodRelease

Score = Callable[[dict[str, Array]], Array]

_CHAINS_AT_ONCE = 4096
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
) -> AuditResult:
    """Attack a kernel on two neighbouring data sets, and say how much ε the attack proves.

    Many independent chains run on each data set, every one from the same start. A score of what
    each chain releases is compared with a threshold; how often it is passed on either data set
    bounds ε from below. A bound above the reported ε shows a mistake in mechanism or accounting.
    One far below shows nothing: a better score, a worse pair or more chains may raise it.

    The bound is most telling on a pair in which one record contributes exactly ``clip_norm`` in
    every step and all others nothing, with a ``step_size`` so large that the privacy noise exceeds
    the Langevin noise.

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
        kernels, is the log likelihood ratio of the position after every step. A release has no
        other than its own.
    :param relation: the neighbouring relation that is claimed.
    :param delta: δ of the claim; default that of the kernel's ``privacy``, else 1e-6.
    :param confidence: of the lower bound.
    :returns: :class:`AuditResult`.
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
        >>> loud, null = jnp.array([1e3, jnp.nan]), jnp.array([jnp.nan, jnp.nan])
        >>> result = ndp.audit(kernel, jax.random.key(0), (loud,), (null,), num_chains=2000)
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
    if isinstance(subject, LikelihoodRelease):
        if num_samples != 1 or init_params is not None or score is not None:
            raise ValueError(
                "a released likelihood is attacked as a whole, by a score of its own: leave out "
                "num_samples=, init_params= and score="
            )
        found = attacked_releases(subject, both, relation, noise_keys, num_chains)
    else:
        num_steps = num_samples * subject.steps_per_sample
        sides = _both_sides(subject, both, relation, num_steps, delta)
        z = starting_positions(
            sides.bound[0].private_model, subject.init_strategy, key, init_params, 1
        )
        scorers = [_scorer(one, num_samples, score) for one in sides.bound]
        found = _attacked_chains(sides, scorers, z, relation, noise_keys, num_chains, num_steps)
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
    if isinstance(kernel, GradientKernel) and kernel.adapts:
        raise ValueError(
            "audit runs a kernel's own steps: give it step_size= and clip_norm=, and audit what "
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


class _Sides(NamedTuple):
    """The kernel on each data set, their records, and what sets these apart."""

    bound: list[BoundKernel]
    records: list[list[Array]]
    pair: NeighbourPair


def _both_sides(
    kernel: PrivateKernel,
    both: tuple[tuple[Any, ...], tuple[Any, ...]],
    relation: Relation,
    num_steps: int,
    delta: float,
) -> _Sides:
    walls = [_wall(kernel, arguments, relation) for arguments in both]
    records = [model.records(arguments) for model, arguments in zip(walls, both, strict=True)]
    pair = take_apart(*records, relation)
    bound = [
        kernel.bind(model, num_steps=num_steps, relation=relation, delta=delta) for model in walls
    ]
    return _Sides(bound, records, pair)


def _positional(arguments: object) -> tuple[Any, ...]:
    if not isinstance(arguments, tuple):
        raise ValueError(
            "data and neighbour are tuples of the model's positional arguments, got "
            f"{type(arguments).__name__}"
        )
    return arguments


def _wall(kernel: PrivateKernel, arguments: tuple[Any, ...], relation: Relation) -> PrivateModel:
    return private_model(
        kernel.user_model,
        arguments,
        data_plate=kernel.data_plate,
        private_size=relation == "add_remove",
    )


def _attacked_chains(
    sides: _Sides,
    scorers: list[_MoveScore | _DrawsScore],
    z: dict,
    relation: Relation,
    noise_keys: Any,
    num_chains: int,
    num_steps: int,
) -> Attacked:
    event, other = (one.event(num_steps) for one in sides.bound)
    if event != other:
        raise ValueError(
            "the kernel is charged differently on the two data sets: give them equal public "
            "arguments, and sampling_rate= in place of batch_size="
        )
    if relation == "zero_out":
        check_null(sides.bound[0].private_model, z, sides.pair)
    first, second = (
        _scores(one, scorer, noise_key, num_chains, z, leaves, sides.pair)
        for one, scorer, noise_key, leaves in zip(
            sides.bound, scorers, noise_keys, sides.records, strict=True
        )
    )
    return Attacked((first, second), event, num_steps)


@dataclass(frozen=True)
class _MoveScore:
    """The default score, summed over the private steps; compared by value."""

    kernel: BoundGradientKernel
    steps: int

    def __call__(
        self, states: Any, records: list[Array], pair: NeighbourPair
    ) -> Float[Array, " chains"]:
        def step(carry: tuple[Any, Array], _: None) -> tuple[tuple[Any, Array], None]:
            before, total = carry
            after = self.kernel.sample(before, records)
            gained = jax.vmap(partial(move_score, self.kernel, pair))(before, after)
            return (after, total + gained), None

        start = states, jnp.zeros(states.i.shape)
        return lax.scan(step, start, length=self.steps)[0][1]


@dataclass(frozen=True)
class _DrawsScore:
    """A caller's score of the collected draws; compared by value."""

    kernel: BoundKernel
    num_samples: int
    score: Score

    def __call__(
        self, states: Any, records: list[Array], _: NeighbourPair
    ) -> Float[Array, " chains"]:
        def step(states: Any, _: None) -> tuple[Any, dict]:
            states = self.kernel.sample(states, records)
            return states, jax.vmap(self.kernel.constrained)(states.z)

        draws = lax.scan(step, states, length=self.num_samples)[1]
        return jax.vmap(self.score, in_axes=1)(draws)


def _scorer(bound: BoundKernel, num_samples: int, score: Score | None) -> _MoveScore | _DrawsScore:
    if score is not None:
        return _DrawsScore(bound, num_samples, score)
    if not isinstance(bound, BoundGradientKernel) or not bound.private_sum.is_private:
        raise ValueError(
            "there is a default score for gradient kernels with their privacy switched on only: "
            "give score=, a function of one chain's draws"
        )
    # Every private step is released, between the draws too.
    steps = num_samples * bound.steps_per_sample
    return _MoveScore(replace(bound, steps_per_sample=1), steps)


@partial(jax.jit, static_argnames=("bound", "scorer"))
def _chunk(bound, scorer, keys, z, records, pair):
    return scorer(bound.init(keys, 0, z), records, pair)


def _scores(
    bound: BoundKernel,
    scorer: _MoveScore | _DrawsScore,
    key: Any,
    num_chains: int,
    z: dict,
    records: list[Array],
    pair: NeighbourPair,
) -> Float[np.ndarray, " chains"]:
    """Scores of independent chains, in chunks of one shape so that memory stays flat."""
    size = min(num_chains, _CHAINS_AT_ONCE)
    starts = jax.tree.map(lambda x: jnp.broadcast_to(x, (size, *x.shape)), z)
    chunks = []
    for number in range(-(-num_chains // size)):
        keys = random.split(random.fold_in(key, number), size)
        scores = np.asarray(_chunk(bound, scorer, keys, starts, records, pair), np.float64)
        if scores.shape != (size,) or not np.all(np.isfinite(scores)):
            raise ValueError("score must return one finite number for each chain's draws")
        chunks.append(scores)
    return np.concatenate(chunks)[:num_chains]
