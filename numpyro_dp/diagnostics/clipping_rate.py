"""How often a Metropolis kernel cuts records to their bound: one noisy, charged count."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float

from numpyro_dp import _validate
from numpyro_dp._arrays import unplaced
from numpyro_dp.accounting import Accountant, Budget, PrivacyReport
from numpyro_dp.errors import UnsupportedModelError
from numpyro_dp.execution import arguments
from numpyro_dp.execution.account import Account, require_chargeable
from numpyro_dp.execution.facts import assumed_public, sum_facts
from numpyro_dp.execution.keys import as_typed_keys
from numpyro_dp.families.glm import recognise
from numpyro_dp.mcmc.adaptation import Placed
from numpyro_dp.mcmc.driver import MCMC
from numpyro_dp.mcmc.metropolis.kernel import DPFastMH
from numpyro_dp.mcmc.metropolis.privacy_filter import FilteredCharge
from numpyro_dp.mcmc.metropolis.step import BoundMetropolis, MetropolisState
from numpyro_dp.mcmc.reserved import steps_behind
from numpyro_dp.mechanisms import PrivateSum
from numpyro_dp.model.private_model import PrivateModel, private_model

# A bound that holds with equality is not exceeded by what float32 makes of it.
_SLACK = 1e-3
_ROUNDINGS = 8


class ClippingRate(NamedTuple):
    """How often records are cut to their bound.

    - **rate**: estimated share of cut terms, in [0, 1]: mean over records and moves.
    - **noise_sd**: standard deviation of the privacy noise in ``rate``.
    - **num_moves**: proposed moves that were looked at.
    - **privacy**: the :class:`~numpyro_dp.PrivacyReport` of this one number.

    **Privacy.** One released sum, paid for by the function's charge.

    **References**: see :func:`clipping_rate`.

    **Example**: see :func:`clipping_rate`.
    """

    rate: float
    noise_sd: float
    num_moves: int
    privacy: PrivacyReport


class _Moves(NamedTuple):
    """Moves that were proposed.

    - **state**: of a chain that stands where each begins.
    - **drawn**: its last displacement, as the walk drew it.
    - **points**: of each move, the first one the position.
    - **bound**: in nats.
    - **tried**: whether it is tried.
    """

    state: MetropolisState
    drawn: Float[Array, "moves dim"]
    points: dict[str, Float[Array, "moves points ..."]]
    bound: Float[Array, " moves"]
    tried: Bool[Array, " moves"]


def clipping_rate(
    rng_key: Any,
    mcmc: MCMC,
    *args: Any,
    privacy: Budget | None = None,
    noise_multiplier: float | None = None,
    positions: dict | None = None,
    num_moves: int = 64,
    accountant: Accountant | None = None,
    secure: bool = True,
    **kwargs: Any,
) -> ClippingRate:
    """The share of records' terms that a Metropolis kernel cuts to its bound, privately.

    A bound that is never active leaves the target exact; where it is active the target is biased.
    The share at positions that the chain has released says which of the two a run is in. With the
    direction-averaged charge it is the share of rows that are projected. A term that is no number
    counts as cut.

    :param rng_key: a JAX key for the proposed moves; with ``secure=True`` the noise has its own.
    :param mcmc: a run of :class:`~numpyro_dp.DPFastMH` (or a preset).
    :param args: the run's model arguments.
    :param privacy: :class:`~numpyro_dp.Budget` of this count; or
    :param noise_multiplier: standard deviation of the noise on the count, in units of ½.
    :param positions: released unconstrained positions, by site, one row each, such as
        ``mcmc.get_extra_fields()["z.w"]``; by default where each chain ended.
    :param num_moves: moves proposed, spread evenly over the positions. Those that the prior
        excludes, or that no filter would ever pay for, are left out.
    :param accountant: the ledger that must agree; by default the kernel's, else one of its own.
    :param secure: as in :class:`~numpyro_dp.MCMC`.
    :param kwargs: the run's keyword arguments.
    :returns: the share, its noise and its privacy statement.
    :raises BudgetExceededError: the accountant refuses; nothing was charged.
    :raises RuntimeError: nothing has run yet.
    :raises UnsupportedModelError: the number of records is private.
    :raises ValueError: an argument is out of range, the kernel has no bound or another mechanism,
        or no move would be tried.

    **Privacy.** Released: one count. A record adds the share of moves at which it is cut, less ½:
    a number in [-½, ½] that depends on this record, released positions and data-free moves alone.
    Sensitivity of the sum ½ under zero-out, where a null record adds 0, and 1 under replace-one;
    event ``Gaussian(noise_multiplier)`` on the integer lattice and the total variation of its
    table, charged before a record is read. The standard deviation of the share is
    ``noise_multiplier / 2N``. Under add/remove, where N is private, it is refused.

    **References.** Dwork and Roth, *The Algorithmic Foundations of Differential Privacy* (2014),
    for the Gaussian mechanism; *How a step is released*
    (docs/explanation/how-a-step-is-released.md) for the centred count, *Events*
    (docs/reference/events.md) for the bias of cut terms.

    **Example**::

        >>> import jax, jax.numpy as jnp, numpyro, numpyro.distributions as dist
        >>> import numpyro_dp as ndp
        >>> def model(x):
        ...     mu = numpyro.sample("mu", dist.Normal(0, 1))
        ...     with numpyro.plate("people", x.shape[0]):
        ...         numpyro.sample("x", dist.Normal(mu, 1), obs=x)
        >>> kernel = ndp.DPFastMH(model, step_size=0.1, lipschitz=2.0, max_move=0.1)
        >>> mcmc = ndp.MCMC(kernel, num_warmup=0, num_samples=5, progress_bar=False)
        >>> x = jnp.where(jnp.arange(2000) < 500, 30.0, 0.0)
        >>> mcmc.run(jax.random.key(0), x)
        >>> found = ndp.clipping_rate(jax.random.key(1), mcmc, x, privacy=ndp.Budget(1.0, 1e-6))
        >>> bool(0.1 < found.rate < 0.3), bool(found.privacy.epsilon <= 1)
        (True, True)
    """
    require_chargeable("clipping_rate", rng_key, args, kwargs, positions)
    kernel = _checked_kernel(mcmc)
    ledger = kernel.accountant if accountant is None else accountant
    account = Account("clipping_rate", ledger, secure=secure)
    with account.opened("clipping_rate", rng_key, args, kwargs, positions) as run:
        noise_multiplier = arguments.checked_noise(privacy, noise_multiplier)
        num_moves = _validate.positive_int("num_moves", num_moves)
        key = as_typed_keys(rng_key, 1)
        _check_relation(kernel, account)
        model = private_model(kernel.user_model, args, kwargs, data_plate=kernel.data_plate)
        size, bound = model.num_records, _bound_as_run(mcmc, kernel, model)
        moves = _proposed(bound, mcmc, key, positions, num_moves)
        records = tuple(model.records(args, kwargs, padded=True))
        shape = {"num_records": size, "shards": model.shards, "dim": 1, "clip_norm": 0.5}
        mechanism = account.sum_once(privacy, noise_multiplier, **shape)
        # Past this, rounding would shrink shares, and so the mean of them.
        shown = mechanism.unshrunk / mechanism.clip_norm
        given = (mechanism, bound, shown)
        noisy = _centred_share(
            *given, run.charge_once(mechanism, random.fold_in(key, 1), of=moves), moves, records
        )
        centred = float(noisy) / shown
    facts = sum_facts(
        mechanism,
        "a count of records cut to their bound",
        sampler="every record",
        released=("the noisy share of cut terms",),
        unit=model.unit,
        num_records=size,
        assumed_public=assumed_public(
            size,
            "the positions, which were released before, and the moves proposed from them",
            "the model, its priors and every option of the kernel",
            arguments=model.public_inputs,
        ),
    )
    return ClippingRate(
        # Cutting to what a share can be is post-processing.
        rate=min(max(centred + 0.5, 0.0), 1.0),
        noise_sd=mechanism.noise_multiplier * mechanism.clip_norm / (shown * size),
        num_moves=int(jnp.sum(moves.tried)),
        privacy=account.report(facts, delta=account.delta(privacy)),
    )


def _checked_kernel(mcmc: Any) -> DPFastMH:
    if not isinstance(mcmc, MCMC):
        raise ValueError(f"clipping_rate looks at a numpyro_dp.MCMC, not {type(mcmc).__name__}")
    kernel = mcmc.sampler
    if not isinstance(kernel, DPFastMH):
        raise ValueError(
            f"clipping_rate looks at Metropolis kernels such as DPFastMH, not "
            f"{type(kernel).__name__}"
        )
    if mcmc.last_state is None:
        raise RuntimeError("nothing has run yet: call run() before asking how often it cut")
    return kernel


def _check_relation(kernel: DPFastMH, account: Account) -> None:
    if account.relation != kernel.relation:
        raise ValueError(
            f"the accountant's relation is {account.relation!r} and the run's "
            f"{kernel.relation!r}: charge the ledger of the run, since guarantees under two "
            "relations do not compose"
        )
    if account.private_size:
        raise UnsupportedModelError(
            "the share of cut records divides by their number, which is private under add_remove: "
            "use zero_out or replace_one"
        )


def _bound_as_run(mcmc: MCMC, kernel: DPFastMH, model: PrivateModel) -> BoundMetropolis:
    """The kernel with the power and bounds that the run had."""
    draws = mcmc.num_warmup + mcmc.num_samples
    bound = kernel.bind(
        model,
        num_steps=draws * kernel.steps_per_sample * mcmc.num_chains,
        relation=kernel.relation,
        delta=kernel.delta,
        num_chains=mcmc.num_chains,
    )
    if not (isinstance(bound, BoundMetropolis) and bound.plan.settings.private):
        raise ValueError(
            "this kernel's bound or noise is switched off, and nothing is cut: give it a finite "
            "lipschitz= (or record_bound=) and noise"
        )
    return bound


def _proposed(
    bound: BoundMetropolis, mcmc: MCMC, key: Any, positions: dict | None, num_moves: int
) -> _Moves:
    ends, adapted = unplaced((mcmc.last_state.z, mcmc.last_state.adapt_state))
    if mcmc.num_chains == 1:
        ends = jax.tree.map(lambda end: end[None], ends)
    elif adapted is not None:
        # Given to all chains alike.
        adapted = jax.tree.map(lambda each: each[0], adapted)
    rows = ends if positions is None else _checked_positions(positions, ends)
    count = next(iter(rows.values())).shape[0]
    chosen = np.linspace(0, count - 1, num_moves).round().astype(int)
    start = {site: jnp.asarray(rows[site][chosen], ends[site].dtype) for site in ends}
    moves = _moves(bound, key, jnp.int32(steps_behind(mcmc.last_state)), start, adapted)
    if not bool(jnp.any(moves.tried)):
        raise ValueError(
            "the prior or the filter excludes every move that was proposed, so that none would "
            "look at a record: give positions= further inside, or more num_moves="
        )
    return moves


def _checked_positions(positions: Any, ends: dict) -> dict:
    if not isinstance(positions, Mapping):
        raise ValueError(
            f"positions must be a mapping from latents to rows, got a {type(positions).__name__}"
        )
    rows = {site: np.asarray(row) for site, row in positions.items()}
    expected = {site: end.shape[1:] for site, end in ends.items()}
    counts = {row.shape[:1] for row in rows.values()}
    if {site: row.shape[1:] for site, row in rows.items()} != expected or (
        len(counts) != 1 or counts <= {(0,), ()}
    ):
        raise ValueError(
            "positions must hold every unconstrained latent with one row for each position, and "
            f"as many rows for all; the shapes of one row are {expected}"
        )
    return rows


@partial(jax.jit, static_argnums=0)
def _moves(bound: BoundMetropolis, key: Any, step: Any, start: dict, adapted: Any) -> _Moves:
    """Proposals and bounds, as the kernel makes them; no record is near."""
    settings, charge = bound.plan.settings, bound.plan.charge
    candidates = settings.num_candidates

    def one(key: Any, z: dict) -> tuple[MetropolisState, Array, dict, Array, Array]:
        position, unravel = ravel_pytree(z)
        centre_key, walk_key = random.split(key)
        begin: Any = z if adapted is None else Placed(z, adapted)
        state = bound.start(key, begin)
        centre = position
        if candidates > 1:
            centre = position + bound.walk.draw(centre_key, step, position, 1)[0]
        drawn = bound.walk.draw(walk_key, step, position, candidates)
        points = centre + bound.displaced(state, drawn)
        prior = jax.vmap(lambda point: bound.private_model.log_prior(unravel(point)))(points)
        allowed = prior > -jnp.inf
        tried = jnp.any(allowed)
        points = jnp.concatenate([position[None], points])
        if isinstance(charge, FilteredCharge):
            nats = charge.bound([unravel(point) for point in points])
            tried &= (nats >= 0) & (nats <= charge.largest * charge.unit)
        else:
            nats = jnp.asarray(_fixed_bound(bound))
        # What the prior excludes is no place to ask a record about.
        kept = jnp.concatenate([jnp.ones(1, bool), allowed])
        points = jax.vmap(unravel)(jnp.where(kept[:, None], points, position))
        # A key of the proposals is no part of where they begin.
        return state._replace(rng_key=()), drawn[-1], points, nats, tried

    keys = random.split(key, jax.tree.leaves(start)[0].shape[0])
    return _Moves(*jax.vmap(one)(keys, start))


def _projects(bound: BoundMetropolis) -> bool:
    """Whether rows are projected, and no record's term is cut by itself."""
    settings = bound.plan.settings
    return settings.directional and settings.smoothness is None


