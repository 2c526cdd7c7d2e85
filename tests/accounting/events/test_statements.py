"""Accept bits, draws and perturbations against independent enumeration and quadrature."""

import itertools
import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy.integrate import quad
from scipy.special import expit
from scipy.stats import chi2, norm, poisson

from numpyro_dp.accounting import Accountant, Budget, largest, privacy_curve
from numpyro_dp.accounting.bounds.bits import BatchBit, NoisyBarkerLoss, PenaltyLoss, Ranged
from numpyro_dp.accounting.bounds.smooth import SmoothBit
from numpyro_dp.accounting.events import (
    BarkerBit,
    ComposedDpEvent,
    DirectionalBarkerBit,
    GaussianDpEvent,
    LangevinLastIterate,
    LogConcaveDraw,
    MinibatchBit,
    MultiCandidateBit,
    NoisyBarkerBit,
    ObjectivePerturbationRelease,
    OutputPerturbationRelease,
    PenaltyBit,
    PoissonSampledDpEvent,
    PosteriorDraw,
    PureObjectivePerturbationRelease,
    SelfComposedDpEvent,
    SmoothBarkerBit,
    TotalVariation,
    ZCDpEvent,
    describe,
    from_json,
    to_json,
)
from numpyro_dp.accounting.pld.gaussian import gaussian_delta
from numpyro_dp.accounting.pld.renyi import ORDERS

EVENTS = [
    BarkerBit(0.05),
    NoisyBarkerBit(0.05, 1.5),
    PenaltyBit(0.05, 1.5),
    DirectionalBarkerBit(0.05, 1.0),
    SmoothBarkerBit(0.05, 1.0, 4.0, 5),
    MultiCandidateBit(0.05),
    MinibatchBit(1000, 1.0, 0.02, 200.0, "barker"),
    MinibatchBit(1000, 1.0, 0.02, 200.0, "penalty", 1.0),
    PosteriorDraw(0.05),
    LogConcaveDraw(1.0, 400.0),
    LangevinLastIterate(0.01, 20, 1.0, 1.0, 50.0),
    OutputPerturbationRelease(1.0, 1.0, 0.01, 30.0),
    ObjectivePerturbationRelease(1.0, 0.25, 50.0, 40.0, 1.0, 0.01),
    PureObjectivePerturbationRelease(1.0, 0.25, 50.0, 40.0),
    ZCDpEvent(0.001),
]
names = pytest.mark.parametrize("event", EVENTS, ids=lambda event: describe(event)[:40])
# Bits averaged over directions, or noisy, take seconds to integrate; tests of their own know what
# they cost, alone and under either relation.
AVERAGED = DirectionalBarkerBit | SmoothBarkerBit | NoisyBarkerBit
composed = pytest.mark.parametrize(
    "event",
    [
        pytest.param(event, marks=[pytest.mark.slow] * isinstance(event, AVERAGED))
        for event in EVENTS
    ],
    ids=lambda event: describe(event)[:40],
)


def penalty_chance(l, s):  # noqa: E741
    return norm.cdf(l / s - s / 2) + math.exp(l) * norm.cdf(-l / s - s / 2)


def noisy_chance(l, s):  # noqa: E741
    return quad(lambda z: expit(l - s * s / 2 + s * z) * norm.pdf(z), -12, 12, epsabs=1e-13)[0]


def batch_chance(l, u, bound, floor):  # noqa: E741
    here, there = floor + (bound - u) / 2, floor + (bound + u) / 2
    counts = np.arange(80)
    return poisson.pmf(counts, here) @ expit(l + counts * math.log(there / here))


