"""Accept bits as families of pairs, with the supremum over the log ratio certified.

A bit is 1 with probability A(l + u), where l is what the other records say and u this record's
term. For every rule here log A and log(1 − A) are concave, because σ, min(1, e^x) and
(1 − e^x)₊ are log-concave and convolution with a Gaussian keeps that. So the loss of outcome 1 for
a shift of l falls in l, minus the loss of outcome 0 rises, and over a whole interval of l both are
bounded by their values at one end. The intervals cover the real line; nothing is left to a grid.
"""

import math

import numpy as np
from scipy.special import erfcx, expit, gammaln, log_expit, log_ndtr, logsumexp, pdtrc

from numpyro_dp.accounting.bounds.binary import PairFamily
from numpyro_dp.accounting.pld.renyi import ORDERS, Array

# Log ratios that matter: outside, one outcome is rarer than e^−_FAR.
_FAR = 100.0
_CORE = 9.0
_TAIL_STEP = 0.25
_ROUGH = 0.02
_MOST_WIDE = 2000
_CELLS = 24
_ROUNDING = 4e-15

_Logs = tuple[Array, Array]


def _log_ratios(low: float, core: tuple[float, float], high: float, step: float) -> Array:
    """Return an increasing grid: steps of ``step`` within ``core``, wider ones outside.

    Where steps are wide anyway, everything below ``core`` is left to the pair beyond the grid.
    """
    if step >= _ROUGH:
        low = core[0]
    wide = max(_TAIL_STEP, 4 * step)
    wide = max(wide, (core[0] - low) / _MOST_WIDE)
    parts = [
        np.arange(low, core[0], wide),
        np.arange(core[0], core[1], step),
        np.arange(core[1], high, wide),
        np.array([high]),
    ]
    return np.concatenate(parts)


def _losses(before: _Logs, after: _Logs) -> tuple[Array, Array]:
    """Return the losses of both outcomes at each grid point, more than rounding takes off."""
    up = after[0] - before[0] - _ROUNDING * before[0]
    down = before[1] - after[1] - _ROUNDING * after[1]
    return np.maximum(up, 0.0), np.maximum(down, 0.0)


def _penalty_logs(l: Array, sd: float) -> tuple[Array, Array]:  # noqa: E741
    """Return log A and log(1 − A) of the penalty rule at log ratios ``l``."""
    first, second = l / sd - sd / 2, -l / sd - sd / 2
    log_one = np.minimum(np.logaddexp(log_ndtr(first), l + log_ndtr(second)), 0.0)
    likely = log_one >= -1
    # 1 − A = φ(x)(m(x) − m(x + s)) with Mills' ratio m, free of cancellation for rare rejections.
    x = np.maximum(first, -20.0)
    mills = [math.sqrt(math.pi / 2) * erfcx(point / math.sqrt(2)) for point in (x, x + sd)]
    rare = np.log(mills[0] - mills[1]) - x**2 / 2 - math.log(2 * math.pi) / 2
    log_zero = np.where(likely, rare, np.log1p(-np.exp(np.where(likely, -1.0, log_one))))
    rarely = np.exp(np.where(likely, rare, -1.0))
    return np.where(likely, np.log1p(-rarely), log_one), log_zero


def penalty_family(bound: float, sd: float, step: float) -> PairFamily:
    """Return the penalty bit's pairs for |u| ≤ ``bound``, rare rejections of infinite loss.

    :param bound: Δ.
    :param sd: s.
    :param step: width of the intervals of l where both outcomes are likely, over max(1, s).
    """
    grid = _penalty_grid(sd, step)
    before, after = _penalty_logs(grid, sd), _penalty_logs(grid + bound, sd)
    up, down = _losses(before, after)
    # Below the grid log A rises with slope at most 1; above, a rejection may lose everything.
    return PairFamily(np.concatenate([[bound], up]), np.concatenate([down, [math.inf]]))


