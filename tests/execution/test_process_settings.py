"""The collector and BLAS are set for the time of a run, and are what they were afterwards."""

import gc

import jax
import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

import numpyro_dp as ndp
from numpyro_dp.execution.process_settings import settings_of_runs


@pytest.fixture(autouse=True)
def pythons_own():
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)


def test_it_is_rare_until_the_last_of_several_ends():
    with settings_of_runs():
        with settings_of_runs():
            assert gc.get_threshold() == (100_000, 10, 10)
        assert gc.get_threshold()[0] == 100_000
    assert gc.get_threshold() == (700, 10, 10)


@pytest.mark.parametrize("own", [(0, 10, 10), (500_000, 10, 10)])
def test_one_that_is_off_or_rarer_stays(own):
    gc.set_threshold(*own)
    with settings_of_runs():
        assert gc.get_threshold() == own
    assert gc.get_threshold() == own


def test_what_the_caller_sets_meanwhile_stays():
    with settings_of_runs():
        gc.set_threshold(900, 5, 5)
    assert gc.get_threshold() == (900, 5, 5)
    with settings_of_runs():
        assert gc.get_threshold()[0] == 100_000
    assert gc.get_threshold() == (900, 5, 5)


def blas_threads():
    return {each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"}


def test_blas_has_one_thread_until_the_last_of_several_ends():
    with threadpool_limits(2, user_api="blas"):
        # On one core there is nothing to be seen.
        own = blas_threads()
        with settings_of_runs():
            with settings_of_runs():
                assert blas_threads() == {1}
            assert blas_threads() == {1}
        assert blas_threads() == own


def test_a_run_that_fails_gives_it_back():
    seen = []

    def model(y):
        seen.append((gc.get_threshold()[0], *blas_threads()))
        raise RuntimeError("no model")

    release = ndp.LikelihoodRelease(model, privacy=ndp.Budget(1.0, 1e-5))
    with pytest.raises(ndp.UnsupportedModelError):
        release.run(jax.random.key(0), np.zeros(50, np.float32), progress_bar=False)
    assert set(seen) == {(100_000, 1)}
    assert gc.get_threshold() == (700, 10, 10)
