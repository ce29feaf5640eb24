"""A batch on a master with Salt's default job cache, which keeps no log: it has the same promises."""

from __future__ import annotations

import pytest
from saltfactories.utils import random_string

from tests.integration.batch.conftest import batch_master, timeouts
from tests.integration.faults import CountedJob, send_as
from tests.waiting import wait_for

MINIONS = ("p1", "p2", "p3")


@pytest.fixture(scope="module")
def master(salt_factories):
    options = {"engines": [], "job_retry": False, "master_job_cache": "local_cache"}
    with batch_master(salt_factories, *MINIONS, **options) as daemon:
        yield daemon


@pytest.fixture
def begin(run, store, tmp_path):
    """Start a batch of one minion at a time; its jid, its job, and the minion that runs it first."""
    made = []

    def begin(*args):
        work = CountedJob(tmp_path, random_string("job-"), gated=True)
        made.append(work)
        jid = run("batch.start", "p*", "cmd.run", work.command, "batch=1", "presence=none", *args, *timeouts(2))["jid"]
        wait_for(work.begun, what="the first one runs it")
        name = wait_for(
            lambda: next((name for name, flight in store.read(jid).flights.items() if flight.has_begun), None),
            what="that is known",
        )
        return jid, work, name

    yield begin
    for work in made:
        work.open_gate()


def outcomes(store, jid):
    return {minion: outcome.value for minion, outcome in store.read(jid).outcomes.items()}


@pytest.mark.story
def test_returns_that_are_forged_or_lost_and_an_engine_that_is_killed_neither_hurry_nor_stop_it(
    master, engine, begin, store
):
    engine.start(drop=2)
    jid, work, first = begin()
    liar = next(name for name in MINIONS if name != first)
    forged = {"jid": jid, "id": first, "fun": "cmd.run", "return": "", "retcode": 0, "success": True}
    # Every second event of a return is lost, so the lie is told twice.
    send_as(master.fleet[liar], "_minion_event", events=[{"tag": f"salt/job/{jid}/ret/{first}", "data": forged}] * 2)
    wait_for(lambda: "is not in the job cache and does not count" in engine.output(), what="it is looked up in vain")
    assert (work.begun(), outcomes(store, jid)) == (1, {})
    engine.kill()
    engine.start(drop=1)
    work.open_gate()
    wait_for(lambda: store.read(jid).finished, what="the batch has ended")
    assert outcomes(store, jid) == dict.fromkeys(MINIONS, "completed")
    assert (work.begun(), work.most_at_once()) == (len(MINIONS), 1)


def test_local_cache_shows_the_batch_s_own_target_too(engine, run):
    engine.start()
    jid = run("batch.start", "p*", "test.arg", "hello", "word=x", "batch=1")["jid"]
    assert run("batch.wait", jid)["completed"] == len(MINIONS)
    job = run("jobs.list_job", jid)
    assert (job["Target"], job["Target-type"], sorted(job["Minions"])) == ("p*", "glob", list(MINIONS))
    assert job["Arguments"] == ["hello", {"__kwarg__": True, "word": "x"}]
