"""Minions that a batch has handed over to the retry queue: one word for them wherever an operator looks."""

from __future__ import annotations

import pathlib
import time

import pytest
import salt.loader
import salt.payload

from saltext.jobs.core.batch.catalog import Catalog
from saltext.jobs.core.batch.member import Outcome
from saltext.jobs.core.batch.starting import next_batch
from saltext.jobs.core.batch.store import BatchStore
from saltext.jobs.core.engine import requests
from saltext.jobs.core.engine.names import JOB_RETRY
from saltext.jobs.core.errors import Refused
from saltext.jobs.core.options.engines import RetrySettings
from saltext.jobs.core.retry.entry import Job, Key, Kind, Watched
from saltext.jobs.core.retry.queue import Queue
from saltext.jobs.core.retry.store import owed_of
from tests.functional.batch.test_starting import ROOT
from tests.functional.options import options_in
from tests.functional.retry.records import JID, accept, changes, queue_of, record_of, returners, snapshot_of
from tests.leading import leading
from tests.unit.batch.bench import Bench


@pytest.fixture
def opts(tmp_path):
    """A master with a batch whose minions ``a`` and ``b`` were away, and were handed over."""
    opts = options_in(tmp_path, master_job_cache="salt_cache")
    load = {"jid": JID, "fun": "test.ping", "arg": [], "tgt": "*", "tgt_type": "glob", "user": "root"}
    returners(opts)["salt_cache.prep_jid"](passed_jid=JID)
    returners(opts)["salt_cache.save_load"](JID, load, minions=["a", "b"])
    bench = Bench("ab", "2", jid=JID, offline="queue")
    bench.sent(missed="ab")
    bench.keep(BatchStore(opts), ended=True)
    pathlib.Path(opts["pki_dir"], "minions").mkdir(parents=True)
    accept(opts, "a", "b")
    return opts


def owe(opts, **states):
    """The engine of the queue has taken them, and they stand as this says."""
    asked = requests.Requests(requests.site_of(opts), JOB_RETRY)
    for request in asked.open():
        asked.forget(request.id)
    entries = {(name, JID): {**record_of(name), "state": state} for name, state in states.items()}
    for entry in entries.values():
        entry["history"] = [*entry["history"], [200.0, entry["state"], "because"]]
    queue_of(opts).write(changes({JID: snapshot_of()}, entries))


def run(opts, function, *args, **kwargs):
    return salt.loader.runner(opts)[function](*args, **kwargs)


def again(opts, which):
    return next_batch(opts, ROOT, Catalog(opts, owed=lambda jid: owed_of(opts, jid)).need(JID), [which]).minions


def states(opts):
    return {name: record["state"] for name, record in run(opts, "batch.minions", JID).items()}


def test_a_minion_that_the_queue_owes_the_job_is_queued_and_no_retry_runs_it_there_again(opts):
    owe(opts, a="pending", b="held")
    assert states(opts) == {"a": "queued", "b": "queued"}
    status, failures = run(opts, "batch.status", JID), run(opts, "batch.failures", JID)
    assert (status["queued"], status["offline"]) == (2, 0)
    assert {group["state"] for group in failures["groups"]} == {"queued"}
    assert run(opts, "batch.minions", JID)["b"]["why"] == "owed by job_retry: held, because"
    assert run(opts, "job_cache.outcome", JID)["owed"] == {"a": "pending", "b": "held"}
    for which in ("offline", "all"):
        with pytest.raises(Refused, match="job_retry owes it to 2"):
            again(opts, which)


def test_a_minion_is_queued_before_the_engine_of_the_queue_has_taken_it(opts):
    assert states(opts) == {"a": "queued", "b": "queued"}
    with pytest.raises(Refused, match="job_retry owes it to 2"):
        again(opts, "offline")


def test_a_wait_for_a_batch_ends_when_the_queue_has_answered_what_was_handed_over(opts, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda seconds: owe(opts, a="cancelled", b="pending"))
    with leading(opts, JOB_RETRY):
        found = run(opts, "batch.wait", JID)
    assert (found["offline"], found["queued"]) == (1, 1)


