"""How the recorder tells a bad record from a returner that is down, and finds one among a thousand."""

from __future__ import annotations

import itertools
import random

import pytest

from saltext.jobs.core.recorder.pipeline import STOP_AFTER, Failure, Item, Pipeline, attempts_of, failure_of


class DataError(Exception):
    pass


class UntranslatableCharacter(DataError):
    pass


class OperationalError(Exception):
    pass


DOWN, FAULT = OperationalError("connection refused"), DataError("bad text")


class Returner:
    """
    Takes records; refuses some, with an error that blames them or doesn't, and can be down. What was refused is kept until
    it is due, as the outbox does.
    """

    def __init__(self, pipeline=None, refuses=(), failure=DOWN, at_once=False):
        self.pipeline, self.refuses, self.failure, self.at_once = pipeline, set(refuses), failure, at_once
        self.is_down = False
        self.calls, self.taken, self.parked, self.refused = 0, [], {}, {}
        self.now = 0.0

    def round(self):
        """One round at its due time; returns how many records were tried."""
        due = [self.pipeline.not_before] if self.pipeline.waiting else [one.due for one in self.parked.values()]
        self.now = max(self.now, min(due, default=0.0))
        for one in sorted(self.parked.values(), key=lambda one: one.due):
            if one.due <= self.now and self.pipeline.room_for_refused:
                self.pipeline.take(Item(one.key, one.tries, in_doubt=True))
                del self.parked[one.key]
        attempts = self.attempts(self.pipeline.round(self.now))
        for refused in self.pipeline.settle(attempts, self.now):
            (self.refused if refused.due is None else self.parked)[refused.key] = refused
        return len(attempts)

    def attempts(self, items):
        return list(attempts_of(items, self.take, self.at_once))

    def take(self, items):
        self.calls += 1
        keys = [item.key for item in items]
        if self.is_down:
            raise DOWN
        if self.refuses & set(keys):
            raise self.failure
        self.taken += keys
        return {}

    def run(self, rounds=50):
        for _ in range(rounds):
            if not self.pipeline.waiting and not self.parked:
                break
            self.round()


def pipeline_with(count, size=100, **kwargs):
    pipeline = Pipeline(size, **kwargs)
    for item in items(count):
        pipeline.take(item)
    return pipeline


def items(count):
    return [Item(number) for number in range(count)]


# -- a returner that works, or is down ---------------------------------------------------------------------------------


def test_a_returner_that_is_down_is_left_alone_for_longer_and_longer_up_to_a_bound():
    returner = Returner(pipeline_with(10))
    returner.is_down = True
    times = []
    for _ in range(8):
        returner.round()
        times.append(returner.now)
    pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert pauses == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0, 10.0]


def test_an_outage_however_long_sets_nothing_aside_and_its_reason_is_told_until_it_is_over():
    returner = Returner(pipeline_with(10))
    returner.is_down = True
    returner.run(rounds=500)
    assert returner.pipeline.trouble == "OperationalError: connection refused"
    assert all(item.in_doubt for item in returner.pipeline.waiting.values()), "the connection may have broken late"
    returner.is_down = False
    returner.run()
    assert sorted(returner.taken) == list(range(10)) and not returner.refused
    assert returner.pipeline.trouble is None


# -- poison ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("failure", [DOWN, FAULT])
def test_a_record_that_fails_while_others_succeed_is_set_aside_after_a_bounded_number_of_tries(failure, at_once):
    returner = Returner(pipeline_with(1, tries=5), {0}, failure, at_once)
    for number in range(1, 60):
        returner.pipeline.take(Item(number))
        returner.now += 1.0
        returner.round()
    assert returner.refused[0].tries == 5
    assert returner.refused[0].why == failure_of(failure).reason
    assert returner.taken == list(range(1, 60))


