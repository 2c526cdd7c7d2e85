"""What the settings that were published cost in total, accounted exactly.

``python examples/reproduce/published_totals.py [DATA]`` prints one JSON line a setting: the δ that
a published experiment states, and the total ε of a run with its noise and number of steps, rounded
up. With the folder of the data (``gmm_dp_fast_mh.npz``, ``mnist79_pca50.npz``) it adds what share
of DP-Fast MH's steps are decided without noise by the rule of their code.

Settings are those of the authors' public code:

- VIPS: ``github.com/mijungi/vips_code`` (``onlinewikipedia_static.py``, ``cal_privcy_for_mnist.py``
  and ``test_adult_data.py``);
- DP-Fast MH: ``github.com/ruqizhang/dpfastmh`` (``mog`` and ``logistic``);
- Bayesian DP: ``github.com/AlekseiTriastcyn/bayesian-differential-privacy`` (its notebooks on
  synthetic data and MNIST).

Batches are taken to be drawn record by record, as every ε of the package is; those of the authors'
code have a fixed size or come by epochs. The relation is zero-out, of which the sensitivity is half
of what code has that compares two records. Where a noise follows from a pair (ε, δ) a step, it is
the classical √(2 log(1.25 / δ)) / ε.
"""

import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from dp_accounting import DpEvent, GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from scipy import stats
from scipy.special import logsumexp

from numpyro_dp.accounting import Budget, calibrate, privacy_curve, rounded_down, rounded_up


def sampled(rate: float, noise: float, steps: int) -> DpEvent:
    """Steps of Gaussian noise (in sensitivities), each on a share of the records."""
    return SelfComposedDpEvent(PoissonSampledDpEvent(rate, GaussianDpEvent(noise)), steps)


def classical(epsilon: float, delta: float) -> float:
    """Noise, in sensitivities, of the classical Gaussian mechanism."""
    return math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def moments(rate: float, noise: float, steps: int, delta: float) -> float:
    """ε by the moments accountant of the VIPS code: orders up to σ² log(1 / (q σ))."""
    found = []
    for order in range(1, math.floor(noise**2 * math.log(1 / (rate * noise))) + 1):
        terms = np.arange(order + 2)
        chances = stats.binom.logpmf(terms, order + 1, rate)
        moment = steps * logsumexp(chances + terms * (terms - 1) / (2 * noise**2))
        found.append((moment + math.log(1 / delta)) / order)
    return min(found)


def settings() -> Iterator[tuple[str, str, DpEvent, float, float | None]]:
    """Yield source, experiment, event, δ and the ε that the authors' code states."""
    stated = moments(0.05, 1.24, 20, 1e-4)
    name = "topics: σ 1.24, batches of 20,000 of 400,000, 20 steps"
    yield "VIPS", name, sampled(0.05, 1.24, 20), 1e-4, stated
    for noise in (1.0, 2.0):
        for batch in (400, 800, 1600, 3200):
            steps = 60_000 // batch
            name = f"belief network: σ {noise:g}, batches of {batch}, {steps} steps"
            # The code draws from 60,000 images and accounts as if from 50,000.
            stated = moments(batch / 50_000, noise, steps, 1e-4)
            yield "VIPS", name, sampled(batch / 60_000, noise, steps), 1e-4, stated
    for noise in (1.0, 10.0, 50.0):
        # Two statistics of one batch, with the noise that the code adds to each: (y - 1/2)x is at
        # most 1/2 and has σ; half of ξxx', at most 1/4, has σ/2. One joint event.
        joint = 1 / math.hypot(0.5 / noise, 0.25 / (noise / 2))
        name = f"logistic regression on Adult: σ {noise:g}, .5 % of the records, 100 steps"
        yield "VIPS", name, sampled(0.005, joint, 100), 1e-4, None
    for name, steps in (("mixture", 20_000), ("MNIST, 7 against 9", 40_000)):
        event = SelfComposedDpEvent(GaussianDpEvent(2 * classical(0.05, 1e-5)), steps)
        name = f"{name}: (.05, 1e-5) a step, all records, {steps:,} steps"
        yield "DP-Fast MH", name, event, 1e-5, None
    # Noise of the notebooks is in multiples of twice the clip norm.
    for steps in (1, 10, 100):
        name = f"Figure 1: σ 1, one record in a thousand, {steps} steps"
        yield "Bayesian DP", name, sampled(1e-3, 2.0, steps), 1e-5, None
    for noise in (0.55, 0.8, 1.0, 1.35):
        name = f"σ against ε: σ {noise:g}, one record in a thousand, one step"
        yield "Bayesian DP", name, sampled(1e-3, 2 * noise, 1), 1e-5, None
    for clip in (0.1, 0.7, 1.0):
        name = f"order against ε: C {clip:g}, σ 1, 64 of 60,000, 10,000 steps"
        yield "Bayesian DP", name, sampled(64 / 60_000, 1 / clip, 10_000), 1e-5, None


