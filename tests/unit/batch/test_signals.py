"""
An operator ends a batch's job by a signal of their own, such as ``saltutil.kill_job``: those minions count as killed, and
nobody sends them the job again.
"""

from __future__ import annotations

import pytest

from saltext.jobs.core.log.records import publish_of
from tests.unit.batch.shell_bench import JID, FakeMinion, ShellBench


def signal(fun="saltutil.kill_job", arg=(JID,), minions="ab", origin="", jid="20260516101113000000"):
    return publish_of(jid, {"fun": fun, "arg": list(arg), "user": "ann"}, list(minions), "", origin)


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
    bench.run(1.0)  # the batch is closed
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


@pytest.mark.parametrize("is_heard", [True, False], ids=["just before the engine dies", "while no engine runs"])
def test_a_signal_counts_whenever_it_comes(bench, is_heard):
    bench.begin("ab", "1", presence="none")
    assert bench.run(5.0, lambda: bench.master.minions["a"].runs)
    if is_heard:
        bench.run(2.0)  # all before is written
        assert bench.master.cache.log.append(signal())
        assert bench.run(1.0, lambda: bench.batch().flights["a"].signalled)
    else:
        bench.shell.close()
        assert bench.master.cache.log.append(signal())
    bench.virtual.loop.remove_timeout(bench.master.minions["a"].runs.pop(JID))
    bench.restart()
    bench.end()
    assert bench.states() == {"a": "killed", "b": "completed"}


@pytest.mark.parametrize("killed", [False, True], ids=["", "killed"])
def test_a_minion_is_handed_over_only_once_the_log_tells_of_no_signal(tmp_path, killed):
    away = FakeMinion("a", there=False)
    with ShellBench(tmp_path, [away, FakeMinion("b", seconds=1)], logged=True) as bench:
        bench.begin("ab", "2", presence="none", offline="queue", timeout=5.0, gather_job_timeout=1.0)
        told = []

        def asks():
            if bench.batch().asked_queue and not told:
                told.append(not killed or bench.master.cache.log.append(signal()))
            return bool(told)

        assert bench.run(60.0, asks)
        assert told == [True]
        bench.end()
        assert bench.queued == ([] if killed else ["a"])
        assert bench.states() == {"a": "killed" if killed else "offline", "b": "completed"}
