"""How the one refused record among a thousand is found, and told apart from a returner that is down."""

from __future__ import annotations

import pytest

from saltext.jobs.core.recorder.pipeline import STOP_AFTER, Item, Pipeline, attempts_of

FAULT, UNCLEAR = ValueError("bad text"), ConnectionError("something")


class Server:
    """Takes all records of a call or none."""

    def __init__(self, bad=(), failure=FAULT, dies_after=None):
        self.bad, self.failure, self.dies_after = set(bad), failure, dies_after
        self.calls, self.taken = [], []

    def take(self, items):
        numbers = [item.key for item in items]
        self.calls.append(len(numbers))
        if self.dies_after is not None and len(self.calls) > self.dies_after:
            raise UNCLEAR
        if self.bad & set(numbers):
            raise self.failure
        self.taken += numbers
        return {}


def deliver(server, count=1000):
    return list(attempts_of(list(map(Item, range(count))), server.take))


@pytest.mark.parametrize("failure", [FAULT, UNCLEAR])
@pytest.mark.parametrize("bad", [{0}, {999}, {500}, {3, 4, 700}])
def test_bad_records_are_found_and_all_others_are_taken(bad, failure):
    server = Server(bad, failure)
    attempts = deliver(server)
    assert {item.key for item, failure in attempts if failure} == bad
    assert sorted(server.taken) == sorted(set(range(1000)) - bad)
    assert len(attempts) == 1000
    assert len(server.calls) <= 40 * len(bad)


def test_a_flood_of_bad_records_takes_no_more_than_two_calls_for_each():
    server = Server(range(0, 1000, 2))
    deliver(server)
    assert len(server.taken) == 500
    assert len(server.calls) <= 2000


def test_a_returner_that_is_down_is_asked_a_few_times_only():
    server = Server(dies_after=0)
    attempts = deliver(server)
    assert len(attempts) == STOP_AFTER
    assert len(server.calls) == STOP_AFTER + 1


def test_a_bad_record_that_the_returner_names_costs_no_further_call():
    calls = []

    def take(items):
        calls.append(len(items))
        return {7: "bad text"}

    attempts = list(attempts_of(list(map(Item, range(20))), take))
    assert [item.key for item, failure in attempts if failure] == [7]
    assert calls == [20]


@pytest.mark.parametrize("failure", [FAULT, UNCLEAR])
def test_a_bad_record_is_set_aside_in_the_end_and_its_returner_does_not_count_as_down(failure):
    server, pipeline, now, refused = Server({5}, failure), Pipeline(100, tries=3), 0.0, []
    for round_ in range(10):
        for number in range(round_ * 50, round_ * 50 + 50):
            pipeline.take(Item(number))
        for one in refused:
            pipeline.take(one)
        attempts = list(attempts_of(pipeline.round(now), server.take))
        refused = pipeline.settle(attempts, now)
        if any(one.due is None for one in refused):
            break
        assert pipeline.trouble is None
        now += 10
    assert [one.key for one in refused] == [5]
    assert sorted(server.taken) == [number for number in range(50 * (round_ + 1)) if number != 5]
