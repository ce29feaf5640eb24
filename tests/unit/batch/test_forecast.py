"""How long a batch will still take."""

from __future__ import annotations

import pytest

from saltext.jobs.core.batch import facts
from saltext.jobs.core.batch.summary import seconds_left, two_digits
from tests.unit.batch.bench import BEGIN, Bench


def begun(minions, batch, **more):
    bench = Bench(minions, batch, presence="none", **more)
    bench.sent()
    return bench


def ended(bench, seconds, *minions):
    """So many seconds later minions return, and the next are sent to."""
    bench.now += seconds
    bench.returns(*minions)


@pytest.mark.parametrize(("number", "told"), [(494.36, 490), (264, 260), (7.123, 7.1), (1234.5, 1200)])
def test_an_estimate_has_two_digits(number, told):
    assert two_digits(number) == told


def test_nothing_is_said_before_half_of_those_that_run_at_once_have_returned():
    bench = begun("abcdefgh", "4")
    assert seconds_left(bench.batch, bench.now + 1) is None
    ended(bench, 10, "a")
    assert seconds_left(bench.batch, bench.now) is None
    ended(bench, 0, "b")
    assert seconds_left(bench.batch, bench.now) is not None


def test_it_goes_by_the_run_time_and_the_size_and_falls_as_time_passes():
    bench = begun("abcd", "1")
    ended(bench, 10, "a")
    assert seconds_left(bench.batch, bench.now) == pytest.approx(30, abs=1)
    bench.sent()
    first, later = (seconds_left(bench.batch, bench.now + wait) for wait in (0, 5))
    assert later == first - 5


def test_an_estimate_does_not_rise_while_nothing_ends_and_is_not_known_if_the_last_minions_are_late():
    bench = begun("abcd", "4")
    ended(bench, 10, "a", "b")
    left = [seconds_left(bench.batch, bench.now + wait) for wait in (0, 5, 50)]
    assert left == [None, None, None]  # those that run have run for as long already
    slow = begun("abcdefgh", "4")
    ended(slow, 10, "a", "b", "c")
    told = [seconds_left(slow.batch, slow.now + wait) for wait in range(30)]
    assert all(one is not None for one in told)
    assert told == sorted(told, reverse=True)


def test_later_waves_and_groups_count_each_for_itself():
    bench = begun("abcdefg", "1,2,100%")
    ended(bench, 10, "a")
    assert seconds_left(bench.batch, BEGIN + 10) == pytest.approx(20, abs=1)


def test_an_ended_batch_has_no_time_left_and_that_of_a_paused_one_is_not_known():
    bench = begun("ab", "1")
    ended(bench, 10, "a")
    bench.tell(facts.PauseRequested("ann"))
    assert seconds_left(bench.batch, bench.now) is None
    over = begun("a", "1")
    over.returns("a")
    assert seconds_left(over.batch, over.now) == 0.0
