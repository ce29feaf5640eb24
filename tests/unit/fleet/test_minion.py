"""A featherweight minion says and remembers what a minion of Salt does."""

from __future__ import annotations

import pytest

from benchmarks.fleet.minion import REMEMBERED, RUN, Dies, Minion, Prepare, Runs, Send
from benchmarks.fleet.script import Script
from benchmarks.fleet.truth import CUT, ENDED, KILLED, Truth

JID = "20270101000000000001"
SCRIPT = Script(seconds=(3.0, 3.0))


def job(jid=JID, fun="state.apply", arg=(), **more):
    return {
        "jid": jid,
        "fun": fun,
        "arg": list(arg),
        "tgt": ["m"],
        "tgt_type": "list",
        "user": "root",
        "ret": "",
        **more,
    }


def started(executor=False, now=0.0):
    minion = Minion("m", Truth(), executor)
    minion.start(now)
    return minion


def run(minion, load, now=1.0, script=SCRIPT, told=True):
    """Have a minion begin a job that has arrived; what follows from that."""
    (prepare,) = minion.take(load, now)
    return minion.begin(prepare.jid, prepare.delivery, script, told, now)


def ask(minion, fun, *arg, now=5.0, jid="20270101000000000999"):
    (answer,) = minion.take(job(jid, fun, arg), now)
    return answer.load["return"]


def runs(minion):
    return minion.truth.runs


def test_a_minion_that_starts_says_so():
    minion = Minion("m", Truth())
    (said,) = minion.start(0.0)
    assert minion.there and said.load["tag"] == "salt/minion/m/start" and said.load["cmd"] == "_minion_event"


def test_a_job_begins_once_its_acknowledgement_is_answered_and_returns_after_its_time():
    minion = started()
    (prepare,) = minion.take(job(start_event=True), 1.0)
    assert isinstance(prepare, Prepare) and prepare.acknowledgement.load["tag"] == f"salt/job/{JID}/start/m"
    assert not runs(minion)
    (running,) = minion.begin(JID, prepare.delivery, SCRIPT, True, 2.0)
    assert running == Runs(JID, prepare.delivery, 3.0) and runs(minion)[0].begun == 2.0 and runs(minion)[0].told
    (returned,) = minion.end(JID, prepare.delivery, SCRIPT, 5.0)
    assert returned.run is runs(minion)[0] and (returned.run.end, returned.run.how) == (5.0, ENDED)
    assert (
        returned.load["return"]["result"] is True and returned.load["retcode"] == 0 and returned.load["success"] is True
    )


def test_a_job_that_fails_returns_retcode_1():
    minion = started()
    (running,) = run(minion, job(), script=Script(failing=1.0))
    (returned,) = minion.end(JID, running.delivery, SCRIPT, 9.0)
    assert (returned.load["retcode"], returned.load["success"]) == (1, False)


def test_a_return_says_of_which_run_it_is():
    minion, said = started(), []
    for now in (1.0, 11.0):
        (running,) = run(minion, job(), now)
        (returned,) = minion.end(JID, running.delivery, SCRIPT, now + 3)
        said.append((returned.load["return"][RUN], returned.run.number))
        minion.stop(now + 5)
        minion.start(now + 6)
    assert said == [(1, 1), (2, 2)]


def test_a_jid_is_recognised_until_the_minion_restarts():
    minion = started()
    run(minion, job())
    assert minion.take(job(), 2.0) == [] and minion.truth.repeats == [(2.0, "m", JID)]
    minion.stop(3.0)
    minion.start(4.0)
    assert isinstance(minion.take(job(), 5.0)[0], Prepare)


def test_a_minion_knows_no_more_jids_than_one_of_salt():
    minion = started()
    run(minion, job())
    for number in range(REMEMBERED):
        ask(minion, "test.ping", jid=f"{number:020d}")
    assert minion.take(job(), 9.0)


def test_a_minion_reports_its_running_jobs_until_they_have_ended():
    minion = started()
    assert ask(minion, "saltutil.find_job", JID, jid="1") == {}
    (running,) = run(minion, job())
    assert ask(minion, "saltutil.find_job", JID, jid="2")["jid"] == JID
    assert [entry["jid"] for entry in ask(minion, "saltutil.running", jid="3")] == [JID]
    minion.end(JID, running.delivery, SCRIPT, 9.0)
    assert ask(minion, "saltutil.find_job", JID, jid="4") == {}


def test_a_job_that_is_killed_is_gone_and_never_returns():
    minion = started()
    (running,) = run(minion, job())
    assert "Signal 9" in ask(minion, "saltutil.kill_job", JID)
    assert minion.end(JID, running.delivery, SCRIPT, 9.0) == []
    assert (runs(minion)[0].how, runs(minion)[0].end) == (KILLED, 5.0)


