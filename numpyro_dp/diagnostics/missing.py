"""How many records hold a missing value: one private count."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from jaxtyping import Array, ArrayLike, Float

from numpyro_dp import _validate
from numpyro_dp.accounting import Accountant, Budget, PrivacyReport
from numpyro_dp.errors import UnsupportedModelError
from numpyro_dp.execution import arguments
from numpyro_dp.execution.account import Account, require_chargeable
from numpyro_dp.execution.calibration import planned_sum
from numpyro_dp.execution.facts import arithmetic
from numpyro_dp.execution.keys import as_typed_keys
from numpyro_dp.mechanisms import PrivateSum


class MissingCount(NamedTuple):
    """How many records hold a missing value.

    - **count**: estimated number of records, in [0, N].
    - **noise_sd**: standard deviation of the privacy noise in ``count``.
    - **privacy**: the :class:`~numpyro_dp.PrivacyReport` of this one number.
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

    **References.** The Gaussian mechanism; privacy.md section 2 for the centred count.

    **Example**::

        >>> import jax, numpy as np
        >>> import numpyro_dp as ndp
        >>> income = np.where(np.arange(5000) % 10 == 0, np.nan, 1.0)
        >>> found = ndp.count_missing(jax.random.key(0), income, privacy=ndp.Budget(1.0, 1e-6))
        >>> bool(abs(found.count - 500) < 6 * found.noise_sd), bool(found.noise_sd < 5)
        (True, True)
    """
    require_chargeable("count_missing", rng_key, *arrays)
    arguments.check_noise(privacy, noise_multiplier)
    if noise_multiplier is not None:
        noise_multiplier = _validate.positive("noise_multiplier", noise_multiplier)
    key = as_typed_keys(rng_key, 1)
    account = Account("count_missing", accountant, secure=secure)
    rows = _rows(arrays, account)
    mechanism = planned_sum(
        num_records=rows,
        dim=1,
        sampling_rate=1.0,
        clip_norm=0.5,
        num_steps=1,
        delta=account.delta(privacy),
        relation=account.relation,
        noise=arguments.given_noise(privacy, noise_multiplier),
    )
    account.charge(mechanism.event(1), steps=1, total_variation=mechanism.tv_per_step)
    noise_key = account.noise_key(random.fold_in(key, 0))
    # NumPy would warn of a number past single precision: a word on somebody's record.
    with np.errstate(all="ignore"):
        records = [jnp.asarray(array, jnp.float32) for array in arrays]
    # A half that rounding would shrink, in every record alike, is no half any more.
    half = mechanism.unshrunk
    centred = float(_centred_count(mechanism, half, noise_key, records)) / (2 * half)
    return MissingCount(
        # Cutting to what a count can be is post-processing.
        count=min(max(centred + rows / 2, 0.0), float(rows)),
        noise_sd=mechanism.noise_multiplier * mechanism.clip_norm / (2 * half),
        privacy=_report(mechanism, account, account.delta(privacy)),
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


def _report(mechanism: PrivateSum, account: Account, delta: float) -> PrivacyReport:
    return account.report(
        delta=delta,
        unit="one row of the arrays",
        num_records=mechanism.num_records,
        mechanism="Gaussian mechanism on a count of records with missing values",
        sampler="every record",
        sampling_rate=1.0,
        clip_norm=mechanism.clip_norm,
        noise_multiplier=mechanism.noise_multiplier,
        released=("the noisy number of records with missing values",),
        assumed_public=(f"the number of records ({mechanism.num_records})",),
        arithmetic=arithmetic(mechanism),
    )
