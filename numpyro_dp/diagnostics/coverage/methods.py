"""How each method of the package is run on a simulated data set: compiled once, charged to nobody.

Every run is charged to an accountant of its own, in memory, and its noise comes from the caller's
key: the records are simulated, so there is nobody to protect.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.infer
from jax import random
from numpyro.infer.mcmc import MCMCKernel

from numpyro_dp import _validate
from numpyro_dp._public import is_public
from numpyro_dp._quick_compile import lightly_jitted
from numpyro_dp.accounting import Accountant, Relation
from numpyro_dp.mcmc import DPNUTS, MCMC
from numpyro_dp.mcmc.kernel import PrivateKernel
from numpyro_dp.mcmc.report import chain_notes
from numpyro_dp.scoring.release import LikelihoodRelease
from numpyro_dp.scoring.released import ReleasedLikelihood
from numpyro_dp.svi import DPSVI, VIPS


class Fitted(NamedTuple):
    """What a method said of a data set.

    - **draws**: of its posterior, by site, draws first.
    - **verdicts**: what it says against itself.
    """

    draws: dict[str, Any]
    verdicts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Settings:
    """How long a method runs.

    :param num_warmup: warm-up draws of a chain.
    :param num_samples: draws.
    :param num_steps: private steps of a variational fit.
    """

    num_warmup: int
    num_samples: int
    num_steps: int | None


Fit = Callable[[Any, tuple, dict], Fitted]


def named(method: Any, made: Any) -> str:
    """What a method is called in a table."""
    if isinstance(made, MCMCKernel) or not hasattr(made, "__name__"):
        return type(made).__name__
    # A function it returned has a name of no interest.
    return getattr(method, "__name__", made.__name__)


def fit_of(made: Any, settings: Settings) -> Fit:
    """How what a method made of the model is run, given a typed key and arguments.

    :raises ValueError: for anything that has no posterior draws.
    """
    if isinstance(made, DPNUTS):
        relation = made.release(secure=False)._account.relation
        return partial(_fitted_of_release, _with_own_ledger(made, relation), settings)
    if isinstance(made, LikelihoodRelease):
        return _Released(_unledgered(made), settings)
    if isinstance(made, PrivateKernel):
        return partial(_fitted_privately, _with_own_ledger(made, made.relation), settings)
    if isinstance(made, DPSVI | VIPS):
        if settings.num_steps is None and isinstance(made, DPSVI):
            raise ValueError("a DPSVI runs for a number of steps: give num_steps=")
        return _Variational(made, settings)
    if isinstance(made, MCMCKernel):
        return _Plain(made, settings)
    if callable(made):
        return lambda key, args, kwargs: Fitted(made(key, *args, **kwargs))
    raise ValueError(
        "method(model) must return a kernel, a LikelihoodRelease, a DPSVI, a VIPS, or a function "
        f"of (rng_key, *args) to posterior draws by site, got {_validate.shown(made)}"
    )


class _Released:
    """A release, and NumPyro's NUTS on it: one program, whatever was released."""

    def __init__(self, release: LikelihoodRelease, settings: Settings) -> None:
        self._release, self._settings = release, settings
        self._sample: Callable[..., Any] | None = None

    def __call__(self, rng_key: Any, args: tuple, kwargs: dict) -> Fitted:
        release_key, chain_key = random.split(rng_key)
        release = _unledgered(self._release)
        released = release.run(release_key, *args, progress_bar=False, **kwargs)
        at = released.located
        if self._sample is None:
            self._sample = self._compiled(released)
        draws, diverging = self._sample(chain_key, at.design, at.response)
        return Fitted(draws, (*released.diagnostics.verdicts, *_of_chain(draws, diverging)))

    def _compiled(self, first: ReleasedLikelihood) -> Callable[..., Any]:
        def sample(key: Any, design: Any, response: Any) -> tuple[dict, Any]:
            located = first.located._replace(design=design, response=response)
            released = replace(first, located=located)
            kernel = numpyro.infer.NUTS(released.model)
            return _chain(kernel, key, self._settings, (), {})

        return lightly_jitted(sample)


def _fitted_of_release(kernel: DPNUTS, settings: Settings, key: Any, args: Any, kw: Any) -> Fitted:
    """What a user of ``DPNUTS`` has: the same start and metric of what was released."""
    mcmc = _ran(kernel, settings.num_warmup, settings, key, args, kw)
    draws, diverging = mcmc.get_samples(), mcmc.get_extra_fields()["diverging"]
    return Fitted(draws, (*mcmc.released.diagnostics.verdicts, *_of_chain(draws, diverging)))


