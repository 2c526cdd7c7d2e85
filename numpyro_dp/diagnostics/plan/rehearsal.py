"""A variational fit rehearsed on made-up records: how far its optimiser gets, and how shaken."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, ArrayLike, Float
from numpyro.infer import autoguide
from numpyro.infer.svi import SVIState

from numpyro_dp.errors import UnsupportedModelError
from numpyro_dp.model.guided.model import VariationalModel
from numpyro_dp.model.private_model import PrivateModel
from numpyro_dp.svi.dpsvi.fit import Carry, Fit, run_steps


class Way(NamedTuple):
    """Where a rehearsed fit ends, in unconstrained coordinates, shape (dim,) each.

    - **gone**: the way from the start without privacy noise.
    - **shaken**: what the noise adds.
    """

    gone: np.ndarray
    shaken: np.ndarray


@dataclass(frozen=True, eq=False)
class _Quadratic(Fit):
    """A fit to records whose terms are quadratic, with ordinary noise in place of a release.

    Optimiser, prior, the guide's entropy and the average are the run's own. Records come as the
    arrays that :meth:`Rehearsal.way` makes.
    """

    def released(
        self, key: Any, flat: Float[Array, " dim"], vector: Any, records: list[Array], i: Any
    ) -> Float[Array, " dim"]:
        """The sum of the quadratic terms' gradients, none longer than its bound, and noise."""
        roots, truth, longest, noise = records
        away = roots @ (truth - flat)
        lengths = jnp.abs(away) * jnp.linalg.norm(roots, axis=1)
        pull = (away * jnp.minimum(1, longest / jnp.maximum(lengths, 1e-30))) @ roots
        return pull + noise * random.normal(key, flat.shape, flat.dtype)


@dataclass(frozen=True, eq=False)
class Rehearsal:
    """What a private variational run would do, on records that are known to first order.

    :param fit: the run, with every number fixed.
    :param state: where its optimiser starts.
    :param noise: standard deviation of the noise in one step's estimate of the full gradient.
    :param num_steps: of the run.
    :param tail: last steps that are averaged, 0 for none.
    """

    fit: Fit
    state: SVIState
    noise: float
    num_steps: int
    tail: int

    def way(
        self,
        roots: Float[np.ndarray, "records dim"],
        target: Float[np.ndarray, " dim"],
        longest: float,
        draw: int,
    ) -> Way:
        """Run twice, without and with noise, on records with gradients rootᵀ(root·(truth − z)).

        :param roots: a root of each record's curvature.
        :param target: the truth minus the start.
        :param longest: bound on the length of one of these gradients.
        :param draw: decides the draws.
        """
        start = self.start
        records = [np.asarray(leaf, np.float32) for leaf in (roots, start + target, longest)]
        quiet, loud = (
            self.end(_Quadratic, *records, np.float32(noise), draw=draw)
            for noise in (0.0, self.noise)
        )
        return Way(quiet - start, loud - quiet)

    @property
    def start(self) -> np.ndarray:
        """The moving parameters in a row where the optimiser starts."""
        return self._flat(self.fit.optim.get_params(self.state.optim_state))

    def end(self, kind: type[Fit], *records: ArrayLike, draw: int) -> np.ndarray:
        """Where a stand-in for the run ends: of this kind, on records as it takes them."""
        own: dict[str, Any] = {f.name: getattr(self.fit, f.name) for f in fields(self.fit)}
        own["elbo"] = None
        synthetic = kind(**own)
        params = self.fit.optim.get_params(self.state.optim_state)
        begin = Carry(
            self.state.optim_state[0],
            self.state.optim_state,
            self.state.rng_key,
            random.key(draw),
            jax.tree.map(jnp.zeros_like, params),
        )
        arrays = tuple(jnp.asarray(leaf) for leaf in records)
        [(_, last)] = run_steps(synthetic, begin, arrays, self.num_steps, self.tail, 1)
        return self._flat(self.fit.end(last, self.tail))

    def _flat(self, params: dict[str, Any]) -> np.ndarray:
        moving = {name: value for name, value in params.items() if name not in self.fit.held}
        return np.asarray(ravel_pytree(moving)[0])


class GuideGradient:
    """What a record adds to a variational step, as a function of the guide's location.

    :param fit: the run, with every number fixed.
    :param guide: ``AutoDelta``, or a mean-field normal guide whose scales gradients leave alone.
    :param params: unconstrained parameters at the start.
    :param rng_key: key of the guide's draws, which are public.
    :raises UnsupportedModelError: for other guides, with what to do instead.
    """

    def __init__(self, fit: Fit, guide: Any, params: dict[str, Any], rng_key: Any) -> None:
        self.fit, self.guide, self.params = fit, guide, params
        self.keys = fit.keys(rng_key)
        self.private_model = _require_location(guide, fit)

    @property
    def start(self) -> dict[str, Any]:
        """The unconstrained latents where the guide starts."""
        return self._latents(self.params)

    def place(self, flat: Float[Array, " dim"]) -> dict[str, Any]:
        """The unconstrained latents where the guide is located; the inverse of :meth:`flat`."""
        return self._latents(self._whole(flat))

    def flat(self, z: dict[str, Any]) -> Float[Array, " dim"]:
        """The moving parameters, raveled, of the guide located at ``z``."""
        if isinstance(self.guide, autoguide.AutoDiagonalNormal):
            return ravel_pytree({name: z[name] for name in self.guide._init_locs})[0]
        return ravel_pytree({self._loc(name): value for name, value in z.items()})[0]

    def __call__(self, z: dict[str, Any], record: list[Array]) -> Float[Array, " dim"]:
        """One record's vector, before the clip that the run gives it."""
        vector = self.fit.record_vector(self.flat(z), self._whole, self.keys)
        return vector(self.fit.numbered(record))

    def _whole(self, flat: Float[Array, " dim"]) -> dict[str, Any]:
        moving = {name: v for name, v in self.params.items() if name not in self.fit.held}
        return {**self.params, **ravel_pytree(moving)[1](flat)}

    def _latents(self, params: dict[str, Any]) -> dict[str, Any]:
        if isinstance(self.guide, autoguide.AutoDiagonalNormal):
            return dict(self.guide._unpack_latent(params[f"{self.guide.prefix}_loc"]))
        return {name: params[self._loc(name)] for name in self.fit.target.latents}

    def _loc(self, name: str) -> str:
        return f"{name}_{self.guide.prefix}_loc"


def _require_location(guide: Any, fit: Fit) -> PrivateModel:
    """The split model, for a guide whose parameters are known to be places of the latents."""
    target: VariationalModel = fit.target
    if target.private_model is None or set(target.latents) != set(target.private_model.latents):
        raise UnsupportedModelError(
            "a plan takes models without parameters and latents of single records, whose priors "
            "say what may be expected: plan the same model without them"
        )
    normal = type(guide) in (autoguide.AutoNormal, autoguide.AutoDiagonalNormal)
    if type(guide) is autoguide.AutoDelta or (normal and fit.held):
        return target.private_model
    if normal:
        raise UnsupportedModelError(
            f"the scales of this {type(guide).__name__} are learnt from noisy gradients, of which "
            "a plan cannot tell what they do to them: plan with AutoDelta, which has the same "
            "locations, or use scale='curvature' where the number of records is public"
        )
    raise UnsupportedModelError(
        f"a plan takes the guides AutoDelta, AutoNormal and AutoDiagonalNormal, whose parameters "
        f"are the latents' places, got {type(guide).__name__}: plan the model with one of these, "
        "whose verdict is that of its locations"
    )
