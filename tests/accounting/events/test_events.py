"""Events survive a file exactly, and nothing else comes out of one."""

import json
import math

import attr
import dp_accounting
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from numpyro_dp.accounting import Accountant, events
from numpyro_dp.accounting.bounds import proved
from numpyro_dp.accounting.events import (
    ComposedDpEvent,
    GaussianDpEvent,
    NonPrivateDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
    TotalVariation,
    codec,
    describe,
    from_json,
    to_json,
)
from numpyro_dp.accounting.events.fields import event as registered, positive

PUBLIC = [getattr(events, name) for name in events.__all__]
CLASSES = {cls for cls in PUBLIC if isinstance(cls, type) and cls is not events.DpEvent}

FLOATS = st.floats(0, 1, exclude_min=True)
LEAVES = st.one_of(
    st.builds(GaussianDpEvent, st.floats(0, 1e300)),
    st.builds(TotalVariation, FLOATS),
    st.just(NoOpDpEvent()),
    st.just(NonPrivateDpEvent()),
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(PoissonSampledDpEvent, FLOATS, inner),
        st.builds(SelfComposedDpEvent, inner, st.integers(0, 10**9)),
        st.builds(ComposedDpEvent, st.lists(inner, max_size=3)),
    ),
    max_leaves=6,
)


@settings(max_examples=100, derandomize=True, deadline=None)
@given(event=TREES)
def test_round_trip_is_exact(event):
    assert from_json(to_json(event)) == event
    assert describe(event)


def test_numpy_numbers_are_stored_as_plain_ones():
    event = SelfComposedDpEvent(GaussianDpEvent(np.float64(1.1)), np.int64(3))
    back = from_json(to_json(event))
    assert type(back.count) is int
    assert type(back.event.noise_multiplier) is float
    assert back == SelfComposedDpEvent(GaussianDpEvent(1.1), 3)


@pytest.mark.parametrize(
    "event",
    [
        dp_accounting.LaplaceDpEvent(1.0),
        ComposedDpEvent([dp_accounting.LaplaceDpEvent(1.0)]),
        GaussianDpEvent(math.inf),
        GaussianDpEvent(math.nan),
        GaussianDpEvent(True),
        GaussianDpEvent(None),
    ],
    ids=str,
)
def test_what_cannot_be_stored_is_refused(event):
    with pytest.raises(ValueError, match=r"cannot be stored|must hold"):
        to_json(event)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "{}",
        '{"class": 1}',
        '{"class": ["GaussianDpEvent"]}',
        '{"class": "os.system", "command": "true"}',
        '{"class": "LaplaceDpEvent", "noise_multiplier": 1.0}',
        '{"class": "GaussianDpEvent"}',
        '{"class": "GaussianDpEvent", "noise_multiplier": NaN}',
        '{"class": "GaussianDpEvent", "noise_multiplier": 1e999}',
        '{"class": "GaussianDpEvent", "noise_multiplier": true}',
        '{"class": "GaussianDpEvent", "noise_multiplier": 1.0, "more": 2}',
        '{"class": "TotalVariation", "distance": 2.0}',
        "[" * 100_000,
    ],
    ids=lambda text: text[:50],
)
def test_foreign_text_is_refused(text):
    with pytest.raises(ValueError, match=r"."):
        from_json(text)


def test_same_name_is_not_the_same_class():
    @attr.s(frozen=True, auto_attribs=True)
    class GaussianDpEvent(events.DpEvent):
        noise_multiplier: float

    with pytest.raises(ValueError, match="cannot be stored"):
        to_json(GaussianDpEvent(1.0))


@pytest.mark.parametrize("distance", [-1e-9, 1.1, math.nan, math.inf, "0.1"])
def test_total_variation_is_checked(distance):
    with pytest.raises(ValueError, match="distance"):
        TotalVariation(distance)


def test_dp_accounting_serialises_our_event():
    event = TotalVariation(0.25)
    assert events.DpEvent.from_named_tuple(event.to_named_tuple()) == event


def test_json_is_one_object_per_event():
    tree = json.loads(to_json(SelfComposedDpEvent(TotalVariation(0.5), 2)))
    assert tree == {
        "class": "SelfComposedDpEvent",
        "event": {"class": "TotalVariation", "distance": 0.5},
        "count": 2,
    }


def test_every_public_event_is_stored_described_and_bounded_and_no_other_is():
    assert set(proved._PROOFS) == CLASSES
    assert {cls.__name__: cls for cls in CLASSES}.items() <= codec._KNOWN.items()
    assert all(codec.phrase_of(cls) for cls in CLASSES)


def test_an_event_without_a_bound_is_refused_before_a_charge(monkeypatch):
    monkeypatch.setattr(codec, "_KNOWN", dict(codec._KNOWN))
    monkeypatch.setattr(codec, "_PHRASES", dict(codec._PHRASES))

    @registered
    class Hoped(events.DpEvent):
        scale: float = positive()

        def phrase(self):
            return f"hoped for, scale {self.scale}"

    assert from_json(to_json(Hoped(2))) == Hoped(2.0)
    assert describe(Hoped(2)) == "hoped for, scale 2.0"
    accountant = Accountant()
    for event in (Hoped(2), ComposedDpEvent([GaussianDpEvent(9.0), Hoped(2)])):
        with pytest.raises(ValueError, match="no privacy statement for events of class Hoped"):
            accountant.charge(event, label="hope")
    assert not accountant.entries


def test_an_event_must_say_what_happened():
    with pytest.raises(AttributeError, match="phrase"):

        @registered
        class Silent(events.DpEvent):
            scale: float = positive()


def test_a_release_without_privacy_is_named_however_many_parts_a_charge_has():
    parts = [dp_accounting.LaplaceDpEvent(k + 2.0) for k in range(9)]
    said = describe(ComposedDpEvent([*parts, NonPrivateDpEvent(), GaussianDpEvent(2.0)]))
    assert "a release without privacy" in said
    assert "more" in said
