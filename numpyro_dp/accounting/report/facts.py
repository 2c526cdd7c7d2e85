"""What a report is told and what it states: the facts of a run, and the fields of its statement."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """What a run says about itself: public values only, from the mechanism to the page.

    :param mechanism: the private mechanism in words.
    :param sampler: how records enter a step, in words.
    :param sampling_rate: inclusion probability of a record in one step.
    :param clip_norm: L2 bound on one record's contribution.
    :param noise_multiplier: noise standard deviation divided by ``clip_norm``, or words.
    :param released: names of the quantities that leave the wall.
    :param arithmetic: how the release holds in machine arithmetic, in words.
    :param unit: what is protected, such as ``"one slice of plate 'people'"``.
    :param num_records: number of records where it is public.
    :param assumed_public: what the guarantee takes as public.
    :param overflow_delta: total variation of one step outside the privacy loss distribution.
    :param notes: what the user should know about these draws, the most harmful first.
    :param signs: what a table of the draws says of them in short, where they are no posterior.
    :param remarks: further notes on which nothing is to be done.
    :param conditions: what the guarantee depends on beside this; an accountant with a budget
        refuses a run with any, unless it allows conditional charges.
    """

    mechanism: str
    sampler: str
    sampling_rate: float | None
    clip_norm: float | None
    noise_multiplier: float | str | None
    released: tuple[str, ...]
    arithmetic: str
    unit: str = ""
    num_records: int | None = None
    assumed_public: tuple[str, ...] = ()
    overflow_delta: float = 0.0
    notes: tuple[str, ...] = ()
    signs: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    conditions: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Statement:
    """The fields of a privacy report.

    ``epsilon`` never stands alone: unit, relation, δ and conditions are beside it in every form.
    ``ledger_…`` fields describe the whole ledger that the charges went to, everything else this
    result's own charges.
    """

    epsilon: float
    delta: float
    curve: tuple[tuple[float, float], ...]
    variant: str
    relation: str
    relation_text: str
    unit: str
    user_level: str
    num_records: int | None
    mechanism: str
    sampler: str
    sampling_rate: float | None
    clip_norm: float | None
    noise_multiplier: float | str | None
    noise_std: float | None
    steps: int
    warmup_steps: int
    num_chains: int
    overflow_delta: float
    released: tuple[str, ...]
    assumed_public: tuple[str, ...]
    not_covered: tuple[str, ...]
    conditions: tuple[str, ...]
    tuning: str
    randomness: str
    arithmetic: str
    notes: tuple[str, ...]
    advantage: float
    tpr_at_fpr: float
    fpr: float
    attacker_certainty: float
    earlier_runs: int | None
    ledger_epsilon: float | None
    ledger_delta: float | None
    ledger_budget: float | None
    ledger_left: float | None
    ledger_path: str | None
    ledger_guarantee: str | None = None
    # Of all its charges: without them its ε is infinite.
    ledger_conditions: tuple[str, ...] = ()
    # What the caller supplied that this ε does not cover; among what is assumed public, too.
    given: tuple[str, ...] = ()
    events: tuple[tuple[str, str], ...]
    versions: tuple[tuple[str, str], ...]
    created_at: str
