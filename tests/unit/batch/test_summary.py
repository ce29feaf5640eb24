"""What a batch looks like from outside."""

from __future__ import annotations

import pytest

from saltext.jobs.core.batch import facts, words
from saltext.jobs.core.batch import summary as batch_summary
from saltext.jobs.core.batch.watch import progress_line
from tests.unit.batch.bench import BEGIN, Bench

#: What Salt 3008 writes into a batch's state file (DESIGN.md).
NATIVE_KEYS = {
    *("jid", "fun", "arg", "kwargs", "tgt", "tgt_type", "all_minions", "pending", "active", "done", "failed", "wait"),
    *("batch_size", "batch_wait", "failhard", "timeout", "gather_job_timeout", "ret", "user", "driver", "created"),
    *("last_progress", "halted", "halted_reason"),
}


def a_batch():
    bench = Bench("abcdef", "3", user="ann")
    bench.sent()
    bench.returns("a")
    bench.returns("b", retcode=4)
    return bench


def test_the_counts_add_up():
    bench = a_batch()
    bench.sent()  # of the freed slots
    numbers = batch_summary.counts(bench.batch)
    assert (numbers["completed"], numbers["failed"], numbers["active"], numbers["pending"]) == (1, 1, 3, 1)
    assert sum(value for name, value in numbers.items() if name not in ("total", "state")) == numbers["total"] == 6


def verdict_of(bench):
    return words.verdict(batch_summary.summary(bench.batch, bench.now))


def test_the_verdict_on_a_batch_says_how_many_were_left_out():
    bench = Bench("abcd", "4", presence="ping")
    bench.present("ab")
    bench.sent()
    bench.returns("a", "b")
    good, said = verdict_of(bench)
    assert (good, said.partition(": ")[2]) == (
        True,
        "2 of 4 minions completed; 2 not there and left out",
    )


def test_the_verdict_on_a_batch_that_all_completed_says_no_more_than_that():
    bench = Bench("ab", "2")
    bench.sent()
    bench.returns("a", "b")
    assert verdict_of(bench)[1].endswith("2 of 2 minions completed")


def test_the_verdict_on_a_batch_that_did_not_succeed_says_what_went_wrong():
    bench = Bench("abcd", "1", failures_allowed=0.0)
    bench.sent()
    bench.returns("a", retcode=3)
    good, said = verdict_of(bench)
    assert (good, said.partition(" is ")[2]) == (
        False,
        "halted (more minions failed than max_failures allows): 1 failed, 3 pending of 4 minions",
    )
    nobody = Bench("ab", "2", presence="ping", offline="skip")
    nobody.present()
    assert verdict_of(nobody)[1].endswith("is unsuccessful: 2 offline of 2 minions")


def test_the_verdict_is_the_last_line_that_is_printed():
    bench = Bench("ab", "2")
    keys = {*batch_summary.summary(bench.batch, bench.now), "retcode", "Error", "engine", "group_number", "groups"}
    assert max(keys | {"verdict"}) == "verdict", "Salt prints a mapping in the order of its keys"


def test_the_user_who_stopped_a_batch_is_named_in_its_status():
    bench = Bench("ab", "1")
    bench.sent()
    assert batch_summary.summary(bench.batch, bench.now)["stopped_by"] is None
    bench.tell(facts.StopRequested(kill=False, user="ann"))
    assert batch_summary.summary(bench.batch, bench.now)["stopped_by"] == "ann"
    assert batch_summary.summary(bench.replayed(), bench.now)["stopped_by"] == "ann"


def test_age_counts_from_the_last_progress_and_not_from_the_last_tick():
    bench = a_batch()
    bench.wait(30)
    assert batch_summary.summary(bench.batch, bench.now)["age_seconds"] >= 30


def test_the_pace_is_in_minions_per_minute():
    bench = Bench("abcd", "4")
    bench.sent()
    bench.now = BEGIN + 30
    bench.returns("a", "b")
    summary = batch_summary.summary(bench.batch, BEGIN + 30)
    assert summary["rate"] == 4.0


def test_minions_are_distinguished():
    minions = batch_summary.minions(a_batch().batch)
    assert minions["a"] == {"state": "completed", "since": BEGIN, "retcode": 0}
    assert minions["b"]["state"] == "failed"
    assert minions["b"]["retcode"] == 4
    assert list(minions) == sorted(minions)


def test_what_salt_is_shown_has_its_keys_and_nothing_that_could_be_published():
    view = batch_summary.native_view(a_batch().batch.spec, BEGIN)
    assert view.keys() == NATIVE_KEYS
    assert (view["driver"], view["halted"]) == ("engine", True)
    assert not any(view[key] for key in ("arg", "kwargs", "all_minions", "pending", "active", "done", "failed", "wait"))


def test_a_native_batch_is_summed_up_in_the_same_way():
    state = {
        "jid": "1",
        "all_minions": list("abc"),
        "pending": ["c"],
        "active": {},
        "done": {"a": {"retcode": 0}},
        "failed": {"b": "timeout"},
        "last_progress": BEGIN,
        "driver": "master",
    }
    summary = batch_summary.native_summary(state, BEGIN + 10)
    assert (summary["total"], summary["completed"], summary["failed"], summary["state"]) == (3, 1, 1, "running")
    assert summary["age_seconds"] == 10
    assert batch_summary.native_minions(state)["a"]["state"] == "completed"


def test_an_empty_batch_has_a_progress_line():
    bench = Bench("a", "1", presence="ping")
    bench.present()
    assert "1/1 unsuccessful" in progress_line(batch_summary.summary(bench.batch, BEGIN))


def test_an_active_minion_is_shown_with_its_start_and_when_it_was_last_seen():
    bench = Bench("a", "1")
    bench.sent()
    bench.tell(facts.Acknowledged("a"), after=2)
    bench.until_probe(62)
    bench.probed(running="a")
    told = batch_summary.minions(bench.batch)["a"]
    assert (told["since"], told["seen"]) == (BEGIN + 2, bench.now)


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ({"halted_reason": None}, ""),
        ({"halted_reason": "stop", "stopped_by": "anna"}, "stopped by anna"),
        ({"halted_reason": "stop", "stopped_by": ""}, "stopped by batch.stop"),
        ({"halted_reason": "max_failures"}, "more minions failed than max_failures allows"),
        ({"halted_reason": "max_failures in group eu"}, "more minions failed than max_failures allows in group eu"),
        ({"halted_reason": "check runner:survey: it said no"}, "check runner:survey: it said no"),
    ],
)
def test_why_a_batch_was_halted_is_said_in_words(found, told):
    assert words.why_halted(found) == told


@pytest.mark.parametrize(("number", "told"), [(494.36, 490), (264, 260), (7.123, 7.1), (1234.5, 1200)])
def test_an_estimate_has_two_digits(number, told):
    assert batch_summary.two_digits(number) == told


def test_how_long_a_batch_takes_goes_by_the_run_time_and_the_size():
    bench = Bench("abcdefg", "2")
    bench.sent()
    assert batch_summary.summary(bench.batch, bench.now)["eta_seconds"] is None, "none has returned"
    bench.now += 10
    bench.returns("a", "b")
    assert batch_summary.summary(bench.batch, bench.now)["eta_seconds"] == 25, "five are left, two at a time"
    bench.tell(facts.PauseRequested("ann"))
    assert batch_summary.summary(bench.batch, bench.now)["eta_seconds"] is None
    bench.tell(facts.StopRequested(kill=False))
    assert batch_summary.summary(bench.batch, bench.now)["eta_seconds"] == 10, "the two in flight are left"
