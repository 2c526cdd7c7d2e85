"""An audit refuses data sets of which more than a record differs: it would refute what is sound."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.infer.autoguide import AutoDelta

import numpyro_dp as ndp

BUDGET = ndp.Budget(2.0, 1e-5)
QUIET = {"num_chains": 100, "progress_bar": False}
NOBODY = np.full(4, np.nan, np.float32)
SOMEBODY = np.where(np.arange(4) == 1, np.float32(5), NOBODY)


def shifted(x, shift):
    mean = numpyro.sample("mean", dist.Normal(0, 10))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("x", dist.Normal(mean + shift, 1), obs=x)


AUDITED = {
    "gradients": ndp.DPSGLD(shifted, step_size=0.1, clip_norm=1.0, privacy=BUDGET),
    "bits": ndp.DPBarkerMH(shifted, step_size=0.1, lipschitz=1.0, max_move=0.2, privacy=BUDGET),
    "fit": ndp.DPSVI(
        shifted, AutoDelta(shifted), optax.sgd(0.1), clip_norm=1.0, privacy=BUDGET
    ),
    "minimiser": ndp.OutputPerturbation(shifted, row_norm=1.0, huber=1.5, privacy=BUDGET),
}  # fmt: skip


@pytest.mark.parametrize("name", AUDITED)
@pytest.mark.parametrize("make", [float, lambda value: ndp.public(np.float32([value]))])
def test_a_public_argument_that_differs_is_refused(name, make):
    """Accept bits refuted ε = 0.2 by 4.5 where the model of the neighbour was shifted."""
    data, neighbour = (SOMEBODY, make(0.0)), (NOBODY, make(50.0))
    with pytest.raises(ValueError, match="equal public arguments"):
        ndp.audit(AUDITED[name], jax.random.key(0), data, neighbour, **QUIET)


def changed(array, row=1, to=7):
    """The array with one row replaced."""
    other = np.array(array)
    other[row] = to
    return other


X, Y, TABLE = np.zeros((4, 2), np.float32), np.arange(4), np.ones(3)


@pytest.mark.parametrize(
    ("data", "neighbour"),
    [
        ((X, 1), (X + 1, 1)),
        ((X, 1), (changed(X), 2)),
        ((X, TABLE), (changed(X), TABLE + 1)),
        ((X, "a"), (changed(X), "b")),
        ((X, ndp.public(Y)), (changed(X), ndp.public(Y + 1))),
        ((X, Y), (changed(X), changed(Y, row=2))),
        (({"x": X},), ({"x": X + 1},)),
        (([1.0, 2.0],), ([1.0, 3.0],)),
        ((X, X), (changed(X),)),
        ((X, Y), (X, Y)),
    ],
)
def test_a_function_s_data_differ_in_one_row_alone(data, neighbour):
    """Whatever else it is given; nothing was compared where one argument was no array of rows."""

    def never(key, *given):
        raise AssertionError

    with pytest.raises(ValueError, match="exactly one record"):
        ndp.audit(never, jax.random.key(0), data, neighbour, score=float, **QUIET)


@pytest.mark.parametrize(
    "given",
    [
        lambda x: (x, 1, "a", None, ndp.public(Y)),
        lambda x: ({"x": jnp.asarray(x)}, TABLE),
        lambda x: (object(), x),
    ],
)
def test_a_function_may_take_what_is_equal_on_both_sides(given):
    class ReachedError(Exception):
        pass

    def reached(key, *given):
        raise ReachedError

    with pytest.raises(ReachedError):
        ndp.audit(reached, jax.random.key(0), given(X), given(changed(X)), score=float, **QUIET)
