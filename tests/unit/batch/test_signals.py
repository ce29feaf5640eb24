"""
An operator ends a batch's job by a signal of their own, such as ``saltutil.kill_job``: those minions count as killed, and
nobody sends them the job again.
"""

from __future__ import annotations

import pytest

from saltext.jobs.core.batch import facts
from saltext.jobs.core.log.records import publish_of
from tests.unit.batch.bench import Bench, published
from tests.unit.batch.shell_bench import JID, FakeMinion, ShellBench

AT = 1_000_000.0


# -- the machine -------------------------------------------------------------------------------------------------------


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


def test_a_signal_to_more_minions_than_the_log_names_counts_for_all(bench):
    assert killed_by(bench, signal()._replace(minions=None)) == {"a": "killed", "b": "completed"}


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
