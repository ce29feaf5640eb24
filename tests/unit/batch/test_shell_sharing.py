"""Batches that share minions, through the engine's shell in simulated time: one limit over all, and none blocks another."""

from __future__ import annotations

import pytest

from tests.database import change_batch
from tests.unit.batch.bench import Bench
from tests.unit.batch.shell_bench import FakeMinion, ShellBench

A, B, C = (f"2026051610111213{number}" for number in (1001, 1002, 1003))
EIGHT = "abcdefgh"
ANNA = {"name": "anna", "kind": "eauth"}


def at(bench, name):
    """When each batch has begun on a minion."""
    return dict(bench.master.minions[name].begun)


def flying(bench, *jids):
    return [len(bench.batch(jid).flights) for jid in jids]


def test_a_small_batch_does_not_wait_for_a_large_one(tmp_path):
    with ShellBench(tmp_path, EIGHT, max_in_flight=3) as bench:
        for minion in bench.master.minions.values():
            minion.seconds = 100.0
        bench.begin(EIGHT, "8", jid=A)
        bench.begin("gh", "2", jid=B)
        assert bench.run(120, lambda: flying(bench, B) == [2])
        bench.end(jid=B)
        assert bench.batch(A).pending


def test_a_batch_says_what_it_waits_for_until_it_gets_it(tmp_path):
    with ShellBench(tmp_path, EIGHT, max_in_flight=2) as bench:
        for minion in bench.master.minions.values():
            minion.seconds = 100.0
        bench.begin("ab", "2", jid=A)
        bench.begin("cd", "2", jid=B)
        bench.run(2)
        told = "waits for room: 2 of 2 minions are in flight over all batches, {} of them of this"
        assert bench.batch(B).blocked() == told.format(0)
        assert bench.store.read(B).blocked() == told.format(0), "who reads its rows is told the same"
        assert bench.batch(A).blocked() == ""
        assert bench.batch(B).state == "running"
        bench.end(jid=A)
        assert bench.run(5, lambda: flying(bench, B) == [2])
        assert bench.batch(B).blocked() == ""


def test_a_batch_whose_row_is_damaged_keeps_the_others_from_nothing(tmp_path):
    with ShellBench(tmp_path, "ab", max_in_flight=1) as bench:
        bench.begin("b", "1", jid=B)
        Bench("a", jid=A).keep(bench.store)
        change_batch(bench.opts, A, body=b"no row")
        bench.restart()
        assert bench.end(jid=B).success


@pytest.mark.parametrize(("before", "after", "most"), [(1, None, 8), (None, 1, 1), (None, 2, 2)])
def test_another_limit_counts_for_running_batches_from_the_next_start_on(tmp_path, before, after, most):
    with ShellBench(tmp_path, EIGHT, max_in_flight=before) as bench:
        bench.begin(EIGHT, "1,7", jid=A)
        bench.run(0.5)
        bench.settings = type(bench.settings)(max_in_flight=after)
        bench.restart()
        bench.end(jid=A)
        assert bench.master.most == min(most, 7)


def test_returns_that_come_one_by_one_lead_to_few_publishes(tmp_path):
    names = [f"m{number:03d}" for number in range(300)]
    minions = [FakeMinion(name, seconds=60.0 + number % 37) for number, name in enumerate(names)]
    with ShellBench(tmp_path, minions, max_in_flight=60) as bench:
        bench.begin(names, "100%", jid=A)
        bench.begin(names, "100%", jid=B)
        bench.end(jid=A)
        bench.end(jid=B)
        published = len(bench.master.jobs())
    assert bench.master.most == 60
    assert published < 300, published  # of 600 minions that were sent to


def test_room_that_a_batch_does_not_take_after_all_goes_to_the_next_one(tmp_path):
    names = [FakeMinion("a", seconds=400.0), *map(FakeMinion, "bc")]
    with ShellBench(tmp_path, names, max_in_flight=1) as bench:
        bench.begin("a", "1", jid=A, timeout=1000.0)
        bench.run(1)
        bench.begin("b", "1", jid=B, owner=ANNA)
        bench.run(1)
        bench.begin("c", "1", jid=C)
        bench.permission.lost["anna"] = "user anna may not run state.apply any more"
        assert bench.run(500, lambda: bench.batch(B).state == "paused"), "it is asked again before it sends"
        assert bench.end(seconds=10, jid=C).success


@pytest.mark.parametrize("request_", [{"do": "resume"}, {"do": "approve", "stage": 1}])
def test_a_request_that_waited_for_the_engine_lets_no_batch_send_beyond_its_new_limit(tmp_path, request_):
    with ShellBench(tmp_path, EIGHT) as bench:
        check = {"kind": "approve", "fun": "", "arg": [], "kwargs": {}} if request_["do"] == "approve" else {}
        bench.begin(EIGHT, "1,100%" if check else "100%", jid=A, check=check)
        if request_["do"] == "resume":
            bench.ask("pause", jid=A)
        bench.run(60)
        assert bench.batch(A).state == "paused"
        bench.settings = type(bench.settings)(max_in_flight=2)
        bench.shell.close()
        bench.ask(jid=A, **request_)
        bench.master.most = 0
        bench.start()
        assert bench.end(jid=A).success
    assert bench.master.most == 2
