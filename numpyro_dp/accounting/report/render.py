"""A privacy report as text, HTML, Markdown and registry fields."""

import math
from html import escape
from textwrap import fill

from numpyro_dp.accounting.report.facts import Statement
from numpyro_dp.accounting.rounding import rounded_down, rounded_up
from numpyro_dp.accounting.spending import WORDS

_WIDTH = 100
_NAME = 18
LISTED = (
    "as a list that was fixed in advance; if one was chosen from earlier results, only the budget "
    "of a ledger is guaranteed"
)


def user_level(unit: str) -> str:
    """Return the sentence about people who own more than one unit."""
    return (
        f"The unit is {unit}; no user-level guarantee is possible without a bound on the number of "
        "slices per user."
    )


def tuning(earlier_runs: int | None) -> str:
    """Return what is known about releases that came before."""
    counted = (
        "no ledger: earlier runs are unknown"
        if earlier_runs is None
        else f"{earlier_runs} earlier charge{'' if earlier_runs == 1 else 's'} in this ledger"
    )
    return f"{counted}; tuning on the private data outside the ledger: not stated"


def _number(value: float | str | None, digits: int = 4) -> str:
    if value is None:
        return "not stated"
    if isinstance(value, str):
        return value
    return rounded_up(value, digits)


def pair(report: Statement) -> str:
    """Return ε and δ, which are never apart."""
    return f"ε = {_number(report.epsilon)} at δ = {report.delta:.3g}"


def computed(report: Statement) -> str:
    """Return of how many records, and in how many steps, a result was computed."""
    records = (
        "a private number of records"
        if report.num_records is None
        else f"{report.num_records} records"
    )
    chains = f" over {report.num_chains} chains" if report.num_chains > 1 else ""
    warmup = f", {report.warmup_steps} of them warm-up" if report.warmup_steps else ""
    return f"from {records} in {report.steps} private steps{chains}{warmup}"


def statement(report: Statement) -> str:
    """Return the guarantee as one paragraph."""
    opening = f"This result was computed {computed(report)}."
    if report.epsilon == math.inf:
        return f"{opening} It is NOT differentially private: ε is infinite. {report.user_level}"
    condition = (
        f" PROVIDED THAT {'; and that '.join(report.conditions)}" if report.conditions else ""
    )
    several = (
        f" This ε is of its {len(report.events)} charges {LISTED}."
        if len(report.events) > 1
        else ""
    )
    return (
        f"{opening} It satisfies (ε, δ)-differential privacy with {pair(report)}{condition}."
        f"{several} "
        f"Protected is {report.unit}, under {report.relation_text}. The guarantee covers "
        f"everything released: {'; '.join(report.released) or 'nothing'}. Mechanism: "
        f"{report.mechanism}; records are chosen by: {report.sampler}. {report.user_level}"
    )


def _facts(report: Statement) -> list[tuple[str, str]]:
    curve = ", ".join(f"{_number(epsilon, 3)} at {delta:.0e}" for delta, epsilon in report.curve)
    settings = (
        f"clip norm {_number(report.clip_norm)}, noise multiplier "
        f"{_number(report.noise_multiplier)}, noise sd {_number(report.noise_std)}, sampling rate "
        f"{_number(report.sampling_rate)}"
    )
    risk = (
        f"membership advantage ≤ {rounded_up(report.advantage, 3)}; true positives ≤ "
        f"{rounded_up(report.tpr_at_fpr, 3)} "
        f"at {report.fpr:.0%} false positives; a guess from even odds is right with probability ≤ "
        f"{rounded_up(report.attacker_certainty, 3)}"
    )
    lines = [
        # What there is to act on comes first.
        *[("note", note) for note in report.notes],
        ("privacy", f"{pair(report)} ({report.variant})"),
        ("unit", report.unit),
        ("relation", report.relation_text),
        *[("condition", condition) for condition in report.conditions],
        ("ε at δ", curve),
        ("attack risk", risk),
        ("mechanism", report.mechanism),
        ("settings", settings),
        ("outside the PLD", f"total variation {_number(report.overflow_delta)}"),
        ("assumed public", "; ".join(report.assumed_public) or "nothing"),
        ("not covered", "; ".join(report.not_covered)),
        ("tuning", report.tuning),
        ("randomness", report.randomness),
        ("arithmetic", report.arithmetic),
    ]
    if report.ledger_epsilon is not None:
        lines.append(("whole ledger", ledger(report)))
    used = ", ".join(f"{name} {version}" for name, version in report.versions)
    charges = f"{len(report.events)}, recomputable: report.recompute()"
    lines += [("charges", charges), ("versions", f"{used}; {report.created_at}")]
    return [*lines, ("words", WORDS)]


