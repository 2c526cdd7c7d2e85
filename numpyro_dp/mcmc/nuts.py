"""``DPNUTS``: NUTS on a likelihood that was released once."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NoReturn

import jax
import numpy as np
import numpyro.infer
from numpyro import handlers
from numpyro.infer.mcmc import MCMCKernel

from numpyro_dp import _validate
from numpyro_dp._public import is_public
from numpyro_dp.accounting import Accountant, Budget
from numpyro_dp.execution.account import ChargedRun
from numpyro_dp.execution.keys import folded
from numpyro_dp.mcmc.nuts_loop import NUTSProgram, begun, numbers_of
from numpyro_dp.scoring.forecast import Forecast
from numpyro_dp.scoring.release import LikelihoodRelease
from numpyro_dp.scoring.released import ReleasedLikelihood

# Folded into the key of the chains for the outcomes that a release draws.
_RELEASE = 0x4E555453
# NUTS doubles a trajectory so often at most; its states would not fit into memory by far.
_DEEPEST = 30
# From so few on a matrix of covariances, begun as released, is better than its diagonal: beside an
# intercept and 20 to 100 effects 260 to 650 of 500 draws are effective for 4 to 61; without one as
# many, at up to 18 times the steps (1 to 17 draws a coordinate, 23 to 103 coordinates).
_DRAWS_A_COORDINATE = 2
# NumPyro adds a thousandth, less the more draws there are: 2e-5 of two hundred.
_ADDED = 1e-5
_OWN = ("self", "model", "potential_fn", "kinetic_fn")


@dataclass(frozen=True, eq=False, init=False)
class DPNUTS(MCMCKernel):
    """NUTS on a privately released likelihood: chains and draws cost no privacy.

    :class:`~numpyro_dp.MCMC` releases the likelihood before the first draw (see
    :class:`~numpyro_dp.LikelihoodRelease`), then runs NumPyro's own NUTS on the user's prior and
    that release. R-hat, effective sample sizes and divergences mean what they mean in NumPyro, and
    nothing is to be tuned. The release is ``mcmc.released``; further runs of the same object are
    free.

    :param model: a NumPyro model with its observations in one plate, proper priors on the scale of
        the answer, and continuous global latents. One wrapped in ``numpyro.handlers.reparam`` is
        released as it is written and sampled as it is wrapped.
    :param privacy: :class:`~numpyro_dp.Budget` of the release.
    :param accountant: the ledger that must agree to it; without one, an unbounded one of its own.
    :param data_plate: name of the plate whose slices are the records, when several enclose the
        observations; ``"auto"`` takes each row for one, where no plate does.
    :param num_rounds: rounds of scoring; by default what suits.
    :param allow_unresolved: release even where the forecast says that nothing can be learnt.
    :param nuts: options of ``numpyro.infer.NUTS``, such as ``target_accept_prob``. Unlike there,
        ``dense_mass`` is true by default where there are at least two draws of warmup for each
        coordinate: noise correlates what the model does not, and no step asks a record.
        Without an ``inverse_mass_matrix`` warm-up begins in the covariance that was released, which
        stays where a coordinate's is too small to be estimated of draws (a slope on dollars), and
        without an ``init_strategy`` at draws of the released normal approximation; with a
        reparametrised model, where NumPyro begins.
    :raises ValueError: for arguments out of range, and options that NUTS does not have.

    **Privacy.** All of it is that of :class:`~numpyro_dp.LikelihoodRelease`: noisy sums over all
    records, Gaussian mechanism, sensitivity 1 under zero-out and 2 under replace-one. Draws, energy
    and every other field of the state are post-processing, and may be shown.

    **References.** For the release :class:`~numpyro_dp.LikelihoodRelease`; Hoffman and Gelman, *The
    No-U-Turn Sampler* (JMLR 2014).

    **Example**::

        >>> import jax, numpy as np, numpyro, numpyro.distributions as dist, numpyro_dp as ndp
        >>> def model(y):
        ...     mean = numpyro.sample("mean", dist.Normal(0, 10))
        ...     with numpyro.plate("people", y.shape[0]):
        ...         numpyro.sample("y", dist.Normal(mean, 1), obs=y)
        >>> y = np.random.default_rng(0).normal(3.0, 1.0, 5_000).astype(np.float32)
        >>> kernel = ndp.DPNUTS(model, privacy=ndp.Budget(1.0, 1e-5))
        >>> mcmc = ndp.MCMC(kernel, num_warmup=200, num_samples=300, progress_bar=False)
        >>> mcmc.run(jax.random.key(0), y)
        >>> bool(abs(mcmc.get_samples()["mean"].mean() - 3.0) < 0.2)
        True
    """

    user_model: Callable[..., Any] = field(repr=False)
    privacy: Budget
    accountant: Accountant | None
    data_plate: str | None
    num_rounds: int | None
    allow_unresolved: bool
    options: Mapping[str, Any]
    # The attribute that ArviZ and NumPyro look up must not lead to the model: they would replay it
    # on the records.
    model: ClassVar[None] = None
    takes_warmup: ClassVar[bool] = True
    steps_per_sample: ClassVar[int] = 1

    def __init__(
        self,
        model: Callable[..., Any],
        *,
        privacy: Budget,
        accountant: Accountant | None = None,
        data_plate: str | None = None,
        num_rounds: int | None = None,
        allow_unresolved: bool = False,
        **nuts: Any,
    ) -> None:
        known = [n for n in inspect.signature(numpyro.infer.NUTS).parameters if n not in _OWN]
        for name in nuts:
            if name not in known:
                raise ValueError(
                    f"DPNUTS has no option {name!r}; NUTS's own are {', '.join(known)}. There is "
                    "no clip norm and no noise to choose"
                )
        # Met by NUTS itself, it would be after the charge.
        _validate.positive("step_size", nuts.get("step_size", 1.0))
        _validate.rate("target_accept_prob", nuts.get("target_accept_prob", 0.8))
        depth = nuts.get("max_tree_depth", 10)
        for each in depth if isinstance(depth, tuple) and len(depth) == 2 else (depth,):
            if _validate.positive_int("max_tree_depth", each) > _DEEPEST:
                raise ValueError(f"max_tree_depth must be at most {_DEEPEST}, got {each}")
        given = {
            "user_model": model,
            "privacy": privacy,
            "accountant": accountant,
            "data_plate": data_plate,
            "num_rounds": num_rounds,
            "allow_unresolved": allow_unresolved,
            "options": dict(nuts),
        }
        for name, value in given.items():
            object.__setattr__(self, name, value)
        self.release(secure=True)

    @property
    def delta(self) -> float:
        """δ at which ε is stated."""
        return self.privacy.delta

    @property
    def sample_field(self) -> str:
        return "z"

    @property
    def default_fields(self) -> tuple[str, ...]:
        return ("z", "diverging")

    def init(
        self, rng_key: Any, num_warmup: Any, init_params: Any, model_args: Any, model_kwargs: Any
    ) -> NoReturn:
        raise ValueError(
            "DPNUTS runs in numpyro_dp.MCMC, which charges and makes its release first. In plain "
            "numpyro.infer.MCMC run NUTS on the .model of a numpyro_dp.LikelihoodRelease"
        )

    def sample(self, state: Any, model_args: Any, model_kwargs: Any) -> NoReturn:
        self.init(None, 0, None, model_args, model_kwargs)

    def release(self, *, secure: bool) -> LikelihoodRelease:
        """The release of this kernel's settings."""
        model: Any = self.user_model
        return LikelihoodRelease(
            model.fn if isinstance(model, handlers.reparam) else model,
            privacy=self.privacy,
            accountant=self.accountant,
            data_plate=self.data_plate,
            num_rounds=self.num_rounds,
            allow_unresolved=self.allow_unresolved,
            secure=secure,
        )

    def forecast(self, *args: Any, **kwargs: Any) -> Forecast:
        """What a run would tell, from public numbers; costs nothing. ``print`` it.

        :param args: arguments of the model; only their shapes are used.
        :param kwargs: keyword arguments of the model.
        """
        return self.release(secure=True).forecast(*args, **kwargs)

    def sampler(self, released: ReleasedLikelihood, num_warmup: int) -> numpyro.infer.NUTS:
        """NumPyro's NUTS on what was released."""
        model = released.model
        if self.reparam is not None:
            model = handlers.reparam(model, config=self.reparam)
        covariance = numbers_of(released).covariance
        return begun(model, self._options(released, num_warmup), self.reparam, covariance)

    def program(self, released: ReleasedLikelihood, num_warmup: int) -> NUTSProgram:
        """The same, of which what was released is an argument."""
        options = self._options(released, num_warmup)
        return NUTSProgram.of(released.private_model, self.reparam, options, num_warmup)

    def chains(
        self, released: ReleasedLikelihood, num_warmup: int
    ) -> tuple[numpyro.infer.NUTS, NUTSProgram]:
        """Both of the above."""
        return self.sampler(released, num_warmup), self.program(released, num_warmup)

    def _options(self, released: ReleasedLikelihood, num_warmup: int) -> dict[str, Any]:
        enough = num_warmup >= _DRAWS_A_COORDINATE * len(released.located.mean)
        # A matrix of the user's own says by its shape what it is.
        free = self.options.get("inverse_mass_matrix") is None
        kept = free and self.reparam is None and _drowned(released.located.covariance)
        adapted = {"adapt_mass_matrix": False} if kept else {}
        return {"dense_mass": enough and free} | adapted | dict(self.options)

    @property
    def reparam(self) -> Any:
        """How the user's model is reparametrised; ``None`` where it is not."""
        model: Any = self.user_model
        return model.config if isinstance(model, handlers.reparam) else None


