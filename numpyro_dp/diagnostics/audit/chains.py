"""An adversary of a kernel's chains: all from one start, each scored by what it releases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random
from jaxtyping import Array, Float

from numpyro_dp.accounting import Relation
from numpyro_dp.diagnostics.audit.accept_bits import bit_score, tells_bits
from numpyro_dp.diagnostics.audit.likelihood_ratio import draw_score, move_score
from numpyro_dp.diagnostics.audit.neighbours import (
    NeighbourPair,
    check_null,
    require_one_model,
    take_apart,
)
from numpyro_dp.diagnostics.audit.releases import Attacked
from numpyro_dp.mcmc.kernel import BoundKernel, PrivateKernel
from numpyro_dp.mcmc.posterior.ops import BoundOPS
from numpyro_dp.mcmc.sgmcmc.integrator import BoundGradientKernel
from numpyro_dp.mcmc.start import starting_positions
from numpyro_dp.model.private_model import PrivateModel, private_model

Score = Callable[[dict[str, Array]], Array]

_CHAINS_AT_ONCE = 4096
_COLD = 1e-30


class ChainsAttack(NamedTuple):
    """How chains are attacked; see :func:`~numpyro_dp.audit`."""

    num_samples: int
    num_chains: int
    init_params: dict | None
    score: Score | None
    show: Callable[[int], None]


def attacked_chains(
    kernel: PrivateKernel,
    both: tuple[tuple[Any, ...], tuple[Any, ...]],
    relation: Relation,
    delta: float,
    key: Any,
    noise_keys: Any,
    attack: ChainsAttack,
) -> Attacked:
    """Run many chains on either data set, and score every one.

    :param both: arguments of the model, of the data and of its neighbour.
    :param key: of the common start.
    :param noise_keys: a key for each data set.
    :raises ValueError: for data sets that are no neighbours, or are charged differently.
    """
    num_samples, num_chains, init_params, score, show = attack
    num_steps = num_samples * kernel.steps_per_sample
    sides = _both_sides(kernel, both, relation, num_steps, delta)
    model = sides.bound[0].private_model
    z = starting_positions(model, kernel.init_strategy, key, init_params, 1)
    scorers = [_scorer(one, num_samples, score) for one in sides.bound]
    return _attacked(sides, scorers, z, relation, noise_keys, num_chains, num_steps, show)


class _Sides(NamedTuple):
    """The kernel on each data set, their records, and what sets these apart."""

    bound: list[BoundKernel]
    records: list[list[Array]]
    pair: NeighbourPair


def _both_sides(
    kernel: PrivateKernel,
    both: tuple[tuple[Any, ...], tuple[Any, ...]],
    relation: Relation,
    num_steps: int,
    delta: float,
) -> _Sides:
    walls = [_wall(kernel, arguments, relation) for arguments in both]
    records = [model.records(arguments) for model, arguments in zip(walls, both, strict=True)]
    pair = take_apart(*records, relation)
    require_one_model(kernel.user_model, both, relation)
    bound = [
        kernel.bind(model, num_steps=num_steps, relation=relation, delta=delta) for model in walls
    ]
    return _Sides(bound, records, pair)


def _wall(kernel: PrivateKernel, arguments: tuple[Any, ...], relation: Relation) -> PrivateModel:
    return private_model(
        kernel.user_model,
        arguments,
        data_plate=kernel.data_plate,
        private_size=relation == "add_remove",
    )


def _attacked(
    sides: _Sides,
    scorers: list[_StepsScore | _DrawsScore],
    z: dict,
    relation: Relation,
    noise_keys: Any,
    num_chains: int,
    num_steps: int,
    show: Callable[[int], None],
) -> Attacked:
    event, other = (one.event(num_steps) for one in sides.bound)
    if event != other:
        raise ValueError(
            "the kernel is charged differently on the two data sets: give them equal public "
            "arguments, and sampling_rate= in place of batch_size="
        )
    if relation == "zero_out":
        check_null(sides.bound[0].private_model, z, sides.pair)
    first, second = (
        _scores(
            *(scorer, noise_key, num_chains, z, leaves, sides.pair),
            lambda more, done=done: show(done + more),
        )
        for scorer, noise_key, leaves, done in zip(
            scorers, noise_keys, sides.records, (0, num_chains), strict=True
        )
    )
    return Attacked((first, second), event, num_steps)


@dataclass(frozen=True)
class _StepsScore:
    """The default score, summed over the private steps; compared by value."""

    kernel: BoundKernel
    steps: int
    of_step: Callable[..., Array]

    def __call__(
        self, states: Any, records: list[Array], pair: NeighbourPair
    ) -> Float[Array, " chains"]:
        def step(carry: tuple[Any, Array], _: None) -> tuple[tuple[Any, Array], None]:
            before, total = carry
            after = self.kernel.sample(before, records)
            gained = jax.vmap(partial(self.of_step, self.kernel, pair))(before, after)
            return (after, total + gained), None

        start = states, jnp.zeros(states.i.shape)
        return lax.scan(step, start, length=self.steps)[0][1]


@dataclass(frozen=True)
class _DrawsScore:
    """A caller's score of the collected draws; compared by value."""

    kernel: BoundKernel
    num_samples: int
    score: Score

    def __call__(
        self, states: Any, records: list[Array], _: NeighbourPair
    ) -> Float[Array, " chains"]:
        def step(states: Any, _: None) -> tuple[Any, dict]:
            states = self.kernel.sample(states, records)
            return states, jax.vmap(self.kernel.constrained)(states.z)

        draws = lax.scan(step, states, length=self.num_samples)[1]
        return jax.vmap(self.score, in_axes=1)(draws)


