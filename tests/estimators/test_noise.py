"""Secret vectors have the law they are said to have, and stay within their bounds.

Each Kolmogorov–Smirnov test has a fixed seed and fails with probability 1e-6 on a right sampler.
"""

from fractions import Fraction

import jax
import numpy as np
import pytest
from scipy import stats

from numpyro_dp.estimators.noise import GammaNorm, Gaussian, _uniforms
from numpyro_dp.estimators.release import LatticeOutput
from numpyro_dp.mechanisms import CHACHA20

KEY = jax.random.key(7, impl=CHACHA20)
LEAST_P = 1e-6


def test_gaussian_coordinates_are_normal():
    drawn = Gaussian(3.0).draw(KEY, 20_000)
    assert stats.kstest(drawn / 3.0, "norm").pvalue > LEAST_P
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 0.04


@pytest.mark.parametrize("dim", [1, 3])
def test_gamma_norm_has_its_norm_and_no_direction(dim):
    keys = jax.random.split(KEY, 200)
    drawn = np.array([GammaNorm(2.0).draw(key, dim) for key in keys])
    norms = np.linalg.norm(drawn, axis=1)
    assert stats.kstest(norms, "gamma", (dim, 0, 2.0)).pvalue > LEAST_P
    if dim == 1:
        assert stats.binomtest(int((drawn > 0).sum()), len(drawn)).pvalue > LEAST_P
    else:
        # A coordinate of a direction in three dimensions is uniform (Archimedes).
        assert stats.kstest(drawn[:, 0] / norms, "uniform", (-1, 2)).pvalue > LEAST_P


@pytest.mark.parametrize("law", [Gaussian(2.0), GammaNorm(2.0)])
@pytest.mark.parametrize("dim", [1, 2, 40])
def test_draws_stay_within_their_bounds(law, dim):
    norm, error, tv = law.bounds(dim)
    assert 0 < error < 1e-7 * norm
    assert 0 < tv < 1e-12
    # At the stated chance of about 1e-20, not at any: a hundredth of that chance moves it by 2 %.
    assert max(np.linalg.norm(law.draw(k, dim)) for k in jax.random.split(KEY, 10)) < norm


def test_uniforms_keep_their_digits_when_small():
    uniform, sign = _uniforms(KEY, 60_000)
    assert stats.kstest(uniform, "uniform").pvalue > LEAST_P
    assert set(sign) == {-1.0, 1.0}
    assert 0 < uniform.min() < 1e-3
    assert uniform.max() < 1
    # Below 2^-32 nothing would be left of the digits of a 32-bit draw.
    assert len(np.unique(uniform)) == len(uniform)


def test_outputs_are_on_the_lattice_with_floored_gaussian_noise():
    output = LatticeOutput(0.5, 4000)
    value = np.linspace(-3.0, 5.0, 4000)
    released = output.release(KEY, value)
    assert stats.kstest((released - value) / 0.5, "norm").pvalue > LEAST_P
    units = released / output.scale
    np.testing.assert_allclose(units % 1, units[0] % 1, atol=1e-3)
    moved = np.linalg.norm(np.rint(value / output.scale) * output.scale - value)
    assert moved <= output.rounding
    assert output.tv < 1e-10


def test_rounding_is_what_is_charged_in_all_of_the_box():
    """In exact arithmetic, from the middle to the box's end, where float64 has few digits left."""
    output = LatticeOutput(4e-7, 1000)
    unit, middle = Fraction(output.scale), 5.0
    value = middle + np.geomspace(1e-9, 2.0**51.9 * output.scale, 1000) * (-1) ** np.arange(1000)
    found = output.integers(value, middle)
    moved = [
        float(abs(int(k) * unit - (Fraction(v) - Fraction(middle))) / unit)
        for k, v in zip(found.tolist(), value.tolist(), strict=True)
    ]
    # More than the half unit that would be all without float64's own rounding.
    assert 0.6 < max(moved) <= output.rounding / (np.sqrt(output.dim) * output.scale)


def test_a_value_beyond_the_lattice_is_cut_not_wrapped():
    released = LatticeOutput(1e-6, 2).release(KEY, np.array([1e30, -1e30]))
    assert released[0] > 0 > released[1]