def _penalty_grid(sd: float, step: float) -> Array:
    high = sd**2 / 2 + math.sqrt(2 * _FAR) * sd
    low, near, upper = -_CORE - sd, sd**2 / 2 - _CORE * sd, sd**2 / 2 + 6 * sd
    wide = step * max(1.0, sd)
    if near <= low:
        return _log_ratios(-45.0 - sd**2 / 2 - _CORE * sd, (low, upper), high, wide)
    # With much noise acceptances are next to impossible long before log A has slope 1; the slope
    # grows like the distance from s²/2, and so may the steps.
    far = (sd**2 / 2 - low) / sd
    distances = np.geomspace(far, _CORE, 2 + math.ceil(math.log(far / _CORE) / step))
    rare = sd**2 / 2 - sd * distances[:-1]
    return np.concatenate([rare, _log_ratios(near, (near, upper), high, wide)])


def penalty_tail(bound: float, sd: float) -> Array:
    """Return at every order a bound on the Rényi divergence for l beyond the penalty grid.

    There log(1 − A) = g is concave with g'' ≥ −1/s² (Brascamp and Lieb), so the moment of a
    rejection, exp(g(l) + (α − 1)(g(l) − g(l + Δ))), falls in l while (α − 1)Δ/s² < −g'; beyond that
    order nothing is said.
    """
    end = _penalty_grid(sd, 1.0)[-1]
    places = np.array([end, end + bound, end - 0.5, end])
    log_one, log_zero = _penalty_logs(places, sd)
    slope = log_zero[3] - log_zero[2]  # concave: g' at the end is below this over one half
    loss = log_zero[0] - log_zero[1]
    excess = ORDERS - 1
    moment = log_zero[0] + excess * loss
    falls = excess * bound / sd**2 < -2 * slope * (1 - 1e-9)
    small = np.logaddexp(0.0, moment) / excess
    reverse = (log_one[1] - log_one[0]) + 1e-13
    return np.where(falls, small + reverse, math.inf)


def noisy_barker_family(bound: float, sd: float, step: float) -> PairFamily:
    """Return the noisy Barker bit's pairs for |u| ≤ ``bound``; arguments as for the penalty."""
    edge = 45.0 + sd**2 + _CORE * sd
    core = (-_CORE - 3 * sd - sd**2 / 2, _CORE + 3 * sd + sd**2 / 2)
    grid = _log_ratios(-edge, core, edge, step * max(1.0, sd))
    before, after = _noisy_barker_logs(grid, sd), _noisy_barker_logs(grid + bound, sd)
    up, down = _losses(before, after)
    # log A and log(1 − A) have slopes of at most 1, whatever l; a sum that comes to 1 is off by
    # rounding even where its logarithm is next to nothing.
    up, down = np.minimum(up + 2e-14, bound), np.minimum(down + 2e-14, bound)
    return PairFamily(np.concatenate([[bound], up]), np.concatenate([down, [bound]]))


