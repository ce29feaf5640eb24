"""Limits, groups, windows and checks through the batch engine's shell, in simulated time."""

from __future__ import annotations

import datetime

import pytest

from saltext.jobs.core.batch.pace import FRESH, Pause, PausedBy
from saltext.jobs.core.errors import PublishFailed
from saltext.jobs.core.users import WHO
from tests.faults import failing_syncs
from tests.unit.batch.bench import BEGIN
from tests.unit.batch.shell_bench import JID, FakeMinion, ShellBench, Slow

pytestmark = pytest.mark.usefixtures("both_ways")

HOUR = 3600.0


def utc(after):
    """What a clock shows in UTC, so many seconds after the bench began."""
    return datetime.datetime.fromtimestamp(BEGIN + after, datetime.timezone.utc).strftime("%H:%M")


# -- windows -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["pause", "stop", ""])
def test_a_publish_that_the_disk_held_up_until_the_batch_was_paused_or_stopped_or_lost_the_right_does_not_go_out(
    tmp_path, monkeypatch, verb
):
    with ShellBench(tmp_path, "ab") as bench:
        bench.begin("ab", "1", owner=ANNA)
        bench.run(0.5)
        with failing_syncs(monkeypatch):
            bench.run(2)
            assert bench.batch().publishing
            if verb:
                bench.ask(verb, jid=JID, user="ann")
            else:
                bench.permission.lost["anna"] = "anna may not any more"
            bench.run(2 if verb else FRESH)
        bench.run(10)
        assert (bench.master.jobs(), bench.batch().pending.in_order()) == (["a"], ["b"])
        if verb != "stop":
            bench.permission.lost.clear()
            bench.reply("resume")
            assert bench.end().success


def test_a_batch_waits_for_its_start_time_through_a_restart_of_the_engine(tmp_path):
    with ShellBench(tmp_path, "ab") as bench:
        bench.begin("ab", "2", start_at=BEGIN + 1000.0)
        bench.run(500)
        bench.restart(after=100)
        bench.run(390)
        assert not bench.master.jobs()
        bench.end()
        assert all(1000 <= when < 1002 for when in bench.times().values())
        assert [data["reason"] for tag, data in bench.bus.fired if tag.endswith("/resumed")] == [
            "its start time has come"
        ]


def test_a_start_time_goes_by_the_wall_clock_and_not_by_the_steady_one(tmp_path):
    with ShellBench(tmp_path, "ab") as bench:
        behind = 5000.0
        bench.restart(wall=lambda: bench.clock.now() + behind)
        bench.begin("ab", "2", start_at=BEGIN + behind + 1000.0)
        bench.run(500)
        behind = 5300.0  # the clock is set: its time comes sooner
        bench.run(195)
        assert not bench.master.jobs()
        bench.end()
        assert all(700 <= when < 706 for when in bench.times().values())


def test_a_batch_whose_window_has_shut_is_not_resumed_when_nothing_is_left_to_send(tmp_path):
    with ShellBench(tmp_path, [FakeMinion("a", 600.0), FakeMinion("b", there=False)]) as bench:
        times = {"window": f"{utc(0)}-{utc(20)}", "timezone": "UTC", "gather_job_timeout": 15.0}
        bench.begin("ab", "2", presence="ping", probe_attempts=2, **times)
        bench.end()
        assert (bench.bus.kinds(), bench.states()["b"]) == (["new", "paused", "complete"], "offline")


def test_a_batch_whose_zone_has_gone_waits_and_says_why(tmp_path):
    with ShellBench(tmp_path, "ab") as bench:
        bench.begin("ab", "2", window="02:00-05:00", timezone="Europe/Atlantis")
        bench.run(200)
        assert not bench.master.jobs()
        assert "Europe/Atlantis" in bench.batch(JID).waits_for().reason
        assert bench.bus.kinds() == ["new", "paused"]


# -- checks ------------------------------------------------------------------------------------------------------------

FUNCTION = {"kind": "function", "fun": "service.status", "arg": ["nginx"], "kwargs": {}}
RUNNER = {"kind": "runner", "fun": "survey.healthy", "arg": ["{jid}", "stage={stage}"], "kwargs": {}}
APPROVE = {"kind": "approve", "fun": "", "arg": [], "kwargs": {}}


def checked_by(bench, answer):
    for minion in bench.master.minions.values():
        minion.answers["service.status"] = answer


@pytest.mark.parametrize(
    ("check", "answer", "reason"),
    [
        (FUNCTION, (False, 0), "service.status: a: returned False"),
        (FUNCTION, ("died", 2), "service.status: a: exit code 2"),
        (RUNNER, (None, "no answer within 300 s"), "survey.healthy: no answer within 300 s"),
        (RUNNER, ("no such host", "it failed"), "survey.healthy: it failed: no such host"),
        (RUNNER, (False, True), "survey.healthy: returned False"),
    ],
)
def test_a_check_that_says_no_halts_the_batch(tmp_path, check, answer, reason):
    with ShellBench(tmp_path, "ab") as bench:
        checked_by(bench, answer)
        bench.runners["survey.healthy"] = answer
        bench.begin("ab", "1,1", check=check)
        assert bench.end().halted == f"check {reason}"
        assert not bench.master.minions["b"].begun


