"""
What a batch does while the state of a minion is not known: the minion does not answer, is not back yet, or says for a moment
that it runs nothing. Silence is not absence.
"""

from __future__ import annotations

import contextlib

import pytest
from saltfactories.utils import random_string

from saltext.jobs.core.batch.store import BatchStore
from tests.faults import thaw
from tests.integration.batch.conftest import timeouts
from tests.integration.conftest import finished, make_master, make_minion, salt_cli
from tests.integration.faults import CountedJob, freeze_daemon
from tests.waiting import wait_for

#: The roles of the minions. This master keeps no data of minions.
ROLES = {"n1": "db", "n2": "web", "n3": "db"}


@contextlib.contextmanager
def fleet(factories, **options):
    daemon = make_master(
        factories,
        timeout=3,
        gather_job_timeout=3,
        minion_data_cache=False,
        master_job_cache="local_cache",
        job_retry=False,
        **options,
    )
    daemon.slow_stop = False
    with daemon.started():
        daemon.fleet = {}
        try:
            for name, role in ROLES.items():
                daemon.fleet[name] = make_minion(daemon, name, grains={"role": role}, process_count_max=1)
                daemon.fleet[name].start()
            yield daemon
        finally:
            for minion in daemon.fleet.values():
                minion.terminate()


@pytest.fixture(scope="module")
def master(salt_factories):
    with fleet(salt_factories) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def patient_master(salt_factories):
    """A master that gives up no minion, however long that is silent."""
    with fleet(salt_factories, engines=[{"batch_manager": {"probe_attempts": 10_000}}]) as daemon:
        yield daemon


@pytest.fixture
def store(master):
    return BatchStore(master.config)


@pytest.fixture
def job(tmp_path):
    """Makes jobs. They end with the test: one that a failed test has left would occupy its minion for the others."""
    made = []

    def make(**kwargs):
        made.append(CountedJob(tmp_path, random_string("job-"), **kwargs))
        return made[-1]

    yield make
    for each in made:
        each.open_gate()


def states(look, jid):
    return {minion: record["state"] for minion, record in look("batch.minions", jid).items()}


def ended(look, jid):
    finished(look, jid)
    return states(look, jid)


def test_a_target_that_the_master_cannot_decide_is_refused(complaint, store):
    told = complaint("batch.start", "role:db", "test.ping", "tgt_type=grain", "presence=none")
    assert "minion_data_cache: False" in told
    assert not store.open_jids()


class TestASilentMinion:
    """One that is busy, away for a while or slow, as all are on a busy machine, is asked as often as it takes."""

    @pytest.fixture
    def master(self, patient_master):
        return patient_master

    def test_that_did_not_answer_the_ping_joins_as_soon_as_it_does(self, master, run, look, job):
        work = job(gated=True)
        frozen = freeze_daemon(master.fleet["n2"])
        try:
            jid = run("batch.start", "n[12]", "cmd.run", work.command, "batch=1", *timeouts(2))["jid"]
            wait_for(work.begun, what="the other one has its turn")
            assert states(look, jid)["n2"] != "completed"
        finally:
            thaw(*frozen)
        wait_for(lambda: states(look, jid)["n2"] == "pending", what="it is one of those to come")
        work.open_gate()
        assert ended(look, jid) == {"n1": "completed", "n2": "completed"}
        assert (work.begun(), work.most_at_once()) == (2, 1)

    def test_whose_processes_are_all_busy_is_not_lost(self, master, run, look, job):
        before, work = job(gated=True), job()
        assert salt_cli(master, "n1", "--async", "cmd.run", before.command).returncode == 0
        wait_for(before.begun, what="the minion is busy")
        # Its one process is taken, so the job waits there, and so do the questions about it.
        options = ("max_failures=0", "presence=none", *timeouts(2))
        jid = run("batch.start", "n1", "cmd.run", work.command, *options)["jid"]
        wait_for(lambda: states(look, jid)["n1"] not in ("pending", "completed"), what="it is asked for")
        before.open_gate()
        assert ended(look, jid) == {"n1": "completed"}
        assert run("batch.status", jid)["halted"] is False

    def test_is_not_lost_and_runs_nothing_twice_when_the_master_restarts(self, master, run, look, job):
        work = job(seconds=1)
        jid = run("batch.start", "n*", "cmd.run", work.command, "batch=1", *timeouts(5))["jid"]
        wait_for(work.begun, what="the first has begun")
        master.terminate()
        master.start()
        assert ended(look, jid) == dict.fromkeys(ROLES, "completed")
        assert (work.begun(), work.most_at_once()) == (3, 1)