def _fitted_privately(
    kernel: PrivateKernel, settings: Settings, key: Any, args: Any, kw: Any
) -> Fitted:
    """A private kernel in this package's driver."""
    mcmc = _ran(kernel, settings.num_warmup if kernel.takes_warmup else 0, settings, key, args, kw)
    described = mcmc._described
    return Fitted(mcmc.get_samples(), described.signs if described else ())


def _ran(
    kernel: PrivateKernel | DPNUTS,
    num_warmup: int,
    settings: Settings,
    key: Any,
    args: tuple,
    kwargs: dict,
) -> MCMC:
    mcmc = MCMC(
        kernel,
        num_warmup=num_warmup,
        num_samples=settings.num_samples,
        progress_bar=False,
        secure=False,
    )
    # Its line on the notes would be one for each data set.
    with contextlib.redirect_stderr(io.StringIO()):
        mcmc.run(key, *args, **kwargs)
    return mcmc


class _Variational:
    """A private variational fit, and draws from its guide."""

    def __init__(self, svi: DPSVI | VIPS, settings: Settings) -> None:
        self._svi, self._settings = svi, settings

    def __call__(self, rng_key: Any, args: tuple, kwargs: dict) -> Fitted:
        fit_key, draw_key = random.split(rng_key)
        num_steps: Any = self._settings.num_steps
        svi = _unledgered(self._svi)
        result = svi.run(fit_key, num_steps, *args, progress_bar=False, **kwargs)
        return Fitted(result.get_samples(draw_key, self._settings.num_samples))


class _Plain:
    """A kernel of NumPyro's own, the control: it is not private."""

    def __init__(self, kernel: MCMCKernel, settings: Settings) -> None:
        self._kernel, self._settings = kernel, settings
        self._sample: Callable[..., Any] | None = None

    def __call__(self, rng_key: Any, args: tuple, kwargs: dict) -> Fitted:
        leaves, tree = jax.tree.flatten(jax.tree.map(_bare, (args, kwargs), is_leaf=is_public))
        moving = [isinstance(leaf, jax.Array | np.ndarray) for leaf in leaves]
        if self._sample is None:
            self._sample = self._compiled(leaves, tree, moving)
        arrays = [leaf for leaf, moves in zip(leaves, moving, strict=True) if moves]
        draws, diverging = self._sample(rng_key, arrays)
        return Fitted(draws, _of_chain(draws, diverging))

    def _compiled(self, leaves: list, tree: Any, moving: list[bool]) -> Callable[..., Any]:
        fixed = [None if moves else leaf for leaf, moves in zip(leaves, moving, strict=True)]

        def sample(key: Any, arrays: list) -> tuple[dict, Any]:
            rest = iter(arrays)
            filled = [next(rest) if m else x for x, m in zip(fixed, moving, strict=True)]
            args, kwargs = jax.tree.unflatten(tree, filled)
            return _chain(copy(self._kernel), key, self._settings, args, kwargs)

        return jax.jit(sample)


def _chain(
    kernel: MCMCKernel, key: Any, settings: Settings, args: tuple, kwargs: dict
) -> tuple[dict[str, Any], Any]:
    """One chain of NumPyro's driver, within a program: its draws, and which of them diverged."""
    mcmc = numpyro.infer.MCMC(
        kernel,
        num_warmup=settings.num_warmup,
        num_samples=settings.num_samples,
        progress_bar=False,
    )
    mcmc.run(key, *args, **kwargs)
    return mcmc.get_samples(), mcmc.get_extra_fields().get("diverging", jnp.zeros(1))


def _of_chain(draws: dict[str, Any], diverging: Any) -> tuple[str, ...]:
    """What a report says of a chain that stands still or diverged."""
    states = {"z": jax.tree.map(_as_one, draws), "diverging": diverging}
    return tuple(note.text for note in chain_notes(states))


def _as_one(draws: Any) -> np.ndarray:
    return np.asarray(draws)[None]


def _bare(leaf: Any) -> Any:
    return leaf.value if is_public(leaf) else leaf


def _unledgered(made: Any) -> Any:
    """The same object with an account of its own and reproducible noise."""
    fresh = copy(made)
    fresh._account = made._account.apart(made._account.relation)
    return fresh


def _with_own_ledger(kernel: Any, relation: Relation) -> Any:
    """The same kernel, whose runs are charged to an unbounded ledger in memory."""
    fresh = copy(kernel)
    object.__setattr__(fresh, "accountant", Accountant(relation=relation))
    return fresh
