"""What the report of an MCMC object says of its last run, which may outlive the run."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from typing import Any, NamedTuple, TextIO

import numpy as np
import numpyro.infer
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin

from numpyro_dp.accounting import PrivacyReport
from numpyro_dp.accounting.report import short
from numpyro_dp.accounting.report.facts import RunFacts
from numpyro_dp.execution.account import Account
from numpyro_dp.mcmc.kernel import BoundKernel
from numpyro_dp.mcmc.nuts import Release
from numpyro_dp.mcmc.sgmcmc.integrator import Note, in_one_line
from numpyro_dp.mcmc.sgmcmc.relaxation import drawn_notes
from numpyro_dp.scoring.diagnostics import nothing_against
from numpyro_dp.scoring.verdicts.kinds import RANKS, Verdict, worst_first
from numpyro_dp.scoring.verdicts.labels import in_table, in_text, renamed

GIVEN_START = "the initial positions given as init_params"
GIVEN_STATE = (
    "the state given as post_warmup_state, which this object did not compute: what it cost is not "
    "part of this ε"
)

# R-hat of chains that have not mixed. Fewer draws a chain, or of all, tell too little: of 300
# coordinates of independent draws a single chain of fifty had one above in a quarter of runs, two
# chains, or one of a hundred, in none of two hundred.
_UNMIXED, _DRAWS, _ALL_DRAWS = 1.2, 50, 100
# Such a share of NUTS's draws diverged in the necks of hierarchies alone, which NUTS on the records
# enters as well (of 27 releases of nine hierarchies three, tau 1.2 to 1.5 times as wide).
_DIVERGENT = 0.01
_AGAIN = (
    "Sample the release again, which is free, unless a note speaks against it: numpyro.infer.NUTS "
    "on mcmc.released.model, with dense_mass=True, a longer num_warmup, target_accept_prob=0.95, "
    "init_to_median or, of a hierarchy, the model wrapped in numpyro.handlers.reparam, if it is "
    "not (LocScaleReparam(0) of effects under a Normal or StudentT; a horseshoe's half-Cauchy "
    "scales diverge without privacy as well)"
)
# Fewer independent draws say little of a width: of 36 months beside an intercept an sd of .23 came
# out between .11 and .30 from 10 to 34 of them. Not asked of few draws, nor of a site of so many
# numbers.
_INDEPENDENT, _ASKED, _MANY = 50, 200, 1_000
_LONGER = (
    "Sample the release again with more draws, which is free: mcmc.num_warmup = 2_000; "
    "mcmc.num_samples = 4_000; mcmc.run(key), without the records"
)
_DIVERGED, _COUNTED = "NUTS diverged", "Number of divergences"
# What notes take of a screen that is to show draws too; and each of them where all were shown: what
# is wrong, and what to do.
_LINES, _BRIEF, _REPORT = 16, 2, "print(mcmc.privacy.full())"


class Described(NamedTuple):
    """What is said of the last run.

    ``drawn`` is computed from the released draws, everything else from public values; ``shown``
    says that the notes have been printed, and ``judged`` that a release was held to every verdict,
    so that no note is a finding too.
    """

    facts: RunFacts
    steps_per_sample: int
    drawn: tuple[Note, ...] = ()
    started: tuple[str, ...] = ()
    shown: bool = False
    judged: bool = False

    @classmethod
    def of(cls, facts: RunFacts, started: tuple[str, ...], steps_per_sample: int) -> Described:
        """What is said before the first step; ``started`` of what came before it."""
        whole = replace(facts, notes=started + facts.notes)
        return cls(whole, steps_per_sample, started=started)

    def after(self, kernel: BoundKernel, states: Any, last: Any, thinning: int) -> Described:
        """This, with what the released draws say of the run; post-processing."""
        return self._replace(drawn=drawn_notes(kernel, states, last, thinning=thinning))

    def mixed(self, states: Any) -> Described:
        """This, with what the draws of several chains say of each other; post-processing."""
        return self._replace(drawn=chain_notes(states))

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """What there is to act on, of draws and release, the most harmful first."""
        found = self._ordered("notes", "text")
        return worst_first(found) if self.judged else tuple(map(Verdict, found))

    @property
    def told(self) -> RunFacts:
        """The facts, with all notes: what there is to act on first, the most harmful before all."""
        return replace(self.facts, notes=self.verdicts + self.facts.remarks)

    @property
    def in_short(self) -> str:
        """One line on the notes for whoever looks at the draws; empty where there are none."""
        # The first words of a verdict say it already.
        drawn = tuple(note for note in self.drawn if not note.text.startswith(RANKS))
        return in_one_line(self.told.notes, self._replace(drawn=drawn).signs)

    @property
    def diverged(self) -> bool:
        """Whether a verdict says how many draws diverged."""
        return any(_DIVERGED in note.text for note in self.drawn)

    def show(
        self, where: TextIO, *, also_nothing: bool = True, named: Mapping[str, str] | None = None
    ) -> Described:
        """Print the notes, the most harmful first, and in short where they have been printed.

        :param also_nothing: print a line too where all was judged and no note speaks against it.
        :param named: by the name of a coordinate what its user calls it.
        :returns: this, shown.
        """
        notes = tuple(in_text(note, named or {}) for note in self.told.notes)
        if notes:
            # With names of the reader's own they are new.
            lines = _BRIEF * len(notes) + 1 if self.shown and not named else _LINES
            said = short.notes_alone(notes, lines, _REPORT)
            # Of a chain in private steps its signs say in a line what the draws are.
            print(self.in_short if self.shown and not self.judged else said, file=where)
        if also_nothing and self.judged:
            for line in nothing_against(self.verdicts):
                print(line, file=where)
        return self._replace(shown=True)

    @property
    def signs(self) -> tuple[str, ...]:
        """What is wrong with the draws, in a word or two each."""
        return self._ordered("signs", "sign")

    def _ordered(self, fact: str, field: str) -> tuple[str, ...]:
        before, after = (
            tuple(getattr(note, field) for note in self.drawn if note.first is first)
            for first in (True, False)
        )
        return before + getattr(self.facts, fact) + after


class Reported(numpyro.infer.MCMC):
    """What an MCMC object says of what it has run: statement, verdicts and table."""

    sampler: Any
    _account: Account
    _described: Described | None
    _given: dict[str, None]
    _release: Release

    @property
    def privacy(self) -> PrivacyReport:
        """The whole privacy statement of what this object has run.

        :raises RuntimeError: before the first run.
        """
        return self._account.report(
            self._known.told,
            delta=self.sampler.delta,
            # A release serves all chains of DPNUTS.
            num_chains=self.num_chains if self._release.released is None else 1,
            given=tuple(self._given),
        )

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """All that speaks against the draws of the last run, the most harmful first.

        Those on the chains (not mixed, diverged), which a release knows nothing of, and those on
        what was released, which alone stand in ``released.diagnostics.verdicts``. Each is text,
        of which the last sentence says what to do; of :class:`~numpyro_dp.DPNUTS` each begins with
        its rank. A script has that as ``.rank`` (``"do not use"``, ``"with care"``, ``"wide"`` or
        ``"to know"``), and of which little was told as ``.coordinates``, such as ``("w[2]",)``.
        Empty where nothing speaks against them.

        **Privacy.** A function of released values.

        :raises RuntimeError: before the first run.
        """
        return self._known.verdicts

    @property
    def _known(self) -> Described:
        if self._described is None:
            raise RuntimeError(self._account.unfinished(self._account.charges))
        return self._described

    def print_summary(
        self,
        prob: float = 0.9,
        exclude_deterministic: bool = True,
        labels: Mapping[str, Sequence[Any]] | None = None,
    ) -> None:
        """NumPyro's table of the draws, then the privacy line of this object's runs.

        Before the table stand the report's notes, the most harmful first; in short, each with what
        to do, where the end of the run has shown them.

        :param prob: probability of the intervals.
        :param exclude_deterministic: leave deterministic sites out.
        :param labels: names of a site's coordinates, row by row, for notes and table, as in
            :func:`~numpyro_dp.plot_forest`; public, such as the columns of a table.
        :raises ValueError: for labels of a site that there is not, or of another number.
        """
        named = renamed(self._states["z"], labels) if labels and self._states else {}
        if self._described is not None:
            self._described = self._described.show(sys.stdout, named=named)
        table = io.StringIO()
        with redirect_stdout(table):
            super().print_summary(prob=prob, exclude_deterministic=exclude_deterministic)
        for line in in_table(table.getvalue().splitlines(), named):
            # Once is enough.
            if not (line.startswith(_COUNTED) and self._known.diverged):
                print(line)
        print(self._account.in_short(self.privacy))


def chain_notes(states: dict[str, Any]) -> tuple[Note, ...]:
    """What a report says where chains have not mixed or diverged, of which nothing else may tell.

    :param states: what NumPyro collected; constrained draws by site, leading axes chain and draw,
        and ``"diverging"``, of the same axes.

    **Privacy.** A function of released draws.
    """
    # What a postprocess_fn makes of the draws may be of any kind.
    sites = states["z"] if isinstance(states["z"], dict) else {}
    drawn = {
        name: np.asarray(rows)
        for name, rows in sites.items()
        if np.ndim(rows) > 1 and np.size(rows) and np.shape(rows)[1] >= _DRAWS
    }
    worst = {
        name: _worst(rows)
        for name, rows in drawn.items()
        if rows.shape[0] * rows.shape[1] >= _ALL_DRAWS
    }
    name = max(worst, key=worst.__getitem__, default="")
    if drawn and any(_still(drawn.values())):
        # Of a single chain that stands still R-hat tells nothing.
        name, found = next(iter(drawn)), "a chain did not move at all"
    elif name and worst[name] > _UNMIXED:
        found = f"R-hat of {name!r} is {worst[name]:.3g}"
    else:
        return _divergent(states.get("diverging", ())) or _dependent(drawn)
    text = f"do not use: the chains have not mixed: {found}. {_AGAIN}"
    return (Note(text, f"have not mixed in {name!r}", first=True),)


def _divergent(diverging: Any) -> tuple[Note, ...]:
    count, of = np.count_nonzero(np.asarray(diverging)), np.size(diverging)
    share = count / max(of, 1)
    if share <= _DIVERGENT:
        return ()
    text = (
        f"with care: {_DIVERGED} ({count} of {of} draws, {share:.1%}), as in the neck of a "
        f"hierarchy's small scales, which it then leaves out in part. {_AGAIN}"
    )
    return (Note(text, f"diverged ({share:.1%} of them)", first=True),)


def _dependent(drawn: Mapping[str, np.ndarray]) -> tuple[Note, ...]:
    """Where draws hang on each other so much that few of them tell anything."""
    found = {}
    for name, rows in drawn.items():
        if rows.shape[0] * rows.shape[1] < _ASKED or rows[0, 0].size > _MANY:
            continue
        flat = rows.reshape(*rows.shape[:2], -1).astype(float)
        each = effective_sample_size(flat[..., np.ptp(flat, axis=(0, 1)) > 0])
        if np.isfinite(each).any():
            found[name] = float(np.min(each[np.isfinite(each)]))
    name = min(found, key=found.__getitem__, default="")
    if not name or found[name] >= _INDEPENDENT:
        return ()
    told = f"draws of {name!r} are as good as {found[name]:.0f} independent ones (n_eff)"
    text = f"with care: {told}: means and intervals stray. {_LONGER}"
    return (Note(text, told, first=True),)


def _still(sites: Iterable[np.ndarray]) -> np.ndarray:
    """Which chains had the same draw all along, of every site."""
    # Of draws of any kind, Booleans among them.
    return np.all([(x == x[:, :1]).reshape(len(x), -1).all(1) for x in sites], axis=0)


def _worst(rows: np.ndarray) -> float:
    """The largest R-hat of a site's coordinates; 1 where nothing moves, as of a constant."""
    flat = rows.reshape(*rows.shape[:2], -1).astype(float)
    moving = np.ptp(flat, axis=(0, 1)) > 0
    if not moving.any():
        return 1.0
    with np.errstate(all="ignore"):
        found = split_gelman_rubin(flat[..., moving])
    # Chains that stand still at different places have no variance within.
    return float(np.max(np.where(np.isnan(found), np.inf, found)))
