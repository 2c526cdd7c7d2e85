"""How many records hold a missing value: one private count."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import random
from jaxtyping import Array, ArrayLike, Float

from numpyro_dp._shards import shards_of
from numpyro_dp.accounting import Accountant, Budget, PrivacyReport
from numpyro_dp.errors import UnsupportedModelError
from numpyro_dp.execution import arguments
from numpyro_dp.execution.account import Account
from numpyro_dp.execution.facts import assumed_public, sum_facts
from numpyro_dp.execution.keys import as_typed_keys
from numpyro_dp.mechanisms import PrivateSum


class MissingCount(NamedTuple):
    """How many records hold a missing value.

    - **count**: estimated number of records, in [0, N].
    - **noise_sd**: standard deviation of the privacy noise in ``count``.
    - **privacy**: the :class:`~numpyro_dp.PrivacyReport` of this one number.

    **Privacy.** One released count, paid for by the function's charge.

    **References**: see :func:`count_missing`.

    **Example**: see :func:`count_missing`.
    """

    count: float
    noise_sd: float
    privacy: PrivacyReport


def count_missing(
    rng_key: Any,
    *arrays: ArrayLike,
    privacy: Budget | None = None,
    noise_multiplier: float | None = None,
    accountant: Accountant | None = None,
    secure: bool = True,
) -> MissingCount:
    """The number of records that hold NaN or infinity, privately.

    Such a record adds nothing to a private gradient, and nothing says so: how many there are is
    a fact about people. A model can leave them out by ``numpyro.handlers.mask``; how many it would
    leave out is learnt here, for a charge.

    :param rng_key: a JAX key; with ``secure=True`` it governs nothing.
    :param arrays: the records, arrays of real numbers with one row for each.
    :param privacy: :class:`~numpyro_dp.Budget` of the release; or
    :param noise_multiplier: standard deviation of the noise of the centred count over ½.
    :param accountant: the ledger that must agree; without one the report stands alone.
    :param secure: whether the noise comes from keys of the operating system, as in
        :class:`~numpyro_dp.MCMC`.
    :returns: :class:`MissingCount`.
    :raises BudgetExceededError: the accountant refuses; nothing was charged.
    :raises UnsupportedModelError: the number of records is private.
    :raises ValueError: an argument is out of range, or no array of numbers with equal rows.

    **Privacy.** Released: the noisy sum over records of ½ where a value is missing and -½ where
    none is. Sensitivity ½ under zero-out, where a null record adds 0, and 1 under replace-one;
    event ``Gaussian(noise_multiplier)`` on the integer lattice and the total variation of its
    table, charged before a record is read. Under add/remove, where N is private, it is refused.

    **References.** Dwork and Roth, *The Algorithmic Foundations of Differential Privacy* (2014),
    for the Gaussian mechanism; *How a step is released*
    (docs/explanation/how-a-step-is-released.md) for the centred count.

    **Example**::

        >>> import jax, numpy as np
        >>> import numpyro_dp as ndp
        >>> income = np.where(np.arange(5000) % 10 == 0, np.nan, 1.0)
        >>> found = ndp.count_missing(jax.random.key(0), income, privacy=ndp.Budget(1.0, 1e-6))
        >>> bool(abs(found.count - 500) < 6 * found.noise_sd), bool(found.noise_sd < 5)
        (True, True)
    """
    account = Account("count_missing", accountant, secure=secure)
    with account.opened("count_missing", rng_key, *arrays) as run:
        noise_multiplier = arguments.checked_noise(privacy, noise_multiplier)
        key = random.fold_in(as_typed_keys(rng_key, 1), 0)
        rows = _rows(arrays, account)
        shards = shards_of(arrays)
        shape = {"num_records": rows, "shards": shards, "dim": 1, "clip_norm": 0.5}
        mechanism = account.sum_once(privacy, noise_multiplier, **shape)
        # A half that rounding would shrink, in every record alike, is no half any more.
        half = mechanism.unshrunk
        noisy = _centred_count(
            *(mechanism, half, run.charge_once(mechanism, key)),
            [arguments.single_precision(array, shards) for array in arrays],
        )
        centred = float(noisy) / (2 * half)
    facts = sum_facts(
        mechanism,
        "a count of records with missing values",
        sampler="every record",
        released=("the noisy number of records with missing values",),
        unit="one row of the arrays",
        num_records=rows,
        assumed_public=assumed_public(rows),
    )
    return MissingCount(
        # Cutting to what a count can be is post-processing.
        count=min(max(centred + rows / 2, 0.0), float(rows)),
        noise_sd=mechanism.noise_multiplier * mechanism.clip_norm / (2 * half),
        privacy=account.report(facts, delta=account.delta(privacy)),
    )


def _rows(arrays: tuple[Any, ...], account: Account) -> int:
    if account.private_size:
        raise UnsupportedModelError(
            "the count is one of a known number of records, which is private under add_remove: "
            "use zero_out or replace_one"
        )
    for array in arrays:
        arguments.require_numbers("each array", array, "(records, ...)")
    rows = {array.shape[:1] for array in arrays}
    if len(rows) != 1 or rows <= {(), (0,)}:
        raise ValueError(
            "give one array or more, with one row for each record and as many rows in all"
        )
    return rows.pop()[0]


@partial(jax.jit, static_argnums=(0, 1))
def _centred_count(
    mechanism: PrivateSum, half: float, key: Any, records: list[Float[Array, "rows ..."]]
) -> Float[Array, ""]:
    def centred(record: list[Array]) -> Float[Array, " one"]:
        missing = [jnp.any(~jnp.isfinite(part)) for part in record]
        return jnp.where(jnp.any(jnp.stack(missing)), half, -half)[None]

    return mechanism.release(key, centred, records)[0]
