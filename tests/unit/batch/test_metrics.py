"""The figures of the batch_manager engine."""

from __future__ import annotations

import pytest

from saltext.jobs.core.batch.member import Outcome
from tests.unit.batch.bench import BEGIN
from tests.unit.batch.shell_bench import FakeMinion, ShellBench

A, B, C, D, E = (f"2026051610111213{number}" for number in range(1001, 1006))
NONE = dict.fromkeys((outcome.value for outcome in Outcome), 0)


@pytest.fixture
def bench(tmp_path):
    with ShellBench(tmp_path, [FakeMinion(name, seconds=100.0) for name in "abcde"]) as bench:
        yield bench


def figures(bench):
    return bench.shell.metrics()


def test_batches_and_minions_are_counted_where_they_stand(bench):
    assert figures(bench)["batch_without_progress_seconds"] == 0
    bench.begin("abcde", "2", jid=A, timeout=600.0)
    bench.begin("ab", "1", jid=B)
    bench.reply("pause", jid=B)
    bench.begin("ab", "1", jid=C, start_at=BEGIN + 9000.0)
    bench.begin("ab", "1,1", jid=D, check={"kind": "approve", "fun": "", "arg": [], "kwargs": {}})
    bench.begin("ab", "1", jid=E, timeout=600.0)
    bench.run(50.0)
    bench.reply("stop", jid=E)
    bench.run(45.0)
    found = figures(bench)
    assert found["batches"] == {"running": 2, "paused": 1, "waiting": 1, "stopping": 1}
    assert (found["batch_in_flight_minions"], found["batch_pending_minions"]) == (2 + 1 + 1, 3 + 2 + 2 + 1 + 1)
    assert found["batch_without_progress_seconds"] == pytest.approx(95.0, abs=5.0)
    bench.run(60.0)
    found = figures(bench)
    assert found["batches"] == {"running": 1, "paused": 1, "waiting": 2, "stopping": 0}
    assert found["batch_without_progress_seconds"] == pytest.approx(55.0, abs=5.0), "only of those that run"


def test_minions_count_when_they_end_and_batches_when_they_do_and_each_since_the_engine_started(bench):
    bench.master.minions["a"].retcode = 1
    bench.master.keys.discard("b")
    bench.begin("abc", "1", jid=A)
    bench.run(150.0)
    assert figures(bench)["batch_minions_total"] == {**NONE, "failed": 1, "offline": 1}
    bench.restart()
    bench.begin("d", "1", jid=B)
    bench.end(jid=A)
    bench.end(jid=B)
    found = figures(bench)
    assert found["batch_minions_total"] == {**NONE, "completed": 2}
    assert found["batches_ended_total"] == {"complete": 2, "halted": 0}


def test_the_limit_is_reported_if_there_is_one_and_a_batch_that_waits_for_others_is_not_stuck(bench):
    assert "batch_in_flight_limit_minions" not in figures(bench)
    bench.settings = type(bench.settings)(max_in_flight=2)
    bench.restart()
    bench.begin("ab", "2", jid=A, timeout=600.0)
    bench.begin("cd", "2", jid=B)
    bench.run(50.0)
    found = figures(bench)
    assert found["batch_in_flight_limit_minions"] == 2
    assert (found["batches"]["running"], found["batches"]["waiting"]) == (1, 1)
