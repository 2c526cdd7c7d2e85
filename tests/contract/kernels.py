"""The kernels that the contract tests run: one entry a kernel."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import numpyro_dp as ndp


@dataclass(frozen=True)
class Entry:
    """A kernel and what sets it apart for the tests.

    :param constructor: of the kernel.
    :param arguments: what makes a small private run of ``tests.models.logistic``.
    :param calibrated: changes that leave to ``privacy=`` what it can choose.
    :param exposed: changes by which every record has a say in nearly every step.
    :param gradient: whether a step releases a noisy sum of record gradients, which has a size of
        noise, a clip norm and Poisson batches, and reports its relaxation times.
    """

    constructor: Callable[..., Any]
    arguments: dict[str, Any]
    calibrated: dict[str, Any] = field(default_factory=dict)
    exposed: dict[str, Any] = field(default_factory=dict)
    gradient: bool = False

    @property
    def warms_up(self) -> bool:
        """Whether a run may begin with draws that nobody keeps."""
        return self.constructor.takes_warmup


def gradient_kernel(constructor: Callable[..., Any], **own: Any) -> Entry:
    shared = {"step_size": 1e-3, "batch_size": 60, "clip_norm": 1.0, "noise_multiplier": 2.0}
    return Entry(
        constructor,
        {**shared, **own},
        calibrated={"noise_multiplier": None},
        exposed={"batch_size": None, "sampling_rate": 0.9},
        gradient=True,
    )


# Bounds that a record nearly uses up, so that neighbours part within a few steps.
_WALK = {"step_size": 0.3, "lipschitz": 2.0, "max_move": 0.6}
_BATCHES = {"step_size": 0.3, "lipschitz": 1.25, "max_move": 0.4, "batch_size": 400}

KERNELS = {
    "DPFastMH": Entry(ndp.DPFastMH, _WALK, {"likelihood_power": None}),
    # More privacy than so few records could have otherwise.
    "DPFastMH adapted": Entry(ndp.DPFastMH, {"privacy": ndp.Budget(12.0, 1e-5)}),
    "DPFastMH mini-batch": Entry(ndp.DPFastMH, _BATCHES, {"likelihood_power": None}),
    "DPFastMH smooth": Entry(
        ndp.DPFastMH,
        {"step_size": 0.3, "lipschitz": 4.0, "smoothness": 1.0},
        {"likelihood_power": None},
    ),
    "DPPenaltyMH": Entry(ndp.DPPenaltyMH, {**_WALK, "noise_scale": 2.0}, {"noise_scale": None}),
    "DPSGFS": gradient_kernel(ndp.DPSGFS),
    "DPSGHMC": gradient_kernel(ndp.DPSGHMC, friction=28.0),
    "DPSGLD": gradient_kernel(ndp.DPSGLD),
    "DPSGLD adapted": Entry(ndp.DPSGLD, {"privacy": ndp.Budget(12.0, 1e-5)}),
    "DPSGNHT": gradient_kernel(ndp.DPSGNHT, diffusion=28.0),
    "OPS": Entry(
        ndp.OPS,
        {"guarantee": ndp.StronglyLogConcave(row_norm=1.0), "likelihood_power": 0.2},
    ),
}

# Kernels that run the whole contract by default; the others run its core (test_core_contract.py)
# by default and the rest under `-m slow`, since each test compiles each kernel anew.
_WHOLE_CONTRACT = {"DPSGLD"}
# Differ from DPFastMH in one line of the plan, or in how it sums; from DPSGLD in what follows from
# the released gradient.
_ONLY_SLOW = {"DPPenaltyMH", "DPFastMH mini-batch", "DPFastMH smooth", "DPSGHMC", "DPSGNHT"}
_ONLY_SLOW |= {"DPFastMH adapted", "DPSGLD adapted"}


def _quickly(names: set[str], among: set[str]) -> list[Any]:
    """The names, those that are not ``among`` the default run's marked slow."""
    return [
        pytest.param(name, marks=[] if name in among else pytest.mark.slow)
        for name in sorted(names)
    ]


NAMES = _quickly(set(KERNELS), _WHOLE_CONTRACT)
GRADIENT = _quickly({name for name in KERNELS if KERNELS[name].gradient}, _WHOLE_CONTRACT)
WARMING_UP = _quickly({name for name in KERNELS if KERNELS[name].warms_up}, _WHOLE_CONTRACT)
CORE = _quickly(set(KERNELS) - _WHOLE_CONTRACT, set(KERNELS) - _ONLY_SLOW)


def make(name, model, **changes):
    """The named kernel on ``model`` with the contract's arguments, changed as asked."""
    entry = KERNELS[name]
    return entry.constructor(model, **{**entry.arguments, **changes})


def charged_steps(accountant):
    """Private steps of chains in a ledger, counted from its events, by entry."""
    # What adaptation releases stands before them.
    last = [entry.event.events[-1] for entry in accountant.entries]
    chains = [
        each if isinstance(each, ndp.events.ComposedDpEvent) else entry.event
        for each, entry in zip(last, accountant.entries, strict=True)
    ]
    return [each.events[0].count for each in chains]


def warmup(name, steps):
    """``steps`` of warm-up where the kernel takes any."""
    return steps if KERNELS[name].warms_up else 0


def neighbours(records):
    """The data of the contract and one that differs in one record, as positional arguments."""
    other = {k: v.copy() for k, v in records.items()}
    # So far out that its terms reach every bound.
    other["x"][7] = [40.0, 36.0, -36.0]
    other["y"][7] = 1 - other["y"][7]
    return [(d["x"], d["y"]) for d in (records, other)]


def repeats(moves, others):
    """Whether two runs of equal length share their noise.

    Either a move is found again, up to rounding: moves of three coordinates come within 1e-5 of
    each other by chance once in some 1e12 pairs, and a chain that stays where it is tells nothing.
    Or they are correlated, as posterior samples are that forget where they started: of 50 moves the
    correlation has standard error 0.14, the bound is at three and a half, false alarm 5e-4.
    """
    one, two = (m.reshape(-1, m.shape[-1])[np.any(m, axis=-1).ravel()] for m in (moves, others))
    assert len(one), "the chain never moved"
    assert len(two), "the chain never moved"
    apart = np.abs(one[:, None] - two[None]).max(axis=-1)
    alike = np.corrcoef(moves.ravel(), others.ravel())[0, 1]
    return bool(apart.min() < 1e-5 or alike > 0.5)
