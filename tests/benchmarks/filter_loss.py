"""What charges that are chosen later cost, against the same list planned.

``python tests/benchmarks/filter_loss.py`` prints the least ε whose budget admits each list, one
charge after the other, over the ε of the list in one plan (δ = 1e-5, zero-out).
"""

import math
import time

from numpyro_dp.accounting import Budget, privacy_curve
from numpyro_dp.accounting.admission import admits
from numpyro_dp.accounting.events import (
    BarkerBit,
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    PoissonSampledDpEvent,
    PosteriorDraw,
    PureObjectivePerturbationRelease,
    SelfComposedDpEvent,
)

DELTA = 1e-5


def sampled(rate: float, noise: float, steps: int) -> DpEvent:
    """Steps of a stochastic-gradient run."""
    return SelfComposedDpEvent(PoissonSampledDpEvent(rate, GaussianDpEvent(noise)), steps)


def bits(width: float, steps: int) -> DpEvent:
    """Steps of a Barker run."""
    return SelfComposedDpEvent(BarkerBit(width), steps)


LOOK, DRAW = GaussianDpEvent(20.0), PosteriorDraw(0.5)
LAPLACE = PureObjectivePerturbationRelease(1.0, 0.0, 1.0, 1 / 0.3)
# name, list, loss of the table in per cent
ROWS: list[tuple[str, list[DpEvent], float]] = [
    ("one run", [sampled(0.01, 1.0, 1000)], 0.0),
    ("2 x q.05 s1.5 T100", [sampled(0.05, 1.5, 100)] * 2, 3.3),
    ("2 x q.05 s3 T1000", [sampled(0.05, 3.0, 1000)] * 2, 0.8),
    ("2 x q.01 s1 T1000", [sampled(0.01, 1.0, 1000)] * 2, 3.1),
    ("2 x q.01 s1.5 T10000", [sampled(0.01, 1.5, 10_000)] * 2, 0.7),
    ("2 x q.2 s6 T1000", [sampled(0.2, 6.0, 1000)] * 2, 0.6),
    ("2 x Gaussian 8", [GaussianDpEvent(8.0)] * 2, 0.7),
    ("5 x q.05 s3 T400", [sampled(0.05, 3.0, 400)] * 5, 1.2),
    ("10 x q.01 s1.5 T1000", [sampled(0.01, 1.5, 1000)] * 10, 1.7),
    ("5 x q.01 s1 T300", [sampled(0.01, 1.0, 300)] * 5, 10.1),
    ("2 x q.05 s.7 T100", [sampled(0.05, 0.7, 100)] * 2, 10.3),
    ("2 x q.01 s.8 T100", [sampled(0.01, 0.8, 100)] * 2, 18.9),
    ("2 x q.001 s.6 T1000", [sampled(0.001, 0.6, 1000)] * 2, 23.6),
    ("2 x 100 Barker .1", [bits(0.1, 100)] * 2, 0.9),
    ("5 x 1000 Barker .02", [bits(0.02, 1000)] * 5, 0.6),
    ("2 x draw .5", [DRAW] * 2, 3.2),
    ("5 x draw .5", [DRAW] * 5, 19.6),
    ("10 x draw .2", [PosteriorDraw(0.2)] * 10, 21.2),
    ("3 x pure .3", [LAPLACE] * 3, 0.0),
    ("q.05 s3, draw .5", [sampled(0.05, 3.0, 1000), DRAW], 5.6),
    ("draw .5, q.05 s3", [DRAW, sampled(0.05, 3.0, 1000)], 0.5),
    ("Gaussian 20, q.01 s1", [LOOK, sampled(0.01, 1.0, 1000)], 1.1),
    ("Gaussian 20, q.001 s.6", [LOOK, sampled(0.001, 0.6, 1000)], 28.8),
    ("q.01 s1, Gaussian 20", [sampled(0.01, 1.0, 1000), LOOK], 0.8),
    (
        "run, bits, draw, Gaussian",
        [sampled(0.05, 3.0, 1000), bits(0.1, 100), PosteriorDraw(0.2), LOOK],
        1.4,
    ),
]


def least(events: list[DpEvent]) -> tuple[float, float]:
    """ε of the list in one plan, and the least ε that admits its charges one by one."""
    planned = privacy_curve(ComposedDpEvent(events)).epsilon(DELTA)
    curves = [privacy_curve(event) for event in events]
    low, high = 0.999 * planned, 4 * planned
    while high > 1.00002 * low:
        middle = math.sqrt(low * high)
        fits = admits(curves, Budget(middle, DELTA))
        low, high = (low, middle) if fits else (middle, high)
    return planned, high


def main() -> None:
    """Print the table."""
    print(f"{'list':<26} {'planned':>8} {'loss':>7} {'table':>7} {'seconds':>8}")
    for name, events, table in ROWS:
        start = time.perf_counter()
        planned, found = least(events)
        spent = time.perf_counter() - start
        loss = 100 * (found / planned - 1)
        print(f"{name:<26} {planned:8.3f} {loss:6.2f}% {table:6.1f}% {spent:8.1f}")


if __name__ == "__main__":
    main()
