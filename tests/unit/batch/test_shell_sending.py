"""To whom a batch sends its job, to how many at once, and when: as its minions see it, in simulated time."""

from __future__ import annotations

import itertools

import pytest

from saltext.jobs.core.batch.summary import minions as minions_of
from saltext.jobs.core.display.text import local
from saltext.jobs.core.errors import PublishFailed
from tests.unit.batch.shell_bench import JID, QUESTION, FakeMinion, ShellBench

TWO = (("eu", 3), ("us", 3))
QUICK = {"timeout": 5.0, "gather_job_timeout": 2.0}


def all_of(names, seconds=10.0, failing=""):
    return [FakeMinion(name, seconds, retcode=int(name in failing)) for name in names]


# -- sizes, ramps and groups -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("batch", "more", "begins"),
    [
        ("2", {}, "001122"),
        ("1,2,3", {}, "011222"),
        ("2", {"groups": TWO}, "001223"),
        ("1,100%", {"groups": TWO}, "011233"),
        ("2,100%", {"groups": (("eu", 1), ("us", 5))}, "011222"),
        ("2", {"batch_wait": 30.0}, "004488"),
        ("3", {"batch_wait": 30.0, "groups": TWO}, "000444"),
    ],
)
def test_so_many_minions_run_at_once_and_a_wave_a_group_and_batch_wait_are_waited_for(tmp_path, batch, more, begins):
    with ShellBench(tmp_path, all_of("abcdef")) as bench:
        bench.begin("abcdef", batch, **more)
        assert bench.end().success
        assert "".join(str(round(when / 10)) for when in bench.times().values()) == begins


def test_a_ramp_sends_wave_by_wave_and_then_slides(tmp_path):
    minions = [FakeMinion(name, seconds) for name, seconds in zip("abcdef", (10, 20, 50, 10, 90, 10), strict=True)]
    with ShellBench(tmp_path, minions) as bench:
        bench.begin("abcdef", "1,2,2", timeout=600.0)
        bench.end()
        assert [round(when / 10) for when in bench.times().values()] == [0, 1, 1, 6, 6, 7]


@pytest.mark.parametrize(
    ("failing", "budget", "halted", "ran"),
    [
        ("a", {"max_failures": 1}, None, "abcdef"),
        ("ab", {"max_failures": 1}, "max_failures", "ab"),
        ("ad", {"max_failures": 1, "groups": TWO}, "max_failures", "abcd"),
        ("ad", {"max_failures": "34%", "groups": TWO}, None, "abcdef"),
        ("ab", {"max_failures": "34%", "groups": TWO}, "max_failures in group eu", "ab"),
        ("e", {"max_failures": "0%", "groups": TWO}, "max_failures in group us", "abcde"),
    ],
)
def test_more_failures_than_allowed_stop_the_batch_and_no_fewer(tmp_path, failing, budget, halted, ran):
    with ShellBench(tmp_path, all_of("abcdef", failing=failing)) as bench:
        bench.begin("abcdef", "1", **budget)
        batch = bench.end()
        left = "".join(batch.pending.in_order())
        assert (batch.halted, "".join(bench.times()), left) == (halted, ran, "abcdef"[len(ran) :])


# -- who is there ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("presence", ["ping", "none"])
@pytest.mark.parametrize(("offline", "state"), [("skip", "offline"), ("fail", "failed"), ("queue", "queued")])
def test_a_minion_that_is_away_becomes_what_offline_says_and_lost_if_sent_to(tmp_path, presence, offline, state):
    with ShellBench(tmp_path, ["a", FakeMinion("b", there=False)]) as bench:
        bench.begin("ab", "2", presence=presence, offline=offline, **QUICK)
        batch, state = bench.end(), state if presence == "ping" or offline == "queue" else "lost"
        assert (bench.states(), batch.success) == ({"a": "completed", "b": state}, state == "offline")
        assert bench.queued == (["b"] if offline == "queue" else [])
        why = minions_of(batch)["b"].get("why")
        assert state != "failed" or why == "was away, and did not get the job: offline=fail"


@pytest.mark.parametrize("offline", ["skip", "fail", "queue"])
def test_a_minion_too_busy_to_answer_gets_the_job_once_it_returns_anything_while_the_batch_runs(tmp_path, offline):
    with ShellBench(tmp_path, [FakeMinion("a", there=False), FakeMinion("b", 60.0)], logged=True) as bench:
        bench.begin("ab", "2", presence="ping", offline=offline, **QUICK)
        assert bench.run(30, lambda: "a" in bench.states()), "it was left out"
        bench.master.minions["a"].there = True
        bench.master.cache.store_return({"jid": "20260516101112000000", "id": "a", "fun": "other.job", "retcode": 0})
        bench.run(5)
        bench.restart()
        batch = bench.end()
        assert (bench.states(), batch.success) == ({"a": "completed", "b": "completed"}, True)
        assert (bench.master.jobs(), bench.queued) == (["b", "a"], [])


