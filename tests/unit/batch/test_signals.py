"""
An operator ends a batch's job by a signal of their own, such as ``saltutil.kill_job``: those minions count as killed, and
nobody sends them the job again.
"""

from __future__ import annotations

import pytest

from saltext.jobs.core.batch import facts
from saltext.jobs.core.errors import JobCacheError
from saltext.jobs.core.log.records import Returned, publish_of
from tests.unit.batch.bench import Bench, kinds, published
from tests.unit.batch.shell_bench import JID, FakeMinion, ShellBench

AT = 1_000_000.0


# -- the machine -------------------------------------------------------------------------------------------------------


def test_a_minion_on_which_an_operator_has_killed_the_job_is_killed_and_the_batch_goes_on():
    bench = Bench("ab", "1", acks=True)
    bench.sent()
    bench.tell(facts.Acknowledged("a"))
    bench.tell(facts.Signalled(("a",)))
    assert published(bench.gone("a")) == ["b"]
    assert bench.states() == {"a": "killed", "b": "active"}
    assert bench.batch.record.budget_used == 0


def test_a_killed_job_that_returns_all_the_same_is_what_it_has_returned():
    bench = Bench("ab", "2")
    bench.sent()
    bench.tell(facts.Signalled(("a", "b")))
    bench.returns("a")
    bench.returns("b", retcode=143)
    assert bench.states() == {"a": "completed", "b": "failed"}


def test_a_minion_that_was_never_heard_to_begin_is_not_sent_a_job_again_that_an_operator_has_killed():
    for killed, then in ((False, ["a"]), (True, [])):
        bench = Bench("a", "1", acks=True)
        bench.sent()
        if killed:
            bench.tell(facts.Signalled(("a",)))
        assert published(bench.gone("a")) == then
        assert bench.state_of("a") == ("killed" if killed else "active")


def test_a_signal_to_every_job_says_nothing_of_a_minion_that_may_not_have_begun():
    bench = Bench("ab", "2", acks=True)
    bench.sent()
    bench.tell(facts.Acknowledged("a"))
    bench.tell(facts.Signalled(("a", "b"), every_job=True))
    assert published(bench.gone("ab")) == ["b"]
    assert bench.states() == {"a": "killed", "b": "active"}


def test_a_minion_that_was_killed_and_is_silent_is_killed():
    bench = Bench("ab", "1", acks=True, probe_attempts=1, max_failures=0)
    bench.sent()
    bench.tell(facts.Acknowledged("a"))
    bench.tell(facts.Signalled(("a",)))
    bench.until_probe(62)
    assert published(bench.looked(bench.probed(silent="a"))) == ["b"]
    assert bench.states() == {"a": "killed", "b": "active"}


def test_a_minion_that_waits_to_be_sent_a_job_again_is_not_sent_it_once_an_operator_has_killed_the_job():
    bench = Bench("ab", "1", acks=True)
    bench.sent()
    bench.tell(facts.PauseRequested("ann"))
    bench.gone("a")
    assert bench.state_of("a") == "pending"
    bench.tell(facts.Signalled(("a",)))
    assert published(bench.tell(facts.ResumeRequested("ann"))) == ["b"]
    assert bench.states() == {"a": "killed", "b": "active"}


def test_a_minion_that_was_away_is_not_handed_over_if_an_operator_has_killed_the_job_meanwhile():
    bench = Bench("abc", "3", offline="queue", probe_attempts=1)
    bench.sent(missed="ab")
    bench.tell(facts.Signalled(("a",)))
    effects = bench.returns("c")
    assert [effect.minions for effect in effects if isinstance(effect, facts.Queue)] == [("b",)]
    assert bench.states() == {"a": "killed", "b": "offline", "c": "completed"}


def test_a_hand_over_that_is_under_way_is_taken_back_if_an_operator_kills_the_job():
    bench = Bench("ab", "2", offline="queue")
    bench.sent(missed="a")
    bench.returns("b")
    assert kinds(bench.tell(facts.Signalled(("a",)))) == ["TakeBack", "complete", "Close"]
    assert bench.states() == {"a": "killed", "b": "completed"}


def test_a_silent_minion_that_was_never_seen_is_killed_and_not_handed_over():
    bench = Bench("a", "1", offline="queue", probe_attempts=1)
    bench.sent()
    bench.tell(facts.Signalled(("a",)))
    bench.until_probe(62)
    effects = bench.looked(bench.probed(silent="a"))
    assert not any(isinstance(effect, facts.Queue) for effect in effects)
    assert bench.states() == {"a": "killed"}


