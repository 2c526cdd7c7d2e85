"""What ``print`` shows of a report: one screen, notes first, ε with all that it hangs on."""

from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st

from numpyro_dp.accounting import Accountant, Budget, PrivacyReport
from numpyro_dp.accounting.events import NonPrivateDpEvent
from numpyro_dp.accounting.report import render, short
from tests.accounting.report.test_report import EVENT, build

WORDS = st.one_of(st.text(max_size=40), st.lists(st.text(max_size=20), max_size=120).map(" ".join))
PLAIN = build(accountant=Accountant(Budget(9.0, 1e-5)))
TWICE = build(entries=[("one", EVENT), ("two", EVENT)])
OPEN = build(entries=[("test", NonPrivateDpEvent())])


def packed(text):
    """Without white space, which is where lines may be broken."""
    return "".join(text.split())


def printed(text):
    return packed(short.printable(" ".join(text.split())))


@settings(deadline=None, max_examples=150)
@given(
    report=st.sampled_from([PLAIN, TWICE, OPEN]),
    notes=st.lists(WORDS, max_size=30),
    conditions=st.lists(WORDS, max_size=4),
    outside=st.lists(WORDS, max_size=2),
    unit=WORDS,
    other=WORDS,
)
def test_one_screen_that_never_cuts_what_epsilon_hangs_on(
    report, notes, conditions, outside, unit, other
):
    report = replace(
        report,
        notes=tuple(notes),
        conditions=tuple(conditions),
        given=tuple(outside),
        unit=unit,
        mechanism=other,
        released=(other,) * 3,
        assumed_public=(other,) * 3,
        ledger_path=other,
    )
    lines = str(report).splitlines()
    assert max(map(len, lines)) <= short.WIDTH
    core = [*short._guarantee(report), short._POINTER]
    needed = sum(len(short._row(*fact)[1]) for fact in core)
    assert len(lines) <= max(short.LINES, needed + short._NOTES)
    whole = packed(str(report))
    assert packed(render.pair(report)) in whole
    assert packed(report.relation_text) in whole
    assert printed(unit) in whole
    for said in (*conditions, *outside):
        assert printed(said) in whole
    assert ("notinthisε" in whole) >= bool(outside)
    assert ("PROVIDEDTHAT" in whole) == bool(conditions)
    assert lines[0].startswith("note" if notes else "privacy")
    assert lines[-1].startswith("more           .full()")
    # A note is whole, or says that it is not; those that are left out are counted.
    head = packed("\n".join(lines[: next(k for k, x in enumerate(lines) if x[:7] == "privacy")]))
    broken = [note for note in notes if f"note{printed(note)}" not in head]
    assert not broken or "…" in head


def test_what_does_not_fit_is_counted():
    report = build(notes=("the worst of all", *(f"note number {k}" for k in range(30))))
    lines = str(report).splitlines()
    assert lines[0].split() == ["note", "the", "worst", "of", "all"]
    assert len(lines) == short.LINES
    shown = sum(line.startswith("note") for line in lines)
    assert f"… {31 - shown} more notes: .full()" in str(report)
    assert all(note in report.full() for note in report.notes)


def test_notes_alone_take_as_many_lines_as_they_are_given():
    notes = ("the worst of all", "much " * 100, *(f"note number {k}" for k in range(30)))
    lines = short.notes_alone(notes, 8, "print(x)").splitlines()
    assert len(lines) == 8
    assert max(map(len, lines)) <= short.WIDTH
    assert lines[0] == "note  the worst of all"
    assert lines[2].endswith("much …")
    shown = sum(line.startswith("note") for line in lines)
    assert lines[-1] == f"      … {32 - shown} more notes: print(x)"
    assert short.notes_alone(notes[:1], 8, "print(x)") == "note  the worst of all"


def test_a_long_note_does_not_hide_the_next():
    report = build(notes=("much " * 400, "the second"))
    assert "much …\n" in str(report)
    assert "the second" in str(report)
    assert len(str(report).splitlines()) <= short.LINES


