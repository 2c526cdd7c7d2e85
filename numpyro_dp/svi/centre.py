"""``PrivateCentre``: inputs of a regression with their private mean subtracted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from jaxtyping import Array, ArrayLike, Float

from numpyro_dp import _validate
from numpyro_dp._arrays import unplaced
from numpyro_dp._shards import Shards, shards_of
from numpyro_dp.accounting import Accountant, Budget, PrivacyReport
from numpyro_dp.errors import UnsupportedModelError
from numpyro_dp.execution import arguments
from numpyro_dp.execution.account import Account
from numpyro_dp.execution.facts import assumed_public, sum_facts
from numpyro_dp.execution.keys import as_typed_keys
from numpyro_dp.mechanisms import PrivateSum


class CentredInputs(NamedTuple):
    """Inputs with a released shift subtracted.

    - **shift**: what was subtracted from each column, in its units, shape (columns,); 0 at the
      intercept.
    - **intercept**: number of the column of ones, from 0, or ``None``.
    - **privacy**: the :class:`~numpyro_dp.PrivacyReport` of the shift.

    **Privacy.** The shift is released and may be published; inputs that :meth:`centre` gives are
    private records as before.

    **References**: see :class:`PrivateCentre`.

    **Example**: see :class:`PrivateCentre`.
    """

    shift: Float[Array, " columns"]
    intercept: int | None
    privacy: PrivacyReport

    def centre(self, x: ArrayLike) -> Float[Array, "rows columns"]:
        """Inputs with the shift subtracted, row by row; **private** where ``x`` is.

        :param x: shape (rows, columns).
        :returns: an array of the same shape.
        """
        return jnp.asarray(x) - self.shift

    def restore(self, coefficients: ArrayLike) -> Float[Array, "... columns"]:
        """Coefficients of the original inputs, from those of the centred ones.

        :param coefficients: shape (..., columns).
        :returns: an array of the same shape.
        :raises ValueError: without an intercept, which is what takes up the shift.
        """
        if self.intercept is None:
            raise ValueError("without an intercept= the shift cannot be undone in a coefficient")
        w = jnp.asarray(coefficients)
        return w.at[..., self.intercept].add(-(w @ self.shift))


@dataclass(frozen=True, kw_only=True, eq=False)
class PrivateCentre:
    """The mean of a regression's inputs, released once and subtracted.

    Inputs far from zero make a regression's clipped gradients nearly parallel; centred ones are
    shorter, so the same privacy noise does less harm. The model stays what it was: the shift is
    undone in the intercept afterwards.

    :param row_norm: L2 bound on one row (without the intercept); longer rows are clipped in the
        mean, and only there.
    :param intercept: column of ones, which is not centred; ``None`` when there is none.
    :param privacy: :class:`~numpyro_dp.Budget` of the release; or
    :param noise_multiplier: standard deviation of the noise of the sum over ``row_norm``. A
        twentieth of the squared privacy loss is plenty.
    :param accountant: the ledger that must agree; without one each object keeps its own.
    :param secure: whether the noise comes from keys of the operating system, as in
        :class:`~numpyro_dp.MCMC`.
    :raises ValueError: for arguments out of range, both or neither of ``privacy`` and
        ``noise_multiplier``.

    **Privacy.** Released: the noisy sum of clipped rows, divided by their public number.
    Sensitivity of the sum ``row_norm`` under zero-out and twice that under replace-one; event
    ``Gaussian(noise_multiplier)`` and the total variation of the table. Under add/remove, where
    the number of rows is private, it is refused. The centred inputs themselves are as private as
    they were.

    **References.** Dwork and Roth, *The Algorithmic Foundations of Differential Privacy* (2014),
    for the Gaussian mechanism; *How a step is released*
    (docs/explanation/how-a-step-is-released.md).

    **Example**::

        >>> import jax, jax.numpy as jnp
        >>> import numpyro_dp as ndp
        >>> x = jnp.stack([jnp.linspace(2.0, 4.0, 5000), jnp.ones(5000)], axis=1)
        >>> found = ndp.PrivateCentre(row_norm=4.0, intercept=1, privacy=ndp.Budget(1.0, 1e-6)).run(
        ...     jax.random.key(0), x)
        >>> bool(abs(found.shift[0] - 3) < 0.05), float(found.shift[1])
        (True, 0.0)
        >>> found.restore(jnp.array([2.0, 1.0])).shape
        (2,)
    """

    row_norm: float
    intercept: int | None = None
    privacy: Budget | None = None
    noise_multiplier: float | None = None
    accountant: Accountant | None = None
    secure: bool = True
    _account: Account = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _validate.own_numbers(self)
        _validate.positive("row_norm", self.row_norm)
        if self.intercept is not None and type(self.intercept) is not int:
            raise ValueError(
                f"intercept must be the number of a column, got {_validate.shown(self.intercept)}"
            )
        arguments.checked_noise(self.privacy, self.noise_multiplier)
        account = Account(type(self).__name__, self.accountant, secure=self.secure)
        object.__setattr__(self, "_account", account)

    @property
    def delta(self) -> float:
        """δ at which ε is stated: that of ``privacy``, else the ledger's, else 1e-6."""
        return self._account.delta(self.privacy)

    def run(self, rng_key: Any, x: np.ndarray | Array) -> CentredInputs:
        """Charge the accountant, then release the mean.

        :param rng_key: a JAX key; with ``secure=True`` it governs nothing.
        :param x: inputs, a NumPy or JAX array of real numbers of shape (records, columns).
        :returns: the shift, and functions that apply and undo it.
        :raises BudgetExceededError: the accountant refuses; nothing was charged.
        :raises UnsupportedModelError: the number of rows is private.
        :raises ValueError: an argument is out of range, or of the wrong kind.
        """
        with self._account.opened("PrivateCentre.run", rng_key, x) as run:
            key = random.fold_in(as_typed_keys(rng_key, 1), 0)
            arguments.require_numbers("x", x, "(records, columns)")
            shards = shards_of([x])
            columns, mechanism = self.planned(x.shape, shards)
            mean = _compiled(
                *(mechanism, columns, run.charge_once(mechanism, key)),
                arguments.single_precision(x, shards),
            )
        shift = jnp.zeros(x.shape[1], mean.dtype).at[np.array(columns)].set(unplaced(mean))
        facts = sum_facts(
            mechanism,
            "the sum of clipped rows",
            sampler="every record",
            released=("the noisy mean of the inputs",),
            unit="one row of x",
            num_records=x.shape[0],
            assumed_public=assumed_public(
                x.shape[0], "row_norm, the intercept's column and every option"
            ),
        )
        report = self._account.report(facts, delta=self.delta)
        return CentredInputs(shift, self._intercept(x.shape[1]), report)

    def planned(
        self, shape: tuple[int, ...], shards: Shards | None = None
    ) -> tuple[tuple[int, ...], PrivateSum]:
        """The columns that are centred and the release, fixed by the shape of the inputs alone."""
        columns = self._columns(shape)
        release: dict[str, Any] = {"num_records": shape[0], "dim": len(columns), "shards": shards}
        release["clip_norm"] = float(self.row_norm)
        return columns, self._account.sum_once(self.privacy, self.noise_multiplier, **release)

    def _columns(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        if self._account.private_size:
            raise UnsupportedModelError(
                "the mean of the inputs divides by their number, which is private under "
                "add_remove: centre by public constants, or use zero_out or replace_one"
            )
        if len(shape) != 2 or shape[0] == 0:
            raise ValueError(f"x must be a table of shape (records, columns), got shape {shape}")
        skipped = self._intercept(shape[1])
        columns = tuple(k for k in range(shape[1]) if k != skipped)
        if not columns:
            raise ValueError("x holds nothing but the intercept: there is nothing to centre")
        return columns

    def _intercept(self, columns: int) -> int | None:
        if self.intercept is None:
            return None
        if not -columns <= self.intercept < columns:
            raise ValueError(f"intercept={self.intercept} is no column of x, which has {columns}")
        return self.intercept % columns


def released_mean(
    mechanism: PrivateSum, columns: tuple[int, ...], key: Any, x: Float[Array, "rows columns"]
) -> Float[Array, " kept"]:
    """The noisy mean of some columns, for use within a program."""
    kept = np.array(columns)
    total = mechanism.release(key, lambda record: record[0][0, kept], [x])
    return total / mechanism.num_records


_compiled = jax.jit(released_mean, static_argnums=(0, 1))
