"""An SVI object that knows one way to the records, and charges it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import numpyro.infer

from numpyro_dp import _validate
from numpyro_dp.accounting import Accountant
from numpyro_dp.execution.account import Account
from numpyro_dp.model.records import read_arguments
from numpyro_dp.svi.dpsvi.settings import INSTEAD, DPSVISettings


class ChargedSVI(numpyro.infer.SVI):
    """NumPyro's SVI without the methods that would touch records unpaid, and with an account.

    :param settings: what else the object was given.
    :param accountant: the ledger; ``None`` for an unbounded one of its own.
    """

    instead = INSTEAD

    def __init__(
        self,
        model: Callable[..., Any],
        guide: Callable[..., Any],
        optim: Any,
        loss: Any,
        *,
        settings: DPSVISettings,
        accountant: Accountant | None,
        **static_kwargs: Any,
    ) -> None:
        for name, given in (("model", model), ("guide", guide)):
            if not callable(given):
                raise ValueError(
                    f"{name} must be a NumPyro {name} (a callable), got {_validate.shown(given)}"
                )
        # The object keeps these, and whoever pickles it hands them on.
        for leaf in read_arguments(model, (), static_kwargs)[0].arrays:
            raise ValueError(
                f"static keyword argument `{leaf.name}` is an array, which would stay with the "
                "object: give records to run(), and wrap in `numpyro_dp.public` what is public"
            )
        super().__init__(model, guide, optim, loss, **static_kwargs)
        self._account = Account(type(self).__name__, accountant, secure=settings.secure)
        self._settings = settings

    @property
    def adapts(self) -> bool:
        """Whether a release before the steps gives what was left open."""
        return self._settings.adapts

    @property
    def delta(self) -> float:
        """δ at which ε is stated: that of ``privacy``, else the ledger's, else 1e-6."""
        return self._account.delta(self._settings.privacy)

    def update(self, *_: Any, **__: Any) -> NoReturn:
        """Refused: a step outside :meth:`run` would not be charged."""
        _only_run("update")

    def stable_update(self, *_: Any, **__: Any) -> NoReturn:
        """Refused: it looks at the loss of the records."""
        _only_run("stable_update")

    def evaluate(self, *_: Any, **__: Any) -> NoReturn:
        """Refused: a loss is an un-noised function of the records."""
        _only_run("evaluate")


def _only_run(name: str) -> NoReturn:
    raise NotImplementedError(
        f"DPSVI.{name} would touch the records without a charge: use DPSVI.run, which charges the "
        "privacy budget first (and goes on from a state with init_state=)"
    )