def batch_means(noise: float, kept: float, epochs: int, rate: float, delta: float) -> float:
    """Lower bound on ε where the mean of a batch is clipped, and not each record's gradient.

    Where all others have no gradient, one record moves the mean by the clip norm, in one batch an
    epoch. The batch is not known: log(1 / rate) an epoch is all that hides.

    :param noise: in clip norms.
    :param kept: share of the coordinates that are released, in which the gradient lies evenly.
    """
    known = SelfComposedDpEvent(GaussianDpEvent(noise / math.sqrt(kept)), epochs)
    return privacy_curve(known).epsilon(delta) - epochs * math.log(1 / rate)


def main() -> None:
    """Print every setting."""
    for source, name, event, delta, stated in settings():
        epsilon = privacy_curve(event).epsilon(delta)
        theirs = {} if stated is None else {"stated": round(stated, 3)}
        show(source, name, delta, epsilon=float(rounded_up(epsilon, 3)), **theirs)
    needed = calibrate(lambda noise: sampled(0.05, noise, 20), Budget(2.44, 1e-4), "zero_out")
    name = "topics: noise that ε = 2.44 needs, and what 1.24 is of it"
    show("VIPS", name, 1e-4, noise=round(needed, 3), ratio=round(1.24 / needed, 2))
    name = "MNIST: σ .1, means of batches of 1,024 of 60,000, a tenth of the coordinates, 32 epochs"
    for delta in (1e-5, 1e-10):
        least = batch_means(0.1, 0.1, 32, 1024 / 60_000, delta)
        show("Bayesian DP", name, delta, epsilon_at_least=float(rounded_down(least, 3)))
    for folder in sys.argv[1:]:
        unprotected(Path(folder))


def unprotected(folder: Path) -> None:
    """Print the share of DP-Fast MH's steps that add no noise, at moves of the proposal's law.

    The code adds none where a step's bound Δ is below an ε of its own: ε Ψ / (6 K max ψ) for a
    mini-batch, ε for all records, where ψ are the bounds of the records and Ψ is their sum.
    """
    x = np.load(folder / "gmm_dp_fast_mh.npz")["x"]
    slopes = np.hypot((2 * np.abs(x) + 9) / 2, (np.abs(x) + 6) / 2) / 500
    rows = np.linalg.norm(np.load(folder / "mnist79_pca50.npz")["X_train"], axis=1)
    rng = np.random.default_rng(0)
    for name, bounds, size, coordinates, largest in (
        ("mixture", slopes, 6e-2, 2, 60),
        ("MNIST, 7 against 9", rows, 4.3e-4, 50, 225),
    ):
        moves = size * np.linalg.norm(rng.standard_normal((100_000, coordinates)), axis=1)
        reach = moves * bounds.sum() / 10
        sampled = 10 + 10 * reach < largest
        right = 2 * np.log1p(reach)
        # So the code has it, 1 / (λ Ψ move), where Ψ move / λ is right.
        used = right if name == "mixture" else 2 * np.log1p(1 / (100 * reach))
        limit = 0.05 * bounds.sum() / (6 * largest * bounds.max())
        free = np.where(sampled, used < limit, 2 * bounds.max() * moves < 0.05)
        show(
            "DP-Fast MH",
            f"{name}: steps without noise",
            1e-5,
            share=round(float(free.mean()), 3),
            of_mini_batches=round(float(free[sampled].mean()), 3),
            bound_used=float(f"{used[sampled].mean():.2g}"),
            right_bound=float(f"{right[sampled].mean():.2g}"),
        )


def show(source: str, name: str, delta: float, **figure: float) -> None:
    """Print a setting and its ε."""
    line = {"source": source, "setting": name, "delta": delta, **figure}
    print(json.dumps(line, ensure_ascii=False), flush=True)


if __name__ == "__main__":
    main()