FOUND = "with care: the intervals of w are off" + ", as 4.5 of mcmc.released say" * 60
REMEDY = "Give priors on the scale of the answer (StudentT(4, …) for Normal), or more records."


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5])
def test_what_to_do_is_shown_however_long_the_note(number):
    """It is a note's last sentence, and begins a line of its own where what comes before is cut."""
    notes = [f"{FOUND} {k}. Of why there is much to say. {REMEDY}" for k in range(number)]
    report = build(notes=tuple(notes))
    screens = (str(report), short.notes_alone(notes, 12, "print(x)"))
    for lines in (screen.splitlines() for screen in screens):
        begun = [k for k, line in enumerate(lines) if line.startswith("note")]
        advice = [k for k, line in enumerate(lines) if line.split() == REMEDY.split()]
        assert len(begun) == len(advice) == number
        assert all(low < high for low, high in zip(begun, advice, strict=True))
        assert all(lines[k - 1].endswith(" …") for k in advice)
    assert screens[1].splitlines()[-1] == "      … in full: print(x)"


SENTENCES = (
    "with care: the rounds disagree (2.0 times what their noise explains, as of tails): the "
    "intervals were widened by that and are not calibrated; of right models some say so too",
    "The draws are of another posterior than that of these records (as far as a release tells)",
    "Take the logarithm of what is never negative (LogNormal for Gamma, which is clipped), "
    "StudentT(4, 0, 1) for Normal, NegativeBinomial2 for Poisson; or more records",
)


@pytest.mark.parametrize("most", range(2, 6))
def test_what_is_left_of_a_note_are_whole_sentences_or_clauses(most):
    """They ended in the middle of one, as at *an interval's prior about where …*."""
    note = ". ".join(SENTENCES)
    _, whole = short._row("note", note)
    _, lines = short._cut(("note", whole), most)
    assert len(lines) <= most < len(whole)
    pieces = [each.strip() for each in " ".join(lines).split("…") if each.strip()]
    assert len(pieces) == 2
    for piece in pieces:
        after = note[note.index(piece) + len(piece) :]
        # A mark, or a bracket; and nothing ends within brackets.
        assert piece[-1] == "." or not after or after[0] in ".;:," or after.startswith(" (")
        assert piece.count("(") == piece.count(")")
    # Whole sentences come before clauses.
    if len(pieces[0]) > len(SENTENCES[0]):
        assert pieces[0] in (f"{SENTENCES[0]}.", f"{SENTENCES[0]}. {SENTENCES[1]}.")
    assert pieces[1].startswith(SENTENCES[2][:40])


def test_the_most_harmful_note_has_the_lines_that_are_left():
    whole = short.notes_alone([f"{FOUND}. {REMEDY}"] * 3, 12, "print(x)").splitlines()
    first = [k for k, line in enumerate(whole) if line.startswith("note")]
    # Eleven lines for three.
    assert first == [0, 5, 8]


def test_several_charges_are_a_list_and_the_screen_says_so():
    assert "2 charges as a list that was fixed in advance" in " ".join(str(TWICE).split())
    assert "as a list" not in str(PLAIN)


def test_nobody_steers_the_screen():
    report = build(notes=("\x1b[2J\x1b[H gone",), unit="a\nprivacy        ε = 0 at δ = 0")
    assert "\x1b" not in str(report)
    assert sum(line.startswith("privacy") for line in str(report).splitlines()) == 1


def test_what_the_caller_supplied_is_outside_however_much_is_public():
    report = build(given=("the positions given",), notes=("much " * 90,) * 9)
    assert "not in this ε  the positions given" in str(report)
    assert "the positions given" in " ".join(report.full().split())
    assert report.given == PrivacyReport.from_dict(report.to_dict()).given


def test_the_notebook_form_folds_the_rest_away():
    html = build(notes=("a note",), conditions=("the key stays secret",))._repr_html_()
    screen, rest = html.split("<details>")
    assert screen.index("a note") < screen.index("ε = ") < screen.index("the key stays secret")
    for part in ("1e-05", "zero-out", "plate"):
        assert part in screen
    assert "versions" not in screen
    assert "versions" in rest


@pytest.mark.parametrize("report", [PLAIN, TWICE, OPEN])
def test_everything_is_in_the_long_form(report):
    whole = " ".join(report.full().split())
    for part in (report.mechanism, report.unit, report.relation_text, report.tuning, "versions"):
        assert part in whole
