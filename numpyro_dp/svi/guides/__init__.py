"""Guides of :class:`~numpyro_dp.VIPS`: each knows its expected statistics and their bounds."""

from importlib import import_module

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
