"""A lower bound on ε from one run, in which each of many canaries was present or not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jax import random
from jaxtyping import Float
from scipy.optimize import brentq
from scipy.stats import binom

from numpyro_dp import _validate
from numpyro_dp.accounting import privacy_curve
from numpyro_dp.diagnostics.audit.fronts import whole_run
from numpyro_dp.diagnostics.audit.loudest import loud_records, null_record
from numpyro_dp.diagnostics.audit.lower_bound import LowerBound
from numpyro_dp.execution.keys import as_typed_keys, seeded_key
from numpyro_dp.model.private_model import private_model
from numpyro_dp.svi import DPSVI

_LEAST_CANARIES, _SHARE, _LEAST_GUESSES = 100, 10, 50
_MOST = 20.0


@dataclass(frozen=True)
class OneRunAudit(LowerBound):
    """What :func:`audit_one_run` found; no guarantee follows from it.

    :param epsilon_lower: the fit is not (ε, δ)-private for any ε below this, with probability
        ``confidence``; 0 when nothing was found.
    :param epsilon_reported: ε that its accounting states.
    :param delta: δ of both.
    :param confidence: of the lower bound.
    :param num_canaries: records that were in or out.
    :param num_parameters: numbers that each step released.
    :param guesses: canaries of which it was guessed.
    :param right: guesses that were right.

    **Privacy.** Its canaries and records are made up: nothing private is in it.

    **References**: see :func:`audit_one_run`.

    **Example**: see :func:`audit_one_run`.
    """

    num_canaries: int
    num_parameters: int
    guesses: int
    right: int

    @property
    def ceiling(self) -> float:
        """The largest ε that so many guesses could have shown, were all of them right."""
        args = self.guesses, self.guesses, self.num_canaries
        return one_run_epsilon(*args, delta=self.delta, confidence=self.confidence)

    def __str__(self) -> str:
        return self._said(
            "(zero_out)",
            f"Of {self.num_canaries} canaries in one run with {self.num_parameters} parameters "
            f"{self.guesses} were guessed to be in or out, {self.right} of them rightly",
            "A lower bound is no guarantee: canaries hide each other, and the fewer parameters, "
            "the more.",
        )


def audit_one_run(
    svi: DPSVI,
    rng_key: Any,
    *args: Any,
    num_steps: int = 1,
    guesses: int | None = None,
    delta: float | None = None,
    confidence: float = 0.95,
) -> OneRunAudit:
    """Attack a fit by one run of it, where the thousands of :func:`~numpyro_dp.audit` are too dear.

    As many records are made up as ``args`` have, loud ones in all directions. A coin says of each
    whether it is in the data. Who sees all noisy sums then guesses of those it is surest of; a
    private fit lets few guesses be right. It needs hundreds of canaries in as many directions, so
    hundreds of parameters: for small models :func:`~numpyro_dp.audit` proves far more.

    :param svi: a ``DPSVI`` with a ``clip_norm``, without an accountant.
    :param rng_key: a JAX key; the audit is reproducible from it.
    :param args: arguments of the model; only the shapes of records are used, and what is public.
        The number of records is the number of canaries, at least 100.
    :param num_steps: private steps of the run.
    :param guesses: how many canaries it is guessed of, half of them in and half out; the tenth
        part by default.
    :param delta: δ of the claim; default that of ``privacy``, else 1e-6.
    :param confidence: of the lower bound.
    :returns: :class:`OneRunAudit`; ``print`` it, or draw it with ``plot()``.
    :raises ValueError: for a fit with an accountant, or that adapts; too few canaries; an argument
        out of range.
    :raises UnsupportedModelError: the model cannot be split into records, or has latents of them.

    **Privacy.** No value of a record is read and nothing is charged. The result is **not a
    guarantee** and must not be stated as one.

    **References.** Steinke, Nasr, Jagielski, *Privacy Auditing with One (1) Training Run* (NeurIPS
    2023), Theorem 5.2; the score is the log likelihood ratio of a canary with the others at even
    odds.

    **Example**::

        >>> import jax, jax.numpy as jnp, numpyro, numpyro.distributions as dist, optax
        >>> import numpyro_dp as ndp
        >>> from numpyro.infer.autoguide import AutoDelta
        >>> def model(x, y=None):
        ...     w = numpyro.sample("w", dist.Normal(0, 1).expand([200]).to_event(1))
        ...     with numpyro.plate("people", x.shape[0]):
        ...         numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)
        >>> fit = ndp.DPSVI(model, AutoDelta(model), optax.sgd(0.01), clip_norm=1.0,
        ...                 privacy=ndp.Budget(8.0, 1e-5))
        >>> found = ndp.audit_one_run(fit, jax.random.key(0), jnp.ones((300, 200)), jnp.ones(300))
        >>> 0 < found.epsilon_lower <= found.epsilon_reported
        True
    """
    num_steps = _validate.positive_int("num_steps", num_steps)
    if _validate.probability("confidence", confidence) <= 0.5:
        raise ValueError(f"confidence must lie in (0.5, 1), got {confidence!r}")
    clip_norm = _checked_clip(svi)
    delta = svi.delta if delta is None else _validate.probability("delta", delta)
    split = private_model(svi.model, args, data_plate=svi._settings.data_plate)
    count = split.layout.rows
    if count < _LEAST_CANARIES:
        raise ValueError(f"give {_LEAST_CANARIES} records or more, each a canary; got {count}")
    asked = max(count // _SHARE, _LEAST_GUESSES) if guesses is None else guesses
    asked = 2 * min(_validate.positive_int("guesses", asked) // 2, count // 2)
    start_key, coin_key, noise_key = random.split(as_typed_keys(rng_key, 1), 3)
    canaries = loud_records(split, clip_norm, count)
    # The auditor's own coins, on which no guarantee rests.
    present = np.asarray(random.bernoulli(coin_key, 0.5, (count,)))
    mixed = [
        np.where(present.reshape(-1, *[1] * (loud.ndim - 1)), loud, np.asarray(quiet)[0])
        for loud, quiet in zip(canaries, null_record(split), strict=True)
    ]
    given = [split.layout.fill(leaves)[0] for leaves in (mixed, canaries)]
    found = whole_run(svi, start_key, num_steps, given, seeded_key(noise_key))
    right = _right(found.scores, present, asked)
    limits = {"delta": delta, "confidence": confidence}
    return OneRunAudit(
        epsilon_lower=one_run_epsilon(right, asked, count, **limits),
        epsilon_reported=privacy_curve(found.event, "zero_out").epsilon(delta),
        num_canaries=count,
        num_parameters=found.dim,
        guesses=asked,
        right=right,
        **limits,
    )


def _checked_clip(svi: Any) -> float:
    if not isinstance(svi, DPSVI):
        raise ValueError(
            f"audit_one_run takes a numpyro_dp.DPSVI, not {type(svi).__name__}: audit takes all "
            "else"
        )
    if svi._account.given is not None:
        raise ValueError("audit_one_run is for made-up data: make the fit without accountant=")
    if svi.adapts:
        raise ValueError(f"audit_one_run runs a fit's own steps: give it {svi.instead}")
    if svi._settings.clip_norm == np.inf:
        raise ValueError("the fit's privacy is switched off: there is no ε to hold it against")
    return float(svi._settings.clip_norm)


def _right(scores: Float[np.ndarray, " canaries"], present: np.ndarray, guesses: int) -> int:
    """Right guesses: that the highest scores are of canaries that were in, the lowest of others."""
    order, half = np.argsort(scores), guesses // 2
    return int(present[order[len(order) - half :]].sum() + (~present[order[:half]]).sum())


def one_run_epsilon(
    right: int, guesses: int, canaries: int, *, delta: float, confidence: float
) -> float:
    """Lower confidence bound on ε from guesses about independent canaries of one run.

    Under pure ε-differential privacy right guesses are stochastically at most binomial with chance
    e^ε/(1 + e^ε) each; δ adds at most 2mδ times the steepest mean rise of that tail.

    :param right: right guesses.
    :param guesses: how many there were.
    :param canaries: m, of which it could have been guessed.
    """
    if right <= guesses / 2:
        return 0.0

    def p_value(epsilon: float) -> float:
        chance = 1 / (1 + np.exp(-epsilon))
        tail = binom.sf(right - 1, guesses, chance)
        steps = np.arange(1, right + 1)
        rises = np.cumsum(binom.pmf(right - steps, guesses, chance)) / steps
        return float(tail + 2 * canaries * delta * rises.max())

    error = 1 - confidence
    if p_value(0.0) > error:
        return 0.0
    if p_value(_MOST) < error:
        return _MOST
    return float(brentq(lambda epsilon: p_value(epsilon) - error, 0, _MOST))
