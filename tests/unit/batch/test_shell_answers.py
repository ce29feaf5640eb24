"""
Answers to the batch's questions count by what the job cache has of them, and signs of life or of a beginning delay little:
every accepted minion can have its master fire such events in another's name.
"""

from __future__ import annotations

import pytest

from saltext.jobs.core.batch.store import BatchStore
from tests.unit.batch.shell_bench import JID, FakeMinion, ShellBench

pytestmark = pytest.mark.usefixtures("both_ways")

QUICK = {"timeout": 5.0, "gather_job_timeout": 2.0}


def questions(bench, fun):
    """The minions of each publish of a function."""
    return ["".join(minions) for name, minions in bench.master.published if name == fun]


class Liar:
    """
    Answers every question at once in the name of a minion, as another minion can.

    :param lies: ``{function: what it says}``; of a question of several functions, the first.
    """

    def __init__(self, bench, minion, **lies):
        publish = bench.master.publish

        async def overhear(fun, arg, tgt, tgt_type="list", *, jid, **more):
            matched = await publish(fun, arg, tgt, tgt_type, jid=jid, **more)
            first = fun[0] if isinstance(fun, list) else fun
            name = first.replace(".", "_")
            if name in lies and minion in matched:
                lie = {first: lies[name]} if isinstance(fun, list) else lies[name]
                data = {"jid": jid, "id": minion, "fun": fun, "return": lie, "retcode": 0, "success": True}
                bench.virtual.loop.call_later(0.001, bench.bus.deliver, f"salt/job/{jid}/ret/{minion}", data)
            return matched

        bench.master.publish = overhear


def forge_without_end(bench, tag, data, seconds=1.0):
    """Have an event fired again and again."""

    def fire():
        bench.bus.deliver(tag, data)
        bench.virtual.loop.call_later(seconds, fire)

    fire()


def test_a_forged_answer_that_a_dead_minion_runs_the_job_keeps_no_slot(tmp_path):
    with ShellBench(tmp_path, [FakeMinion("a", seconds=10_000), "b"]) as bench:
        Liar(bench, "a", saltutil_find_job={"jid": JID})
        bench.begin("ab", "1", **QUICK)
        bench.run(1)
        bench.master.minions["a"].there = False
        bench.end(120)
        assert bench.states() == {"a": "lost", "b": "completed"}


def test_a_forged_answer_that_a_minion_does_not_run_the_job_frees_no_slot(tmp_path):
    with ShellBench(tmp_path, [FakeMinion("a", seconds=60), "b"]) as bench:
        Liar(bench, "a", saltutil_find_job={})
        bench.begin("ab", "1", probe_attempts=1000, **QUICK)
        bench.run(1)
        bench.master.minions["a"].latency = 10_000.0  # it is too busy to answer
        bench.end()
        assert bench.states() == {"a": "completed", "b": "completed"}
        assert bench.master.most == 1


@pytest.mark.parametrize("offline, state", [("skip", "offline"), ("queue", "queued")])
def test_a_forged_answer_to_a_ping_makes_no_minion_present(tmp_path, offline, state):
    with ShellBench(tmp_path, [FakeMinion("a", there=False), "b"]) as bench:
        Liar(bench, "a", test_ping=True)
        bench.begin("ab", "2", presence="ping", offline=offline, **QUICK)
        bench.end()
        assert bench.states() == {"a": state, "b": "completed"}
        assert bench.master.jobs() == ["b"]
        assert bench.queued == (["a"] if offline == "queue" else [])


def test_a_forged_answer_passes_no_check(tmp_path):
    check = {"kind": "function", "fun": "app.healthy", "arg": [], "kwargs": {}}
    minions = [FakeMinion("a"), FakeMinion("b")]
    minions[0].answers["app.healthy"] = (False, 0)
    with ShellBench(tmp_path, minions) as bench:
        Liar(bench, "a", app_healthy=True)
        bench.begin("ab", "1,100%", check=check, check_timeout=5.0)
        assert "app.healthy: a: returned False" in bench.end().halted
        assert "b" in bench.batch().pending.in_order()


@pytest.mark.parametrize("presence", ["ping", "none"])
def test_forged_starts_without_end_keep_no_slot(tmp_path, presence):
    with ShellBench(tmp_path, [FakeMinion("a", seconds=10_000), "b"]) as bench:
        bench.begin("ab", "1", presence=presence, **QUICK)
        bench.run(1)
        bench.master.minions["a"].there = False
        forge_without_end(bench, f"salt/job/{JID}/start/a", {"id": "a", "jid": JID})
        bench.end(300)
        assert bench.states() == {"a": "lost", "b": "completed"}


def test_forged_signs_of_life_without_end_make_no_minion_present_and_delay_no_batch(tmp_path):
    with ShellBench(tmp_path, [FakeMinion("a", there=False), "b"]) as bench:
        forge_without_end(bench, "salt/minion/a/start", {"id": "a"})
        other = "20260101000000000000"
        forge_without_end(bench, f"salt/job/{other}/ret/a", {"id": "a", "jid": other, "fun": "x", "return": 1})
        bench.begin("ab", "2", presence="ping", **QUICK)
        bench.end(60)
        assert bench.states() == {"a": "offline", "b": "completed"}
        assert len(questions(bench, "test.ping")) == 3, "as many as without the events"


class Counting(BatchStore):
    """Counts the rows that are written."""

    rows = 0

    def write(self, changes, durable=True, cursor=None, answers=None):
        self.rows += sum(1 + len(change.parts) for change in changes)
        super().write(changes, durable, cursor, answers)


def test_a_flood_of_forged_signs_writes_next_to_nothing_down(tmp_path):
    minions = [FakeMinion("a", seconds=600), FakeMinion("b", there=False)]
    with ShellBench(tmp_path, minions, store=Counting) as bench:
        bench.begin("ab", "2", presence="ping", timeout=600.0, gather_job_timeout=2.0)
        bench.run(3)
        before = bench.store.rows
        for _ in range(5000):
            bench.bus.deliver(f"salt/job/{JID}/start/a", {"id": "a", "jid": JID})
            for minion in "ab":
                bench.bus.deliver(f"salt/minion/{minion}/start", {"id": minion})
        bench.run(5)
        assert bench.store.rows - before < 10


def test_the_events_are_believed_if_the_job_cache_cannot_tell_which_minion_answered(tmp_path):
    with ShellBench(tmp_path, [FakeMinion("a", there=False), "b"], unproven="job_cache is False") as bench:
        Liar(bench, "a", test_ping=True)
        bench.begin("ab", "2", presence="ping", **QUICK)
        bench.run(1)
        assert "".join(sorted("".join(bench.master.jobs()))) == "ab"
        assert not bench.master.cache.looked


def test_the_answers_of_many_are_proven_by_few_looks_and_leave_nothing_behind(tmp_path):
    names = [f"m{number:03d}" for number in range(150)]
    with ShellBench(tmp_path, [FakeMinion(name, seconds=20) for name in names]) as bench:
        bench.begin(names, "150", presence="ping", **QUICK)
        bench.end()
        assert sum(map(len, bench.master.cache.looked)) <= 6 * 150, "a ping, two questions whether they run it, the end"
        assert len(bench.master.cache.looked) <= 12
        bench.run(60)
        assert bench.master.cache.answered == {}