def test_a_minion_that_is_owed_nothing_any_more_is_away_and_a_retry_runs_the_job_there(opts):
    owe(opts, a="cancelled", b="pending")
    assert states(opts) == {"a": "offline", "b": "queued"}
    assert run(opts, "batch.minions", JID)["a"]["why"] == "no longer owed by job_retry: cancelled, because"
    assert again(opts, "offline") == ("a",)
    queue_of(opts).write(changes(entries={("a", JID): {**record_of("a"), "state": "cancelled", "sent_at": 150.0}}))
    assert states(opts) == {"a": "lost", "b": "queued"}, "it may have run there"
    queue_of(opts).write({Key(Kind.ENTRY, JID, "a"): None})  # purged, or forgotten after a day
    assert states(opts) == {"a": "lost", "b": "queued"}, "it is not known any more whether it has run there"


def test_a_minion_for_which_the_queue_has_no_room_is_away_and_that_is_said(opts):
    owe(opts, b="pending")
    queue = Queue(RetrySettings(max_queue=1))
    queue.now = 200.0
    job = Job(JID, ("test.ping",), 100.0, kilobytes=1)
    assert queue.add(job, "a", "was away", 1e9) is None
    queue_of(opts).write(queue.done)
    assert states(opts) == {"a": "offline", "b": "queued"}
    assert run(opts, "batch.minions", JID)["a"]["why"] == "not taken by job_retry: the queue is full: max_queue"
    assert run(opts, "job_retry.show", "a", JID)["state"] == "dead"
    assert again(opts, "offline") == ("a",)
    queue.settings, queue.changed = RetrySettings(), {}
    assert queue.add(job, "a", "was away", 1e9) and Key(Kind.DONE, JID, "a") in queue.changed, "it may run there now"


@pytest.mark.parametrize("outcome", [Outcome.OFFLINE, Outcome.LOST])
def test_a_minion_to_which_an_operator_has_the_queue_deliver_the_job_is_queued_and_in_no_retry(opts, outcome):
    first, second = (f"{int(JID) + number}" for number in (1, 2))
    for jid, parent in ((first, None), (second, first)):
        bench = Bench("ab", "2", jid=jid, parent=parent)
        bench.sent()
        bench.returns("b")
        bench.batch.settle("a", outcome, bench.now, None)
        bench.wait(1.0)
        bench.keep(BatchStore(opts), ended=True)
    assert run(opts, "batch.status", first)["retries"] == [second]
    requests.leave(opts, JOB_RETRY, {"do": "enqueue", "jid": first, "minions": ["a"]})
    for jid in (first, second):
        assert run(opts, "batch.minions", jid)["a"]["state"] == "queued"
        with pytest.raises(Refused, match="job_retry owes it to 1"):
            next_batch(opts, ROOT, Catalog(opts, owed=lambda one: owed_of(opts, one)).need(jid), ["all"])
    owe(opts)
    queue_of(opts).write(changes(watched={first: Watched(settled={"a"}).as_record()}))
    assert run(opts, "batch.minions", first)["a"]["state"] == "lost", "its entry was purged"


@pytest.mark.parametrize(("state", "verb"), [("cancelled", "enqueue"), ("dead", "retry")])
def test_what_a_retry_has_run_on_a_minion_the_queue_does_not_deliver_there_again(opts, state, verb):
    owe(opts, a=state, b="pending")
    bench = Bench(again(opts, "offline"), "1", jid=(later := f"{int(JID) + 1}"), parent=JID)
    bench.sent()
    bench.returns("a")
    bench.keep(BatchStore(opts), ended=True)
    with pytest.raises(Refused, match=f"a is in batch {later}, which retries job {JID}"):
        run(opts, f"job_retry.{verb}", jid=JID)
    assert not requests.waiting(opts, JOB_RETRY)
    run(opts, "job_retry.enqueue", JID, "b")


@pytest.mark.parametrize("sent", [True, False], ids=["by the queue", "late, of the batch's own publish"])
def test_after_its_return_the_batch_shows_how_it_ended_and_when(opts, sent):
    owe(opts, b="pending")
    before = time.time()
    queue_of(opts).write({Key(Kind.DONE, JID, "a"): {"state": "done", **({"sent_at": before} if sent else {})}})
    returned = {"jid": JID, "id": "a", "fun": "test.ping", "return": True, "retcode": 0, "success": True}
    returners(opts)["salt_cache.returner"](returned)
    found = run(opts, "batch.minions", JID)
    assert states(opts) == {"a": "completed", "b": "queued"}
    assert before == found["a"]["started"] <= found["a"]["since"] if sent else found["a"]["started"] < before
