"""Batches beside each other, on a real master with minions: one limit over all."""

from __future__ import annotations

import pytest

from tests.integration.batch.conftest import batch_master, timeouts
from tests.integration.faults import CountedJob, kill_the_master
from tests.waiting import wait_for

pytestmark = pytest.mark.story

MINIONS = ("s1", "s2", "s3", "s4", "s5")
BATCHES, LIMIT = 3, 2


@pytest.fixture(scope="module")
def master(salt_factories):
    with batch_master(
        salt_factories,
        *MINIONS,
        # A minion may drop its return when the master is away (Salt 3008). The batch then fetches what the minion has kept.
        of_minions={"return_retry_tries": 30, "cache_jobs": True},
        engines=[{"batch_manager": {"max_in_flight": LIMIT}}],
        job_retry=False,
    ) as daemon:
        yield daemon


def begin(run, target, *job):
    return run("batch.start", target, *job, "batch=100%", *timeouts(5))["jid"]


def test_the_limit_over_all_batches_holds_although_the_master_is_killed_in_the_middle(master, run, command, tmp_path):
    work = CountedJob(tmp_path, "work", seconds=1.5)
    jids = [begin(run, "s*", "cmd.run", work.command) for _ in range(BATCHES)]
    wait_for(lambda: work.begun() >= LIMIT + 1, what="some have ended, and others run")
    waits = [run("batch.status", jid)["blocked_reason"] for jid in jids]
    assert f"waits for room: {LIMIT} of {LIMIT} minions are in flight over all batches" in " ".join(filter(None, waits))
    kill_the_master(master)
    ended = [command("batch.wait", jid).data for jid in jids]
    # To a minion that connects anew, a publish that the kill cut off is not made again: the minion may have begun the job.
    lost = sum(found["lost"] for found in ended)
    assert lost <= LIMIT
    assert all(found["completed"] + found["lost"] == len(MINIONS) for found in ended)
    assert (work.begun(), work.most_at_once()) == (BATCHES * len(MINIONS) - lost, LIMIT), "each run is seen, none twice"
