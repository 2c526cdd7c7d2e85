"""The walker and ε(δ): traps of dp-accounting, extremes, properties, total variation."""

import math
from itertools import pairwise

import dp_accounting
import mpmath
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings, strategies as st

from numpyro_dp.accounting import privacy_curve
from numpyro_dp.accounting.events import (
    ComposedDpEvent,
    GaussianDpEvent,
    NonPrivateDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
    TotalVariation,
)
from tests.accounting.reference import exact_epsilon

RELATIONS = ("zero_out", "replace_one", "add_remove")


def sampled(rate, noise, steps=1):
    return SelfComposedDpEvent(PoissonSampledDpEvent(rate, GaussianDpEvent(noise)), steps)


def gaussian_delta(epsilon, mu):
    with mpmath.workdps(50):
        e, m = mpmath.mpf(epsilon), mpmath.mpf(mu)
        return mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)


@pytest.mark.parametrize("mu", [1e-3, 0.1, 1.0, 5.0, 60.0])
@pytest.mark.parametrize("delta", [0.3, 1e-3, 1e-6, 1e-12])
def test_gaussian_agrees_with_forty_digits(mu, delta):
    epsilon = privacy_curve(GaussianDpEvent(1 / mu)).epsilon(delta)
    if epsilon == 0:
        assert gaussian_delta(0, mu) <= delta
        return
    assert gaussian_delta(epsilon, mu) <= delta
    assert gaussian_delta(epsilon * (1 - 1e-6), mu) > delta


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize(
    ("rate", "noise"), [(0.02, 0.6), (1e-4, 1.0), (0.5, 5.0), (0.9, 0.3), (0.3, 40.0)]
)
def test_one_step_agrees_with_quadrature(relation, rate, noise):
    x = np.linspace(-45 * noise - 1, 45 * noise + 1, 400_001)
    density = [np.exp(-0.5 * ((x - shift) / noise) ** 2) for shift in (0.0, 1.0, -1.0)]
    scale = (x[1] - x[0]) / (noise * math.sqrt(2 * math.pi))
    with_record = (1 - rate) * density[0] + rate * density[1]
    other = density[0]
    if relation == "replace_one":
        other = (1 - rate) * density[0] + rate * density[2]
    curve = privacy_curve(sampled(rate, noise), relation)
    for epsilon in (0.0, 0.003, 0.05, 0.4):
        ways = ((with_record, other), (other, with_record))
        truth = max(np.maximum(p - math.exp(epsilon) * q, 0).sum() * scale for p, q in ways)
        got = curve.delta(epsilon)
        assert got >= truth * (1 - 1e-5) - 1e-13
        assert got <= truth * (1 + 2e-3) + 1e-9


# docs/reference/events.md: dp-accounting's RDP ignores the relation.
def test_replace_one_is_not_what_dp_accounting_rdp_says():
    event = SelfComposedDpEvent(GaussianDpEvent(2.0), 10)
    relation = dp_accounting.NeighboringRelation.REPLACE_ONE
    trapped = RdpAccountant(neighboring_relation=relation).compose(event).get_epsilon(1e-5)
    assert trapped < 9
    assert privacy_curve(event, "replace_one").epsilon(1e-5) == pytest.approx(17.8566, rel=1e-4)


# Trap 2: PLD with REPLACE_ONE is right, and the clip norm must not be doubled again.
def test_replace_one_agrees_with_dp_accounting_pld():
    event = sampled(0.05, 1.5, 40)
    relation = dp_accounting.NeighboringRelation.REPLACE_ONE
    accountant = PLDAccountant(relation).compose(event)
    got = privacy_curve(event, "replace_one").epsilon(1e-5)
    assert got == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-3)


def test_two_releases_from_one_batch_are_one_joint_event():
    two = ComposedDpEvent([GaussianDpEvent(1.0), GaussianDpEvent(1.0)])
    joint = SelfComposedDpEvent(PoissonSampledDpEvent(0.01, two), 1000)
    same = sampled(0.01, 1 / math.sqrt(2), 1000)
    independent = sampled(0.01, 1.0, 2000)
    epsilon = privacy_curve(joint).epsilon(1e-5)
    assert epsilon == pytest.approx(privacy_curve(same).epsilon(1e-5), rel=1e-9)
    assert epsilon > 1.5 * privacy_curve(independent).epsilon(1e-5)


# Trap 3: what has no statement here is refused, wherever it hides.
@pytest.mark.parametrize(
    "event",
    [
        dp_accounting.LaplaceDpEvent(1.0),
        dp_accounting.UnsupportedDpEvent(),
        PoissonSampledDpEvent(0.1, dp_accounting.LaplaceDpEvent(1.0)),
        PoissonSampledDpEvent(0.1, PoissonSampledDpEvent(0.1, GaussianDpEvent(1.0))),
        PoissonSampledDpEvent(0.1, TotalVariation(1e-9)),
        SelfComposedDpEvent(ComposedDpEvent([NoOpDpEvent(), dp_accounting.LaplaceDpEvent(0.1)]), 3),
    ],
    ids=str,
)
def test_unknown_events_are_refused(event):
    with pytest.raises(ValueError, match=r"privacy statement|Gaussian releases alone"):
        privacy_curve(event)


