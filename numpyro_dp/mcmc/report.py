"""The privacy report of an MCMC object, from what its runs left behind."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from numpyro_dp.accounting import Accountant, PrivacyReport
from numpyro_dp.accounting.events import DpEvent
from numpyro_dp.execution.keys import RANDOMNESS
from numpyro_dp.mcmc.kernel import BoundKernel, RunFacts
from numpyro_dp.mcmc.sgmcmc.integrator import Note, in_one_line
from numpyro_dp.mcmc.sgmcmc.relaxation import RUN_AWAY, drawn_notes

GIVEN_START = "the initial positions given as init_params"
GIVEN_STATE = (
    "the state given as post_warmup_state, which this object did not compute: what it cost is not "
    "part of this ε"
)


class Described(NamedTuple):
    """What a report says of the last run; unlike the bound kernel it may outlive the process.

    ``drawn`` is computed from the released draws, everything else from public values.
    """

    facts: RunFacts
    plate: str
    num_records: int | None
    public_inputs: tuple[str, ...]
    steps_per_sample: int
    drawn: tuple[Note, ...] = ()

    def after(self, kernel: BoundKernel, states: Any, last: Any, thinning: int) -> Described:
        """This, with what the released draws say of the run; post-processing."""
        return self._replace(drawn=drawn_notes(kernel, states, last, thinning=thinning))

    @property
    def notes(self) -> tuple[str, ...]:
        """What there is to act on, the most harmful first, then what is to be known."""
        drawn = tuple(note.text for note in self.drawn)
        first = drawn + self.facts.notes if self._away else self.facts.notes + drawn
        return first + self.facts.remarks

    @property
    def in_short(self) -> str:
        """One line on the notes for whoever looks at the draws; empty where there are none."""
        drawn = tuple(note.sign for note in self.drawn)
        signs = drawn + self.facts.signs if self._away else self.facts.signs + drawn
        return in_one_line(self.notes, signs)

    @property
    def _away(self) -> bool:
        """Whether the chain ran away, beside which its temperature is a small matter."""
        return any(note.sign.startswith(RUN_AWAY) for note in self.drawn)


def describe(bound: BoundKernel, *, private_size: bool) -> Described:
    """What a report says of a run of ``bound`` before it has run."""
    wall = bound.wall
    return Described(
        facts=bound.facts(),
        plate=wall.plate,
        num_records=None if private_size else wall.num_records,
        public_inputs=wall.public_inputs,
        steps_per_sample=bound.steps_per_sample,
    )


def statement(
    described: Described,
    *,
    charges: Sequence[tuple[str, DpEvent]],
    steps: int,
    warmup: int,
    num_chains: int,
    delta: float,
    secure: bool,
    conditions: tuple[str, ...],
    given: Iterable[str],
    accountant: Accountant,
) -> PrivacyReport:
    """The report of ``charges``.

    :param described: the last run.
    :param charges: label and event of each charge.
    :param steps: private steps charged, over all chains.
    :param warmup: those of them that were warm-up.
    :param num_chains: chains.
    :param delta: δ at which ε is stated.
    :param secure: whether the noise came from keys of the operating system.
    :param conditions: what the guarantee depends on; empty when nothing.
    :param given: what the caller supplied that this ε does not cover.
    :param accountant: whose ledger was charged.
    :returns: the report; every ε in it is an upper bound.
    """
    facts, size = described.facts, described.num_records
    return PrivacyReport.build(
        entries=charges,
        relation=accountant.relation,
        delta=delta,
        unit=f"one slice of plate '{described.plate}'",
        num_records=size,
        mechanism=facts.mechanism,
        sampler=facts.sampler,
        sampling_rate=facts.sampling_rate,
        clip_norm=facts.clip_norm,
        noise_multiplier=facts.noise_multiplier,
        steps=steps,
        warmup_steps=warmup,
        num_chains=num_chains,
        overflow_delta=facts.overflow_delta * steps,
        released=facts.released,
        assumed_public=(
            *(() if size is None else (f"the number of records ({size})",)),
            "the model, its priors and every option of the kernel",
            *(f"argument {name}" for name in described.public_inputs),
            *given,
        ),
        conditions=conditions,
        randomness=RANDOMNESS[secure],
        arithmetic=facts.arithmetic,
        notes=described.notes,
        accountant=accountant,
    )