def ledger(report: Statement) -> str:
    """Return what was charged to the whole ledger, and what is left of its budget."""
    where = report.ledger_path or "in memory"
    spent = f"ε = {_number(report.ledger_epsilon)} at δ = {_number(report.ledger_delta, 3)}"
    conditions = report.ledger_conditions
    if report.ledger_budget is None:
        finite = (
            f", finite only PROVIDED THAT {'; and that '.join(conditions)}," if conditions else ""
        )
        # An object without an accountant keeps a ledger of its own.
        beside = "" if report.ledger_path else "; no accountant with a budget: other releases add"
        return f"{spent}{finite} for a list of charges fixed in advance ({where}{beside})"
    said = report.ledger_guarantee or f"budget of ε = {_number(report.ledger_budget)}"
    left = "not stated" if report.ledger_left is None else rounded_down(report.ledger_left)
    fails, holds = (" where that fails", " where it holds") if conditions else ("", "")
    # Whoever reads two figures expects them to add up to the budget.
    rule = "ε does not add or subtract, charges compose like noise"
    return f"{said}; {spent} charged{fails}, ε = {left} left{holds}: {rule} ({where})"


def text(report: Statement) -> str:
    """Return the statement and the facts as text of at most 100 columns."""
    indent = " " * _NAME
    lines = [
        fill(f"{name:<{_NAME}}{fact}", _WIDTH, subsequent_indent=indent)
        for name, fact in _facts(report)
    ]
    return "\n".join([fill(statement(report), _WIDTH), "", *lines])


def html(report: Statement) -> str:
    """Return the statement and the facts as an HTML fragment; all texts are escaped."""
    rows = "".join(
        f"<tr><th>{escape(name)}</th><td>{escape(fact)}</td></tr>" for name, fact in _facts(report)
    )
    return f"<div><p>{escape(statement(report))}</p><table>{rows}</table></div>"


def markdown(report: Statement) -> str:
    """Return the statement and the facts as Markdown."""

    def cell(fact: str) -> str:
        return escape(fact, quote=False).replace("|", "\\|").replace("\n", " ")

    rows = [f"| {cell(name)} | {cell(fact)} |" for name, fact in _facts(report)]
    head = ["| | |", "|---|---|"]
    return "\n".join([escape(statement(report), quote=False), "", *head, *rows])


def registry(report: Statement) -> dict[str, dict[str, object]]:
    """Return the fields of tiers 2 and 3 of a deployment registry entry."""
    return {
        "tier_2": {
            "dp_variant": report.variant,
            "privacy_parameters": {"epsilon": report.epsilon, "delta": report.delta},
            "privacy_unit": report.unit,
            "neighbouring_relation": report.relation_text,
            "mechanisms": report.mechanism,
            "released": list(report.released),
            "conditions": list(report.conditions),
        },
        "tier_3": {
            "privacy_unit_details": report.user_level,
            "sampling": report.sampler,
            "clip_norm": report.clip_norm,
            "noise_multiplier": report.noise_multiplier,
            "steps": report.steps,
            "composition": "privacy loss distribution, pessimistic; total variation added to delta",
            "events": [{"label": label, "event": event} for label, event in report.events],
            "unprotected_quantities": list(report.assumed_public),
            "preprocessing_and_hyperparameter_tuning": report.tuning,
            "floating_point_measures": report.arithmetic,
            "randomness": report.randomness,
            "software": dict(report.versions),
        },
    }