def pairs(kind):
    """Return chances of a 1 on neighbours, over log ratios and terms, from the definitions."""
    ratios = np.linspace(-4, 4, 17) + 0.123
    if kind == "penalty":
        return [(penalty_chance(x, 0.7), penalty_chance(x + 0.1, 0.7)) for x in ratios]
    if kind == "noisy":
        return [(noisy_chance(x, 1.3), noisy_chance(x + 0.1, 1.3)) for x in ratios]
    if kind == "barker":
        return [(expit(x), expit(x + 0.1)) for x in ratios]
    terms = np.linspace(-0.03, 0.03, 7)
    if kind == "batch zero":
        return [(expit(x), batch_chance(x, u, 0.03, 0.04)) for x in ratios for u in terms]
    return [
        (batch_chance(x, u, 0.03, 0.04), batch_chance(x, v, 0.03, 0.04))
        for x in ratios
        for u, v in itertools.combinations(terms, 2)
    ]


BITS = {
    "penalty": PenaltyLoss(0.1, 0.7),
    "noisy": NoisyBarkerLoss(0.1, 1.3),
    "barker": Ranged(0.1),
    "batch zero": BatchBit(0.03, 0.04, False),
    "batch replace": BatchBit(0.03, 0.04, True),
}


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] * (kind == "noisy")) for kind in BITS]
)
def test_bits_bound_every_log_ratio_and_term(kind):
    found = np.clip(np.array(pairs(kind)), 1e-14, 1 - 1e-14)
    p = np.concatenate([found, found[:, ::-1]])
    p, q = p[:, :1], p[:, 1:]
    bound = BITS[kind].renyi()
    for place in (0, 150, 250, 300):
        order = ORDERS[place]
        one = order * np.log(p) + (1 - order) * np.log(q)
        zero = order * np.log1p(-p) + (1 - order) * np.log1p(-q)
        divergence = float(np.logaddexp(one, zero).max() / (order - 1))
        assert divergence <= bound[place] * (1 + 1e-6) + 1e-12
        # High orders are ruled by log ratios farther out than the enumeration goes.
        assert place > 150 or divergence > 0.8 * bound[place]
    for epsilon in (0.0, 0.01, 0.05):
        gains = np.maximum(p - math.exp(epsilon) * q, 0)
        gains += np.maximum(1 - p - math.exp(epsilon) * (1 - q), 0)
        assert gains.max() <= BITS[kind].delta(epsilon) * (1 + 1e-9) + 1e-15
        assert gains.max() > 0.9 * BITS[kind].delta(epsilon)


# The adversary picks each log ratio from the bits before it.
@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.3])
def test_adaptive_bits_are_bounded_by_enumeration(epsilon):
    width = 0.3
    ratios = np.linspace(-3, 3, 41)

    def gain(left, loss):
        if left == 0:
            return max(0.0, 1 - math.exp(epsilon - loss))
        key = (left, round(loss, 6))
        if key not in seen:
            best = 0.0
            for x in ratios if left > 2 else [-width / 2]:
                for low, high in ((x, x + width), (x + width, x)):
                    p, q = expit(high), expit(low)
                    up, down = math.log(p / q), math.log((1 - p) / (1 - q))
                    one = p * gain(left - 1, loss + up)
                    best = max(best, one + (1 - p) * gain(left - 1, loss + down))
            seen[key] = best
        return seen[key]

    seen = {}
    # Enumerating every choice of the first steps is enough to tell a bound that is too small.
    truth = gain(3, 0.0)
    found = privacy_curve(SelfComposedDpEvent(BarkerBit(width), 3)).delta(epsilon)
    assert truth * (1 - 1e-6) <= found <= truth * 1.1 + 1e-6


def test_one_gaussian_of_half_the_bound_is_not_enough_for_a_barker_bit():
    width = 0.5
    exceeded = [
        privacy_curve(BarkerBit(width)).delta(e) > gaussian_delta(e, width / 2)
        for e in np.linspace(0, width, 21)
    ]
    assert any(exceeded)
    # The rejected statement would claim less than a concrete bit loses.
    p, q = expit(width / 4 + 0.2), expit(-width / 4 * 3 + 0.2)
    truths = [max(p - math.exp(e) * q, 1 - q - math.exp(e) * (1 - p)) for e in (0.0, 0.2, 0.3)]
    for epsilon, truth in zip((0.0, 0.2, 0.3), truths, strict=True):
        assert privacy_curve(BarkerBit(width)).delta(epsilon) >= truth


