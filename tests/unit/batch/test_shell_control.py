"""What operators ask of a batch, its run time, checks and rights: what minions run of it, and what operators are told."""

from __future__ import annotations

import time

import pytest
import salt.payload

from saltext.jobs.core import compat
from saltext.jobs.core.batch import facts
from saltext.jobs.core.batch.member import KILLS
from saltext.jobs.core.batch.pace import FRESH
from saltext.jobs.core.batch.store import BatchStore
from saltext.jobs.core.batch.summary import summary
from saltext.jobs.core.engine.requests import Service
from tests.unit.batch.bench import Bench
from tests.unit.batch.shell_bench import JID, FakeMinion, ShellBench
from tests.unit.batch.test_shell_rollout import ANNA, APPROVE, FUNCTION, HOUR

YES, NO = ("answer", True), ("answer", False)


def bench_of(tmp_path, *minions, seconds=10.0, **settings):
    minions = [FakeMinion(each, seconds) if isinstance(each, str) else each for each in minions]
    return ShellBench(tmp_path, minions, **settings)


def shown(bench):
    return summary(bench.batch(), bench.clock.now())


# -- pause and stop ----------------------------------------------------------------------------------------------------


def test_a_paused_batch_sends_nothing_until_it_is_resumed(tmp_path):
    with bench_of(tmp_path, *"abcd", FakeMinion("e", there=False)) as bench:
        bench.begin("abcde", "2", presence="ping")
        assert bench.run(15.0, lambda: len(bench.times()) == 2)
        assert [bench.reply("pause"), bench.reply("pause")] == [YES, NO]
        sent = list(bench.master.published)
        bench.run(60.0)
        assert (bench.batch().state, bench.states()) == ("paused", {"a": "completed", "b": "completed"})
        assert bench.master.published == sent, "nor is the one that is away pinged"
        assert [bench.reply("resume"), bench.reply("resume")] == [YES, NO]
        assert bench.end().success
        assert bench.bus.kinds() == ["new", "paused", "resumed", "complete"]
        assert [bench.reply(verb, kill=True) for verb in ("stop", "pause", "resume")] == [NO] * 3


def test_a_stopped_batch_lets_what_runs_end_unless_it_is_told_to_kill_it(tmp_path):
    with bench_of(tmp_path, FakeMinion("a", 10.0), FakeMinion("b", 1e6), *"cd") as bench:
        bench.begin("abcd", "2")
        bench.run(0.5)
        assert [bench.reply("stop"), bench.reply("stop"), bench.reply("pause")] == [YES, NO, NO]
        bench.run(HOUR)
        assert (bench.batch().state, bench.states()) == ("stopping", {"a": "completed"})
        assert [bench.reply("stop", kill=True), bench.reply("stop", kill=True)] == [YES, NO]
        assert bench.end().pending.in_order() == ["c", "d"]
        assert bench.states() == {"a": "completed", "b": "killed"}
        assert bench.bus.kinds() == ["new", "halted"]


def test_what_a_return_costs_while_a_batch_is_killed_does_not_depend_on_how_many_minions_run_it():
    def seconds_with(count):
        batch = Bench([str(number) for number in range(count)], "100%")
        batch.sent()
        batch.tell(facts.Requested("stop", kill=True))
        began = time.process_time()
        batch.returns(*map(str, range(100)))
        return time.process_time() - began

    assert seconds_with(20_000) < 10 * seconds_with(200)


def test_a_kill_reaches_minions_whose_publish_was_under_way(tmp_path):
    with bench_of(tmp_path, *"abc", seconds=1e6) as bench:
        publish = bench.master.publish

        async def slow(*args, **more):
            await compat.sleep(5)
            return await publish(*args, **more)

        for minion in bench.master.minions.values():
            minion.acknowledges = False
        bench.master.publish = slow
        bench.begin("abc", "2", timeout=600.0)
        bench.run(0.5)
        assert bench.reply("stop", kill=True) == YES
        assert bench.end(60.0).pending.in_order() == ["c"]
        assert bench.states() == {"a": "killed", "b": "killed"}


def test_a_job_that_had_ended_before_the_kill_counts_as_what_its_minion_has_kept_of_it(tmp_path):
    minion = FakeMinion("a", 1e6)
    with bench_of(tmp_path, minion) as bench:
        bench.begin("a", "1", timeout=600.0)
        bench.run(10)
        minion.runs.clear()  # its return is lost
        ended = {"jid": JID, "fun": "state.apply", "return": "done", "retcode": 0, "job_once": {"state": "ended"}}
        minion.answers["saltutil.find_cached_job"] = (ended, 0)
        assert bench.reply("stop", kill=True) == YES
        bench.end()
        assert bench.states() == {"a": "completed"}


def test_killed_is_said_only_where_the_minion_says_that_the_kill_has_reached_the_job(tmp_path):
    with bench_of(tmp_path, *"abc", seconds=1e6) as bench:
        bench.master.minions["b"].acknowledges = False
        bench.master.minions["c"].answers["saltutil.kill_job"] = ("Traceback (most recent call last)", 1)
        bench.begin("abc", "3", timeout=600.0)
        bench.run(10)
        for name in "bc":
            bench.master.minions[name].runs.clear()  # it ends a moment before the kill, and its return is lost
        assert bench.reply("stop", kill=True) == YES
        bench.end()
        assert bench.states() == {"a": "killed", "b": "lost", "c": "lost"}


