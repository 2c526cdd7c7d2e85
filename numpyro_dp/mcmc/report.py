"""What the report of an MCMC object says of its last run, which may outlive the run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple, TextIO

import numpy as np
from numpyro.diagnostics import split_gelman_rubin

from numpyro_dp.accounting.report import short
from numpyro_dp.accounting.report.facts import RunFacts
from numpyro_dp.mcmc.kernel import BoundKernel
from numpyro_dp.mcmc.sgmcmc.integrator import Note, in_one_line
from numpyro_dp.mcmc.sgmcmc.relaxation import drawn_notes

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
    "Sample the release again, as good as before and free: numpyro.infer.NUTS on "
    "mcmc.released.model, with a longer num_warmup, target_accept_prob=0.95, init_to_median or, of "
    "a hierarchy, the model wrapped in numpyro.handlers.reparam (LocScaleReparam(0) of effects "
    "under a Normal or StudentT)"
)
# What notes take of a screen that is to show draws too.
_LINES, _REPORT = 16, "print(mcmc.privacy.full())"
_NOTHING = (
    "No note speaks against this release. What notes cannot see: docs/howto/is-it-worth-having.md"
)


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
    def told(self) -> RunFacts:
        """The facts, with all notes: what there is to act on first, the most harmful before all."""
        return replace(self.facts, notes=self._ordered("notes", "text") + self.facts.remarks)

    @property
    def in_short(self) -> str:
        """One line on the notes for whoever looks at the draws; empty where there are none."""
        return in_one_line(self.told.notes, self.signs)

    def show(self, where: TextIO, *, also_nothing: bool = True) -> Described:
        """Print the notes, the most harmful first, or one line where they have been printed.

        :param also_nothing: print a line too where all was judged and no note speaks against it.
        :returns: this, shown.
        """
        notes = self.told.notes
        if notes:
            whole = short.notes_alone(notes, _LINES, _REPORT)
            print(self.in_short if self.shown else whole, file=where)
        if also_nothing and self.judged and notes == self.facts.remarks:
            print(_NOTHING, file=where)
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
        return _divergent(states.get("diverging", ()))
    text = f"do not use: the chains have not mixed: {found}. {_AGAIN}"
    return (Note(text, f"have not mixed in {name!r}", first=True),)


def _divergent(diverging: Any) -> tuple[Note, ...]:
    share = float(np.mean(np.asarray(diverging))) if np.size(diverging) else 0.0
    if share <= _DIVERGENT:
        return ()
    text = (
        f"with care: NUTS diverged ({share:.1%} of its draws), as in the neck of a hierarchy's "
        f"small scales, which it then leaves out in part. {_AGAIN}"
    )
    return (Note(text, f"diverged ({share:.1%} of them)", first=True),)


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
