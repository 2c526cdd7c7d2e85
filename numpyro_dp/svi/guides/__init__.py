"""Guides of :class:`~numpyro_dp.VIPS`: each knows its expected statistics and their bounds."""

from typing import TYPE_CHECKING

from numpyro_dp._lazy import on_first_use

if TYPE_CHECKING:
    from numpyro_dp.svi.guides.conjugate.guide import ConjugateGuide as ConjugateGuide
    from numpyro_dp.svi.guides.lda.guide import LDAGuide as LDAGuide
    from numpyro_dp.svi.guides.polya_gamma.guide import PolyaGammaGuide as PolyaGammaGuide
    from numpyro_dp.svi.guides.sigmoid_belief.guide import (
        SigmoidBeliefNetworkGuide as SigmoidBeliefNetworkGuide,
    )

_HOME = {
    "ConjugateGuide": "conjugate.guide",
    "LDAGuide": "lda.guide",
    "PolyaGammaGuide": "polya_gamma.guide",
    "SigmoidBeliefNetworkGuide": "sigmoid_belief.guide",
}

__all__ = sorted(_HOME)

__getattr__, __dir__ = on_first_use(
    "numpyro_dp.guides",
    {name: f"numpyro_dp.svi.guides.{home}" for name, home in _HOME.items()},
)
