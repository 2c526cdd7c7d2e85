"""Arguments of a private variational run, checked, and the plan that they make."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from numpyro_dp import _validate
from numpyro_dp._shards import Shards
from numpyro_dp._sources import Storage
from numpyro_dp.accounting import Budget, Relation
from numpyro_dp.errors import UnsupportedModelError
from numpyro_dp.execution import arguments
from numpyro_dp.model.guided.model import VariationalModel
from numpyro_dp.model.guided.outcomes import Outcomes
from numpyro_dp.svi.dpsvi.elbo import ElboTrace
from numpyro_dp.svi.dpsvi.plan import ReleasePlan, planned

_CURVATURE_SHARE = 0.1
# The arguments that switch adaptation off.
INSTEAD = "optim and clip_norm"
# Share of the squared privacy loss that adaptation takes unless told otherwise.
ADAPTATION = 0.25


@dataclass(frozen=True, kw_only=True)
class DPSVISettings:
    """What :class:`~numpyro_dp.DPSVI` was given beside model, guide, optimiser and ledger."""

    clip_norm: float | None
    batch_size: float | None
    sampling_rate: float | None
    privacy: Budget | None
    noise_multiplier: float | None
    data_plate: str | None
    clip: str | None
    scale: str | None
    curvature_clip: float | None
    average: float
    microbatch_size: int | None
    max_records: int | None
    elbo: ElboTrace | None
    secure: bool
    adaptation: float = ADAPTATION

    def __post_init__(self) -> None:
        _validate.own_numbers(self)
        if self.adapts:
            self._check_adaptation()
        elif self.adaptation != ADAPTATION:
            raise ValueError(
                f"adaptation= has no meaning with clip_norm: leave it out, or {INSTEAD}"
            )
        arguments.check_noise(self.privacy, self.noise_multiplier)
        arguments.check_batches(
            self.batch_size, self.sampling_rate, self.microbatch_size, self.max_records
        )
        if self.clip_norm is not None:
            _validate.positive_or_infinite("clip_norm", self.clip_norm)
        arguments.check_noise_and_clip(self.noise_multiplier, self.clip_norm)
        _validate.given(_validate.positive, curvature_clip=self.curvature_clip)
        if self.clip not in (None, "plain", "centred"):
            raise ValueError(
                f"clip must be 'plain', 'centred' or None, got {_validate.shown(self.clip)}"
            )
        if self.scale not in (None, "curvature", "gradient"):
            raise ValueError(
                f"scale must be 'curvature', 'gradient' or None, got {_validate.shown(self.scale)}"
            )
        if not 0 <= _validate.finite_float("average", self.average) <= 1:
            raise ValueError(f"average must lie in [0, 1], got {self.average!r}")
        if self.elbo is not None and not isinstance(self.elbo, ElboTrace):
            given = _validate.shown(self.elbo)
            raise ValueError(f"elbo must be a numpyro_dp.ElboTrace, got {given}")

    def averaged(self, num_steps: int) -> int:
        """How many of the last steps are averaged."""
        return round(self.average * num_steps)

    @property
    def adapts(self) -> bool:
        """Whether a release before the steps gives their start, coordinates and clip norm."""
        return self.clip_norm is None

    def _check_adaptation(self) -> None:
        if not 0 < _validate.positive("adaptation", self.adaptation) < 1:
            raise ValueError("adaptation must lie between 0 and 1: the steps need a share too")
        if self.privacy is None or self.noise_multiplier is not None:
            raise ValueError(
                "without clip_norm DPSVI adapts, which takes a share of a budget: give "
                f"privacy=Budget(epsilon, delta), or {INSTEAD} of your own"
            )
        apart = ["scale", "curvature_clip", "elbo", "max_records"]
        if self.clip == "plain":
            apart.append("clip")
        for name in apart:
            if getattr(self, name) is not None:
                raise ValueError(
                    f"{name}= goes with clip_norm: without it a release before the steps gives "
                    "the start, the scales and a centred clip"
                )

    def outcomes(self, target: VariationalModel) -> Outcomes | None:
        """What a record might have shown, for the model-centred clip; ``None`` for a plain one."""
        if self.clip == "centred":
            return target.outcomes()
        if self.clip == "plain" or self.clip_norm == math.inf:
            return None
        try:
            return target.outcomes(drawn=False)
        except UnsupportedModelError:
            # Nobody asked for it, and every model that can be split has a plain clip.
            return None

    def plan(
        self,
        *,
        num_records: int,
        shards: Shards | None,
        storage: Storage | None,
        dim: int,
        curvature_dim: int,
        num_steps: int,
        delta: float,
        relation: Relation,
    ) -> ReleasePlan:
        """Fix every number of a run's releases; nothing is charged or touched."""
        private_size = relation == "add_remove"
        if private_size:
            arguments.check_private_size(self.sampling_rate, self.max_records, num_records)
        if self.elbo is not None and self.elbo.every > num_steps:
            raise ValueError(
                f"elbo releases a loss after every {self.elbo.every} steps, and the run has only "
                f"{num_steps}: lower every="
            )
        bound: Any = self.clip_norm
        return planned(
            noise=arguments.given_noise(self.privacy, self.noise_multiplier),
            num_steps=num_steps,
            delta=delta,
            relation=relation,
            curvature_dim=curvature_dim,
            curvature_clip=self.curvature_clip or bound**2,
            curvature_share=_CURVATURE_SHARE,
            elbo=self.elbo,
            num_records=num_records,
            shards=shards,
            storage=storage,
            dim=dim,
            sampling_rate=arguments.expected_rate(self.batch_size, self.sampling_rate, num_records),
            clip_norm=float(bound),
            microbatch_size=self.microbatch_size,
            max_records=self.max_records if private_size else None,
        )