def test_a_minion_that_does_not_answer_halts_the_batch(tmp_path):
    with ShellBench(tmp_path, "abc") as bench:
        checked_by(bench, (True, 0))
        bench.master.minions["b"].answers["service.status"] = (True, 0)
        bench.begin("abc", "2,100%", check=FUNCTION, check_timeout=30.0)
        bench.run(600, lambda: len(bench.master.minions["b"].begun) and not bench.master.minions["b"].runs)
        bench.master.minions["b"].there = False
        assert bench.end().halted == "check service.status: b: no answer within 30 s"


def test_a_check_is_made_again_if_it_could_not_be_published_or_the_log_could_not_take_what_it_returned(tmp_path):
    with ShellBench(tmp_path, "ab", logged=True) as bench:
        checked_by(bench, (True, 0))
        bench.begin("ab", "1,1", check=FUNCTION, check_timeout=30.0)
        publish, taken, failures = (
            bench.master.publish,
            bench.master.cache.append,
            [PublishFailed("the disk is full"), None],
        )

        async def publish_check(fun, *args, **more):
            if fun == "service.status" and failures:
                failure = failures.pop(0)
                if failure is not None:
                    raise failure
                bench.master.cache.append = lambda record: bench.master.cache.log.missed(OSError("the disk is full"))
                bench.virtual.loop.call_later(10.0, setattr, bench.master.cache, "append", taken)
            return await publish(fun, *args, **more)

        bench.master.publish = publish_check
        assert bench.end().success is True
        assert not failures


def test_a_runner_is_called_once_the_rights_of_the_owner_are_known_and_the_log_is_not_filled_until_then(
    tmp_path, caplog
):
    with ShellBench(tmp_path, "ab") as bench:
        bench.runners["survey.healthy"], limits, bench.permission.limits = (True, True), bench.permission.limits, None
        bench.begin("ab", "1,1", check=RUNNER)
        bench.run(60.0)
        assert caplog.text.count("Check failed") <= 1
        bench.permission.limits = limits
        assert bench.end().success


def test_a_runner_is_told_which_batch_and_stage_it_is_about(tmp_path):
    with ShellBench(tmp_path, "abc") as bench:
        bench.runners["survey.healthy"] = ({"fine": 3}, True)
        bench.begin("abc", "1,1,100%", check=RUNNER)
        assert bench.end().success is True
        assert bench.called == [("survey.healthy", (JID, "stage=1")), ("survey.healthy", (JID, "stage=2"))]


# -- rights -----------------------------------------------------------------------------------------------------------

ANNA = {"kind": "token", "name": "anna", "backends": ["file"], "at": 1.0}


def test_a_batch_whose_owner_has_lost_the_right_sends_nothing_more_until_it_is_given_back(tmp_path, caplog):
    minions = [FakeMinion("a", seconds=FRESH + 10), FakeMinion("b", seconds=FRESH + 11), FakeMinion("c")]
    with ShellBench(tmp_path, minions) as bench:
        bench.restart(rights_worker=Slow())  # b returns while the server is asked
        bench.begin("abc", "2", owner=ANNA, timeout=HOUR)
        bench.run(FRESH)
        reason = bench.permission.lost["anna"] = "anna may not publish state.apply to 1 of its minions any more"
        bench.run(100.0)
        assert (bench.master.jobs(), bench.batch().paused) == (["ab"], Pause(PausedBy.PERMISSION, reason))
        assert reason in caplog.text
        bench.permission.lost.clear()
        bench.ask("resume", jid=JID, user="root")
        assert set(bench.end().outcomes) == set("abc")


def test_a_batch_keeps_the_authenticated_user_with_its_load(tmp_path):
    with ShellBench(tmp_path) as bench:
        bench.begin(owner=ANNA)
        bench.end()
        assert bench.master.cache.loads[JID][WHO] == ANNA


WINDOW = f"{utc(0)}-{utc(HOUR)}"


@pytest.mark.parametrize(
    "metadata, told",
    [
        ({}, {"window": WINDOW, "timezone": "UTC"}),
        ({"ticket": 1, "job_retry": {"ttl": "7d"}}, {"ttl": "7d", "window": WINDOW, "timezone": "UTC"}),
        ({"job_retry": True}, {"window": WINDOW, "timezone": "UTC"}),
        ({"job_retry": {"window": None}}, {"window": WINDOW, "timezone": "UTC"}),
        ({"job_retry": {"window": ""}}, {"window": ""}),
        ({"job_retry": {"window": "at night", "ttl": "7d"}}, {"ttl": "7d", "window": WINDOW, "timezone": "UTC"}),
    ],
)
def test_what_the_retry_queue_delivers_later_has_the_window_of_the_batch(tmp_path, metadata, told):
    with ShellBench(tmp_path, [FakeMinion("a"), FakeMinion("b", there=False)]) as bench:
        options = {"options": {"metadata": metadata}} if metadata else {}
        bench.begin("ab", "2", presence="ping", offline="queue", window=WINDOW, timezone="UTC", **options)
        bench.end()
        assert bench.queued == ["b"]
        assert bench.master.cache.loads[JID]["kwargs"]["metadata"] == {**metadata, "job_retry": told}
