"""A minion may run a job for ``max_runtime`` seconds: then the job is asked to end, then killed."""

from __future__ import annotations

from saltext.jobs.core.batch import facts
from saltext.jobs.core.batch.inflight import KILLS
from tests.unit.batch.bench import Bench, kinds, published


def running_too_long(bench, minion="a"):
    """Let a minion run until it is asked to end, and return the effects of that."""
    bench.until_probe(102)
    return bench.probed(running=minion)


def test_a_minion_that_runs_too_long_is_asked_to_end_then_killed_and_its_slot_is_free_once_it_does_not_run():
    bench = Bench("ab", "1", max_runtime=100.0, timeout=200.0)
    bench.sent()
    assert not bench.wait(100), "it may run so long"
    assert kinds(bench.until_probe(2)) == ["Probe"]
    assert bench.probed(running="a") == [facts.Kill(("a",), gently=True)]
    assert not bench.tell(facts.KillSent(("a",), gently=True))
    assert not bench.wait(10), "it has time to clear up"
    bench.until_probe(2)
    assert bench.probed(running="a") == [facts.Kill(("a",))]
    bench.tell(facts.KillSent(("a",)))
    bench.until_probe(3)
    assert bench.probed(idle="a") == [facts.AskRecords(("a",))]
    assert bench.states() == {"a": "active", "b": "pending"}, "its return may be on the way"
    assert published(bench.looked(bench.wait(12))) == ["b"]
    assert bench.state_of("a") == "timed_out"


def test_a_minion_is_asked_at_its_timeout_and_again_at_its_limit():
    bench = Bench("a", "1", max_runtime=100.0, timeout=60.0)
    bench.sent()
    bench.until_probe(62)
    assert not bench.probed(running="a")
    assert kinds(bench.until_probe(41)) == ["Probe"]


def test_the_time_counts_from_when_a_minion_says_that_it_has_begun():
    bench = Bench("a", "1", max_runtime=100.0, timeout=200.0)
    bench.sent()
    bench.tell(facts.Acknowledged("a"), after=50)
    assert not bench.wait(100)
    bench.until_probe(2)
    assert kinds(bench.probed(running="a")) == ["Kill"]


def test_a_minion_cannot_win_time_by_saying_again_that_it_has_begun():
    bench = Bench("a", "1", max_runtime=100.0, timeout=200.0)
    bench.sent()
    bench.tell(facts.Acknowledged("a"), after=50)
    bench.tell(facts.Acknowledged("a"), after=90)
    assert kinds(bench.wait(12)) == ["LookUp"]


def test_a_minion_that_is_not_known_to_run_is_never_killed():
    bench = Bench("ab", "2", max_runtime=100.0, timeout=200.0, probe_attempts=2)
    bench.sent()
    bench.until_probe(102)
    assert not bench.probed(idle="a", silent="b")
    assert "Kill" not in kinds(bench.wait(50))


def test_a_return_with_success_counts_though_the_job_was_told_to_end():
    bench = Bench("a", "1", max_runtime=100.0, timeout=200.0)
    bench.sent()
    running_too_long(bench)
    assert kinds(bench.returns("a")) == ["complete", "Close"]
    assert bench.state_of("a") == "completed"
    assert bench.batch.success is True


def test_a_return_without_success_of_a_job_that_was_told_to_end_is_a_time_out():
    bench = Bench("a", "1", max_runtime=100.0, timeout=200.0)
    bench.sent()
    running_too_long(bench)
    bench.returns("a", retcode=143)
    assert bench.batch.outcomes["a"][2] == 143
    assert bench.state_of("a") == "timed_out"
    assert bench.batch.success is False
    bench.returns("a")
    assert bench.state_of("a") == "timed_out", "it has returned already"


def timed_out(bench):
    """Let the first minion of a batch run into its limit and be seen not to run after that."""
    bench.sent()
    running_too_long(bench)
    bench.tell(facts.KillSent(("a",), gently=True))
    bench.until_probe(12)
    bench.probed(idle="a")
    return bench.looked(bench.wait(12))


def test_a_late_return_corrects_a_time_out_and_a_late_beginning_does_not():
    bench = Bench("ab", "1", max_runtime=100.0, timeout=200.0)
    timed_out(bench)
    bench.tell(facts.Acknowledged("a"))
    assert bench.state_of("a") == "timed_out", "it was seen to run, and then not to"
    bench.returns("a", retcode=1)
    assert bench.state_of("a") == "timed_out"
    bench = Bench("ab", "1", max_runtime=100.0, timeout=200.0)
    timed_out(bench)
    bench.returns("a")
    assert bench.state_of("a") == "completed"
    assert bench.batch.record.budget_used == 0


def test_a_minion_that_survives_every_kill_keeps_its_slot_and_is_named():
    bench = Bench("ab", "1", max_runtime=100.0, timeout=200.0)
    bench.sent()
    assert [effect.gently for effect in running_too_long(bench)] == [True]
    for attempt in range(KILLS - 1):
        bench.tell(facts.KillSent(("a",), gently=not attempt))
        bench.until_probe(12)
        assert bench.probed(running="a") == [facts.Kill(("a",))]
    assert bench.batch.inflight.survivors() == ["a"]
    bench.tell(facts.KillSent(("a",)))
    bench.until_probe(3)
    assert not bench.probed(running="a")
    assert not bench.wait(199), "it is asked again, but not all the time"
    assert bench.states() == {"a": "active", "b": "pending"}


def test_a_stop_with_kill_goes_on_where_a_job_was_told_to_end():
    bench = Bench("ab", "2", max_runtime=100.0, timeout=200.0)
    bench.sent()
    bench.until_probe(102)
    bench.probed(running="a", silent="b")
    effects = bench.tell(facts.StopRequested(kill=True))
    assert facts.Kill(("b",)) in effects
    bench.tell(facts.KillSent(("a",), gently=True))
    bench.until_probe(12)
    assert facts.Kill(("a",)) in bench.probed(running="a")


def test_after_a_crash_the_time_goes_on_where_it_was():
    bench = Bench("a", "1", max_runtime=100.0, timeout=200.0)
    bench.sent()
    bench.looked(bench.tell(facts.Recovered()))
    bench.tell(facts.Acknowledged("a"), after=10)
    bench.now += 95
    bench.batch = bench.replayed()
    bench.looked(bench.tell(facts.Recovered()))
    bench.now += 10
    bench.looked(bench.tell(facts.Recovered()))
    bench.until_probe(2)
    assert bench.probed(running="a") == [facts.Kill(("a",), gently=True)]


def test_each_of_two_kills_under_way_ends_with_its_own_outcome():
    bench = Bench("ab", "2", max_runtime=100.0, timeout=200.0)
    bench.sent()
    bench.tell(facts.Acknowledged("b"), after=50)
    bench.until_probe(52)
    bench.probed(running="a")
    bench.until_probe(50)
    bench.probed(running="b")
    bench.tell(facts.KillSent(("b",), gently=True))
    assert [flight.phase.value for flight in bench.batch.flights.values()] == ["killing", "sent"]