def test_one_gaussian_is_not_enough_for_objective_perturbation():
    # One logistic record against a null record in one dimension: θ̂ is a function of b.
    weight, sd, epsilon = 0.25, 6.0, 0.4
    x = np.linspace(-400, 400, 2_000_001)
    null = norm.pdf(-weight * x, 0, sd) * weight
    record = norm.pdf(-weight * x + expit(-x), 0, sd) * (weight + expit(x) * expit(-x))
    truth = np.maximum(record - math.exp(epsilon) * null, 0).sum() * (x[1] - x[0])
    assert truth > 2 * gaussian_delta(epsilon, 1 / sd)
    event = ObjectivePerturbationRelease(1.0, 0.25, weight, sd)
    assert privacy_curve(event).delta(epsilon) >= truth


# Either minimum is short of its own by up to γ/λ, in opposite directions.
@pytest.mark.parametrize(("relation", "records"), [("zero_out", 1), ("replace_one", 2)])
def test_what_a_minimum_is_short_of_is_charged(relation, records):
    slope, convexity, short, sd = 1.0, 10.0, 0.5, 0.3
    output = OutputPerturbationRelease(slope, convexity, short, sd)
    apart = (records * slope + 2 * short) / (convexity * sd)
    objective = ObjectivePerturbationRelease(slope, 0.25, convexity, 50.0, sd, short)
    for epsilon in (0.0, 0.3, 1.0):
        truth = gaussian_delta(epsilon, apart)
        assert privacy_curve(output, relation).delta(epsilon) == pytest.approx(truth, rel=1e-6)
        beside = gaussian_delta(epsilon, 2 * short / (convexity * sd))
        assert privacy_curve(objective, relation).delta(epsilon) >= beside


@pytest.mark.parametrize("two_sided", [pytest.param(False, marks=pytest.mark.slow), True])
def test_noisy_batch_agrees_with_quadrature(two_sided):
    bound, floor, sd = 0.02, 0.05, 0.4
    step, rate = math.log1p(bound / floor), floor + bound
    x = np.linspace(-8, 8, 400_001)
    weights = poisson.pmf(np.arange(25), rate)
    upper = sum(w * norm.pdf(x, k * step, sd) for k, w in enumerate(weights))
    lower = upper[::-1] if two_sided else norm.pdf(x, 0, sd)
    event = MinibatchBit(1000, 1.0, bound, 1000 * rate, "penalty", sd)
    curve = privacy_curve(event, "replace_one" if two_sided else "zero_out")
    for epsilon in (0.01, 0.1, 0.5):
        orders = (upper - math.exp(epsilon) * lower, lower - math.exp(epsilon) * upper)
        truth = max(np.maximum(order, 0).sum() * (x[1] - x[0]) for order in orders)
        assert truth * (1 - 1e-6) <= curve.delta(epsilon) <= truth * 1.01


def test_directional_bit_agrees_with_quadrature():
    scale, epsilon = 0.4, 0.3

    def one(z):
        width = scale * z
        return (1 - math.exp((epsilon - width) / 2)) ** 2 / -math.expm1(-width) * 2 * norm.pdf(z)

    truth = quad(one, epsilon / scale, 10)[0]
    assert truth <= privacy_curve(DirectionalBarkerBit(0.2, 2.0)).delta(epsilon) <= truth * 1.02


