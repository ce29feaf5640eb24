"""With the master's log, events of publishes, kills and returns change nothing, whether they come or not."""

from __future__ import annotations

import time

import pytest

from saltext.jobs.core.ids import jid_at
from saltext.jobs.core.retry.entry import State
from saltext.jobs.core.site import FileSite
from tests.database import begin_another_log
from tests.functional.retry.records import JID, accept, changes, load_of, queue_of, record_of, returners, snapshot_of
from tests.functional.retry.test_shell import SIGNAL, Stage


class Master:
    """The master: it stores through the returner, which writes the log. No events come over the bus."""

    def __init__(self, opts):
        self._returners = returners(opts)

    def publish(self, jid, *minions, **more):
        self._returners["salt_cache.save_load"](jid, load_of(jid=jid, **more), list(minions))

    def kill(self, jid, *minions, signal=SIGNAL):
        self.publish(signal, *minions, fun="saltutil.kill_job", arg=[jid], user="ann")

    def store_return(self, minion, jid=JID, fun="state.apply"):
        load = {"jid": jid, "id": minion, "fun": fun, "fun_args": ["web"], "return": True, "retcode": 0}
        self._returners["salt_cache.returner"](load)


@pytest.fixture
def master(opts):
    opts["master_job_cache"] = "salt_cache"
    return Master(opts)


@pytest.fixture
def make(opts, job_cache, master):
    """Make an engine that reads the log, after something has been written to it."""
    made = []

    def start(**more):
        stage = Stage(opts, job_cache, **more)
        made.append(stage)
        stage.start()
        return stage

    master.publish("20260516000000000000", "nobody", fun="test.ping")
    accept(opts, "a", "b")
    yield start
    for stage in made:
        stage.close()


def test_an_event_of_a_publish_opens_no_job(make):
    stage = make()
    stage.bus.tell(f"salt/job/{JID}/new", {"jid": JID, "fun": "state.apply", "minions": ["a"]})
    stage.run(0.5)
    assert JID not in stage.shell.machine.capture.open


def test_a_start_that_comes_before_its_publish_was_read_counts(make, master):
    stage = make()
    master.publish(JID, "a")
    stage.bus.tell(f"salt/job/{JID}/start/a", {"id": "a", "jid": JID})
    assert not stage.shell.machine.knows(JID)
    stage.until(
        lambda: JID in stage.shell.machine.capture.open and stage.shell.machine.capture.open[JID].begun == {"a"}
    )


def test_a_kill_ends_only_jobs_that_were_published_before_it(make, master, opts):
    queue_of(opts).write(changes({JID: snapshot_of()}, {("a", JID): record_of("a")}))
    stage = make()
    stage.end_searches()  # what a search finds has no order
    master.publish(JID, "a", "b")
    master.kill(JID, "a", "b")
    master.publish(JID, "b", tgt="b")
    stage.until(lambda: stage.state("a") is State.CANCELLED)
    assert stage.shell.machine.entry("a", JID).reason == "killed by ann"
    stage.until(lambda: stage.state("b") is State.PENDING)


def test_a_killed_entry_stays_so_when_another_job_is_published_under_its_jid(make, master):
    stage = make()
    stage.end_searches()  # one would find the kill once more
    master.publish(JID, "a")
    master.kill(JID, "a")
    master.publish(JID, "a", fun="test.ping", arg=[], user="bert")
    stage.until(lambda: stage.state("a") is State.CANCELLED)


def test_a_job_that_was_published_while_the_engine_was_away_is_in_the_log(make, master, caplog):
    stage = make()
    stage.end_searches()
    stage.take_requests()
    stage.until(lambda: stage.shell.writer.idle)
    stage.close()
    master.publish(JID, "a")
    caplog.clear()
    caplog.set_level("INFO")
    again = make()
    again.until(lambda: again.state("a") is State.PENDING)
    assert "is searched" not in caplog.text


@pytest.mark.parametrize("when", ["while it runs", "while it is away"])
def test_without_the_log_the_job_cache_is_searched(make, master, when):
    stage = make()
    stage.end_searches()
    jid = jid_at(time.time())  # a search passes over jids that are older by days
    if when == "while it is away":
        stage.close()
    master.publish(jid, "a")
    begin_another_log(stage.opts)
    if when == "while it is away":
        stage = make()
    stage.until(lambda: stage.state("a", jid) is State.PENDING)


def test_a_stored_return_ends_an_entry_even_if_no_event_of_it_was_heard(make, master):
    stage = make()
    master.publish(JID, "a", "b")
    stage.until(lambda: stage.state("a") is stage.state("b") is State.PENDING)
    master.store_return("a")
    stage.until(lambda: stage.state("a") is None)
    assert stage.state("b") is State.PENDING


def test_a_return_of_another_function_ends_nothing(make, master):
    stage = make()
    master.publish(JID, "a")
    stage.until(lambda: stage.state("a") is State.PENDING)
    master.store_return("a", fun="test.ping")
    stage.run(1)
    assert stage.state("a") is State.PENDING


def test_records_that_an_engine_has_read_may_be_removed_from_the_log(make, master):
    stage = make()
    stage.end_searches()
    stage.take_requests()
    tables = FileSite(stage.opts).tables
    stage.until(lambda: tables.read("SELECT place FROM saltext_jobs_readers WHERE reader = 'job_retry' AND place > 0"))
