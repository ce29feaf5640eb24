"""When the job cache is asked for returns that the bus has told of: seldom, for many at once, and never without end."""

from __future__ import annotations

import pytest

from saltext.jobs.core.master.hearsay import (
    AFTER_FAILURE,
    AGAIN,
    DOUBTED,
    LONGEST_PAUSE,
    MOST,
    PAUSE,
    SPARING,
    STORED,
    Hearsay,
    Search,
)

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


def test_a_look_up_takes_a_limited_number_of_minions_and_the_next_one_the_others():
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


# -- the look-ups themselves -------------------------------------------------------------------------------------------


class Loop:
    """A loop that wakes ``early`` seconds before the time that was asked for, once."""

    def __init__(self, steady, early=0.0):
        self._steady, self._early, self.timers = steady, early, []

    def call_later(self, delay, callback):
        self.timers.append((self._steady() + delay, callback))
        return self.timers[-1]

    def remove_timeout(self, handle):
        self.timers.remove(handle)

    def spawn_callback(self, function):
        with pytest.raises(StopIteration):
            function().send(None)

    def run_for(self, seconds):
        until = self._steady.seconds + seconds
        while due := sorted((timer for timer in self.timers if timer[0] <= until), key=lambda timer: timer[0])[:1]:
            self.timers.remove(due[0])
            self._steady.seconds, self._early = max(self._steady.seconds, due[0][0] - self._early), 0.0
            due[0][1]()
        self._steady.seconds = until


class Cache:
    """A job cache, what a search in it found, and what was said of the search."""

    def __init__(self, loop, steady):
        self.returns, self.unwanted, self.is_away = {}, set(), False
        self.asked, self.found, self.failures, self.doubted = [], {}, 0, []
        self.search = Search(
            loop,
            steady,
            lambda minion: minion not in self.unwanted,
            self.read,
            self.found.update,
            self.count_failure,
            self.doubted.extend,
        )
        self._steady = steady

    async def read(self, minions):
        self.asked.append((self._steady(), *minions))
        if self.is_away:
            raise OSError("it is away")
        return {minion: self.returns[minion] for minion in minions if minion in self.returns}

    def count_failure(self, _):
        self.failures += 1


@pytest.fixture
def loop(steady):
    return Loop(steady)


@pytest.fixture
def cache(loop, steady):
    return Cache(loop, steady)


def test_an_announced_return_is_looked_for_and_reported(cache, loop):
    cache.returns = {"a": 0, "b": 1}
    for minion in "ab":
        cache.search.heard(minion)
    loop.run_for(10)
    assert cache.found == {"a": 0, "b": 1} and len(cache.asked) == 1
    assert cache.search.minions() == [] and loop.timers == []


def test_a_loop_that_wakes_a_moment_early_looks_no_earlier(steady):
    loop = Loop(steady, early=0.01)
    cache = Cache(loop, steady)
    cache.returns, began = {"a": 0}, steady()
    cache.search.heard("a")
    loop.run_for(STORED)
    assert cache.asked == [(began + STORED, "a")] and cache.found == {"a": 0}


def test_after_a_failure_the_same_minions_are_looked_for_again(cache, loop, steady):
    cache.returns, cache.is_away, began = {"a": 0}, True, steady()
    cache.search.heard("a")
    loop.run_for(1)
    cache.is_away = False
    loop.run_for(AFTER_FAILURE)
    assert [minions for _, *minions in cache.asked] == [["a"], ["a"]] and cache.failures == 1
    assert cache.asked[1][0] >= began + AFTER_FAILURE and cache.found == {"a": 0}


def test_a_minion_whose_return_is_not_wanted_any_more_is_not_looked_for(cache, loop):
    for minion in "ab":
        cache.search.heard(minion)
    cache.unwanted.add("a")
    loop.run_for(60)
    assert {name for _, *minions in cache.asked for name in minions} == {"b"} and cache.doubted == ["b"]


def test_a_closed_search_does_not_look_any_more(cache, loop):
    cache.search.heard("a")
    cache.search.close()
    cache.search.heard("b")
    loop.run_for(60)
    assert cache.asked == [] and loop.timers == []
