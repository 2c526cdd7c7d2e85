"""What a release of scores and information would tell, from public numbers, before it is paid."""

from __future__ import annotations

import math
from textwrap import fill
from typing import NamedTuple

import numpy as np

from numpyro_dp.accounting import Budget, Relation, calibrate, privacy_curve, rounded_up
from numpyro_dp.accounting.events import GaussianDpEvent
from numpyro_dp.families.outcome_laws import has_cases
from numpyro_dp.model.data_free import read_coordinates
from numpyro_dp.model.private_model import PrivateModel

# Below these a release was measured to tell next to nothing, or to lose the information's shape.
_LEAST_SIGNAL, _LEAST_SHAPE = 3.5, 3.0
# Beside the noise of scores, which falls with κ, the loose clip and the records' own dispersion.
_FIXED, _FALLING = 0.2, 10.0
# Of this many records over μ, for each ten coordinates, an interval was about twice as wide as
# NUTS's, of fewer up to five times: the clip lets through too little of them (rare columns of 25 to
# 640 of 3,000 to 10,000 records at ε = 1 and 3, 9 to 32 coordinates, four families;
# tests/benchmarks/bench_rare_levels.py).
_FEW, _OF_COORDINATES = 18.0, 10
_PLAIN, _WEAK = 20.0, 8.0
# Typical intervals were up to 1 + this over the information's signal times as wide as κ alone says,
# where many coordinates share little: 1.4 times at 10 to 13 (20 and 30 columns of 5,000 to 8,000
# records at ε = 1), 1.3 to 2.3 at 3 to 7 (31 columns at ε = .35 to 1.4).
_SHARED = 5.0
_ALONE = (
    "It follows from the numbers of records and coordinates and from ε alone: ndp.coverage tries "
    "the model and its priors."
)
# Of rare counts less, 1.0 to 1.7 times with one in forty and up to 2.4 with one in two hundred.
_RARE = ((1.8, "ten"), (2.5, "twenty"))
# Many rounds find a far posterior; few leave more to each. By the shape's signal at least:
_ROUNDS = ((100.0, 14), (5.0, 12), (0.0, 8))

# Of the squared privacy loss, for the histogram that gives the first clip norm and coordinates: so
# much, and more where noise would be more than a tenth of the records.
_HISTOGRAM, _MOST_HISTOGRAM, _TENTH = 0.04, 0.25, 10.0


class Forecast(NamedTuple):
    """A forecast; ``print`` it, or read its fields.

    - **signal**: κ = nμ²/d: squared signal of all records over the noise, by coordinate.
    - **shape**: nμ/d^1.5: the same for the information matrix.
    - **width**: expected ratio of a typical interval to NUTS's on the records, where the model
      fits and events are not rare; ``widths`` has beside it up to what such ratios came.
    - **few**: a level or group of fewer records than about this has one at least twice as wide.
    - **verdict**: ``"resolved"``, ``"partly"`` or ``"not"``.
    - **num_records**, **dim**, **num_rounds**: of the release; coordinates of which no record's
      term tells, such as the scale of groups, or one of two intercepts, are not counted.
    - **passes**: gradients of the whole data that it takes.
    - **privacy**, **relation**: what it costs.
    - **cases**: whether an outcome is of whole numbers, as cases or events are, which may be rare.
    - **crowd**: which latent has most of many coordinates, and what is done about it.
    - **notes**: what the kind of the model says against a release of it, as its report will.
    - **ledger**: whether the budget of the accountant has room for it now; empty without one.

    **Privacy.** A function of shapes, public values, the model and charged events: free.
    """

    signal: float
    shape: float
    width: float
    few: int
    verdict: str
    num_records: int
    dim: int
    num_rounds: int
    passes: int
    privacy: Budget
    relation: Relation
    cases: bool = False
    crowd: str = ""
    notes: tuple[str, ...] = ()
    ledger: str = ""

    @property
    def remedy(self) -> str:
        """What would resolve it."""
        least = max(math.sqrt(_LEAST_SIGNAL / self.signal), _LEAST_SHAPE / self.shape)
        good = max(math.sqrt(_PLAIN / self.signal), 2 * _SHARED / self.shape)
        records = max(_LEAST_SIGNAL / self.signal, _LEAST_SHAPE / self.shape)
        return (f"{self.crowd}. Else " if self.crowd else "") + (
            f"about {rounded_up(1.05 * records, 2)} times as many records, or ε = "
            f"{self._epsilon(1.05 * least)} (good from ε = {self._epsilon(good)} on), or fewer "
            "coordinates would do. For prediction alone DPSVI does with less"
        )

    def _epsilon(self, times: float) -> str:
        """Of a release of as many records and coordinates, with so many times the signal."""
        noise = calibrate(GaussianDpEvent, self.privacy, self.relation) / times
        curve = privacy_curve(GaussianDpEvent(noise), self.relation)
        return rounded_up(curve.epsilon(self.privacy.delta), 2)

    @property
    def widths(self) -> tuple[float, float]:
        """``width``, and what typical intervals were up to where many coordinates share little."""
        return self.width, (1 + _SHARED / self.shape) * self.width

    @property
    def promise(self) -> str:
        """What to expect, in a sentence or two, and what is wider than that."""
        if self.verdict == "not":
            return f"not resolved: {self.remedy}"
        typical, most = (math.ceil(20 * each) / 20 for each in self.widths)
        about = f"{typical:g}" + (f" to {most:g}" if most > 1.1 * typical else "")
        weak = self.verdict == "partly" and min(self.signal, self.shape) < _WEAK
        rare = [
            f"{times:g} times where one outcome in {number} is not 0"
            for times, number in _RARE
            if self.cases and times > most
        ]
        wider = [
            *([f"up to {', '.join(rare)}"] if rare else []),
            f"by far, of a category's level or a flag of fewer than about {self.few} records (two "
            "to three times up to twice as many), and of a hierarchy's group of fewer than "
            f"{_two_digits(self.few / 2)}",
        ]
        return (
            f"can be resolved{' in part' * weak}: where the model fits and priors are on the scale "
            f"of the answer, a typical interval about {about} times as wide as NUTS's on the "
            f"records{'; weak directions stay at the prior' * weak}. Wider: {'; '.join(wider)}. "
            f"{_ALONE}{' For prediction alone DPSVI may be better.' * weak}"
        )

    def __str__(self) -> str:
        numbers = (
            f"{self.num_rounds + 1} private steps, sizes of scores and {self.num_rounds} rounds of "
            f"scores and information, about {self.passes} passes over all records. κ, signal "
            f"over noise, = {self.signal:.3g}: refused below {_LEAST_SIGNAL:g}, good from "
            f"{_PLAIN:g} on; that of the information {self.shape:.3g}: refused below "
            f"{_LEAST_SHAPE:g}"
        )
        said = (self.ledger, self.promise, *(f"note: {note}" for note in self.notes), numbers)
        head = (
            f"ε = {self.privacy.epsilon:g} at δ = {self.privacy.delta:g} ({self.relation}), "
            f"{self.num_records} records, {self.dim} coordinates"
        )
        lines = (
            fill(text, 100, initial_indent="  ", subsequent_indent="  ") for text in said if text
        )
        return "\n".join((head, *lines))