# Records in orthogonal directions: |Z| + |Z'| is more often large than 2|Z|.
@pytest.mark.parametrize(
    "scale",
    [pytest.param(0.3, marks=pytest.mark.slow), 1.0, pytest.param(3.0, marks=pytest.mark.slow)],
)
def test_directional_bit_covers_records_in_any_two_directions(scale):
    node, weight = np.polynomial.legendre.leggauss(200)
    z, mass = 5 * (node + 1), 5 * weight * 2 * norm.pdf(5 * (node + 1))
    curve = privacy_curve(DirectionalBarkerBit(scale, 1.0), "replace_one")
    for epsilon in (0.0, 0.01, 0.5, 1.0):
        for widths in (scale * np.add.outer(z, z), 2 * scale * z):
            lost = np.expm1(np.minimum(epsilon - widths, 0) / 2) ** 2 / -np.expm1(-widths)
            truth = mass @ lost if lost.ndim == 1 else mass @ lost @ mass
            assert truth <= curve.delta(epsilon) <= max(1.3 * truth, 0.98)


def bit_delta(log_ratios, terms, epsilon):
    """Return the worse order's hockey-stick divergence of bits, without and with a record."""
    found = []
    for one, other in ((log_ratios, log_ratios + terms), (log_ratios + terms, log_ratios)):
        grown = math.exp(epsilon)
        up = np.maximum(expit(one) - grown * expit(other), 0)
        down = np.maximum(expit(-one) - grown * expit(-other), 0)
        found.append(up + down)
    return found


@pytest.mark.parametrize(
    ("slope", "curvature"),
    [
        (0.3, 0.2),
        pytest.param(0.0, 0.5, marks=pytest.mark.slow),
        pytest.param(0.5, 0.02, marks=pytest.mark.slow),
    ],
)
def test_smooth_bit_bounds_records_that_are_quadratic(slope, curvature):
    # In two dimensions, by quadrature over the move; at each the least favourable log ratio.
    node, weight = np.polynomial.hermite_e.hermegauss(40)
    mass = np.outer(weight, weight) / (2 * math.pi)
    squares = np.add.outer(node**2, node**2)
    curve = privacy_curve(SmoothBarkerBit(1.0, slope, curvature, 2))
    for sign in (1.0, -1.0):
        terms = slope * node[:, None] + sign * curvature / 2 * squares
        for epsilon in (0.0, 0.1, 0.5):
            worst = np.max(
                [bit_delta(-terms / 2 + shift, terms, epsilon) for shift in np.linspace(-2, 2, 21)],
                axis=0,
            )
            assert max((order * mass).sum() for order in worst) <= curve.delta(epsilon)


@pytest.mark.parametrize(
    "relation", [pytest.param("zero_out", marks=pytest.mark.slow), "replace_one"]
)
def test_smooth_bit_is_near_the_average_over_its_width(relation):
    slope, curvature = 0.3, 0.4
    widths = [slope * abs(z) + curvature * z**2 / 2 for z in np.linspace(-9, 9, 40_001)]
    # The worst of two records moves in the same way and against the first.
    widths = np.maximum(np.array(widths) * (2 if relation == "replace_one" else 1), 1e-300)
    mass = norm.pdf(np.linspace(-9, 9, 40_001)) * 18 / 40_000
    curve = privacy_curve(SmoothBarkerBit(1.0, slope, curvature, 1), relation)
    for epsilon in (0.0, 0.1, 0.5, 1.0):
        lost = np.expm1(np.minimum(epsilon - widths, 0) / 2) ** 2 / -np.expm1(-widths)
        assert mass @ lost <= curve.delta(epsilon) <= 1.35 * (mass @ lost)


@pytest.mark.parametrize(
    "relation", ["zero_out", pytest.param("replace_one", marks=pytest.mark.slow)]
)
def test_smooth_bits_without_curvature_cost_what_directional_ones_do(relation):
    def cost(event):
        return privacy_curve(SelfComposedDpEvent(event, 1000), relation).epsilon(1e-5)

    straight = cost(DirectionalBarkerBit(0.1, 1.0))
    assert straight <= cost(SmoothBarkerBit(0.1, 1.0, 0.0, 50)) <= 1.06 * straight


