"""Guides of :class:`~numpyro_dp.VIPS`: each knows its expected statistics and their bounds."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from numpyro_dp.svi.guides.conjugate import ConjugateGuide as ConjugateGuide
    from numpyro_dp.svi.guides.lda import LDAGuide as LDAGuide
    from numpyro_dp.svi.guides.polya_gamma import PolyaGammaGuide as PolyaGammaGuide
    from numpyro_dp.svi.guides.sigmoid_belief import (
        SigmoidBeliefNetworkGuide as SigmoidBeliefNetworkGuide,
    )

_HOME = {
    "ConjugateGuide": "conjugate",
    "LDAGuide": "lda",
    "PolyaGammaGuide": "polya_gamma",
    "SigmoidBeliefNetworkGuide": "sigmoid_belief",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'numpyro_dp.guides' has no attribute {name!r}")
    return getattr(import_module(f"numpyro_dp.svi.guides.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return list(__all__)
