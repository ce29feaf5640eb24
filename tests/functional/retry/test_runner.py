"""The job_retry runner."""

from __future__ import annotations

import datetime
import getpass
import threading
import time
import types

import pytest
import salt.cache
import salt.config
import salt.loader
from salt.exceptions import CommandExecutionError

from saltext.jobs.core.batch import facts
from saltext.jobs.core.batch.store import BatchStore
from saltext.jobs.core.engine import requests
from saltext.jobs.core.engine.names import JOB_RETRY
from saltext.jobs.core.engine.requests import Service
from saltext.jobs.core.errors import Refused
from saltext.jobs.core.master.job_cache import JobCache
from tests.functional.retry.records import JID, changes, load_of, queue_of, record_of, snapshot_of
from tests.leading import lock_of, single_holder
from tests.unit.batch.bench import Bench


@pytest.fixture
def runner(opts):
    return salt.loader.runner(opts)


def test_the_queue_is_listed_without_arguments(opts, runner):
    queue_of(opts).write(changes({JID: snapshot_of()}, {(name, JID): record_of(name) for name in "ab"}))
    rows = runner["job_retry.list"]()
    assert [row["minion"] for row in rows] == ["a", "b"]
    told = {"minion": "a", "jid": JID, "fun": "state.apply", "state": "pending", "reason": "was away", "attempts": 0}
    told |= {"queued_at": 100.0, "expires_at": 1e10, "paused": False}
    assert rows[0] == {**told, **dict.fromkeys(("waits_for", "opens_at", "not_before"))}
    assert runner["job_retry.list"](minion="b", jid=int(JID), state="pending,held") == rows[1:]
    assert runner["job_retry.list"](state="dead") == []
    assert runner["job_retry.show"]("a", JID)["arg"] == ["web"]
    assert runner["job_retry.stats"]()["states"] == {"pending": 2}


@pytest.mark.parametrize("function", ["job_retry.list", "job_cache.search"])
def test_a_minion_of_which_there_is_no_key_is_named_as_unknown(opts, runner, capsys, function):
    runner[function].__globals__["__jid_event__"] = types.SimpleNamespace(print_func=print)
    assert runner[function](minion="wbe1") in ([], {"jobs": [], "next": None})
    assert "no key of a minion named wbe1" in capsys.readouterr().err
    away = salt.loader.runner({**opts, "keys.cache_driver": "away"})  # of Salt 3008
    assert away[function](minion="wbe1") in ([], {"jobs": [], "next": None})


def test_no_secret_among_the_arguments_of_an_entry_is_shown(opts, runner):
    arg = ["connection_pass=swordfish", {"__kwarg__": True, "pillar": {"api_key": "swordfish"}}]
    load = {**load_of(), "arg": arg, "kwargs": {"metadata": {"token": "swordfish"}}}
    queue_of(opts).write(changes({JID: {**snapshot_of(), "load": load}}, {("a", JID): record_of("a")}))
    shown = runner["job_retry.show"]("a", JID)
    assert "swordfish" not in str(shown)
    assert (shown["arg"][0], shown["metadata"]) == ("connection_pass=********", {"token": "********"})


@pytest.mark.parametrize(
    "function, kwargs",
    [
        ("list", {"state": "sleeping"}),
        ("list", {"minion": "../a"}),
        ("list", {"jid": "a/b"}),
        ("cancel", {}),
        ("retry", {}),
        ("purge", {"state": "pending"}),
        ("enqueue", {"jid": "../x"}),
        ("enqueue", {"jid": JID, "minions": ["../a"]}),
    ],
)
def test_unusable_input_is_refused_before_anything_is_asked(runner, function, kwargs):
    with pytest.raises(Refused):
        runner[f"job_retry.{function}"](**kwargs)


def window_that_opens_in(hours):
    opens = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(hours=hours)
    return f"{opens:%H:%M}-{opens + datetime.timedelta(hours=1):%H:%M}"