def test_smooth_divergences_are_those_of_the_width():
    # Where W is a multiple of a chi-squared variable: E exp(λ·min(αW²/8, W)) by quadrature.
    bit = SmoothBit(0.0, 0.2, 4, False)
    found = bit.renyi()
    assert found[300] == math.inf
    for place in (150, 190):
        order = ORDERS[place]

        def one(x, order=order):
            width = 0.1 * x
            return math.exp((order - 1) * min(order * width**2 / 8, width)) * chi2.pdf(x, 4)

        truth = math.log(quad(one, 0, 200, limit=400)[0]) / (order - 1)
        assert truth <= found[place] <= 1.02 * truth


def interleaved(order, epsilon, loss=0.0):
    """Return the best an adversary gains who picks every log ratio after all outcomes before it."""
    if not order:
        return max(0.0, 1 - math.exp(epsilon - loss))
    best = 0.0
    for p, q in order[0]:
        one = p * interleaved(order[1:], epsilon, loss + math.log(p / q))
        zero = (1 - p) * interleaved(order[1:], epsilon, loss + math.log((1 - p) / (1 - q)))
        best = max(best, one + zero)
    return best


@pytest.mark.parametrize("width", [0.2, 2.0])
@pytest.mark.parametrize("gaussian", [False, True])
def test_blocks_cover_bits_that_take_turns_with_other_releases(width, gaussian):
    ratios = [-width / 2 - 1, -width / 2, -width / 2 + 1]
    barker = [(expit(x), expit(x + width)) for x in ratios]
    barker += [pair[::-1] for pair in barker]
    if gaussian:
        # Of a Gaussian the adversary sees the sign.
        other, event = [(norm.cdf(0.5), norm.cdf(-0.5))], GaussianDpEvent(1.0)
    else:
        other = [(penalty_chance(x, 1.0), penalty_chance(x + width, 1.0)) for x in ratios]
        other, event = other + [pair[::-1] for pair in other], PenaltyBit(width, 1.0)
    curve = privacy_curve(ComposedDpEvent([BarkerBit(width), event] * 2))
    for epsilon in (0.0, width):
        for order in ((barker, other) * 2, (other, barker) * 2):
            assert 0 < interleaved(order, epsilon) <= curve.delta(epsilon) * (1 + 1e-9)


@pytest.mark.parametrize(
    "inner",
    [
        LogConcaveDraw(1.0, 4.0),
        LangevinLastIterate(0.01, 20, 1.0, 1.0, 50.0),
        SelfComposedDpEvent(OutputPerturbationRelease(1.0, 1.0, 0.01, 30.0), 2),
    ],
    ids=describe,
)
def test_sampling_is_stated_for_noisy_sums_alone(inner):
    with pytest.raises(ValueError, match="Gaussian releases alone"):
        privacy_curve(PoissonSampledDpEvent(0.1, inner), "replace_one")


def test_constants_of_few_digits_are_computed_with_all():
    fields = (0.3, 0.07, 25.3)
    few = [np.float32(value) for value in fields]
    same = [float(value) for value in few]
    event = MinibatchBit(1000, *few, "barker")
    assert all(type(value) is float for value in (event.lipschitz, event.expected_batch))
    assert privacy_curve(event).epsilon(1e-6) == privacy_curve(
        MinibatchBit(1000, *same, "barker")
    ).epsilon(1e-6)