def _fixed_bound(bound: BoundMetropolis) -> float:
    """Bound of every step in nats; for rows that are projected, on their norm."""
    settings = bound.plan.settings
    if settings.smoothness is not None:
        return settings.farthest
    if _projects(bound):
        return settings.slope / bound.plan.power / recognise(bound.private_model).loss().lipschitz
    return settings.bound * (2 if settings.num_candidates > 1 else 1)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _centred_share(
    mechanism: PrivateSum,
    bound: BoundMetropolis,
    shown: float,
    key: Any,
    moves: _Moves,
    records: tuple,
) -> Float[Array, ""]:
    """The noisy sum over records of ``shown`` times (the share of cut moves, less ½); over N."""
    model, power = bound.private_model, bound.plan.power

    def cut(move: _Moves, record: list[Array]) -> Bool[Array, ""]:
        terms = power * jax.vmap(model.record_log_likelihood, (0, None))(move.points, record)
        rounding = _ROUNDINGS * jnp.finfo(terms.dtype).eps * jnp.max(jnp.abs(terms))
        most = _allowed(bound, move, record) * (1 + _SLACK)
        within = jnp.max(terms) - jnp.min(terms) <= most + rounding
        return move.tried & ~within

    def centred(record: list[Array]) -> Float[Array, " one"]:
        if _projects(bound):
            return shown * (_projected(bound, record)[None] - 0.5)
        # One move after another: side by side they would hold all records many times over.
        cuts = lax.map(lambda move: cut(move, record), moves)
        return shown * (jnp.sum(cuts)[None] / jnp.sum(moves.tried) - 0.5)

    return mechanism.release(key, centred, list(records))[0] / mechanism.num_records


def _allowed(bound: BoundMetropolis, move: _Moves, record: list[Array]) -> Float[Array, ""]:
    """What the kernel allows a record in a move, in nats."""
    if bound.plan.settings.smoothness is None:
        return move.bound
    return bound.allowance(move.state, move.drawn, record)


def _projected(bound: BoundMetropolis, record: list[Array]) -> Bool[Array, ""]:
    """Whether a record's row is longer than the kernel lets it be."""
    row = recognise(bound.private_model).row(record)
    return ~(jnp.linalg.norm(row.x) <= _fixed_bound(bound) * (1 + _SLACK))