def test_an_entry_outside_its_window_shows_what_it_waits_for_and_until_when(opts, answering, capsys):
    later, now = window_that_opens_in(3), window_that_opens_in(-0.5)
    opts["job_retry"] = {"window": later, "timezone": "UTC"}
    own = {"metadata": {"job_retry": {"window": now}}}
    other = str(int(JID) + 1)
    jobs = {JID: snapshot_of(), other: {**snapshot_of(), "load": load_of(jid=other, kwargs=own)}}
    queue_of(opts).write(changes(jobs, {("a", jid): record_of("a", jid) for jid in jobs}))
    runner = salt.loader.runner(opts)
    first, second = runner["job_retry.list"]()
    assert first["waits_for"] == f"its window {later} (UTC)"
    assert 2.9 < (first["opens_at"] - time.time()) / 3600 <= 3
    assert (second["waits_for"], second["opens_at"]) == (None, None)
    assert runner["job_retry.show"]("a", JID)["waits_for"] == first["waits_for"]
    stats = runner["job_retry.stats"]()
    assert (stats["outside_window"], stats["opens_at"]) == (1, first["opens_at"])
    answering(2)
    runner["job_retry.replay"].__globals__["__jid_event__"] = types.SimpleNamespace(print_func=print)
    assert runner["job_retry.replay"]("a") == 2
    assert "1 entry outside the window of the job" in capsys.readouterr().err


def test_an_entry_that_is_not_there_cannot_be_shown(runner):
    with pytest.raises(CommandExecutionError, match="a is not owed job "):
        runner["job_retry.show"](minion="a", jid=JID)


def test_a_pause_counts_at_once_even_if_the_engine_is_down(opts, runner):
    assert runner["job_retry.stats"]()["paused"] is False
    runner["job_retry.pause"]()
    queue_of(opts).write(changes({JID: snapshot_of()}, {("a", JID): record_of("a")}))
    assert runner["job_retry.stats"]()["paused"] is runner["job_retry.show"]("a", JID)["paused"] is True
    with pytest.raises(Refused, match="The queue is paused, so nothing is delivered"):
        runner["job_retry.replay"](minion="a")
    runner["job_retry.resume"]()
    assert runner["job_retry.stats"]()["paused"] is False


def test_a_request_is_left_for_an_engine_that_is_down(opts, runner):
    assert runner["job_retry.cancel"](jid=JID) is None
    waiting = list(Service(opts, JOB_RETRY, None).taken())
    assert [asked for _, asked in waiting] == [{"do": "cancel", "minion": None, "jid": JID, "user": getpass.getuser()}]


@pytest.fixture
def answering(opts):
    """An engine that answers each request with a number; it lives as long as the test."""
    service, ended = Service(opts, JOB_RETRY, None), threading.Event()

    def serve(number):
        while not ended.wait(0.01):
            for request, _ in service.taken():
                service.reply(request, {"value": number})

    threads = []

    def begin(number):
        threads.append(threading.Thread(target=serve, args=(number,)))
        threads[0].start()

    with single_holder(lock_of(opts, JOB_RETRY)):
        yield begin
        ended.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize(
    ("call", "told"),
    [
        ({"fun": "cancel", "minion": "a"}, "No entry of minion=a can be cancelled; salt-run job_retry.list minion=a"),
        ({"fun": "retry", "minion": "a", "jid": JID}, f"No entry of minion=a jid={JID} is held or dead"),
        ({"fun": "replay", "minion": "a"}, "No entry of minion=a waits for delivery"),
    ],
)
def test_a_request_that_finds_no_entry_is_refused(runner, answering, call, told):
    answering(0)
    with pytest.raises(Refused, match=told):
        runner[f"job_retry.{call.pop('fun')}"](**call)


@pytest.fixture
def batch(opts):
    """A batch of a, b, c and d, two at a time: a has returned, b and c have been sent the job. Facts can be told it."""
    bench, store = Bench("abcd", "2", jid=JID), BatchStore(opts)
    JobCache(opts).keep_load(JID, load_of(), [*"abcd"])

    def tell(*told):
        for fact in told:
            bench.tell(fact)
        bench.keep(store)

    tell(facts.Published(), facts.Returned("a", 0), facts.Published())
    return tell


@pytest.mark.parametrize(("minions", "count"), [(None, 3), ("c", 1), ("a,d", 1)])
def test_what_a_running_batch_sends_itself_is_not_queued_by_hand(opts, runner, batch, minions, count):
    with pytest.raises(Refused, match=f"a batch that has not ended on {count} of these minions"):
        runner["job_retry.enqueue"](JID, minions=minions)
    assert not requests.waiting(opts, JOB_RETRY)


def test_minions_that_have_ended_their_part_in_a_batch_can_be_queued_by_hand(opts, runner, batch):
    runner["job_retry.enqueue"](JID, minions="a")
    batch(facts.Returned("b", 0), facts.Returned("c", 0), facts.Published(), facts.Returned("d", 1))
    runner["job_retry.enqueue"](JID)
    assert [request["minions"] for request in requests.waiting(opts, JOB_RETRY)] == [["a"], None]
