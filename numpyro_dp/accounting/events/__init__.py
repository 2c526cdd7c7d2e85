"""What a mechanism did, in the constants a stranger needs to check its privacy.

An event is an immutable value: it holds the public constants of one mechanism and nothing of the
data. Most are ``dp-accounting``'s own; ours are written in the same style, so that they nest.
"""

from dp_accounting.dp_event import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    NonPrivateDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
    ZCDpEvent,
)

from numpyro_dp.accounting.events.codec import from_json, register, to_json
from numpyro_dp.accounting.events.describe import describe
from numpyro_dp.accounting.events.perturbation import (
    ObjectivePerturbationRelease,
    OutputPerturbationRelease,
    PureObjectivePerturbationRelease,
)
from numpyro_dp.accounting.events.sampling import (
    BarkerBit,
    DirectionalBarkerBit,
    LangevinLastIterate,
    LogConcaveDraw,
    MinibatchBit,
    MultiCandidateBit,
    NoisyBarkerBit,
    PenaltyBit,
    PosteriorDraw,
    SmoothBarkerBit,
    TotalVariation,
)

__all__ = [
    "BarkerBit",
    "ComposedDpEvent",
    "DirectionalBarkerBit",
    "DpEvent",
    "GaussianDpEvent",
    "LangevinLastIterate",
    "LogConcaveDraw",
    "MinibatchBit",
    "MultiCandidateBit",
    "NoOpDpEvent",
    "NoisyBarkerBit",
    "NonPrivateDpEvent",
    "ObjectivePerturbationRelease",
    "OutputPerturbationRelease",
    "PenaltyBit",
    "PoissonSampledDpEvent",
    "PosteriorDraw",
    "PureObjectivePerturbationRelease",
    "SelfComposedDpEvent",
    "SmoothBarkerBit",
    "TotalVariation",
    "ZCDpEvent",
    "describe",
    "from_json",
    "register",
    "to_json",
]
