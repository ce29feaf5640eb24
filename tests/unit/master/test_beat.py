"""A beat shows lost events, and only the process itself can make one."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from saltext.jobs.core.master.bus import Beat


def test_beats_that_come_back_in_turn_are_no_sign_of_a_loss():
    beat = Beat()
    assert [beat.hear(beat.make()) for _ in range(3)] == [0, 0, 0]


def test_beats_that_do_not_come_back_are_counted():
    beat = Beat()
    beat.hear(beat.make())
    beat.make()
    beat.make()
    assert beat.unheard == 2
    assert beat.hear(beat.make()) == 2
    assert beat.unheard == 0


def test_a_new_subscription_shows_as_a_gap_even_if_no_beat_was_lost():
    beat = Beat()
    beat.hear(beat.make())
    beat.skip()
    assert beat.hear(beat.make()) == 1


@pytest.mark.parametrize(
    "forged",
    [
        {"n": 10**30},
        {"n": 10**30, "signature": "0" * 64},
        {"n": 2, "signature": ""},
        {"n": 2, "signature": None},
        {"n": 2, "signature": "é"},
        {"n": 2, "signature": "\udc80"},
        {"n": "2", "signature": "x"},
        {"n": 2.0, "signature": "x"},
        {"n": True, "signature": "x"},
        {},
        "text",
        None,
        ["n"],
    ],
)
def test_a_forged_beat_changes_nothing(forged):
    beat = Beat()
    beat.hear(beat.make())
    assert beat.hear(forged) is None
    assert beat.heard == 1
    beat.make()
    assert beat.hear(beat.make()) == 1, "a gap is noticed as before"


def test_a_repeated_or_changed_beat_is_ignored():
    beat = Beat()
    first = beat.make()
    beat.hear(first)
    second = beat.make()
    assert beat.hear(first) is None
    beat.make()
    assert beat.hear({**second, "n": 3}) is None
    assert beat.hear(second) == 0


def test_the_beat_of_another_process_is_ignored():
    ours, other = Beat(), Beat()
    ours.make()
    assert ours.hear(other.make()) is None


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=5,
)


@given(VALUES | st.fixed_dictionaries({"n": VALUES, "signature": VALUES}))
def test_whatever_a_beat_carries_it_neither_fails_nor_is_believed(payload):
    beat = Beat()
    beat.hear(beat.make())
    beat.make()
    assert beat.hear(payload) is None
    assert beat.heard == 1
