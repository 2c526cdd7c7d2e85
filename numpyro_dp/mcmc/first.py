"""What takes place once before a chain's first step, and is charged with the chains."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from numpyro_dp.accounting.events import DpEvent


class Begun(NamedTuple):
    """Where the chains start.

    - **start**: what the bound kernel's ``init`` takes, with a leading chain axis for several.
    - **notes**: what the released numbers say of it.
    """

    start: Any
    notes: tuple[str, ...] = ()


class First(Protocol):
    """Releases from which chains start; fixed and hashable."""

    @property
    def label(self) -> str:
        """What the ledger adds to the kernel's name."""
        ...

    @property
    def event(self) -> DpEvent:
        """What it costs, for all chains."""
        ...

    @property
    def steps(self) -> int:
        """Releases, for all chains."""
        ...

    @property
    def total_variation(self) -> float:
        """Distance to the ideal mechanism, for all chains."""
        ...

    @property
    def conditions(self) -> tuple[str, ...]:
        """What its guarantee depends on."""
        ...

    def begin(
        self, rng_key: Any, start: Any, records: tuple, given: bool, progress_bar: bool
    ) -> Begun:
        """Make the releases, which must be charged by now.

        :param rng_key: a typed secret key.
        :param start: public starting positions.
        :param records: record arrays.
        :param given: whether the caller chose these positions.
        :param progress_bar: whether to show one.
        """
        ...

    def __hash__(self) -> int: ...


def needed_first(first: First | None, *, resumed: bool, steps: int) -> First | None:
    """What this run has to begin with.

    :param resumed: whether chains go on from a state.
    :param steps: of this run.
    :raises ValueError: there is no step that it would prepare, and a later run would go on from
        chains that had no such start.
    """
    if first is None or resumed:
        return None
    if not steps:
        raise ValueError(
            "nothing is drawn in this run, so its chains would not start where adaptation or "
            "init_kernel puts them: call run() with num_samples, without a warmup() of no steps"
        )
    return first
