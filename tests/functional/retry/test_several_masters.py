"""One retry queue for the masters that share a cachedir: what the next one to lead takes over."""

from __future__ import annotations

import pytest

from saltext.jobs.core.retry.entry import State
from saltext.jobs.core.retry.owner import owner_of
from tests.functional.retry.records import JID, accept
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
        stage = Stage(self.opts[name], self.job_cache)
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
