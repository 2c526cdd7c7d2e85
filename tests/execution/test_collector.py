"""The garbage collector is made rare for the time of a run, and is what it was afterwards."""

import gc

import jax
import numpy as np
import pytest

import numpyro_dp as ndp
from numpyro_dp.execution.collector import rare_collections


@pytest.fixture(autouse=True)
def pythons_own():
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)


def test_it_is_rare_until_the_last_of_several_ends():
    with rare_collections():
        with rare_collections():
            assert gc.get_threshold() == (100_000, 10, 10)
        assert gc.get_threshold()[0] == 100_000
    assert gc.get_threshold() == (700, 10, 10)


@pytest.mark.parametrize("own", [(0, 10, 10), (500_000, 10, 10)])
def test_one_that_is_off_or_rarer_stays(own):
    gc.set_threshold(*own)
    with rare_collections():
        assert gc.get_threshold() == own
    assert gc.get_threshold() == own


def test_what_the_caller_sets_meanwhile_stays():
    with rare_collections():
        gc.set_threshold(900, 5, 5)
    assert gc.get_threshold() == (900, 5, 5)
    with rare_collections():
        assert gc.get_threshold()[0] == 100_000
    assert gc.get_threshold() == (900, 5, 5)


def test_a_run_that_fails_gives_it_back():
    seen = []

    def model(y):
        seen.append(gc.get_threshold()[0])
        raise RuntimeError("no model")

    release = ndp.LikelihoodRelease(model, privacy=ndp.Budget(1.0, 1e-5))
    with pytest.raises(ndp.UnsupportedModelError):
        release.run(jax.random.key(0), np.zeros(50, np.float32), progress_bar=False)
    assert set(seen) == {100_000}
    assert gc.get_threshold() == (700, 10, 10)
