"""Neighbouring relations: which pairs of data sets a guarantee compares."""

from typing import Literal, get_args

from numpyro_dp._validate import shown

Relation = Literal["zero_out", "replace_one", "add_remove"]
RELATIONS: tuple[Relation, ...] = get_args(Relation)

_TEXT: dict[Relation, str] = {
    "zero_out": (
        "zero-out: two data sets are neighbours when one record of the first is replaced by a "
        "null record that contributes nothing; the number of records is public"
    ),
    "replace_one": (
        "replace-one: two data sets are neighbours when one record has another value; the number "
        "of records is public"
    ),
    "add_remove": (
        "add/remove: two data sets are neighbours when one has one record more; the number of "
        "records is private"
    ),
}


def check_relation(relation: str) -> Relation:
    """Return ``relation`` when it names a supported neighbouring relation.

    :raises ValueError: for any other text.
    """
    for known in RELATIONS:
        if relation == known:
            return known
    raise ValueError(f"relation must be one of {', '.join(RELATIONS)}, got {shown(relation)}")


def relation_text(relation: Relation) -> str:
    """Return the sentence that says which data sets ``relation`` calls neighbours."""
    return _TEXT[relation]


def sensitivity(relation: Relation) -> float:
    """Return the sensitivity of a clipped sum in clip norms (docs/reference/events.md).

    An event holds the noise multiplier for one clip norm; only here does the relation enter, so
    that nobody doubles it a second time.
    """
    return 2.0 if relation == "replace_one" else 1.0
