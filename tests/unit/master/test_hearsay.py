"""When the job cache is asked for returns that the bus has told of: seldom, for many at once, and never without end."""

from __future__ import annotations

import pytest

from saltext.jobs.core.master.hearsay import AGAIN, DOUBTED, LONGEST_PAUSE, MOST, PAUSE, SPARING, STORED, Hearsay

NOW = 1_000_000.0


def look(hearsay, found=(), took=0.001):
    """Let time pass until a look-up is due, and make it; returns (its end, its minions, the minions given up)."""
    now = hearsay.next_due
    asked = hearsay.take(now)
    doubted = hearsay.looked(asked, [minion for minion in asked if minion in found], now + took, took)
    return now + took, asked, doubted


def test_a_return_is_looked_for_a_moment_after_it_was_heard_and_then_forgotten():
    hearsay = Hearsay()
    hearsay.heard("a", NOW)
    assert hearsay.next_due == NOW + STORED
    assert look(hearsay, found="a")[1:] == (("a",), [])
    assert hearsay.next_due is None
    assert hearsay.minions() == []


def test_returns_that_come_meanwhile_share_the_next_look_up():
    hearsay = Hearsay()
    hearsay.heard("a", NOW)
    ended, *_ = look(hearsay, found="a")
    for number in range(100):
        hearsay.heard(f"m{number}", ended + number / 10_000)
    assert hearsay.next_due == ended + max(PAUSE, STORED)
    assert hearsay.take(ended + 0.05) == tuple(f"m{number}" for number in range(100))


def test_a_return_that_was_only_just_heard_waits_for_the_look_up_after_this_one():
    hearsay = Hearsay()
    hearsay.heard("a", NOW)
    hearsay.heard("b", NOW + 0.02)
    assert look(hearsay, found="ab")[1] == ("a",)
    assert look(hearsay, found="ab")[1] == ("b",)


def test_while_a_look_up_is_under_way_there_is_no_other():
    hearsay = Hearsay()
    hearsay.heard("a", NOW)
    asked = hearsay.take(NOW + STORED)
    hearsay.heard("b", NOW + 1)
    hearsay.heard("a", NOW + 1)
    assert hearsay.next_due is None
    hearsay.looked(asked, asked, NOW + 2, 2.0)
    assert hearsay.take(hearsay.next_due) == ("b",)


@pytest.mark.parametrize(("took", "pause"), [(0.001, PAUSE), (0.1, 0.1 * SPARING), (60.0, LONGEST_PAUSE)])
def test_a_slow_job_cache_is_asked_less_often(took, pause):
    hearsay = Hearsay()
    hearsay.heard("a", NOW)
    ended, *_ = look(hearsay, found="a", took=took)
    hearsay.heard("b", ended - STORED)
    assert hearsay.next_due == pytest.approx(ended + pause)


def test_a_look_up_is_for_so_many_and_the_others_are_next():
    hearsay = Hearsay()
    names = [f"m{number}" for number in range(MOST + 50)]
    for name in names:
        hearsay.heard(name, NOW)
    assert look(hearsay, found=names)[1] == tuple(names[:MOST])
    assert look(hearsay, found=names)[1] == tuple(names[MOST:])
    assert hearsay.next_due is None


def test_a_return_that_the_job_cache_does_not_have_is_looked_for_a_few_times_and_then_doubted():
    hearsay = Hearsay()
    hearsay.heard("a", NOW)
    looks = [look(hearsay) for _ in range(1 + len(AGAIN))]
    assert [asked for _, asked, _ in looks] == [("a",)] * (1 + len(AGAIN))
    assert [doubted for *_, doubted in looks] == [[]] * len(AGAIN) + [["a"]]
    assert hearsay.next_due is None
    assert looks[-1][0] - NOW == pytest.approx(STORED + sum(AGAIN), abs=0.1)


def test_a_return_that_is_stored_late_is_found():
    hearsay = Hearsay()
    hearsay.heard("a", NOW)
    look(hearsay)
    look(hearsay)
    assert look(hearsay, found="a")[2] == []
    assert hearsay.next_due is None


def test_while_forged_events_keep_coming_their_minion_is_looked_for_every_five_seconds():
    hearsay, now, looks = Hearsay(), NOW, 0
    while now < NOW + 60:
        hearsay.heard("a", now)
        if hearsay.next_due is not None and hearsay.next_due <= now:
            hearsay.looked(hearsay.take(now), (), now, 0.001)
            looks += 1
        now += 0.01
    assert looks <= 1 + len(AGAIN) + 60 / DOUBTED


def test_a_genuine_return_after_forged_ones_waits_for_five_seconds_at_most():
    hearsay = Hearsay()
    hearsay.heard("a", NOW)
    for _ in range(1 + len(AGAIN)):
        ended, *_ = look(hearsay)
    hearsay.heard("a", ended)
    assert hearsay.next_due == ended + DOUBTED
    assert look(hearsay, found="a")[1:] == (("a",), [])
    hearsay.heard("a", ended + 10)
    assert hearsay.next_due == ended + 10 + STORED, "what was found once is doubted no more"


def test_forged_events_for_one_minion_delay_no_other():
    hearsay = Hearsay()
    hearsay.heard("forged", NOW)
    for _ in range(1 + len(AGAIN)):
        ended, *_ = look(hearsay)
    for number in range(100):
        hearsay.heard("forged", ended + number / 1000)
    hearsay.heard("a", ended + 0.1)
    assert hearsay.next_due == ended + 0.1 + STORED


def test_a_job_cache_that_fails_is_asked_again_later_for_the_same_minions():
    hearsay = Hearsay()
    hearsay.heard("a", NOW)
    hearsay.failed(hearsay.take(NOW + STORED), NOW + 6)
    hearsay.heard("b", NOW + 2)
    assert hearsay.next_due == NOW + 6
    assert sorted(hearsay.take(NOW + 6)) == ["a", "b"]