def _drowned(covariance: Any) -> bool:
    """Whether what NumPyro adds to a covariance that it estimates is larger than a variance.

    As of a slope on an income in dollars.
    """
    return float(np.diag(covariance).min()) < _ADDED


class Release:
    """The release of one driver, made once, and for which arguments.

    Of the arguments it keeps weak references only: no record outlives its owner here, and none is
    pickled.
    """

    def __init__(self) -> None:
        self.released: ReleasedLikelihood | None = None
        self._kernel: DPNUTS | None = None
        self._given: tuple[Any, ...] = ()

    @property
    def known(self) -> ReleasedLikelihood:
        """The release.

        :raises RuntimeError: before there is one.
        """
        if self.released is None:
            raise RuntimeError("nothing was released: run a DPNUTS kernel first")
        return self.released

    def made(
        self,
        kernel: DPNUTS,
        run: ChargedRun,
        rng_key: Any,
        args: tuple,
        kwargs: dict,
        *,
        progress_bar: bool,
    ) -> ReleasedLikelihood:
        """The release, charged and made at the first call.

        :param rng_key: the typed key or keys of the chains.
        :raises ValueError: for other arguments than those that it was made of.
        """
        # Where nothing is charged, no process waits for this one.
        run.meeting.over = run.meeting.over or self.released is not None
        if self.released is None:
            rng_key = folded(rng_key, _RELEASE)
            release = kernel.release(secure=run.account.secure)
            released = release.released_in(
                run, rng_key, args, kwargs, progress_bar=progress_bar, label="DPNUTS"
            )
            run.require_unchanged()
            self.released = released
            self._kernel = kernel
            self._given = tuple(map(_referred, _each(args, kwargs)))
        elif self._kernel is not kernel:
            raise ValueError(
                "this object has released the likelihood of another kernel: make a new "
                "numpyro_dp.MCMC for this one (which is charged)"
            )
        elif (args or kwargs) and not self._same(_each(args, kwargs)):
            raise ValueError(
                "this object has released its likelihood, of other arguments (equal ones are "
                "others: to compare them would tell of records): call run(rng_key) without "
                "arguments for further draws of the same posterior (which is free), or make a new "
                "numpyro_dp.MCMC for these (which is charged)"
            )
        return self.released

    def _same(self, leaves: list) -> bool:
        return len(leaves) == len(self._given) and all(
            was() is now for was, now in zip(self._given, leaves, strict=True)
        )

    def __getstate__(self) -> dict[str, Any]:
        return {"released": self.released, "_kernel": self._kernel}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _given=())


def _each(args: tuple, kwargs: dict) -> list:
    return jax.tree.leaves((args, kwargs), is_leaf=is_public)


def _referred(leaf: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(leaf)
    except TypeError:
        # Python's own numbers and texts: public values.
        return lambda: leaf