# Each of these took minutes, or all memory, or a division by zero.
@pytest.mark.parametrize(
    "event",
    [
        BarkerBit(1e5),
        PureObjectivePerturbationRelease(50.0, 1.0, 1.0, 1e-3),
        PenaltyBit(100.0, 1e4),
        PenaltyBit(30.0, 0.01),
        NoisyBarkerBit(1.0, 1e4),
        MinibatchBit(1000, 1.0, 0.02, 1e300, "barker"),
        MinibatchBit(1000, 1.0, 0.02, 20.0 * (1 + 1e-8), "barker"),
        ZCDpEvent(1e5),
    ],
    ids=describe,
)
def test_extreme_constants_have_an_answer(event):
    curve = privacy_curve(ComposedDpEvent([SelfComposedDpEvent(event, 20), GaussianDpEvent(5.0)]))
    epsilon = curve.epsilon(1e-6)
    assert epsilon > privacy_curve(GaussianDpEvent(5.0)).epsilon(1e-6)
    assert not math.isfinite(epsilon) or curve.delta(epsilon) <= 1e-6 * (1 + 1e-9)


def test_wide_noisy_batches_are_resolved():
    # Records drawn once in ten steps, each draw worth 2.3 standard deviations of the noise.
    event = MinibatchBit(1000, 1.0, 0.05, 100.0, "penalty", 0.3)
    drawn = 1 - math.exp(-0.1)
    shift = math.log(2) / 0.3
    assert drawn * gaussian_delta(0.0, shift) <= privacy_curve(event).delta(0.0) < drawn


def test_absurd_mini_batches_are_refused():
    with pytest.raises(ValueError, match="lower expected_batch"):
        privacy_curve(MinibatchBit(1000, 1.0, 0.02, 1e9, "penalty", 1.0))


@pytest.mark.parametrize("width", [1e-9, 1e-6, 1e-3, 0.99, 1.01, 30.0])
def test_shift_of_a_bit_keeps_its_digits(width):
    with mpmath.workdps(40):
        half = mpmath.tanh(mpmath.mpf(width) / 4)
        exact = 2 * mpmath.sqrt(2) * mpmath.erfinv(half)
        assert 1 <= Ranged(width).shift / exact < 1 + 1e-10


@names
def test_events_survive_a_file(event):
    assert from_json(to_json(event)) == event
    assert describe(event) != type(event).__name__


@composed
def test_replace_one_costs_more_and_more_steps_cost_more(event):
    once, twice = privacy_curve(event), privacy_curve(SelfComposedDpEvent(event, 2))
    assert 0 < once.epsilon(1e-6) <= twice.epsilon(1e-6) * (1 + 1e-9)
    assert once.delta(0.01) <= twice.delta(0.01) * (1 + 1e-9)
    assert privacy_curve(event, "replace_one").epsilon(1e-6) > once.epsilon(1e-6)


@composed
def test_beside_others_it_costs_no_less_than_alone(event):
    others = [
        PoissonSampledDpEvent(0.01, GaussianDpEvent(2.0)),
        GaussianDpEvent(20.0),
        TotalVariation(1e-12),
    ]
    first = privacy_curve(ComposedDpEvent([event, *others])).epsilon(1e-6)
    last = privacy_curve(ComposedDpEvent([*others, event])).epsilon(1e-6)
    assert first == pytest.approx(last, rel=1e-12)
    assert first >= privacy_curve(event).epsilon(1e-6) * (1 - 1e-9)
    assert first >= privacy_curve(ComposedDpEvent(others)).epsilon(1e-6)


def test_minibatches_have_no_statement_under_add_remove():
    with pytest.raises(ValueError, match="number of records"):
        privacy_curve(MinibatchBit(1000, 1.0, 0.02, 200.0, "barker"), "add_remove")


def test_the_χ_form_is_the_batch_with_that_rate():
    # λ = χ·N·b: Δ = b(1 + 1/χ), and b(2 + 1/χ) for a replaced record (docs/reference/events.md).
    bound, χ, count = 0.01, 4.0, 1000
    event = MinibatchBit(count, 1.0, bound, (1 + χ) * count * bound, "barker")
    for relation, width in (
        ("zero_out", bound * (1 + 1 / χ)),
        ("replace_one", bound * (2 + 1 / χ)),
    ):
        assert 0.9 * width < privacy_curve(event, relation).epsilon(1e-300) <= width * (1 + 1e-9)


