"""The privacy report: everything a reader needs to judge, and to recompute, one ε."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from datetime import UTC, datetime
from typing import Any

from numpyro_dp.accounting.accountant import Accountant
from numpyro_dp.accounting.curve import privacy_curve
from numpyro_dp.accounting.events import ComposedDpEvent, DpEvent, from_json, to_json
from numpyro_dp.accounting.relation import check_relation, relation_text
from numpyro_dp.accounting.report import render, short
from numpyro_dp.accounting.report.facts import RunFacts, Statement
from numpyro_dp.accounting.report.risk import FALSE_POSITIVE_RATE, attack_risk
from numpyro_dp.accounting.spending import guarantee
from numpyro_dp.accounting.versions import versions

_SCHEMA = "numpyro_dp.PrivacyReport/1"
_CURVE_DELTAS = (1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9)
# What a report repeats of a run's facts as it stands.
_TOLD = ("unit", "num_records", "mechanism", "sampler", "sampling_rate", "clip_norm")
_TOLD += ("noise_multiplier", "released", "arithmetic", "notes")
_NOT_COVERED = (
    "side channels (run time, memory, power) and whoever can read the machine's memory",
    "anything computed from the records by other means, diagnostics and plots included",
)


@dataclass(frozen=True, kw_only=True)
class PrivacyReport(Statement):
    """The privacy statement of one result.

    Made by ``build``. ``str``, and so ``print``, is one screen with the notes first; :meth:`full`
    is every line, :meth:`to_dict` every field. ``epsilon`` never stands alone: unit, relation, δ
    and conditions are beside it in every form.

    - **epsilon**, **delta**: of this result's charges; ε is an upper bound.
    - **unit**, **relation**, **conditions**: what is protected, which data sets are compared, and
      what the guarantee depends on: one sentence a condition, none where it depends on nothing.
    - **curve**: pairs (δ, ε), δ from 1e-4 to 1e-9.
    - **notes**: what speaks against the draws, the most harmful first.
    - **released**, **assumed_public**, **given**, **not_covered**: sentences; ``given`` are of what
      the caller supplied that no charge covers.
    - **advantage**, **tpr_at_fpr**, **attacker_certainty**: bounds, in [0, 1], on any attack.
    - **steps**, **warmup_steps**, **num_chains**: private steps of all chains, of warm-up, chains.
    - **ledger_epsilon**, **ledger_budget**, **ledger_left**: of the whole ledger, ``None`` where
      there is none; **ledger_conditions**: what the guarantee of its budget depends on.
    - **events**: label and JSON form of each charge, from which :meth:`recompute` derives ε.

    **Privacy.** Computed from charged events and public facts of the run: free to publish.

    **References.** For the bounds on attacks Wasserman and Zhou, *A statistical framework for
    differential privacy* (2010), Theorem 2.4, and Kairouz, Oh and Viswanath, *The composition
    theorem for differential privacy* (2015); for ε and ``curve`` *Budgets, ledgers and reports*
    (docs/reference/accounting.md).

    **Example**: see :class:`DPSGLD`; every result has one as ``privacy``.
    """

    @classmethod
    def build(
        cls,
        facts: RunFacts,
        *,
        entries: Sequence[tuple[str, DpEvent]],
        relation: str,
        delta: float,
        steps: int,
        randomness: str,
        warmup_steps: int = 0,
        num_chains: int = 1,
        overflow_delta: float = 0.0,
        conditions: Sequence[str] = (),
        given: Sequence[str] = (),
        earlier_runs: int | None = None,
        accountant: Accountant | None = None,
    ) -> "PrivacyReport":
        """Return the report of the charges ``entries``.

        :param facts: what the run says about itself.
        :param entries: label and event of each charge of this result, in order.
        :param relation: neighbouring relation of the guarantee.
        :param delta: δ at which ε is stated.
        :param steps: private steps, all chains and warm-up included.
        :param randomness: source of the noise.
        :param warmup_steps: those of the steps that were warm-up.
        :param num_chains: number of chains.
        :param overflow_delta: total variation outside the privacy loss distribution.
        :param conditions: what the guarantee depends on; empty when nothing.
        :param given: what the caller supplied that this ε does not cover.
        :param earlier_runs: entries of the ledger before this result's; counted when None.
        :param accountant: whose ledger the charges went to.
        :returns: The report; every ε in it is an upper bound.
        :raises ValueError: when relation, δ or an event is invalid.
        """
        checked = check_relation(relation)
        event = ComposedDpEvent([charged for _, charged in entries])
        curve = privacy_curve(event, checked)
        risk = attack_risk(curve)
        before, ledger = _ledger_facts(accountant, len(entries), delta)
        earlier = before if earlier_runs is None else earlier_runs
        return cls(
            epsilon=curve.epsilon(delta),
            delta=delta,
            curve=tuple((at, curve.epsilon(at)) for at in _CURVE_DELTAS),
            variant=_variant(curve.private, conditions),
            relation=checked,
            relation_text=relation_text(checked),
            user_level=render.user_level(facts.unit),
            noise_std=_noise_std(facts.clip_norm, facts.noise_multiplier),
            steps=steps,
            warmup_steps=warmup_steps,
            num_chains=num_chains,
            overflow_delta=overflow_delta,
            assumed_public=(*facts.assumed_public, *given),
            given=tuple(given),
            not_covered=_NOT_COVERED,
            conditions=tuple(conditions),
            tuning=render.tuning(earlier),
            randomness=randomness,
            advantage=risk.advantage,
            tpr_at_fpr=risk.true_positive_rate,
            fpr=FALSE_POSITIVE_RATE,
            attacker_certainty=risk.certainty,
            earlier_runs=earlier,
            events=tuple((label, to_json(charged)) for label, charged in entries),
            versions=tuple(versions().items()),
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
            **{name: getattr(facts, name) for name in _TOLD},
            **ledger,
        )

    def recompute(self) -> float:
        """Return ε at ``delta``, computed afresh from the stored events alone.

        :raises ValueError: when a stored event cannot be read or has no privacy statement.
        """
        event = ComposedDpEvent([from_json(text) for _, text in self.events])
        return privacy_curve(event, check_relation(self.relation)).epsilon(self.delta)

    def to_dict(self) -> dict[str, object]:
        """Return all fields under their names, with the name of the format."""
        return {"schema": _SCHEMA, **asdict(self)}

    def to_json(self) -> str:
        """Return ``to_dict`` as JSON; infinite numbers are written as the text ``"inf"``."""
        return json.dumps(_finite(self.to_dict()), ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_dict(cls, tree: Mapping[str, object]) -> "PrivacyReport":
        """Return the report that ``to_dict`` or ``to_json`` wrote.

        :raises ValueError: when fields are missing or unknown.
        """
        # Earlier versions did not write every field.
        added = {field.name: field.default for field in fields(cls) if field.default is not MISSING}
        given = added | {key: value for key, value in tree.items() if key != "schema"}
        expected = {field.name for field in fields(cls)}
        if tree.get("schema") != _SCHEMA or set(given) != expected:
            raise ValueError(
                f"not a privacy report of format {_SCHEMA}: fields missing "
                f"{sorted(expected - set(given))}, unknown {sorted(set(given) - expected)}"
            )
        return cls(**{key: _restored(value) for key, value in given.items()})

    def to_markdown(self) -> str:
        """Return the statement and a table of the facts as Markdown."""
        return render.markdown(self)

    def to_registry(self) -> dict[str, dict[str, object]]:
        """Return tiers 2 and 3 of an entry for the OpenDP/NIST registry of deployments."""
        return render.registry(self)

    def full(self) -> str:
        """Return the statement and every fact, as text of at most 100 columns."""
        return render.text(self)

    def __str__(self) -> str:
        return short.text(self)

    def _repr_html_(self) -> str:
        return short.html(self)


def _noise_std(clip_norm: float | None, noise_multiplier: float | str | None) -> float | None:
    if clip_norm is None or noise_multiplier is None or isinstance(noise_multiplier, str):
        return None
    return float(clip_norm * noise_multiplier) if math.isfinite(clip_norm) else None


def _variant(private: bool, conditions: Sequence[str]) -> str:
    if not private:
        return "none: not differentially private"
    return "approximate differential privacy" + (", conditional" if conditions else "")


def _ledger_facts(
    accountant: Accountant | None, own: int, delta: float
) -> tuple[int | None, dict[str, Any]]:
    if accountant is None:
        names = ("epsilon", "delta", "budget", "left", "path", "guarantee")
        return None, {"ledger_conditions": (), **{f"ledger_{name}": None for name in names}}
    budget = accountant.budget
    # A ledger without a budget has no δ of its own to set beside the run's.
    stated = delta if budget is None else accountant.stated_delta
    found = (entry.condition for entry in accountant.entries if entry.condition is not None)
    conditions = tuple(dict.fromkeys(found))
    return max(accountant.releases - own, 0), {
        "ledger_epsilon": accountant.epsilon(stated),
        "ledger_delta": stated,
        "ledger_budget": None if budget is None else budget.epsilon,
        "ledger_left": accountant.remaining(),
        "ledger_path": None if accountant.path is None else str(accountant.path),
        "ledger_guarantee": None if budget is None else guarantee(budget, conditions),
        "ledger_conditions": conditions,
    }


def _finite(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _restored(value: object) -> Any:
    if isinstance(value, list | tuple):
        return tuple(_restored(item) for item in value)
    return math.inf if value == "inf" else value
