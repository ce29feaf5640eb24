"""A return on the bus is hearsay: the shell has the job cache prove it, for many returns at once."""

from __future__ import annotations

import pytest

from tests.faults import full_disk
from tests.unit.batch.shell_bench import JID, FakeMinion, ShellBench


def bench_of(tmp_path, *minions, **settings):
    return ShellBench(tmp_path, minions, **settings)


def forge(bench, minion, retcode=0, jid=JID):
    """What any accepted minion can have its master fire in another's name."""
    data = {"jid": jid, "id": minion, "fun": "state.apply", "return": True, "retcode": retcode, "success": not retcode}
    bench.bus.deliver(f"salt/job/{jid}/ret/{minion}", data)


def test_a_forged_return_frees_no_slot_and_is_no_success(tmp_path, caplog):
    minions = [FakeMinion(name, seconds=30, retcode=7) for name in "abc"]
    with bench_of(tmp_path, *minions) as bench:
        bench.begin("abc", "1", max_failures=0)
        bench.run(1)
        for minion in "abc":
            forge(bench, minion)
        bench.run(10)
        assert bench.states() == {}
        assert sum("not in the job cache" in line for line in caplog.messages) == 1
        batch = bench.end()
        assert (batch.halted, batch.success, bench.master.most) == ("max_failures", False, 1)
        assert bench.states() == {"a": "failed"}
        assert bench.master.jobs() == ["a"]
        assert not bench.bus.errors


def test_the_event_counts_if_the_job_cache_cannot_tell(tmp_path):
    with bench_of(tmp_path, FakeMinion("a", seconds=10_000), "b", unproven="job_cache is False") as bench:
        bench.begin("ab", "1")
        bench.run(1)
        forge(bench, "a", 3)
        bench.run(0.5)
        assert bench.states() == {"a": "failed"}
        assert not bench.master.cache.looked


@pytest.mark.parametrize("retcode", [float("inf"), float("nan"), 10**30, "no", None, [1], {"a": float("inf")}])
def test_no_content_of_a_forged_or_genuine_return_stops_the_engine(tmp_path, retcode):
    with bench_of(tmp_path, *"ab") as bench:
        bench.begin("ab", "1", timeout=600.0)
        for minion in "abx":
            data = {"jid": JID, "id": minion, "fun": 7, "return": b"\xff", "retcode": retcode}
            bench.bus.deliver(f"salt/job/{JID}/ret/{minion}", data)
        bench.end(30)
        assert set(bench.states().values()) == {"completed"}
        assert not bench.bus.errors


def test_if_the_log_lacks_returns_the_job_cache_is_read_once(tmp_path, caplog):
    with ShellBench(tmp_path, [FakeMinion(name, seconds=2) for name in "abcd"], logged=True) as bench:
        bench.begin("abcd", "4", presence="none", timeout=600.0)
        bench.run(1)
        with full_disk():
            bench.run(1.5)
        bench.run(2)
        assert set(bench.states().values()) == {"completed"}
        assert len(bench.master.cache.looked) <= 2
        assert sum("may lack records" in line for line in caplog.messages) == 1
