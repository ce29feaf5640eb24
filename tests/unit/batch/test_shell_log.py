"""With a log of the master, what the bus tells of returns, or does not tell, changes nothing."""

from __future__ import annotations

import random

import pytest

from tests.faults import full_disk
from tests.unit.batch.shell_bench import JID, FakeMinion, ShellBench


def bench_of(tmp_path, *minions, **settings):
    return ShellBench(tmp_path, minions, logged=True, **settings)


def forge(bench, minion, retcode=0, jid=JID):
    """What any accepted minion can have its master fire in another's name."""
    data = {"jid": jid, "id": minion, "fun": "state.apply", "return": True, "retcode": retcode, "success": not retcode}
    bench.bus.deliver(f"salt/job/{jid}/ret/{minion}", data)


def test_if_the_log_lacks_returns_the_job_cache_is_read_once(tmp_path, caplog):
    with bench_of(tmp_path, *(FakeMinion(name, seconds=2) for name in "abcd")) as bench:
        bench.begin("abcd", "4", presence="none", timeout=600.0)
        bench.run(1)
        with full_disk():
            bench.run(1.5)
        bench.run(2)
        assert set(bench.states().values()) == {"completed"}
        assert len(bench.master.cache.looked) <= 2
        assert sum("may lack records" in line for line in caplog.messages) == 1


@pytest.mark.parametrize("seed", range(30))
def test_whatever_the_bus_does_the_record_is_what_minions_have_returned(tmp_path, seed):
    rng = random.Random(seed)
    names = "abcdefgh"
    minions = [FakeMinion(name, seconds=rng.choice((0.1, 1, 5)), retcode=rng.choice((0, 0, 3))) for name in names]
    with bench_of(tmp_path, *minions) as bench:
        true = bench.bus.deliver

        def deliver(tag, data):
            for _ in range(rng.choice((0, 0, 1, 1, 1, 3))):
                bench.virtual.loop.call_later(rng.choice((0.0, 0.0, 0.3, 20.0)), true, tag, data)

        bench.begin(names, "3", presence="none", timeout=60.0)
        bench.bus.deliver = deliver
        for _ in range(rng.randrange(40)):
            forge(bench, rng.choice(names), rng.choice((0, 5)))
            bench.run(rng.choice((0.01, 0.3)))
            if rng.random() < 0.05:
                bench.restart()
        bench.end()
        assert bench.states() == {m.name: "failed" if m.retcode else "completed" for m in minions}
        assert all(len(minion.begun) == 1 for minion in minions)
        assert bench.master.most <= 3