def promised(
    model: PrivateModel, epsilon: float, delta: float, relation: Relation
) -> Forecast | None:
    """What a release at this ε would tell; ``None`` where there is none of such a model or ε."""
    if relation == "add_remove" or own_latents(model) or not 0 < epsilon < math.inf:
        return None
    dim = sum(read_coordinates(model))
    if not dim:
        return None
    privacy = Budget(epsilon, delta)
    return forecast(
        num_records=model.num_records,
        dim=dim,
        outcomes=0,
        signal=1 / calibrate(GaussianDpEvent, privacy, relation),
        num_rounds=None,
        privacy=privacy,
        relation=relation,
        cases=has_cases(model),
    )


def own_latents(model: PrivateModel) -> tuple[str, ...]:
    """Latents of single records, summed out or not: such models may have several modes."""
    return model.structure.inside(model.plate, "latent", "discrete")


def forecast(
    *,
    num_records: int,
    dim: int,
    outcomes: int,
    signal: float,
    num_rounds: int | None,
    privacy: Budget,
    relation: Relation,
    cases: bool,
    crowd: str = "",
) -> Forecast:
    """Say what a release would tell.

    :param outcomes: possible outcomes of a record that are looked at.
    :param signal: μ of a Gaussian mechanism as private as the whole release.
    :param num_rounds: ``None`` for what suits.
    :param cases: whether an outcome is of whole numbers, which may be rare.
    :param crowd: which latent has most of many coordinates, and what is done about it.
    """
    kappa, shape = num_records * signal**2 / dim, num_records * signal / dim**1.5
    rounds = next(n for least, n in _ROUNDS if shape >= least) if num_rounds is None else num_rounds
    verdict = "resolved" if kappa >= _PLAIN else "partly"
    if kappa < _LEAST_SIGNAL or shape < _LEAST_SHAPE:
        verdict = "not"
    return Forecast(
        signal=kappa,
        shape=shape,
        width=math.sqrt(1 + _FIXED + _FALLING / kappa),
        few=_two_digits(_FEW * max(1, dim / _OF_COORDINATES) / signal),
        verdict=verdict,
        num_records=num_records,
        dim=dim,
        num_rounds=rounds,
        passes=(rounds + 1) * (1 + outcomes),
        privacy=privacy,
        relation=relation,
        cases=cases,
        crowd=crowd,
    )


def _two_digits(number: float) -> int:
    return int(float(f"{number:.2g}"))


def histogram_share(num_records: int, signal: float) -> float:
    """Of the squared privacy loss, what the histogram takes.

    :param signal: μ of a Gaussian mechanism as private as the whole release.
    """
    needed = (_TENTH / (num_records * signal)) ** 2
    return min(max(_HISTOGRAM, needed), _MOST_HISTOGRAM)


def geometric_shares(
    num_rounds: int, histogram: float, ratio: float | None = None
) -> tuple[float, ...]:
    """Shares of the squared privacy loss, growing by round; the histogram takes the rest.

    Many rounds find a far posterior; few leave more to each, which small budgets need.

    :param ratio: of the shares of two rounds; by default what suits a release of its own.
    """
    if ratio is None:
        ratio = 1.1 if num_rounds <= 8 else 1.25 if num_rounds <= 12 else 1.2
    weights = ratio ** np.arange(num_rounds)
    return tuple(float(w) for w in (1 - histogram) * weights / weights.sum())