@pytest.mark.parametrize(
    "event",
    [
        GaussianDpEvent(-1.0),
        GaussianDpEvent(math.nan),
        PoissonSampledDpEvent(1.5, GaussianDpEvent(1.0)),
        PoissonSampledDpEvent(math.nan, GaussianDpEvent(1.0)),
        SelfComposedDpEvent(GaussianDpEvent(1.0), -1),
        SelfComposedDpEvent(GaussianDpEvent(1.0), 1.5),
    ],
    ids=str,
)
def test_impossible_constants_are_refused(event):
    with pytest.raises(ValueError, match=r"must|count"):
        privacy_curve(event)


def test_unknown_relation_is_refused():
    with pytest.raises(ValueError, match="relation must be one of"):
        privacy_curve(NoOpDpEvent(), "neighbours")


@pytest.mark.parametrize(
    "event",
    [
        NonPrivateDpEvent(),
        GaussianDpEvent(0.0),
        PoissonSampledDpEvent(0.1, GaussianDpEvent(0.0)),
        ComposedDpEvent([GaussianDpEvent(5.0), SelfComposedDpEvent(NonPrivateDpEvent(), 2)]),
    ],
    ids=str,
)
def test_no_privacy_is_infinite(event):
    curve = privacy_curve(event)
    assert curve.epsilon(1e-5) == math.inf
    assert curve.delta(100.0) == 1.0


def test_nothing_costs_nothing():
    for event in (NoOpDpEvent(), ComposedDpEvent([]), sampled(0.1, 1.0, 0), sampled(0.0, 1.0, 9)):
        assert privacy_curve(event).epsilon(1e-9) == 0.0
        assert privacy_curve(event).delta(0.0) == 0.0


def test_sampling_everything_is_the_plain_gaussian():
    everything = privacy_curve(sampled(1.0, 3.0, 20), "replace_one")
    plain = privacy_curve(SelfComposedDpEvent(GaussianDpEvent(3.0), 20), "replace_one")
    assert everything.epsilon(1e-6) == plain.epsilon(1e-6)


EXTREMES = [
    # rate, noise, steps, relation, delta, relative excess allowed (rounding counts at tiny δ)
    pytest.param(0.5, 1.0, 100_000, "zero_out", 1e-9, 1e-3, marks=pytest.mark.slow),
    pytest.param(0.01, 50.0, 100_000, "zero_out", 1e-9, 1e-3, marks=pytest.mark.slow),
    pytest.param(0.01, 1.0, 1_000, "zero_out", 1e-12, 2e-2, marks=pytest.mark.slow),
    (0.01, 1.0, 1_000, "replace_one", 1e-12, 2e-2),
    pytest.param(1e-5, 1.0, 100_000, "zero_out", 1e-6, 3e-3, marks=pytest.mark.slow),
    pytest.param(1e-5, 10.0, 100_000, "replace_one", 1e-6, 3e-3, marks=pytest.mark.slow),
    pytest.param(0.99, 1.0, 1_000, "zero_out", 1e-5, 1e-3, marks=pytest.mark.slow),
    pytest.param(1e-3, 2.0, 30_000, "zero_out", 1e-2, 1e-3, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("rate", "noise", "steps", "relation", "delta", "excess"), EXTREMES)
def test_extremes_agree_with_a_contour_integral(rate, noise, steps, relation, delta, excess):
    got = privacy_curve(sampled(rate, noise, steps), relation).epsilon(delta)
    truth = exact_epsilon(rate, noise, steps, relation, delta, near=got)
    assert truth * (1 - 1e-5) <= got <= truth * (1 + excess)


def test_below_the_rounding_of_the_transform_a_renyi_bound_takes_over():
    tiny = privacy_curve(sampled(0.01, 50.0, 100_000)).epsilon(1e-12)
    assert 0.403876 <= tiny <= 0.403876 * 1.15  # exact by contour integral: 0.4038763
    assert privacy_curve(sampled(0.01, 50.0, 100_000), "replace_one").epsilon(1e-12) == math.inf


LEVELS = st.tuples(
    st.sampled_from([0.001, 0.01, 0.1, 0.7]),
    st.floats(0.5, 8.0),
    st.integers(1, 300),
)


# The bounds of two neighbours are computed on different grids: they may disagree by 1e-4.
@settings(max_examples=4, deadline=None, derandomize=True)
@given(level=LEVELS, relation=st.sampled_from(RELATIONS), delta=st.sampled_from([1e-3, 1e-6]))
def test_more_steps_more_sampling_or_less_noise_cost_more(level, relation, delta):
    rate, noise, steps = level

    def epsilon(*values):
        return privacy_curve(sampled(*values), relation).epsilon(delta) * (1 + 1e-4) + 1e-9

    here = privacy_curve(sampled(rate, noise, steps), relation).epsilon(delta)
    assert epsilon(rate, noise, steps + 20) >= here
    assert epsilon(min(rate * 1.3, 1.0), noise, steps) >= here
    assert epsilon(rate, noise * 0.9, steps) >= here


@settings(max_examples=3, deadline=None, derandomize=True)
@given(levels=st.lists(LEVELS, min_size=2, max_size=4), seed=st.randoms(use_true_random=False))
def test_order_and_nesting_do_not_matter(levels, seed):
    events = [sampled(*level) for level in levels] + [GaussianDpEvent(7.0), TotalVariation(1e-12)]
    epsilon = privacy_curve(ComposedDpEvent(events)).epsilon(1e-6)
    seed.shuffle(events)
    nested = ComposedDpEvent([ComposedDpEvent(events[:2]), *events[2:]])
    assert privacy_curve(nested).epsilon(1e-6) == epsilon


@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    level=LEVELS,
    distance=st.sampled_from([0.0, 1e-14, 1e-10, 1e-7]),
    delta=st.sampled_from([1e-2, 1e-5, 1e-6, 1e-9]),
)
def test_epsilon_is_certified(level, distance, delta):
    curve = privacy_curve(ComposedDpEvent([sampled(*level), TotalVariation(distance)]))
    epsilon = curve.epsilon(delta)
    if math.isfinite(epsilon):
        assert curve.delta(epsilon) <= delta