def _noisy_barker_logs(l: Array, sd: float) -> tuple[Array, Array]:  # noqa: E741
    """Return log A and log(1 − A) at log ratios ``l`` by the trapezoidal rule.

    σ has its nearest poles at ±iπ, so that the rule is exact to 1e-15 at this spacing.
    """
    spacing = min(0.25, 0.5 / sd)
    noise = np.arange(-sd - 12.0, sd + 12.0, spacing)
    weight = -(noise**2) / 2 + math.log(spacing / math.sqrt(2 * math.pi))
    found = np.empty((2, len(l)))
    for part in np.array_split(np.arange(len(l)), max(1, len(l) * len(noise) // 500_000)):
        moved = np.add.outer(l[part], sd * noise - sd**2 / 2)
        found[0, part] = logsumexp(log_expit(moved) + weight, axis=1)
        found[1, part] = logsumexp(log_expit(-moved) + weight, axis=1)
    return found[0], found[1]


def batch_family(bound: float, floor: float, replace: bool, step: float) -> PairFamily:
    """Return the pairs of a Barker bit on a mini-batch (docs/reference/events.md).

    A record with term u is drawn Poisson(r(u)) times, r(u) = ``floor`` + (cM − u)/2, and adds
    w(u) = log(r(−u)/r(u)) each time; a null record adds nothing. The log-odds of the bit exceed l
    by d_u(l), which falls in l, since its slope is −Var σ(l + kw) / (A(1 − A)). Its extremes over
    u are taken over cells of u with rate and weight at their far ends.

    :param bound: cM.
    :param floor: λ/N.
    :param replace: whether one value of u is replaced by another, or by a null record.
    :param step: width of the intervals of l.
    """
    grid = _log_ratios(-40.0, (-_CORE, _CORE), 40.0, step)
    most, least = (_log_odds_shift(grid, bound, floor, sign) for sign in (1.0, -1.0))
    zero = np.zeros(len(grid) + 2)
    ranges = [(least, most)] if replace else [(zero, most), (least, zero)]
    found = [_shifted_pairs(grid, low, high) for low, high in ranges]
    return PairFamily(
        np.concatenate([up for up, _ in found]), np.concatenate([down for _, down in found])
    )


def _shifted_pairs(grid: Array, low: Array, high: Array) -> tuple[Array, Array]:
    """Return losses of Barker bits whose log-odds are l + low against l + high, both falling in l.

    ``low`` and ``high`` hold the values at −∞, on the grid, at +∞.
    """
    # On an interval of l, ``high`` is largest at its lower end, ``low`` least at its upper end.
    highest, lowest = high[:-1], low[1:]
    left = np.concatenate([[-math.inf], grid])
    right = np.concatenate([grid, [math.inf]])
    width = highest - lowest
    with np.errstate(invalid="ignore"):
        up = log_expit(left + highest) - log_expit(left + lowest)
        down = log_expit(-right - lowest) - log_expit(-right - highest)
    return np.where(np.isfinite(left), up, width), np.where(np.isfinite(right), down, width)


def _log_odds_shift(grid: Array, bound: float, floor: float, sign: float) -> Array:
    """Return the extreme of d_u(l) over 0 ≤ sign·u ≤ ``bound`` at −∞, on ``grid`` and at +∞."""
    # Finest at the end, where the extreme lies unless batches are tiny.
    edges = sign * bound * (1 - np.linspace(1.0, 0.0, _CELLS + 1) ** 2)

    def rate(u: Array) -> Array:
        return floor + (bound - u) / 2

    weights = np.log(rate(-edges[1:]) / rate(edges[1:]))
    # The rate falls in u, so it is largest at the near end for u > 0, at the far end for u < 0.
    rates = np.maximum(rate(edges[:-1]), rate(edges[1:]))
    extreme = np.zeros(len(grid) + 2)
    for mean, weight in zip(rates.tolist(), weights.tolist(), strict=True):
        ends = mean * math.expm1(weight), -mean * math.expm1(-weight)
        shift = np.concatenate([ends[:1], _one_shift(grid, mean, weight), ends[1:]])
        extreme = np.maximum(extreme, sign * shift)
    return sign * extreme


def _one_shift(grid: Array, mean: float, weight: float) -> Array:
    """Return logit E σ(l + kw) − l for k ~ Poisson(mean), widened by its rounding."""
    if weight < 0:
        # σ(−x) = 1 − σ(x), and sums of positive terms only.
        return -_one_shift(-grid, mean, -weight)
    tilted = mean * math.exp(weight)
    counts = np.arange(last_count(tilted, 1e-18 * min(tilted, 1.0)) + 1)
    chances = np.exp(counts * math.log(mean) - mean - gammaln(counts + 1))
    added = weight * counts
    # x = E(σ(l + kw) − σ(l)) / (p(1 − p)) from ratios, so that rare outcomes lose no digits.
    log_ratio = log_expit(np.add.outer(grid, added)) - log_expit(grid)[:, None]
    gain = np.exp(log_ratio) @ (-np.expm1(-added) * chances)
    # logit(p + p(1−p)x) − logit(p) = log1p((1−p)x) − log1p(−px)
    found = np.log1p(expit(-grid) * gain) - np.log1p(-expit(grid) * gain)
    return found * (1 + 1e-10)


def last_count(mean: float, chance: float) -> int:
    """Return a count that a Poisson variable of this ``mean`` exceeds with at most ``chance``."""
    count = math.ceil(mean)
    while pdtrc(count, mean) > chance:
        count += 1
    return count
