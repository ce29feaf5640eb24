"""A beat shows lost events."""

from __future__ import annotations

from saltext.jobs.core.master.bus import Beat


def test_beats_that_come_back_in_turn_are_no_sign_of_a_loss():
    beat = Beat()
    assert [beat.hear(beat.make()["n"]) for _ in range(3)] == [0, 0, 0]


def test_beats_that_do_not_come_back_are_counted():
    beat = Beat()
    beat.hear(beat.make()["n"])
    beat.make()
    beat.make()
    assert beat.unheard == 2
    assert beat.hear(beat.make()["n"]) == 2
    assert beat.unheard == 0


def test_a_new_subscription_shows_as_a_gap_even_if_no_beat_was_lost():
    beat = Beat()
    beat.hear(beat.make()["n"])
    beat.skip()
    assert beat.hear(beat.make()["n"]) == 1


def test_a_repeated_beat_is_no_sign_of_a_loss():
    beat = Beat()
    first = beat.make()
    beat.hear(first["n"])
    beat.hear(beat.make()["n"])
    assert beat.hear(first["n"]) == 0
    assert beat.hear(beat.make()["n"]) == 0