def test_total_variation_is_added_outside():
    clean = privacy_curve(sampled(0.01, 1.0, 1000))
    event = ComposedDpEvent(
        [sampled(0.01, 1.0, 1000), SelfComposedDpEvent(TotalVariation(1e-9), 4)]
    )
    curve = privacy_curve(event)
    for epsilon in (0.5, 1.5, 2.0):
        added = (1 + math.exp(epsilon)) * 4e-9
        assert curve.delta(epsilon) == pytest.approx(clean.delta(epsilon) + added, rel=1e-9)
    epsilon = curve.epsilon(1e-5)
    assert epsilon > clean.epsilon(1e-5)
    assert clean.delta(epsilon) + (1 + math.exp(epsilon)) * 4e-9 <= 1e-5


def test_delta_never_rises_with_epsilon():
    curve = privacy_curve(ComposedDpEvent([GaussianDpEvent(1.0), TotalVariation(1e-8)]))
    deltas = [curve.delta(epsilon) for epsilon in np.linspace(0, 30, 40)]
    # The flat part is a minimum found numerically.
    assert all(later <= earlier * (1 + 1e-7) for earlier, later in pairwise(deltas))
    assert 0 < curve.delta(math.inf) <= deltas[-1] * (1 + 1e-7)


def test_no_epsilon_where_total_variation_exceeds_delta():
    curve = privacy_curve(ComposedDpEvent([GaussianDpEvent(50.0), TotalVariation(1e-6)]))
    assert curve.epsilon(1e-6) == math.inf
    assert math.isfinite(curve.epsilon(1e-4))


@pytest.mark.slow
def test_grouping_rounds_noise_down():
    # 64 levels are exact, so the same steps with neighbouring levels merged bound the truth.
    noises = np.geomspace(1.0, 3.0, 72)
    grouped = privacy_curve(ComposedDpEvent([sampled(0.02, s, 5) for s in noises])).epsilon(1e-5)
    lower = np.repeat(noises[1::2], 2)  # every noise at least as large: costs no more
    upper = np.repeat(noises[::2], 2)  # every noise at most as large: costs no less
    bounds = [
        privacy_curve(ComposedDpEvent([sampled(0.02, s, 5) for s in side])).epsilon(1e-5)
        for side in (lower, upper)
    ]
    assert bounds[0] <= grouped <= bounds[1] * 1.01


@pytest.mark.slow
def test_a_thousand_noise_levels():
    noises = np.geomspace(0.6, 6.0, 1000)
    events = [PoissonSampledDpEvent(0.01, GaussianDpEvent(noise)) for noise in noises]
    epsilon = privacy_curve(ComposedDpEvent(events)).epsilon(1e-6)
    assert 3.9854 <= epsilon <= 3.9854 * 1.01  # 1,000 exact levels: 3.98540


def test_arguments_are_checked():
    curve = privacy_curve(GaussianDpEvent(1.0))
    with pytest.raises(ValueError, match="delta must lie"):
        curve.epsilon(0.0)
    with pytest.raises(ValueError, match="epsilon must not be negative"):
        curve.delta(-1.0)
