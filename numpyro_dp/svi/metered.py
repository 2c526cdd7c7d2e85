"""An SVI object that knows one way to the records, and charges it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NoReturn

import numpyro.infer

from numpyro_dp.accounting import Accountant
from numpyro_dp.accounting.events import DpEvent
from numpyro_dp.mechanisms.keys import INSECURE
from numpyro_dp.records import read_arguments
from numpyro_dp.svi.plan import Plan
from numpyro_dp.svi.settings import Settings

__all__ = ["MeteredSVI"]


class MeteredSVI(numpyro.infer.SVI):
    """NumPyro's SVI without the methods that would touch records unpaid, and with an account.

    :param settings: what else the object was given.
    :param accountant: the ledger; ``None`` for an unbounded one of its own.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        guide: Callable[..., Any],
        optim: Any,
        loss: Any,
        *,
        settings: Settings,
        accountant: Accountant | None,
        **static_kwargs: Any,
    ) -> None:
        if accountant is not None and not isinstance(accountant, Accountant):
            raise ValueError(f"accountant must be a numpyro_dp.Accountant, got {accountant!r}")
        # The object keeps these, and whoever pickles it hands them on.
        for leaf in read_arguments(model, (), static_kwargs)[0].arrays:
            raise ValueError(
                f"static keyword argument `{leaf.name}` is an array, which would stay with the "
                "object: give records to run(), and wrap in `numpyro_dp.public` what is public"
            )
        super().__init__(model, guide, optim, loss, **static_kwargs)
        self._accountant = Accountant() if accountant is None else accountant
        self._settings = settings
        self._charges: list[tuple[str, DpEvent]] = []
        self._steps, self._overflow_delta = 0, 0.0
        self._lock = threading.Lock()

    @property
    def delta(self) -> float:
        """δ at which ε is stated: that of ``privacy``, else the ledger's, else 1e-6."""
        if self._settings.privacy is not None:
            return self._settings.privacy.delta
        return self._accountant.stated_delta

    @property
    def _private_size(self) -> bool:
        return self._accountant.relation == "add_remove"

    def _charge(self, plan: Plan, num_steps: int) -> None:
        label, event = type(self).__name__, plan.event(num_steps)
        condition = None if self._settings.secure else INSECURE
        self._accountant.charge(event, label=label, condition=condition)
        self._charges.append((label, event))
        self._steps += num_steps
        self._overflow_delta += plan.total_variation(num_steps)

    def update(self, *_: Any, **__: Any) -> NoReturn:
        """Refused: a step outside :meth:`run` would not be charged."""
        _only_run("update")

    def stable_update(self, *_: Any, **__: Any) -> NoReturn:
        """Refused: it looks at the loss of the records."""
        _only_run("stable_update")

    def evaluate(self, *_: Any, **__: Any) -> NoReturn:
        """Refused: a loss is an un-noised function of the records."""
        _only_run("evaluate")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()


def _only_run(name: str) -> NoReturn:
    raise NotImplementedError(
        f"DPSVI.{name} would touch the records without a charge: use DPSVI.run, which charges the "
        "privacy budget first (and goes on from a state with init_state=)"
    )
