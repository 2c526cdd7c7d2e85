"""What a guide tells the VIPS engine: which statistics to release, and what to make of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxtyping import Array, Float

from numpyro_dp.execution.releases import Phase
from numpyro_dp.mechanisms import Touched
from numpyro_dp.model.guided.model import Outline, outline


class Schedule(ABC):
    """A guide bound to one model at known shapes: all that a run will ask of the records.

    Immutable and compared by identity; a static argument of compiled loops. It never sees more
    than one record at a time, nor any un-noised sum.
    """

    phases: tuple[Phase, ...]
    notes: tuple[str, ...] = ()
    """Sentences for the report, from public numbers alone."""

    @abstractmethod
    def start(self, key: Array) -> Any:
        """What is known before any release: a pytree of arrays, a function of a public key."""

    @abstractmethod
    def statistic(
        self, phase: int, state: Any, record: Sequence[Array]
    ) -> Float[Array, " dim"] | Touched:
        """What one record adds to the released sum.

        :param phase: index into :attr:`phases`.
        :param state: what is known; a function of earlier releases.
        :param record: one row of each array of :meth:`records`, the leading axis (of 1) kept.
        """

    @abstractmethod
    def advance(
        self,
        phase: int,
        state: Any,
        released: Float[Array, " dim"],
        noise_sd: Float[Array, " dim"],
        step: Array,
    ) -> Any:
        """What is known after a release: post-processing.

        :param released: noisy estimate of the sum of all records' clipped statistics.
        :param noise_sd: standard deviation of its privacy noise; 0 where privacy is off.
        :param step: releases of this phase before this one.
        """

    @abstractmethod
    def params(self, state: Any) -> Mapping[str, Array]:
        """Values of the guide's ``numpyro.param`` sites, on their own supports."""

    def learnt(self, state: Any) -> tuple[str, ...]:
        """Sentences for the report from what was released; post-processing."""
        return ()

    @abstractmethod
    def records(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Array]:
        """Record arrays, leading axis the number of records, in the order of ``record``."""

    def prepared(self, records: Sequence[Array]) -> list[Array]:
        """The records as the releases read them: each rearranged, once, by itself alone.

        Called after the charge; a row of the result is a function of that record only.
        """
        return list(records)

    def target(self) -> Any:
        """What draws from the fitted guide (``draw``, ``unconstrain``, ``guide``).

        ``None`` has the engine trace model and guide together, which any guide over global
        latents allows.
        """
        return None


class StatisticsGuide(ABC):
    """A NumPyro guide that knows which expected statistics of the records it is made of.

    It is a guide like any other, callable with the model's arguments, and serves
    ``numpyro.infer.Predictive`` with the parameters of a run.

    :param model: the NumPyro model.
    :param data_plate: name of the private plate, when several enclose the observations, or
        ``"auto"`` where none does and each row is a record.
    """

    # Whether a density of the model may be used, for which discrete latents are summed out.
    _summed = True

    def __init__(self, model: Callable[..., Any], *, data_plate: str | None = None) -> None:
        self.model = model
        self.data_plate = data_plate

    @abstractmethod
    def __call__(self, *args: Any, **kwargs: Any) -> dict[str, Array]:
        """Sample the latents from the fitted law; its parameters are ``numpyro.param`` sites."""

    def settled(
        self, found: Outline, num_steps: int | None, signal: Callable[[int], float]
    ) -> StatisticsGuide:
        """This guide with what was left open chosen by what the budget resolves.

        :param signal: from a number of releases to the μ of a Gaussian mechanism as private as
            all of them together; infinite where privacy is off.
        :returns: itself, or a copy; the same one for equal arguments.
        """
        return self

    def outlook(
        self, found: Outline, num_steps: int | None, signal: Callable[[int], float]
    ) -> tuple[str, ...]:
        """Sentences on what the budget resolves, from public numbers alone."""
        return ()

    def outlined(
        self,
        model: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        data_plate: str | None,
    ) -> Outline:
        """The model's arguments and private plate, no value of a record being looked at.

        :raises UnsupportedModelError: when the model cannot be split.
        """
        return outline(
            model, args, kwargs, data_plate=data_plate, private_size=False, summed=self._summed
        )

    @abstractmethod
    def scheduled(
        self, found: Outline, num_steps: int | None, *, clip_norm: float | None
    ) -> Schedule:
        """Bind to a model at known shapes; no value of a record is looked at.

        :param found: the model's arguments and private plate.
        :param num_steps: releases wanted, in all phases together; ``None`` for what suits.
        :param clip_norm: L2 bound given by the user in place of the guide's own; ``inf`` switches
            clipping off (and privacy with it).
        :raises UnsupportedModelError: the model is outside the guide's family, by site and cause.
        :raises ValueError: ``num_steps`` is too small for the phases of this guide.
        """
