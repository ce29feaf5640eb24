"""When the job cache is asked for returns that the bus has told of: seldom, for many at once, and never without end."""

from __future__ import annotations

import pytest

from saltext.jobs.core.master.hearsay import AFTER_FAILURE, Search


class Loop:
    """Timers of a loop, by the steady clock."""

    def __init__(self, steady):
        self._steady, self.timers = steady, []

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
            self._steady.seconds = max(self._steady.seconds, due[0][0])
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


def test_a_return_that_is_stored_late_is_found(cache, loop):
    cache.search.heard("a")
    loop.run_for(1)
    cache.returns = {"a": 0}
    loop.run_for(60)
    assert cache.found == {"a": 0} and cache.doubted == []


def test_however_many_events_are_forged_their_minion_is_looked_for_seldom_and_no_other_waits(cache, loop):
    for _ in range(6000):
        cache.search.heard("forged")
        loop.run_for(0.01)
    assert len(cache.asked) < 20
    cache.returns = {"a": 0}
    cache.search.heard("a")
    loop.run_for(0.5)
    assert cache.found == {"a": 0}


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
