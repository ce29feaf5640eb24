"""Between stages and groups something may have to hold: a function on the minions just done, a runner's, or an approval."""

from __future__ import annotations

import pytest

from saltext.jobs.core.batch import facts
from saltext.jobs.core.batch.summary import summary
from tests.unit.batch.bench import BEGIN, Bench, kinds, published

FUNCTION = {"kind": "function", "fun": "service.status", "arg": ["nginx"], "kwargs": {}}
APPROVE = {"kind": "approve", "fun": "", "arg": [], "kwargs": {}}


def at_check(check=FUNCTION, batch="1,100%", **more):
    """A batch of four whose first stage has just ended."""
    bench = Bench("abcd", batch, check=check, **more)
    bench.sent()
    bench.last = bench.returns("a")
    return bench


def test_only_minions_of_the_stage_that_have_completed_are_checked():
    bench = Bench("abcdef", "1,3,100%", check=FUNCTION)
    bench.sent()
    bench.returns("a")
    bench.tell(facts.Checked(0, True), after=5)
    bench.sent()
    bench.returns("b", retcode=1)
    assert bench.returns("c", "d")[-1] == facts.Check(1, ("c", "d"))


def test_a_group_beyond_its_budget_is_not_checked():
    bench = Bench(
        "abc", "2", check=FUNCTION, groups=(("x", 2), ("y", 1)), group_failures_allowed=(0.0, 0.0), min_executed=9
    )
    bench.sent()
    assert kinds(bench.returns("a", "b", retcode=1)) == ["halted", "Close"]


def test_a_stage_without_a_completed_minion_is_checked_as_well():
    bench = Bench("ab", "1,1", check=FUNCTION, presence="none")
    bench.sent()
    assert bench.returns("a", retcode=1)[-1] == facts.Check(0, ())


def test_a_check_without_an_answer_halts_the_batch():
    bench = at_check(check_timeout=60.0)
    assert not bench.wait(69)
    assert kinds(bench.wait(2)) == ["halted", "Close"]
    assert bench.batch.halted == "check service.status: no answer within 60 s"


@pytest.mark.parametrize(
    "late", [facts.Checked(0, False, "late"), facts.Checked(0, True), facts.Checked(7, False, "other")]
)
def test_an_answer_to_another_check_changes_nothing(late):
    bench = at_check()
    bench.tell(facts.Checked(0, True))
    before = bench.batch.snapshot()
    assert not bench.tell(late)
    assert bench.batch.snapshot() == before


def test_a_pause_does_not_end_a_check_and_a_check_does_not_end_a_pause():
    bench = at_check()
    bench.tell(facts.PauseRequested("ann"))
    assert kinds(bench.tell(facts.Checked(0, True))) == ["checked"]
    assert kinds(bench.tell(facts.ResumeRequested("ann"))) == ["resumed", "Publish"]


def test_a_stop_during_a_check_ends_the_batch_at_once():
    bench = at_check()
    assert kinds(bench.tell(facts.StopRequested(kill=False))) == ["halted", "Close"]
    assert bench.batch.next_due is None


def test_a_check_waits_for_the_window():
    bench = Bench("ab", "1,1", check=FUNCTION, window="02:00-05:00")
    bench.tell(facts.OpeningFound(BEGIN, BEGIN + 10))
    bench.sent()
    bench.wait(11)
    bench.tell(facts.OpeningFound(BEGIN + 1000, BEGIN + 2000))
    assert "Check" not in kinds(bench.returns("a"))
    bench.wait(1000)
    assert kinds(bench.tell(facts.OpeningFound(BEGIN + 1000, BEGIN + 2000))) == ["resumed", "check", "Check"]


def test_after_a_crash_a_check_is_asked_again():
    bench = at_check()
    bench.batch = bench.replayed()
    effects = bench.tell(facts.Recovered(), after=1000)
    assert facts.Check(0, ("a",)) in effects
    assert not published(effects)
    assert not bench.wait(300), "it has its whole time again"
    assert published(bench.tell(facts.Checked(0, True))) == ["bcd"]


# -- approval ----------------------------------------------------------------------------------------------------------


def test_a_batch_waits_for_approval_as_long_as_it_takes():
    bench = at_check(APPROVE)
    assert kinds(bench.last) == ["check"]
    assert not bench.wait(1e7)
    shown = summary(bench.batch, bench.now)
    assert (shown["state"], shown["paused_by"], shown["approve"]) == ("paused", "approval", 0)
    assert shown["paused_reason"] == "waits for approval"
    effects = bench.tell(facts.Approved(0, "ann"))
    assert kinds(effects) == ["checked", "Publish"]
    assert effects[0].details["user"] == "ann"
    assert summary(bench.batch, bench.now)["approve"] is None


def test_a_batch_that_is_not_approved_in_time_halts():
    bench = at_check(APPROVE, approve_timeout=600.0)
    assert not bench.wait(599)
    assert kinds(bench.wait(2)) == ["halted", "Close"]
    assert bench.batch.halted == "nobody has approved it within 600 s"


def test_an_approval_is_for_the_stage_that_it_names():
    bench = at_check(APPROVE, batch="1,1,100%")
    assert bench.batch.accepts(facts.Approved(0))
    assert not bench.batch.accepts(facts.Approved(1)), "it has not come to that"
    bench.tell(facts.Approved(0))
    assert not bench.batch.accepts(facts.Approved(0))
    assert bench.batch.has_taken(facts.Approved(0))
    assert not bench.batch.has_taken(facts.Approved(1))
    bench.sent()
    bench.returns("b")
    assert not bench.tell(facts.Approved(0)), "an old approval is none for this stage"
    assert published(bench.tell(facts.Approved(1))) == ["cd"]


def test_no_answer_of_a_function_stands_for_an_approval():
    bench = at_check(APPROVE)
    assert not bench.tell(facts.Checked(0, True))


def test_after_a_crash_an_approval_is_asked_for_again_and_its_time_goes_on():
    bench = at_check(APPROVE, approve_timeout=600.0)
    bench.wait(500)
    bench.batch = bench.replayed()
    assert kinds(bench.tell(facts.Recovered())) == ["check"]
    assert not bench.wait(99)
    assert kinds(bench.wait(2)) == ["halted", "Close"]


def test_an_approval_survives_a_crash():
    bench = at_check(APPROVE)
    bench.tell(facts.Approved(0))
    bench.batch = bench.replayed()
    assert "check" not in kinds(bench.tell(facts.Recovered()))
    assert bench.batch.pace.stage == 1
