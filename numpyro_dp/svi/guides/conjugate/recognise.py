"""Which conjugate family a model is, proved on its traced program.

A parameter *is* a latent when its derivative is a constant selection and its value at zero is
zero; it is public when no record argument reaches it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from numpyro_dp.errors import UnsupportedModelError
from numpyro_dp.families.sites import (
    CLOSE,
    FITS,
    Prior,
    TracedOutputs,
    find_sites,
    observe,
    read_priors,
    root_of,
)
from numpyro_dp.model.guided.model import Outline
from numpyro_dp.model.jaxprs import Pruned
from numpyro_dp.model.names import quoted
from numpyro_dp.model.programs import Labelled, require_no_closure, require_one_record


class Reading(NamedTuple):
    """A model as a conjugate guide needs it.

    - **site**, **kind**: the observed site and its family; ``"mixture"`` for mixtures of normals.
    - **slopes**: derivatives of its parameters with respect to each latent.
    - **priors**: the law of each latent.
    - **outcome**: from one record's arrays to its flat outcome.
    - **size**: numbers in it.
    """

    found: Outline
    site: str
    kind: str
    told: TracedOutputs
    slopes: Labelled
    priors: dict[str, Prior]

    @property
    def num_records(self) -> int:
        """Records of the private plate."""
        return self.found.num_records

    @property
    def size(self) -> int:
        """Numbers in one record's outcome."""
        return int(np.prod(self.told.shape("outcome")))

    def outcome(self) -> Callable[[Sequence[Array]], Array]:
        """Program of a record's flat outcome, which no latent enters."""
        return self.of_record(self.told.pruned("outcome"), "outcome")

    def of_record(self, pruned: Pruned, name: str) -> Callable[[Sequence[Array]], Array]:
        """A pruned program as a function of one record's arrays, judged like a record's term."""
        count = len(self.told.latents)
        if any(pruned.used[:count]) or pruned.used[-1]:
            raise UnsupportedModelError(
                f"the {name} of site `{self.site}` is not provably free of latents and random "
                f"numbers: {FITS}"
            )
        return self._judged(pruned, [None] * count)

    def at_zero(self, name: str) -> Callable[[Sequence[Array]], Array]:
        """A parameter as a function of one record's arrays where all latents are zero."""
        zeros = [jnp.zeros(s.shape, s.dtype) for s in self.told.latents.values()]
        return self._judged(self.told.pruned(name), zeros)

    def _judged(self, pruned: Pruned, latents: list[Any]) -> Callable[[Sequence[Array]], Array]:
        require_one_record(pruned)
        require_no_closure(pruned, self.found.layout, self.num_records)
        return lambda record: pruned([*latents, *record])[0]

    def selection(self, name: str, kind: str) -> tuple[str, np.ndarray]:
        """The latent that a parameter consists of, and which entry is where.

        :raises UnsupportedModelError: the parameter is anything but entries of one latent site
            with the wanted prior, the same for every record.
        """
        latents, records = self.told.reads(name)
        if len(latents) == 1 and not records:
            index = self._entries(name, latents[0])
            if index is not None:
                self._require_kind(name, latents[0], kind)
                return latents[0], index
        causes = quoted([*latents, *records]) or "nothing"
        raise UnsupportedModelError(
            f"`{name}` of site `{self.site}` (it depends on {causes}) is not provably made of "
            f"entries of one latent site with a {kind} prior, the same for every record: write "
            f"the latent itself there, or, if the model is a regression, take another guide; {FITS}"
        )

    def _require_kind(self, name: str, latent: str, kind: str) -> None:
        prior = self.priors[latent].kind
        if prior != kind:
            raise UnsupportedModelError(
                f"`{name}` of site `{self.site}` is made of `{latent}`, whose {prior} prior is "
                f"not conjugate to it: give it a {kind} prior; {FITS}"
            )

    def _entries(self, name: str, latent: str) -> np.ndarray | None:
        pruned = self.slopes.pruned(lambda label: label == (name, latent))
        if any(pruned.used):
            return None
        size = int(np.prod(self.told.latents[latent].shape))
        slope = np.asarray(pruned([])[0]).reshape(-1, size)
        zero = {latent: jnp.zeros(self.told.latents[latent].shape)}
        one_each = (np.count_nonzero(slope, axis=1) == 1).all() and (slope.max(axis=1) == 1).all()
        if not one_each or np.any(self.told.at(name, zero)):
            return None
        return slope.argmax(axis=1).reshape(self.told.shape(name))

    def variance(self, name: str = "scale") -> tuple[str | None, np.ndarray]:
        """What the outcome's variance is: a constant, or entries of one latent.

        :returns: ``None`` and the variances, or a latent's name and the index of its entries.
        """
        latents, records = self.told.reads(name)
        if not latents and not records:
            return None, self.told.at(name, {}) ** 2
        root = root_of(self.told, name, latents[0]) if len(latents) == 1 and not records else None
        if root is not None and np.allclose(root.factor, 1, atol=CLOSE):
            kind = "InverseGamma" if root.power == 1 else "Gamma"
            if self.priors[latents[0]].kind == kind:
                return latents[0], root.index
        raise UnsupportedModelError(
            f"scale of site `{self.site}` depends on {quoted([*latents, *records])}: conjugate are "
            "a public constant, `jnp.sqrt(v)` with an InverseGamma prior on the variance `v`, and "
            f"`1 / jnp.sqrt(t)` with a Gamma prior on the precision `t`; {FITS}"
        )

    def require_latents(self, used: Sequence[str]) -> None:
        """Refuse a model with a latent that the family has no place for."""
        for name in self.told.latents:
            if name not in used:
                raise UnsupportedModelError(
                    f"latent site `{name}` is no parameter of the conjugate family found at site "
                    f"`{self.site}`: take it out, or fix it to a public number; {FITS}"
                )


def read_model(found: Outline) -> Reading:
    """Trace priors and observed site, and refuse what no conjugate family holds."""
    model = found.private_model
    if model is None:
        raise UnsupportedModelError(
            "a conjugate guide needs a model with latents of its own, no `numpyro.param` sites, "
            f"and no continuous latent for each record: {FITS}"
        )
    structs = dict(sorted(model.programs.constrained.items()))
    latents = {n: jax.ShapeDtypeStruct(s.shape, s.dtype) for n, s in structs.items()}
    site, mixed = find_sites(model)
    seen: list[str] = []

    def row(values: dict[str, Any], arrays: list[Any], key: Array) -> dict[str, Any]:
        kind, parts = observe(model, site, mixed, values, arrays, key)
        seen.append(kind)
        return parts

    def slopes(values: dict[str, Any], arrays: list[Any], key: Array) -> dict[str, Any]:
        def moving(values: dict[str, Any]) -> dict[str, Any]:
            parts = row(values, arrays, key)
            return {n: v for n, v in parts.items() if n in ("probs", "rate", "loc", "weights")}

        return jax.jacfwd(moving)(values)

    told = TracedOutputs.of(found, lambda *inputs: {"row": row(*inputs)}, latents)
    derived = TracedOutputs.of(found, slopes, latents).labelled
    priors = read_priors(found, model.function, latents)
    return Reading(found, site, seen[-1], told, derived, priors)