@pytest.mark.parametrize(
    ("offline", "stops", "state"), [("queue", False, "queued"), ("queue", True, "lost"), ("skip", False, "lost")]
)
def test_a_minion_that_hangs_after_its_ping_may_begin_later_and_only_the_queue_asks(tmp_path, offline, stops, state):
    with ShellBench(tmp_path, "ab") as bench:
        bench.begin("ab", "1", presence="ping", offline=offline, **QUICK)
        assert bench.run(30, lambda: "a" in bench.batch().flights)
        bench.master.minions["b"].there = False
        assert bench.run(30, lambda: "b" in bench.batch().flights)
        bench.run(1)
        assert not stops or bench.reply("stop")
        bench.end()
        found = minions_of(bench.batch())
        assert bench.states() == {"a": "completed", "b": state}
        if state == "lost":  # which stays true when it is back
            assert found["b"]["why"].startswith(
                f"may have begun it, and was silent at {local(found['b']['since'], None)[:16]}"
            )


def test_a_minion_that_ignores_the_job_is_not_sent_it_without_end(tmp_path):
    with ShellBench(tmp_path, "ab") as bench:
        bench.master.minions["a"].known.add(JID)
        bench.begin("ab", "1", probe_attempts=2, **QUICK)
        bench.end()
        assert bench.states() == {"a": "lost", "b": "completed"}
        assert bench.master.jobs() == ["a", "a", "a", "b"]


def test_a_minion_that_runs_for_hours_is_asked_less_and_less_often(tmp_path):
    with ShellBench(tmp_path, [FakeMinion("a", seconds=5_000.0)]) as bench:
        bench.begin("a", "1", **QUICK)
        assert bench.end(6_000.0).success
        questions = [fun for fun, _ in bench.master.published if fun == QUESTION]
        assert 5_000 / 1302 <= len(questions) < 20, len(questions)


# -- publishes that fail -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fun", ["state.apply", "test.ping"])
def test_after_its_retries_a_batch_pauses_with_the_reason_until_it_is_resumed(tmp_path, fun):
    with ShellBench(tmp_path, "ab") as bench:
        publish, refused = bench.master.publish, []

        async def refuses(name, *args, **more):
            if name == fun and len(refused) < 3:
                refused.append(bench.clock.now())
                raise PublishFailed("the master is busy", certain=True)
            return await publish(name, *args, **more)

        bench.master.publish = refuses
        bench.begin("ab", "2", presence="ping", publish_retries=2, **QUICK)
        bench.run(1000)
        assert [round(after - before) for before, after in itertools.pairwise(refused)] == [1, 2]
        assert (bench.batch().state, bench.times()) == ("paused", {})
        assert "the master is busy" in bench.batch().paused.reason
        assert bench.reply("resume") == ("answer", True)
        assert bench.end().success
        assert bench.bus.kinds() == ["new", "paused", "resumed", "complete"]


def test_a_question_that_could_not_be_asked_is_no_silence(tmp_path):
    with ShellBench(tmp_path, all_of("a", 1000.0)) as bench:
        publish = bench.master.publish

        async def refuses(fun, *args, **more):
            if fun == QUESTION:
                raise PublishFailed("the master is busy", certain=True)
            return await publish(fun, *args, **more)

        bench.master.publish = refuses
        bench.begin("a", "1", probe_attempts=1, **QUICK)
        bench.end()
        assert bench.states() == {"a": "completed"}


# -- many minions -----------------------------------------------------------------------------------------------------


def test_progress_is_announced_at_most_once_a_second(tmp_path):
    with ShellBench(tmp_path, [FakeMinion(f"m{number:02d}", 0.2) for number in range(60)]) as bench:
        bench.begin(batch="1")
        took = bench.end().finished - bench.master.minions["m00"].begun[0][1]
        kinds = [tag.rsplit("/", 1)[1] for tag, _ in bench.bus.fired]
        assert (kinds[0], kinds[-1], set(kinds[1:-1])) == ("new", "complete", {"progress"})
        assert took / 2 < len(kinds) - 2 <= took + 1


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
