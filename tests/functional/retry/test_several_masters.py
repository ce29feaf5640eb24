"""One retry queue for the masters that share a cachedir: what the next one to lead takes over."""

from __future__ import annotations

import pytest

from saltext.jobs.core.disk import files
from saltext.jobs.core.engine.names import JOB_RETRY
from saltext.jobs.core.retry.entry import State
from saltext.jobs.core.retry.owner import owner_of
from saltext.jobs.core.retry.store import FORMAT, RetryStore
from saltext.jobs.core.site import FileSite
from tests.functional.retry.records import JID, accept, changes, record_of, snapshot_of
from tests.functional.retry.test_shell import Stage
from tests.functional.retry.test_shell_log import Master


@pytest.fixture
def masters(opts, job_cache):
    """Two masters; ``lead`` has the engine of one of them lead."""
    opts["master_job_cache"] = "salt_cache"
    accept(opts, "a", "b")
    made = Masters(opts, job_cache)
    yield made
    for stage in made.stages:
        stage.close()


class Masters:
    def __init__(self, opts, job_cache):
        self.opts = {name: {**opts, "id": name} for name in ("one", "two")}
        self.job_cache, self.stages = job_cache, []

    def publish(self, name, jid, *minions):
        Master(self.opts[name]).publish(jid, *minions)

    def lead(self, name):
        for stage in self.stages:
            stage.until(lambda stage=stage: stage.shell.writer.idle)
            stage.close()
        stage = Stage(self.opts[name], self.job_cache, has_log=True)
        self.stages = [stage]
        stage.start()
        return stage


def test_the_leader_owes_the_jobs_that_any_master_has_published(masters):
    masters.publish("two", "20260516000000000000", "nobody")
    stage = masters.lead("one")
    masters.publish("two", JID, "a")
    stage.until(lambda: stage.state("a") is State.PENDING)


def test_the_next_leader_has_the_jobs_that_were_queued_or_published_while_no_master_led(masters):
    stage = masters.lead("one")
    masters.publish("one", JID, "a")
    stage.until(lambda: stage.state("a") is State.PENDING)
    stage.until(lambda: stage.shell.writer.idle)
    stage.close()
    later = str(int(JID) + 1000000)
    masters.publish("two", later, "b")
    masters.stages = []
    stage = masters.lead("two")
    assert stage.state("a") is State.PENDING
    stage.until(lambda: stage.state("b", later) is State.PENDING)
    assert {owner_of(opts) for opts in masters.opts.values()} == {"one"}, "the queue keeps its name"


def test_the_folder_of_a_queue_that_is_taken_over_goes_when_all_its_jobs_are_there(masters, opts):
    folder, jids = FileSite(opts).path(JOB_RETRY), [str(int(JID) + number) for number in range(4)]
    files.write_msgpack(folder / "one" / "checkpoint", {"format": FORMAT, "at": 1.0, "open": {}})
    for jid in jids:
        snapshot = {**snapshot_of("a"), "owner": "one"}
        snapshot["load"] = {**snapshot["load"], "jid": jid}
        RetryStore(opts).write(changes({jid: snapshot}, {("a", jid): {**record_of("a"), "jid": jid}}))
    stage = Stage(masters.opts["two"], masters.job_cache, has_log=True)
    masters.stages = [stage]
    stage.shell.machine.part = 1
    stage.start()
    stage.until(lambda: not list(folder.glob("one/checkpoint")))
    assert dict(RetryStore(opts).snapshots("two")).keys() == set(jids)


def test_the_own_queues_of_the_masters_of_a_cluster_are_taken_over(masters, opts):
    folder = FileSite(opts).path(JOB_RETRY)
    for name, minion in (("one", "a"), ("two", "b")):
        files.write_msgpack(folder / name / "checkpoint", {"format": FORMAT, "at": 1.0, "open": {}})
        jid = JID if minion == "a" else str(int(JID) + 1)
        snapshot = {**snapshot_of(minion), "owner": name}
        snapshot["load"] = {**snapshot["load"], "jid": jid}
        RetryStore(opts).write(changes({jid: snapshot}, {(minion, jid): {**record_of(minion), "jid": jid}}))
    stage = masters.lead("two")
    stage.until(lambda: stage.state("a") is not None)
    assert stage.state("b", str(int(JID) + 1)) is State.PENDING
    stage.until(lambda: not list(folder.glob("*/checkpoint")))
    assert {snapshot["owner"] for _, snapshot in RetryStore(opts).snapshots()} == {"two"}


def test_the_queue_of_an_engine_of_an_earlier_version_is_left_to_it(masters, opts, caplog):
    folder = FileSite(opts).path(JOB_RETRY)
    files.write_msgpack(folder / "one" / "checkpoint", {"format": FORMAT, "at": 1.0, "open": {}})
    with files.single_holder(folder / "one" / "lock"):
        masters.lead("two").run(0.3)
    assert (folder / "one" / "checkpoint").exists()
    assert "The queue of one is left to its own engine" in caplog.text