def test_a_minion_that_dies_cuts_what_it_runs():
    minion = started()
    running, dies = run(minion, job(), script=Script(seconds=(3.0, 3.0), dying=1.0, away=20.0))
    assert isinstance(dies, Dies) and 0 <= dies.seconds <= 3 and dies.away == 20.0
    minion.stop(2.0)
    assert runs(minion)[0].how == CUT and not minion.end(JID, running.delivery, SCRIPT, 9.0)


def test_a_minion_that_dies_before_a_job_begins_has_not_run_it():
    minion = started()
    (prepare,) = minion.take(job(start_event=True), 1.0)
    minion.stop(2.0)
    minion.start(3.0)
    assert minion.begin(JID, prepare.delivery, SCRIPT, True, 4.0) == [] and not runs(minion)


def test_several_functions_are_answered_at_once_by_name():
    minion = started()
    functions = ["saltutil.find_job", "saltutil.find_cached_job", "saltutil.running"]
    (answer,) = minion.take(job("1", functions, [[JID], [JID], []]), 1.0)
    assert answer.load["return"][functions[0]] == {} and "cache_jobs" in answer.load["return"][functions[1]]
    assert answer.load["retcode"] == dict.fromkeys(functions, 0) and answer.load["success"] == dict.fromkeys(
        functions, True
    )


def test_a_minion_that_keeps_its_returns_still_has_them_after_a_restart():
    minion = Minion("m", Truth(), keeps=True)
    minion.start(0.0)
    (running,) = run(minion, job())
    assert "not found" in ask(minion, "saltutil.find_cached_job", JID, jid="1")
    minion.end(JID, running.delivery, SCRIPT, 9.0)
    minion.stop(10.0)
    minion.start(11.0)
    assert ask(minion, "saltutil.find_cached_job", JID, jid="2")["return"]["result"] is True


# -- with the executor ---------------------------------------------------------------------------------------------------


def test_the_executor_knows_a_job_after_a_restart_and_returns_what_it_returned():
    minion = started(executor=True)
    (running,) = run(minion, job())
    minion.end(JID, running.delivery, SCRIPT, 4.0)
    minion.stop(5.0)
    minion.start(6.0)
    (returned,) = run(minion, job(), now=7.0)
    assert isinstance(returned, Send) and returned.load["return"]["result"] is True and len(runs(minion)) == 1


def test_the_executor_refuses_a_job_that_was_cut_unless_it_is_told_to_run_it_again():
    minion = started(executor=True)
    run(minion, job())
    minion.stop(2.0)
    minion.start(3.0)
    (returned,) = run(minion, job(), now=4.0)
    assert "interrupted" in returned.load["return"] and returned.load["retcode"] == 1
    minion.stop(5.0)
    minion.start(6.0)
    assert isinstance(run(minion, job(executor_opts={"job_once": {"rerun": True}}), now=7.0)[0], Runs)


@pytest.mark.parametrize("natively", [True, False])
def test_either_the_minion_or_the_executor_acknowledges_a_job(natively):
    minion = started(executor=True)
    load = job(executor_opts={"job_once": {"ack": True}}, **({"start_event": True} if natively else {}))
    (prepare,) = minion.take(load, 1.0)
    said = [effect for effect in minion.begin(JID, prepare.delivery, SCRIPT, natively, 1.0) if isinstance(effect, Send)]
    assert [prepare.acknowledgement is None, len(said)] == [not natively, int(not natively)]


def test_the_executor_reports_what_it_has_recorded_and_since_when():
    minion = started(executor=True)
    told = ask(minion, "job_once.seen", JID, now=10.0, jid="1")
    assert told == {JID: {"state": "never", "recorded_for": 10.0}}
    (running,) = run(minion, job(), now=11.0)
    assert ask(minion, "saltutil.find_cached_job", JID, jid="2")["job_once"]["state"] == "begun"
    minion.end(JID, running.delivery, SCRIPT, 14.0)
    found = ask(minion, "saltutil.find_cached_job", JID, jid="3")
    assert found["return"]["result"] is True and found["job_once"]["state"] == "ended"


def test_without_the_executor_its_functions_are_not_answered():
    assert ask(started(), "job_once.seen", JID) == "'job_once.seen' is not available."


def test_a_script_says_the_same_each_time_and_something_else_for_another_seed():
    script = Script(failing=0.5, dying=0.5)
    assert script.work("m", JID) == script.work("m", JID) != Script(seed=2, failing=0.5, dying=0.5).work("m", JID)
