"""Batches whose master loses power, or whose minions restart unnoticed, on a real master with real minions."""

from __future__ import annotations

import time

import pytest
import salt.client
from saltfactories.utils import random_string

from tests.integration.batch.conftest import batch_master, timeouts
from tests.integration.faults import CountedJob
from tests.waiting import lasting, wait_for

MINIONS = ("p1", "p2", "p3")


@pytest.fixture(scope="module")
def master(salt_factories):
    with batch_master(salt_factories, *MINIONS, engines=[], job_retry=False) as daemon:
        yield daemon


@pytest.fixture
def job(tmp_path):
    return lambda seconds: CountedJob(tmp_path, random_string("job-"), seconds)


def ended(store, jid):
    """The batch, once it has ended. It took 90 s where minions returned while no master was there."""
    is_over = f"batch {jid} has ended"
    return wait_for(lambda: (batch := store.read(jid)) and batch.finished and batch, what=is_over, seconds=300)


def outcomes(batch):
    return {minion: outcome.value for minion, (outcome, *_) in batch.outcomes.items()}


def test_after_a_power_cut_right_after_the_publish_no_minion_runs_twice_or_counts_as_away(
    master, engine, run, store, job
):
    work = job(4)
    engine.start()
    jid = run("batch.start", "p*", "cmd.run", work.command, "presence=none", "batch=3", *timeouts(3))["jid"]
    wait_for(lambda: work.begun() == len(MINIONS), what="all have begun")
    engine.kill()  # what its journal has not synced is lost with it
    master.terminate()
    master.start()
    engine.start()
    batch = ended(store, jid)
    # The return of a job that ended while the master was away may be lost.
    assert set(outcomes(batch).values()) <= {"completed", "lost"}, outcomes(batch)
    assert work.begun() == len(MINIONS)
    stored = set(run("jobs.lookup_jid", jid))
    wait_for(
        lambda: {name for name, state in outcomes(store.read(jid)).items() if state == "completed"} >= stored,
        what="all minions that returned have completed",
    )


@pytest.mark.parametrize("trap", ["after publish 1", "after sync 1"])
def test_a_minion_that_started_anew_while_the_engine_was_dead_does_not_run_its_job_twice(
    master, engine, run, store, job, trap
):
    client = salt.client.LocalClient(mopts=dict(master.config))
    wait_for(lambda: client.cmd("p1", "test.ping", timeout=5), what="p1 has come back from what other tests did")
    work = job(lasting(60))
    engine.start(trap)
    jid = run("batch.start", "p1", "cmd.run", work.command, "presence=none", "batch=1", *timeouts(3))["jid"]
    engine.wait_for_death()
    begun = 0
    if trap == "after publish 1":
        begun = wait_for(work.begun, what="it has begun")
    time.sleep(1.1)  # the cache knows whole seconds
    master.fleet["p1"].terminate()
    master.fleet["p1"].start()
    engine.start()
    assert outcomes(ended(store, jid)) == {"p1": "lost"}
    assert work.begun() == begun
