"""DP-Fast MH with one acceptance test, by the names of its papers."""

from __future__ import annotations

from dataclasses import dataclass

from numpyro_dp.mcmc.metropolis.kernel import DPFastMH


@dataclass(frozen=True, kw_only=True, eq=False)
class DPPenaltyMH(DPFastMH):
    """Private Metropolis–Hastings by the penalty rule: Gaussian noise on the log ratio.

    :class:`DPFastMH` with ``acceptance="penalty"``: the noisy log ratio is a Gaussian release, and
    the penalty s²/2 makes up for its noise, so that the target stays exact. It never adapts:
    ``step_size`` and a bound on a record must be given, and ``noise_scale`` or ``privacy``.

    Every argument, and **Privacy**, are :class:`DPFastMH`'s.

    :raises ValueError: as :class:`DPFastMH`.

    **References.** Yıldırım and Ermiş, *Exact MCMC with Differentially Private Moves* (2019).

    **Example**: see :class:`DPFastMH`.
    """

    acceptance: str = "penalty"

    def __post_init__(self) -> None:
        _require("DPPenaltyMH", self.acceptance, "penalty")
        super().__post_init__()


@dataclass(frozen=True, kw_only=True, eq=False)
class DPBarkerMH(DPFastMH):
    """Private Metropolis–Hastings by Barker's rule: the accept bit's own randomness is the noise.

    :class:`DPFastMH` with ``acceptance="barker"`` on all records. Without ``step_size`` and a bound
    on a record it adapts, as that does.

    Every other argument, and **Privacy**, are :class:`DPFastMH`'s.

    :raises ValueError: as :class:`DPFastMH`, and for ``batch_size``.

    **References.** Barker (1965); Li and Chen, *Privacy-preserving Metropolis–Hastings by Barker's
    test*, as discussed by Zhang and Zhang (2023).

    **Example**: see :class:`DPFastMH`.
    """

    def __post_init__(self) -> None:
        _require("DPBarkerMH", self.acceptance, "barker")
        if self.batch_size is not None:
            raise ValueError(
                "DPBarkerMH reads every record in every step: for batches, use DPFastMH"
            )
        super().__post_init__()


def _require(name: str, acceptance: str, rule: str) -> None:
    if acceptance != rule:
        raise ValueError(f"{name} is DPFastMH with acceptance={rule!r}: use DPFastMH for others")