@pytest.mark.parametrize("seed", range(5))
def test_many_bad_records_that_look_like_a_returner_that_is_down_delay_others_by_seconds(seed):
    chance = random.Random(seed)
    bad = {number for number in range(2000) if chance.random() < 0.1}
    returner, waiting, born, late = Returner(Pipeline(1000), bad), list(range(2000)), {}, []
    for step in range(600):  # a tenth of a second each, with ten new records
        now = step / 10
        for number in waiting[: min(10, returner.pipeline.room)]:
            returner.pipeline.take(Item(waiting.pop(0)))
            born[number] = now
        if returner.pipeline.waiting and returner.pipeline.not_before <= now:
            returner.now, known = now, len(returner.taken)
            returner.round()
            late += [now - born[number] for number in returner.taken[known:]]
    assert sorted(returner.taken) == [number for number in range(2000) if number not in bad]
    assert max(late) < 10


@pytest.mark.parametrize("failure", [DOWN, FAULT])
def test_the_last_record_is_not_set_aside_on_a_guess_but_only_with_evidence(failure):
    returner = Returner(pipeline_with(1), {0}, failure)
    returner.run(rounds=30)
    assert (0 in returner.refused) == (failure is FAULT)


def test_many_bad_records_in_a_row_with_an_unclear_error_do_not_hide_for_ever_that_the_returner_is_back():
    returner = Returner(pipeline_with(20), range(12))
    returner.run(rounds=200)
    assert sorted(returner.taken) == list(range(12, 20))


def test_a_refused_record_is_tried_again_after_longer_and_longer_pauses():
    pipeline, now, times = pipeline_with(1, tries=4), 0.0, []
    while now is not None:
        times.append(now)
        (one,) = pipeline.settle([(pipeline.waiting[0], Failure("bad text", is_fault=True))], now)
        pipeline.take(one)
        now = one.due
    assert times == [0.0, 1.0, 3.0, 7.0]


def test_refused_records_that_fail_without_blame_do_not_end_a_round_before_the_others():
    returner = Returner(pipeline_with(10), range(10), FAULT)
    returner.round()
    returner.failure = DOWN
    returner.now += 1000
    for number in range(10, 30):
        returner.pipeline.take(Item(number))
    returner.round()
    assert returner.taken == list(range(10, 30))


# -- many at once ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("failure", [FAULT, DOWN])
@pytest.mark.parametrize("bad", [{0}, {999}, {500}, {3, 4, 700}])
def test_bad_records_among_many_are_found_and_all_others_are_taken(bad, failure):
    returner = Returner(None, bad, failure, at_once=True)
    attempts = returner.attempts(items(1000))
    assert {item.key for item, why in attempts if why} == bad
    assert sorted(returner.taken) == sorted(set(range(1000)) - bad)
    assert len(attempts) == 1000 and returner.calls <= 40 * len(bad)


def test_a_flood_of_bad_records_takes_no_more_than_two_calls_for_each():
    returner = Returner(None, range(0, 1000, 2), FAULT, at_once=True)
    returner.attempts(items(1000))
    assert len(returner.taken) == 500 and returner.calls <= 2000


def test_a_returner_that_is_down_is_asked_a_few_times_only():
    returner = Returner(at_once=True)
    returner.is_down = True
    assert len(returner.attempts(items(1000))) == STOP_AFTER
    assert returner.calls == STOP_AFTER + 1


def test_a_bad_record_that_the_returner_names_costs_no_further_call():
    calls = []
    attempts = list(attempts_of(items(20), lambda part: calls.append(len(part)) or {7: "bad text"}))
    assert [item.key for item, why in attempts if why] == [7] and calls == [20]


# -- what an error means -----------------------------------------------------------------------------------------------


def test_an_error_about_the_data_blames_the_record_and_one_about_the_world_does_not():
    of_data = UntranslatableCharacter(), TypeError(), KeyError(), ValueError("x" * 9999)
    assert all(failure_of(error).is_fault and len(failure_of(error).reason) <= 1000 for error in of_data)
    of_the_world = OperationalError(), OSError(28, "full"), ConnectionError(), Exception()
    assert not any(failure_of(error).is_fault for error in of_the_world)
