"""The batch engine's shell, against a simulated master and minions."""

from __future__ import annotations

import os

import pytest

from saltext.jobs.core import compat
from saltext.jobs.core.batch import native
from tests.unit.batch.shell_bench import JID, FakeMinion, ShellBench

pytestmark = pytest.mark.usefixtures("both_ways")


@pytest.fixture
def bench(tmp_path):
    with ShellBench(tmp_path) as bench:
        yield bench


def test_progress_is_announced_at_most_once_a_second(tmp_path):
    with ShellBench(tmp_path, [FakeMinion(f"m{number:02d}", 0.2) for number in range(60)]) as bench:
        bench.begin(batch="1")
        took = bench.end().finished - bench.master.minions["m00"].begun[0][1]
        kinds = [tag.rsplit("/", 1)[1] for tag, _ in bench.bus.fired]
        assert (kinds[0], kinds[-1], set(kinds[1:-1])) == ("new", "complete", {"progress"})
        assert took / 2 < len(kinds) - 2 <= took + 1


def test_a_stop_is_answered_when_the_publish_under_way_has_ended(bench):
    publish, held = bench.master.publish, []

    async def slow(*args, **kwargs):
        await compat.sleep(5)
        held.append(1)
        return await publish(*args, **kwargs)

    bench.master.publish = slow
    bench.begin("abcd", "2")
    bench.run(0.1)
    request = bench.ask("stop", jid=JID)
    bench.run(4.8)
    assert request not in bench.inbox.replies
    bench.run(0.2)
    assert bench.inbox.replies[request] == ("answer", True)
    assert held == [1]


def test_local_cache_keeps_the_job_of_a_batch_while_the_batch_is_under_way(bench):
    for minion in bench.master.minions.values():
        minion.seconds = 30.0
    bench.begin("abcd", "2", timeout=60.0)
    job = native.path_of(bench.opts, JID).with_name("jid")
    job.parent.mkdir(parents=True, exist_ok=True)
    job.write_text(JID)
    os.utime(job, (1, 1))
    bench.run(6, lambda: job.stat().st_mtime > 1)
    assert job.stat().st_mtime > 1
    bench.end()
    os.utime(job, (1, 1))
    bench.run(60)
    assert job.stat().st_mtime == 1


def test_a_large_batch_pings_some_minions_at_a_time_and_begins_once_the_first_have_answered(tmp_path):
    names = [f"m{number:04d}" for number in range(1200)]
    with ShellBench(tmp_path, [FakeMinion(name, there=name != "m0700") for name in names]) as bench:
        bench.begin(names, "30", presence="ping", timeout=60.0)
        assert bench.run(2.0, bench.master.jobs)
        pings = [minions for fun, minions in bench.master.published if fun == "test.ping"]
        assert list(pings[0]) == names[:60]
        assert bench.master.jobs() == ["".join(names[:30])]
        bench.end()
        pings = [minions for fun, minions in bench.master.published if fun == "test.ping"]
        assert max(map(len, pings)) == 500
        assert list(bench.states().values()).count("completed") == 1199