def _scorer(bound: BoundKernel, num_samples: int, score: Score | None) -> _StepsScore | _DrawsScore:
    if score is not None:
        return _DrawsScore(bound, num_samples, score)
    # Every private step is released, between the draws too.
    steps, single = num_samples * bound.steps_per_sample, replace(bound, steps_per_sample=1)
    if tells_bits(bound):
        return _StepsScore(single, steps, bit_score)
    if isinstance(bound, BoundOPS):
        return _StepsScore(single, steps, draw_score)
    if not isinstance(bound, BoundGradientKernel) or not bound.private_sum.is_private:
        raise ValueError(
            "there is a default score for gradient kernels, for posterior samples and for "
            "Metropolis kernels of one candidate on all records, with their privacy switched on, "
            "only: "
            "give score=, a function of one chain's draws"
        )
    # What is charged are the noisy sums. Noise that a sampler adds for its own sake, which no
    # guarantee counts on, would only hide them.
    cold = replace(bound.integrator, temperature=_COLD)
    return _StepsScore(replace(single, integrator=cold), steps, move_score)


@partial(jax.jit, static_argnames=("scorer",))
def _chunk(scorer, keys, z, records, pair):
    return scorer(scorer.kernel.init(keys, 0, z), records, pair)


def _scores(
    scorer: _StepsScore | _DrawsScore,
    key: Any,
    num_chains: int,
    z: dict,
    records: list[Array],
    pair: NeighbourPair,
    show: Callable[[int], None],
) -> Float[np.ndarray, " chains"]:
    """Scores of independent chains, in chunks of one shape so that memory stays flat."""
    size = min(num_chains, _CHAINS_AT_ONCE)
    starts = jax.tree.map(lambda x: jnp.broadcast_to(x, (size, *x.shape)), z)
    chunks = []
    for number in range(-(-num_chains // size)):
        keys = random.split(random.fold_in(key, number), size)
        scores = np.asarray(_chunk(scorer, keys, starts, records, pair), np.float64)
        if scores.shape != (size,) or not np.all(np.isfinite(scores)):
            raise ValueError("score must return one finite number for each chain's draws")
        chunks.append(scores)
        show(min(num_chains, (number + 1) * size))
    return np.concatenate(chunks)[:num_chains]
