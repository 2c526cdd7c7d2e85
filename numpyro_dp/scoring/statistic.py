"""What one record adds to a round of private Fisher scoring: its score and its information.

Both come from the outcomes that the record might have had at the released position. Its clipped,
centred score is what the sum of scores needs; the mean square of those of the other outcomes is
what the model expects of it, the record's part of the information matrix.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float

from numpyro_dp.execution.keys import of_default_kind
from numpyro_dp.mechanisms.centred import centre, centred_clip
from numpyro_dp.model.guided.outcomes import SCORING, Outcomes, Simulated, possible_outcomes
from numpyro_dp.model.names import coordinates_of
from numpyro_dp.model.private_model import PrivateModel

# Shares of the squared bound on a record: of its score, its information, both its squares, and
# whether it is far out.
SCORE_SHARE, INFORMATION_SHARE, SQUARES_SHARE, TAIL_SHARE = 0.68, 0.24, 0.02, 0.06
# An outcome is far out whose score is this many times as large as those of the model's are on
# average: 1.5 % of a normal law's are, 4 % of an exponential's. Where more are than one of a record
# and its draws, they count the less.
FAR, _MOST_FAR = 3, 1 / 17
# The histogram of sizes: a bin for each factor of two. Of the squared bound on a record's part of
# that release the bin has so much, and so much each how the size divides and what has a part of it.
BINS, FIRST_BIN = 80, -40
BINS_SHARE, PARTS_SHARE = 0.4, 0.3
# Where there are groups, of all of that bound: which of them the record is of.
GROUPS_SHARE = 0.2
# Less of a size than this is no part of it.
_LEAST_PART = 1e-4
_TINY = 1e-24
# Sizes that differ by less than this part of a score are those of one outcome: what is left of a
# frequent one, less the shift, is but rounding.
_ALIKE = 1e-4


class RoundPosition(NamedTuple):
    """Where records are asked, and in which coordinates; released numbers.

    - **u**: unconstrained latents in a row, shape (dim,).
    - **whitening**: from scores to scores of the whitened coordinates over the clip norm, shape
      (directions, dim).
    - **bound**: largest Frobenius norm of a record's information, over the squared clip norm.
    """

    u: Float[Array, " dim"]
    whitening: Float[Array, "directions dim"]
    bound: Float[Array, ""]


@dataclass(frozen=True)
class RecordStatistic:
    """A record's part of a round, as a function of released numbers; hashable.

    Scores are whitened and divided by the clip norm C, so that they are clipped to norm 1.

    :param private_model: the model, split.
    :param outcomes: what a record might have shown: all of it, or draws.
    :param dim: directions of the latents that a round asks about.
    :param alike: a number from 0 for each, the same of those whose parts of a record's size are
        told together.

    **Privacy.** ``joint`` and ``sizes`` have norm 1 at most, ``score`` the clip norm, for one
    record alone. The caller's sum clips again.
    """

    private_model: PrivateModel
    # Traced from the model, so that equal models have equal ones; programs have no hash.
    outcomes: Outcomes = field(compare=False)
    dim: int
    alike: tuple[int, ...]

    @property
    def draws(self) -> bool:
        """Whether outcomes are drawn, for which a record brings its row number last."""
        return isinstance(self.outcomes, Simulated)

    @property
    def num_outcomes(self) -> int:
        """Outcomes of a record that are looked at."""
        return self.outcomes.number

    @property
    def has_tails(self) -> bool:
        """Whether an outcome can be far out: the rarer of two only says where their mean lies."""
        return self.draws or self.num_outcomes > 2

    @property
    def numbers(self) -> int:
        """Numbers that a record adds to a round."""
        return self.dim + self.dim * (self.dim + 1) // 2 + 3

    @property
    def sizes_told(self) -> int:
        """Numbers that a record adds to the release of sizes."""
        return BINS + 2 * self._kinds + len(self._groups) + 1

    @property
    def _kinds(self) -> int:
        return max(self.alike) + 1

    @property
    def _groups(self) -> np.ndarray:
        return those_of_several(np.asarray(self.alike, int))

    def at(self, u: Any) -> dict[str, Array]:
        """The latents whose row is ``u``."""
        return unravelled(self.private_model, u)

    def joint(self, at: RoundPosition, key: Any, record: list[Array]) -> Float[Array, " numbers"]:
        """Score, information, square of the score and what the model expects of that square, and
        whether the outcome is far out, less how often the model expects that."""
        own, scores, weights = self._scores(at, key, record)
        shift = centre(scores, weights, 1.0)
        apart = scores - shift
        norms = jnp.sqrt(jnp.sum(apart * apart, axis=1) + _TINY)
        kept = jnp.minimum(1, 1 / norms)
        # What the fixed steps towards the centre leave over is taken off all outcomes alike.
        left = (weights * kept) @ apart
        shrunk = 1 / (1 + jnp.linalg.norm(left))
        # Own and drawn outcomes are exchangeable under the model, so whatever all of them decide
        # together leaves the mean of the own at zero. The information is that of the drawn alone:
        # the own outcome may be far out where the position is.
        # A record that counts w times has scores of w times the size, and w times the information.
        counts = self._counts(at, record)
        everyone = _second_moment(apart, weights * kept) / counts
        factor = _share_within(at.bound, everyone)
        law, apart, kept = (self._expected(each) for each in (weights, apart, kept))
        law = law / jnp.sum(law)
        information = factor * _second_moment(apart, law * kept) / counts
        information = information * _share_within(at.bound, information)
        gap = own - shift
        rounding = _rounding(scores)
        tail = jnp.zeros(())
        if self.has_tails:
            tail = _far_out(jnp.sqrt(jnp.sum(gap * gap) + _TINY), norms, weights, rounding)
        gap = gap * lax.rsqrt(jnp.maximum(jnp.sum(gap * gap), 1)) - left
        score = factor * shrunk * gap
        expected = (factor * shrunk) ** 2 * jnp.sum(
            law * jnp.sum((apart * kept[:, None] - left) ** 2, axis=1)
        )
        half = np.sqrt(SQUARES_SHARE / 2)
        both = jnp.stack([jnp.sum(score * score), expected]) / counts
        squares = jnp.minimum(both, 1) * half
        return jnp.concatenate(
            [
                score * np.sqrt(SCORE_SHARE),
                packed(information / at.bound) * np.sqrt(INFORMATION_SHARE),
                squares,
                tail[None] * np.sqrt(TAIL_SHARE),
            ]
        )

    def _counts(self, at: RoundPosition, record: list[Array]) -> Float[Array, ""] | float:
        """What the record counts for; of one that counts for nothing nothing is divided."""
        if self.outcomes.scale is None:
            return 1.0
        found = jnp.reshape(self.outcomes.scale(self._inputs(at, record))[0], ())
        return jnp.where(found > 0, found, 1)

    def _inputs(self, at: RoundPosition, record: list[Array]) -> list[Array]:
        """What programs of one record take: values of the latents, then its arrays."""
        rows = record[:-1] if self.draws else record
        return [*jax.tree.leaves(self.private_model.constrain(self.at(at.u))), *rows]

    def score(
        self, u: Array, whitening: Array, clip_norm: float, key: Any, record: list[Array]
    ) -> Float[Array, " dim"]:
        """The score alone, whitened, centred and clipped: that of one step of a chain."""
        at = RoundPosition(u, whitening, jnp.ones(()))
        return centred_clip(*self._scores(at, key, record), clip_norm)

    def numbered(self, records: Sequence[Array]) -> list[Array]:
        """The record leaves that the statistic asks for."""
        if not self.draws:
            return list(records)
        return [*records, self.private_model.row_numbers()]

    def sizes(self, at: RoundPosition, key: Any, record: list[Array]) -> Float[Array, " parts"]:
        """How far the model's outcomes move its score: one in the bin of that, and its parts.

        Far from the posterior the own outcome says how far, and nothing of the model's scores. The
        parts are the roots of each kind's share of the squared size, whose squares add up to 1;
        after them which kinds have one, over the root of how many do, and where there are groups
        which of these have one, likewise. Last, of a record that shows what its law cannot have,
        that it does.
        """
        own, scores, weights = self._scores(at, key, record)
        scores, law = self._expected(scores), self._expected(weights)
        law = law / jnp.sum(law)
        apart = scores - law @ scores
        size = jnp.sqrt(law @ jnp.sum(apart * apart, axis=1))
        bin_ = jnp.clip(jnp.floor(jnp.log2(size + 1e-30)) - FIRST_BIN, 0, BINS - 1)
        marked = (jnp.arange(BINS) == bin_).astype(scores.dtype) * np.sqrt(BINS_SHARE)
        of_each, groups = law @ (apart / size) ** 2, self._groups
        shares = jax.ops.segment_sum(of_each, np.asarray(self.alike), num_segments=self._kinds)
        parts = [jnp.sqrt(shares), _evenly(shares > _LEAST_PART**2)]
        told = jnp.concatenate([marked, *(np.sqrt(PARTS_SHARE) * each for each in parts)])
        if len(groups):
            members = np.sqrt(GROUPS_SHARE) * _evenly(of_each[groups] > _LEAST_PART**2)
            told = jnp.concatenate([np.sqrt(1 - GROUPS_SHARE) * told, members])
        # A record that is masked tells nothing, nor does one whose draws are all alike, as of rare
        # counts; where most are so, theirs would be the fullest bin.
        least = _rounding(scores) if self.draws else 0.0
        heard = jnp.isfinite(size) & (size > least)
        rows = record[:-1] if self.draws else record
        term = self.private_model.record_log_likelihood(self.at(at.u), rows)
        outside = heard & self._outside(at, rows, term)
        # One that adds nothing to rounds, as of NaN, is null here too: what its law cannot have is
        # all that is told of a record.
        told = jnp.where(heard & jnp.isfinite(own @ own) & ~outside, told, 0)
        return jnp.append(told, outside)

    def _outside(
        self, at: RoundPosition, rows: list[Array], term: Float[Array, ""]
    ) -> Bool[Array, ""]:
        """Whether the record shows what the laws of its outcomes cannot have.

        :param term: its log likelihood, which decides at the ends of a density.
        """
        values = jax.tree.leaves(self.private_model.constrain(self.at(at.u)))
        found = [limit([*values, *rows])[0] for limit in self.outcomes.limits]
        return ~jnp.isfinite(term) & ~jnp.all(jnp.array([True, *found]))

    def _expected(self, of_outcomes: Array) -> Array:
        """The part of what the model alone says: drawn outcomes come after the own."""
        return of_outcomes[1:] if self.draws else of_outcomes

    def _scores(
        self, at: RoundPosition, key: Any, record: list[Array]
    ) -> tuple[Float[Array, " dim"], Float[Array, "outcomes dim"], Float[Array, " outcomes"]]:
        """Whitened scores of the own outcome and of all possible ones, and their weights."""
        model, rows = self.private_model, list(record)
        row = rows.pop()[0] if self.draws else 0
        outcomes = self.outcomes
        of_own = jax.value_and_grad(lambda u: model.record_log_likelihood(self.at(u), rows))
        term, own = of_own(at.u)
        # What its law cannot have is left out by the sum, as NaN is: a gradient of nought beside
        # the information of any record would say that it fits.
        own = jnp.where(self._outside(at, rows, term), jnp.nan, own)

        def values(u: Array) -> list[Array]:
            return jax.tree.leaves(model.constrain(self.at(u)))

        if isinstance(outcomes, Simulated):
            # Those of chains are of another kind than the program was traced with.
            key = jax.random.fold_in(of_default_kind(key), row)
            drawn = outcomes.draws([*values(at.u), *rows, key])
            one = outcomes.term

            def term(u: Array, outcome: list[Array]) -> Array:
                return one([*values(u), *rows, *outcome])[0]

            of_each = jax.vmap(jax.grad(term), (None, 0))(at.u, drawn)
            scores = jnp.concatenate([own[None], of_each])
            weights = jnp.full(len(scores), 1 / len(scores), scores.dtype)
        else:
            listed = outcomes.terms
            scores = jax.jacrev(lambda u: listed([*values(u), *rows])[0])(at.u)
            (law,) = outcomes.law([*values(at.u), *rows])
            weights = jax.nn.softmax(law).astype(scores.dtype)
            # Of what cannot happen the score may be infinite.
            scores = jnp.where(weights[:, None] > 0, scores, 0)
        return at.whitening @ own, scores @ at.whitening.T, weights


def record_statistic(
    model: PrivateModel, alike: Sequence[int] | np.ndarray | None = None
) -> RecordStatistic:
    """The statistic of a model's records.

    :param alike: a number for each direction of the latents that a round asks about, the same of
        those that are told together; by default every coordinate, each by itself.
    :raises UnsupportedModelError: where outcomes can be neither listed nor drawn.
    """
    constrained = dict(model.programs.constrained)
    outcomes = possible_outcomes(
        model.function,
        model.layout,
        model.structure,
        model.plate,
        model.num_records,
        constrained,
        private_size=False,
        drawn=True,
        asker=SCORING,
        at_once=True,
    )
    if alike is None:
        latents = model.structure.latents.values()
        alike = range(sum(math.prod(each.shape) for each in latents))
    kinds = np.unique(np.asarray(alike, int), return_inverse=True)[1]
    return RecordStatistic(model, outcomes, len(kinds), tuple(map(int, kinds)))


def unravelled(model: PrivateModel, u: Any) -> dict[str, Array]:
    """The unconstrained latents whose row is ``u``, in the order of their names."""
    latents = sorted(model.structure.latents.items())
    ends = np.cumsum([math.prod(each.shape) for _, each in latents])
    parts = zip(latents, ends, strict=True)
    return {
        name: u[end - math.prod(each.shape) : end].reshape(each.shape).astype(each.dtype)
        for (name, each), end in parts
    }


def coordinate_names(model: PrivateModel) -> list[str]:
    """What each number of that row is called, such as ``w[2]``."""
    latents = sorted(model.structure.latents.items())
    return coordinates_of({site: each.shape for site, each in latents})


def packed(matrix: Float[Array, "dim dim"]) -> Float[Array, " packed"]:
    """The upper triangle of a symmetric matrix in a row of the same norm."""
    rows, columns = np.triu_indices(matrix.shape[0])
    return matrix[rows, columns] * np.where(rows == columns, 1.0, np.sqrt(2.0))


def unpacked(row: np.ndarray, dim: int) -> np.ndarray:
    """The symmetric matrix whose upper triangle is ``row``."""
    rows, columns = np.triu_indices(dim)
    matrix = np.zeros((dim, dim))
    matrix[rows, columns] = matrix[columns, rows] = row / np.where(rows == columns, 1.0, np.sqrt(2))
    return matrix


def those_of_several(alike: np.ndarray) -> np.ndarray:
    """Indices of those of which others are alike, as groups' effects are."""
    return np.flatnonzero(np.bincount(alike)[alike] > 1)


def _evenly(met: Array) -> Array:
    """In a row of norm 1 those that are met; nought where none is."""
    return met / jnp.sqrt(jnp.maximum(jnp.sum(met), 1))


def _share_within(bound: Array, matrix: Array) -> Array:
    return jnp.minimum(1, bound / (jnp.linalg.norm(matrix) + _TINY))


def _rounding(scores: Array) -> Array:
    """What is less than this is of outcomes that are alike."""
    return _ALIKE * jnp.sqrt(jnp.max(jnp.sum(scores * scores, axis=1)))


def _far_out(size: Array, sizes: Array, weights: Array, rounding: Array) -> Array:
    """Whether an outcome is far out, less how often the model's are, by the size of its score.

    Whatever the sizes are, the mean under ``weights`` is zero.
    """
    far = FAR * (weights @ sizes) + rounding
    often = weights @ (sizes > far).astype(sizes.dtype)
    counted = jnp.minimum(1, _MOST_FAR / jnp.maximum(often, _TINY))
    return counted * ((size > far) - often)


def _second_moment(vectors: Array, weights: Array) -> Array:
    scaled = vectors * weights[:, None]
    return jnp.matmul(scaled.T, vectors, precision=lax.Precision.HIGHEST)
