"""How the recorder tells a bad record from a returner that is down."""

from __future__ import annotations

import itertools
import random

import pytest

from saltext.jobs.core.recorder.pipeline import (
    STOP_AFTER,
    Failure,
    Item,
    Pipeline,
    attempts_of,
    failure_of,
)


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

    def __init__(self, pipeline, refuses=(), failure=DOWN):
        self.pipeline, self.refuses, self.failure = pipeline, set(refuses), failure
        self.is_down = False
        self.taken, self.parked, self.refused = [], {}, {}
        self.now = 0.0
        self.tries = []

    def round(self):
        """One round at its due time; returns the numbers that were tried."""
        due = [self.pipeline.not_before] if self.pipeline.waiting else [one.due for one in self.parked.values()]
        self.now = max(self.now, min(due, default=0.0))
        for one in sorted(self.parked.values(), key=lambda one: one.due):
            if one.due <= self.now and self.pipeline.room_for_refused:
                self.pipeline.take(Item(one.key, one.tries, in_doubt=True))
                del self.parked[one.key]
        attempts = list(attempts_of(self.pipeline.round(self.now), self.take, at_once=False))
        for refused in self.pipeline.settle(attempts, self.now):
            (self.refused if refused.due is None else self.parked)[refused.key] = refused
        return [item.key for item, _ in attempts]

    def take(self, items):
        (item,) = items
        self.tries.append(item.key)
        if self.is_down:
            raise DOWN
        if item.key in self.refuses:
            raise self.failure
        self.taken.append(item.key)
        return {}

    def run(self, rounds=50):
        for _ in range(rounds):
            if not self.pipeline.waiting and not self.parked:
                break
            self.round()


def pipeline_with(count, size=100, **kwargs):
    pipeline = Pipeline(size, **kwargs)
    for number in range(count):
        pipeline.take(Item(number))
    return pipeline


# -- a returner that works --------------------------------------------------------------------------------------------


def test_records_are_delivered_in_order():
    returner = Returner(pipeline_with(10))
    returner.run()
    assert returner.taken == list(range(10))


# -- a returner that is down ------------------------------------------------------------------------------------------


def test_a_returner_that_is_down_is_left_alone_for_longer_and_longer_up_to_a_bound():
    returner = Returner(pipeline_with(10))
    returner.is_down = True
    times = []
    for _ in range(8):
        returner.round()
        times.append(returner.now)
    pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert pauses == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0, 10.0]


def test_an_outage_however_long_sets_nothing_aside():
    returner = Returner(pipeline_with(10))
    returner.is_down = True
    returner.run(rounds=500)
    returner.is_down = False
    returner.run()
    assert sorted(returner.taken) == list(range(10))
    assert not returner.refused


def test_a_pipeline_says_why_the_returner_takes_nothing_and_stops_saying_it_when_it_does():
    returner = Returner(pipeline_with(10))
    returner.is_down = True
    returner.round()
    assert returner.pipeline.trouble == "OperationalError: connection refused"
    returner.is_down = False
    returner.run()
    assert returner.pipeline.trouble is None


# -- poison -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("failure", [DOWN, FAULT])
def test_a_record_that_fails_while_others_succeed_is_set_aside_after_a_bounded_number_of_tries(failure):
    returner = Returner(pipeline_with(1, tries=5), refuses={0}, failure=failure)
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
    returner, waiting, born, late = Returner(Pipeline(1000), refuses=bad, failure=DOWN), list(range(2000)), {}, []
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
    returner = Returner(pipeline_with(1), refuses={0}, failure=failure)
    returner.run(rounds=30)
    assert (0 in returner.refused) == (failure is FAULT)


def test_many_bad_records_in_a_row_do_not_look_like_an_outage_when_the_error_blames_them():
    returner = Returner(pipeline_with(100), refuses=range(99), failure=FAULT)
    returner.run(rounds=400)
    assert returner.taken == [99]
    assert set(returner.refused) == set(range(99))


def test_many_bad_records_in_a_row_with_an_unclear_error_do_not_hide_for_ever_that_the_returner_is_back():
    returner = Returner(pipeline_with(20), refuses=range(12), failure=DOWN)
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


# -- refused records ---------------------------------------------------------------------------------------------------


def test_a_flood_of_bad_records_delays_no_good_one():
    # 65 bad and 10 good ones a second, for five minutes.
    returner = Returner(Pipeline(500), failure=FAULT)
    numbers = itertools.count()
    for second in range(300):
        for position in range(75):
            number = next(numbers)
            if position >= 10:
                returner.refuses.add(number)
            returner.pipeline.take(Item(number))
        returner.now = float(second)
        assert len(returner.round()) <= 75 + STOP_AFTER
        assert len(returner.taken) == 10 * (second + 1), "every good one of this second"


def test_refused_records_that_fail_without_blame_do_not_end_a_round_before_the_others():
    returner = Returner(pipeline_with(10), refuses=range(10), failure=FAULT)
    returner.round()
    returner.failure = DOWN
    returner.now += 1000
    for number in range(10, 30):
        returner.pipeline.take(Item(number))
    returner.round()
    assert returner.taken == list(range(10, 30))


# -- doubt ------------------------------------------------------------------------------------------------------------


def test_a_record_is_in_doubt_after_a_broken_connection():
    pipeline = pipeline_with(2)
    pipeline.settle([(pipeline.waiting[0], failure_of(DOWN))], 0.0)
    assert [item.in_doubt for item in pipeline.waiting.values()] == [True, False]


@pytest.mark.parametrize("error", [UntranslatableCharacter(), TypeError(), KeyError(), ValueError()])
def test_an_error_about_the_data_blames_the_record(error):
    assert failure_of(error).is_fault


@pytest.mark.parametrize("error", [OperationalError(), OSError(28, "full"), ConnectionError(), Exception()])
def test_an_error_about_the_world_does_not(error):
    assert not failure_of(error).is_fault


def test_a_reason_names_the_error_and_has_a_bound():
    reason = failure_of(ValueError("x" * 9999)).reason
    assert reason.startswith("ValueError: xxx")
    assert len(reason) == 1000