def test_a_minion_that_counts_as_killed_and_is_then_heard_to_begin_counts_as_killed_again():
    bench = Bench("ab", "1", acks=True, timeout=600.0)
    bench.sent()
    bench.tell(facts.Signalled(("a",)))
    assert published(bench.gone("a", 602)) == ["b"]
    bench.sent()
    bench.tell(facts.Acknowledged("a"))
    assert bench.state_of("a") == "active"
    bench.gone("a", 602)
    assert bench.state_of("a") == "killed"


def test_what_was_killed_is_known_after_a_crash():
    bench = Bench("ab", "2", acks=True)
    bench.sent()
    bench.tell(facts.Signalled(("a",)))
    assert bench.replayed().snapshot() == bench.batch.snapshot()


# -- the shell ---------------------------------------------------------------------------------------------------------


def signal(fun="saltutil.kill_job", arg=(JID,), minions="ab", origin="", jid="20260516101113000000"):
    return publish_of(jid, {"fun": fun, "arg": list(arg), "user": "ann"}, list(minions), "", origin, True)


@pytest.fixture
def bench(tmp_path):
    with ShellBench(tmp_path, [FakeMinion("a", seconds=900), FakeMinion("b", seconds=1)], logged=True) as bench:
        yield bench


def killed_by(bench, *records):
    """Begin a batch, put records in the log, and have the job end on the minion that runs it; how the minions ended."""
    bench.begin("ab", "1", presence="none")
    assert bench.run(5.0, lambda: bench.master.minions["a"].runs)
    for record in records:
        assert bench.master.cache.log.append(record)
    bench.virtual.loop.remove_timeout(bench.master.minions["a"].runs.pop(JID))
    bench.end()
    bench.run(1.0)  # the journal is closed
    assert [len(bench.master.minions[name].begun) for name in "ab"] == [1, 1]
    return bench.states()


