"""How the recorder tells a bad record from a returner that is down, and finds one among a thousand."""

from __future__ import annotations

import itertools
import random

import pytest

from saltext.jobs.core.recorder.pipeline import STOP_AFTER, Failure, Pipeline, attempts_of, failure_of


class DataError(Exception):
    pass


class UntranslatableCharacter(DataError):
    pass


class OperationalError(Exception):
    pass


DOWN, FAULT = OperationalError("connection refused"), DataError("bad text")


class Returner:
    """
    Takes the first ``count`` records, and more that are put into ``waiting``; refuses some, with an error that blames them
    or doesn't, and can be down. What was refused waits until it is due, as in the outbox.
    """

    def __init__(self, count=0, refuses=(), failure=DOWN, at_once=False, tries=5):
        self.pipeline, self.refuses, self.failure, self.at_once = Pipeline(tries), set(refuses), failure, at_once
        self.is_down = False
        self.calls, self.taken, self.waiting, self.refused, self.given_up = 0, [], list(range(count)), {}, {}
        self.now, self.due = 0.0, {}

    def round(self):
        """One round at its due time; returns how many records were tried."""
        due = [self.pipeline.not_before] if self.waiting else self.due.values()
        self.now = max(self.now, min(due, default=0.0))
        tries = dict.fromkeys(self.waiting, 0)
        tries |= {key: one.tries for key, one in self.refused.items() if self.due[key] <= self.now}
        attempts = self.attempts(self.pipeline.round(tries))
        for key, refusal in self.pipeline.settle(attempts, tries, self.now).items():
            self.refused.pop(key, None)
            (self.given_up if refusal.pause is None else self.refused)[key] = refusal
            self.due[key] = self.now + (refusal.pause or 0.0)
        known = {*self.taken, *self.refused, *self.given_up}
        self.waiting = [key for key in self.waiting if key not in known]
        self.refused = {key: one for key, one in self.refused.items() if key not in self.taken}
        self.due = {key: self.due[key] for key in self.refused}
        return len(attempts)

    def attempts(self, keys):
        return list(attempts_of(keys, self.take, self.at_once))

    def take(self, keys):
        self.calls += 1
        if self.is_down:
            raise DOWN
        if self.refuses & set(keys):
            raise self.failure
        self.taken += keys
        return {}

    def run(self, rounds=50):
        for _ in range(rounds):
            if self.waiting or self.refused:
                self.round()


# -- a returner that works, or is down ---------------------------------------------------------------------------------


def test_a_returner_that_is_down_is_left_alone_for_longer_and_longer_up_to_a_bound():
    returner = Returner(10)
    returner.is_down = True
    times = []
    for _ in range(8):
        returner.round()
        times.append(returner.now)
    pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert pauses == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0, 10.0]


def test_an_outage_however_long_sets_nothing_aside_and_its_reason_is_told_until_it_is_over():
    returner = Returner(10)
    returner.is_down = True
    returner.run(rounds=500)
    assert returner.pipeline.trouble == "OperationalError: connection refused"
    returner.is_down = False
    returner.run()
    assert sorted(returner.taken) == list(range(10)) and not returner.given_up
    assert returner.pipeline.trouble is None


# -- poison ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("failure", [DOWN, FAULT])
def test_a_record_that_fails_while_others_succeed_is_set_aside_after_a_bounded_number_of_tries(failure, at_once):
    returner = Returner(1, {0}, failure, at_once)
    for number in range(1, 60):
        returner.waiting.append(number)
        returner.now += 1.0
        returner.round()
    assert returner.given_up[0].tries == 5
    assert returner.given_up[0].why == failure_of(failure).reason
    assert returner.taken == list(range(1, 60))


@pytest.mark.parametrize("seed", range(5))
def test_many_bad_records_that_look_like_a_returner_that_is_down_delay_others_by_seconds(seed):
    chance = random.Random(seed)
    bad = {number for number in range(2000) if chance.random() < 0.1}
    returner, waiting, born, late = Returner(0, bad), list(range(2000)), {}, []
    for step in range(600):  # a tenth of a second each, with ten new records
        now = step / 10
        for _ in range(min(10, len(waiting))):
            returner.waiting.append(waiting.pop(0))
            born[returner.waiting[-1]] = now
        if returner.waiting and returner.pipeline.not_before <= now:
            returner.now, known = now, len(returner.taken)
            returner.round()
            late += [now - born[number] for number in returner.taken[known:]]
    assert sorted(returner.taken) == [number for number in range(2000) if number not in bad]
    assert max(late) < 10


@pytest.mark.parametrize("failure", [DOWN, FAULT])
def test_the_last_record_is_not_set_aside_on_a_guess_but_only_with_evidence(failure):
    returner = Returner(1, {0}, failure)
    returner.run(rounds=30)
    assert (0 in returner.given_up) == (failure is FAULT)


def test_many_bad_records_in_a_row_with_an_unclear_error_do_not_hide_for_ever_that_the_returner_is_back():
    returner = Returner(20, range(12))
    returner.run(rounds=200)
    assert sorted(returner.taken) == list(range(12, 20))


def test_a_refused_record_is_tried_again_after_longer_and_longer_pauses():
    pipeline, attempts = Pipeline(tries=4), [("one", Failure("bad text", is_fault=True))]
    refused = [pipeline.settle(attempts, {"one": tries}, 0.0)["one"] for tries in range(4)]
    assert [one.pause for one in refused] == [1.0, 2.0, 4.0, None]


def test_refused_records_that_fail_without_blame_do_not_end_a_round_before_the_others():
    returner = Returner(10, range(10), FAULT)
    returner.round()
    returner.failure = DOWN
    returner.now += 1000
    returner.waiting += range(10, 30)
    returner.round()
    assert returner.taken == list(range(10, 30))


# -- many at once ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("failure", [FAULT, DOWN])
@pytest.mark.parametrize("bad", [{0}, {999}, {500}, {3, 4, 700}])
def test_bad_records_among_many_are_found_and_all_others_are_taken(bad, failure):
    returner = Returner(0, bad, failure, at_once=True)
    attempts = returner.attempts(range(1000))
    assert {key for key, why in attempts if why} == bad
    assert sorted(returner.taken) == sorted(set(range(1000)) - bad)
    assert len(attempts) == 1000 and returner.calls <= 40 * len(bad)


def test_a_flood_of_bad_records_takes_no_more_than_two_calls_for_each():
    returner = Returner(0, range(0, 1000, 2), FAULT, at_once=True)
    returner.attempts(range(1000))
    assert len(returner.taken) == 500 and returner.calls <= 2000


def test_a_returner_that_is_down_is_asked_a_few_times_only():
    returner = Returner(at_once=True)
    returner.is_down = True
    assert len(returner.attempts(range(1000))) == STOP_AFTER
    assert returner.calls == STOP_AFTER + 1


def test_a_bad_record_that_the_returner_names_costs_no_further_call():
    calls = []
    attempts = list(attempts_of(range(20), lambda part: calls.append(len(part)) or {7: "bad text"}))
    assert [key for key, why in attempts if why] == [7] and calls == [20]


# -- what an error means -----------------------------------------------------------------------------------------------


def test_an_error_about_the_data_blames_the_record_and_one_about_the_world_does_not():
    of_data = UntranslatableCharacter(), TypeError(), KeyError(), ValueError("x" * 9999)
    assert all(failure_of(error).is_fault and len(failure_of(error).reason) <= 1000 for error in of_data)
    of_the_world = OperationalError(), OSError(28, "full"), ConnectionError(), Exception()
    assert not any(failure_of(error).is_fault for error in of_the_world)