@pytest.mark.parametrize(
    "make",
    [
        lambda: BarkerBit(-0.1),
        lambda: BarkerBit(math.nan),
        lambda: PenaltyBit(0.1, 0.0),
        lambda: MinibatchBit(1000, 1.0, 0.02, 20.0, "barker"),
        lambda: MinibatchBit(1000, 1.0, 0.02, 200.0, "metropolis"),
        lambda: MinibatchBit(1000, 1.0, 0.02, 200.0, "barker", 1.0),
        lambda: MinibatchBit(1000, 1.0, 0.02, 200.0, "penalty"),
        lambda: LangevinLastIterate(0.1, 10, 1.0, 1.0, 20.0),
        lambda: LangevinLastIterate(0.1, 0, 1.0, 1.0, 2.0),
        lambda: ObjectivePerturbationRelease(1.0, 0.25, 1.0, 2.0, 0.0, 0.1),
    ],
)
def test_constants_are_checked(make):
    with pytest.raises(ValueError, match=r"must|not private"):
        make()


def test_zcdp_with_an_offset_is_refused():
    with pytest.raises(ValueError, match="xi must be 0"):
        privacy_curve(ZCDpEvent(0.1, 0.1))


def test_last_iterate_without_convexity_is_the_composition():
    event = LangevinLastIterate(0.01, 50, 1.0, 0.0, 100.0)
    gaussian = GaussianDpEvent(1 / math.sqrt(0.01 * 50 / 2))
    assert privacy_curve(event).epsilon(1e-5) == pytest.approx(
        privacy_curve(gaussian).epsilon(1e-5), rel=1e-9
    )


@settings(max_examples=4, derandomize=True, deadline=None)
@given(st.floats(1e-4, 0.3), st.floats(1.1, 3.0), st.integers(1, 200))
def test_a_wider_bound_costs_more(bound, factor, steps):
    def epsilon(width):
        return privacy_curve(SelfComposedDpEvent(PosteriorDraw(width), steps)).epsilon(1e-5)

    assert epsilon(bound) <= epsilon(factor * bound) * (1 + 1e-9)


def test_largest_is_refused_where_nothing_fits():
    budget = Budget(1.0, 1e-5)
    with pytest.raises(ValueError, match="lower bound"):
        largest(PosteriorDraw, budget, lower=2.0, upper=3.0)
    with pytest.raises(ValueError, match="must not exceed"):
        largest(PosteriorDraw, budget, lower=2.0, upper=1.0)
    assert largest(PosteriorDraw, budget, lower=0.1, upper=0.2) == 0.2


def test_a_ledger_without_a_budget_says_so(tmp_path):
    accountant = Accountant(path=tmp_path / "free.ledger")
    accountant.charge(BarkerBit(0.1), label="bit")
    assert "no budget: nothing is refused" in str(accountant.report())
    assert accountant.remaining() == math.inf


def test_what_is_left_counts_bits():
    accountant = Accountant(Budget(1.0, 1e-5))
    accountant.charge(SelfComposedDpEvent(BarkerBit(0.01), 1000), label="chain")
    assert 0 < accountant.remaining() < 0.9


@pytest.mark.parametrize(
    "smoothness", [*(pytest.param(each, marks=pytest.mark.slow) for each in (0.0, 1e-12)), 4e-12]
)
def test_bits_that_tell_next_to_nothing_have_a_bound(smoothness):
    """Sums of shares round to below 1, and their logarithm to a divergence below 0."""
    bits = SelfComposedDpEvent(SmoothBarkerBit(1.42, 1e-6, smoothness, 3), 25)
    alone = privacy_curve(GaussianDpEvent(4.0)).epsilon(1e-5)
    both = privacy_curve(ComposedDpEvent([GaussianDpEvent(4.0), bits])).epsilon(1e-5)
    assert alone <= both < 1.01 * alone