@pytest.mark.parametrize(
    ("fun", "arg"),
    [
        ("saltutil.kill_job", [JID]),
        ("saltutil.term_job", [JID]),
        ("saltutil.signal_job", [JID, 15]),
        ("saltutil.kill_all_jobs", []),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_signal_in_the_log_makes_those_that_it_names_killed(bench, fun, arg):
    assert killed_by(bench, signal(fun, arg)) == {"a": "killed", "b": "completed"}


@pytest.mark.parametrize(
    "record",
    [
        signal(arg=["20260516101112131416"]),
        signal(minions="b"),
        signal("saltutil.signal_job", [JID, 10]),
        signal(["test.ping", "saltutil.kill_job"], [[], [JID]]),
        signal(origin="batch_manager"),
        signal()._replace(sent=False),
    ],
    ids=["another job", "another minion", "harmless", "one of several functions", "our own", "not sent"],
)
def test_nothing_else_does(bench, record):
    assert killed_by(bench, record) == {"a": "lost", "b": "completed"}


def test_a_signal_to_more_minions_than_the_log_names_is_read_in_the_job_cache(bench):
    record = signal()._replace(minions=None)
    looks = []

    def published_load(jid):
        looks.append(jid)
        return {"Minions": ["a", "b"]} if len(looks) > 1 else {}

    bench.master.cache.published_load = published_load
    assert killed_by(bench, record) == {"a": "killed", "b": "completed"}
    assert looks == [record.jid] * 2


def test_a_signal_whose_minions_cannot_be_read_for_a_while_is_not_forgotten(bench):
    record = signal()._replace(minions=None)
    looks = []

    def published_load(jid):
        looks.append(jid)
        if len(looks) < 9:
            raise JobCacheError("it is down")
        return {"Minions": ["a", "b"]}

    bench.master.cache.published_load = published_load
    assert killed_by(bench, record) == {"a": "killed", "b": "completed"}
    assert looks == [record.jid] * 9


def test_a_minion_is_handed_over_only_once_the_log_tells_of_no_signal(tmp_path):
    for killed in (False, True):
        away = FakeMinion("a", there=False)
        with ShellBench(tmp_path / str(killed), [away, FakeMinion("b", seconds=1)], logged=True) as bench:
            bench.begin("ab", "2", presence="none", offline="queue", timeout=5.0, gather_job_timeout=1.0)
            assert bench.run(60.0, lambda: bench.batch().asked_queue)
            if killed:
                assert bench.master.cache.log.append(signal())
            bench.end()
            assert bench.queued == ([] if killed else ["a"])
            assert bench.states() == {"a": "killed" if killed else "offline", "b": "completed"}


# -- what minions answer to a signal -----------------------------------------------------------------------------------

SENT = f"Signal 9 sent to job {JID} at pid 4711"
ALL, SIGNAL = "saltutil.kill_all_jobs", "20260516101113000000"


def answer(bench, said, fun=ALL):
    """The job cache and the log get the answer of the first minion to a signal."""
    bench.master.cache.answered[SIGNAL] = {"a": (said, 0)}
    return Returned(SIGNAL, "a", fun, 0, True, 0.0)


@pytest.fixture
def unheard(bench):
    """The first minion does not say when it begins."""
    bench.master.minions["a"].acknowledges = False
    return bench


@pytest.mark.parametrize("said", [SENT, [f"Signal 9 sent to job 1{JID} at pid 1", SENT]], ids=["one", "several"])
def test_a_minion_that_was_not_heard_to_begin_is_killed_if_it_says_that_it_has_ended_the_job(unheard, said):
    assert killed_by(unheard, signal(ALL, []), answer(unheard, said)) == {"a": "killed", "b": "completed"}


@pytest.mark.parametrize(
    "said",
    [
        "",
        None,
        [],
        [None, {}],
        {SENT: SENT},
        f"Signal 9 sent to job 1{JID} at pid 4711",
        f"Signal 10 sent to job {JID} at pid 4711",
        f"Job {JID} was not running and job data has been cleaned up",
    ],
    ids=repr,
)
def test_it_is_lost_whatever_else_it_says(unheard, said):
    assert killed_by(unheard, signal(ALL, []), answer(unheard, said)) == {"a": "lost", "b": "completed"}


@pytest.mark.parametrize("fun", ["test.echo", "saltutil.kill_job,test.echo"])
def test_only_an_answer_to_a_signal_counts(unheard, fun):
    assert killed_by(unheard, answer(unheard, SENT, fun))["a"] == "lost"


def test_an_answer_of_which_only_the_bus_tells_does_not_count(unheard):
    data = {"jid": SIGNAL, "id": "a", "fun": ALL, "return": [SENT], "retcode": 0, "success": True}
    unheard.bus.deliver(f"salt/job/{SIGNAL}/ret/a", data)
    assert killed_by(unheard, signal(ALL, []))["a"] == "lost"


def test_an_answer_that_cannot_be_read_for_a_while_is_not_forgotten(unheard):
    cache, looks = unheard.master.cache, []
    said = {SIGNAL: {"a": (SENT, 0)}}

    def answers(jid, minions):
        if jid == SIGNAL:
            looks.append(jid)
            if len(looks) < 9:
                raise JobCacheError("it is down")
        return said.get(jid) or type(cache).answers(cache, jid, minions)

    cache.answers = answers
    assert killed_by(unheard, answer(unheard, SENT)) == {"a": "killed", "b": "completed"}
    assert len(looks) == 9


def test_a_minion_that_was_given_up_is_killed_if_it_says_that_it_has_ended_the_job(bench):
    bench.begin("ab", "1", presence="none", timeout=5.0, gather_job_timeout=1.0)
    assert bench.run(5.0, lambda: bench.master.minions["a"].runs)
    bench.master.minions["a"].there = False
    bench.master.minions["b"].seconds = 900
    assert bench.run(60.0, lambda: bench.states() == {"a": "lost"})
    assert bench.master.cache.log.append(signal(minions="a"))
    bench.run(5.0)
    assert bench.states() == {"a": "lost"}, "whether the signal has reached it is not known"
    assert bench.master.cache.log.append(answer(bench, SENT, "saltutil.kill_job"))
    assert bench.run(5.0, lambda: bench.states() == {"a": "killed"})
    assert bench.batch().record.budget_used == 0


def test_a_hand_over_waits_for_the_minions_of_a_signal_that_the_log_does_not_name(tmp_path):
    away = FakeMinion("a", there=False)
    with ShellBench(tmp_path, [away, FakeMinion("b", seconds=1)], logged=True) as bench:
        known = bench.clock.now() + 3600
        bench.master.cache.published_load = lambda jid: {"Minions": ["a"]} if bench.clock.now() >= known else {}
        bench.begin("ab", "2", presence="none", offline="queue", timeout=5.0, gather_job_timeout=1.0)
        assert bench.run(60.0, lambda: bench.batch().asked_queue)
        known = bench.clock.now() + 2
        assert bench.master.cache.log.append(signal()._replace(minions=None))
        bench.end()
        assert (bench.queued, bench.states()) == ([], {"a": "killed", "b": "completed"})