def test_a_job_that_survives_every_kill_keeps_its_slot_and_its_minion_is_named(tmp_path):
    with bench_of(tmp_path, FakeMinion("a", 2000.0), "b") as bench:
        for fun in ("saltutil.term_job", "saltutil.kill_job"):
            bench.master.minions["a"].answers[fun] = ("no such process", 0)
        bench.begin("ab", "1", max_runtime=100.0)
        bench.run(HOUR / 2)
        assert bench.kills() == ["saltutil.term_job", *["saltutil.kill_job"] * (KILLS - 1)]
        assert (shown(bench)["survivors"], bench.times()) == (["a"], {"a": 0})
        bench.end()
        assert bench.states() == {"a": "completed", "b": "completed"}


# -- max_runtime -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("retcode", "answers", "state"),
    [(0, {}, "completed"), (143, {}, "timed_out"), (1, {"saltutil.term_job": ("", 0)}, "failed")],
)
def test_a_job_that_was_told_to_end_counts_as_what_it_returns(tmp_path, retcode, answers, state):
    with bench_of(tmp_path, FakeMinion("a", 105.0, retcode, answers=answers)) as bench:
        bench.master.minions["a"].stubborn = True
        bench.begin("a", "1", max_runtime=100.0)
        assert bench.end().success is (state == "completed")
        assert (bench.states(), bench.batch().members["a"].retcode) == ({"a": state}, retcode)


# -- checks ------------------------------------------------------------------------------------------------------------


def test_an_approval_is_for_the_stage_that_it_names(tmp_path):
    with bench_of(tmp_path, *"abcd") as bench:
        bench.begin("abcd", "1,1,100%", check=APPROVE)
        assert bench.reply("approve", stage=1) == NO, "it has not come to that"
        bench.run(HOUR / 4)
        assert (shown(bench)["paused_by"], shown(bench)["approve"]) == ("approval", 1)
        assert [bench.reply("approve", stage=stage) for stage in (2, 1, 1)] == [NO, YES, NO]
        bench.restart()
        bench.run(HOUR)
        assert bench.states().keys() == set("ab")
        assert [bench.reply("approve", stage=stage) for stage in (1, 2)] == [NO, YES]
        assert bench.end().success


def test_a_batch_that_has_only_minions_to_hand_over_still_says_that_it_waits_for_an_approval(tmp_path):
    with bench_of(tmp_path, *"abc") as bench:
        bench.begin("abc", "1,100%", check=APPROVE, offline="queue", presence="ping")
        bench.run(60.0)
        bench.master.minions["b"].there = bench.master.minions["c"].there = False
        bench.restart()
        bench.run(HOUR)
        assert (shown(bench)["pending"], shown(bench)["paused_by"], bench.queued) == (0, "approval", [])
        bench.reply("approve", stage=1)
        assert bench.end() and bench.queued == ["b", "c"]


def test_a_check_is_of_those_of_the_stage_that_have_completed(tmp_path):
    minions = [FakeMinion(name, 10.0, int(name == "b")) for name in "abcdef"]
    with bench_of(tmp_path, *minions) as bench:
        for minion in minions:
            minion.answers["service.status"] = (True, 0)
        bench.begin("abcdef", "1,3,100%", check=FUNCTION)
        assert bench.end().halted is None
        assert ["".join(names) for fun, names in bench.master.published if fun == "service.status"] == ["a", "cd"]


# -- rights ------------------------------------------------------------------------------------------------------------


def asked(bench):
    """About which minions the rights of a user were looked up, as ``user:minions``."""
    return [f"{name}:{''.join(minions)}" for name, minions in bench.permission.asked]


def test_an_answer_counts_for_a_while_and_never_beyond_an_approval(tmp_path):
    with bench_of(tmp_path, *"abcd", seconds=FRESH - 10) as bench:
        bench.begin("abcd", "1", owner=ANNA, timeout=HOUR)
        bench.end()
        assert asked(bench) == ["anna:abcd", "anna:cd"]
    with bench_of(tmp_path / "approve", *"abcd") as bench:
        bench.begin("abcd", "1,100%", owner=ANNA, check=APPROVE)
        bench.run(60.0)
        bench.permission.asked.clear()
        bench.reply("approve", stage=1)
        bench.run(5.0)
        assert asked(bench) == ["anna:bcd"]
        assert bench.end().success


def test_the_rights_are_looked_up_before_anything_is_pinged_and_again_before_a_resumed_batch_sends(tmp_path):
    with bench_of(tmp_path, *"abc") as bench:
        bench.permission.failing = True
        bench.begin("abc", "1", owner=ANNA, presence="ping")
        bench.run(100.0)
        assert bench.master.published == []
        bench.permission.failing = False
        assert bench.run(200.0, lambda: bench.times())
        bench.reply("pause")
        bench.run(20.0)
        bench.permission.lost["anna"] = "anna may not any more"
        bench.reply("resume", user="bert")
        bench.run(60.0)
        assert (bench.batch().paused.reason, bench.master.jobs()) == ("anna may not any more", ["a"])
        bench.permission.lost.clear()
        bench.reply("resume", user="bert")
        assert bench.end().success


def test_an_answer_that_could_not_be_written_is_written_later_though_no_batch_is_open(tmp_path):
    class Full(BatchStore):
        has_room, answered = False, {}

        def write(self, changes, durable=True, answers=()):
            if not self.has_room:
                raise OSError("No space left on device")
            self.answered.update(answers)

    with ShellBench(tmp_path, "a", store=Full) as bench:
        bench.run(1)
        Service.reply(bench.shell.service, "a request", {"value": False})
        bench.run(10)
        bench.store.has_room = True
        bench.run(10)
        assert bench.store.answered == {"a request": salt.payload.dumps({"value": False})}
