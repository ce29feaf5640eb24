"""Notices of the engine itself, over Salt's event bus and the rows of batches, killed and cut off."""

from __future__ import annotations

import functools
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import pytest
import salt.loader
import salt.payload

from saltext.jobs.core import compat
from saltext.jobs.core.batch.store import BatchStore
from saltext.jobs.core.disk.lease import SILENT
from saltext.jobs.core.engine import requests
from saltext.jobs.core.engine.names import BATCH_MANAGER, JOB_RECORDER
from saltext.jobs.core.ledger.outbox import Key, Row
from saltext.jobs.core.recorder.consumer import outbox_of
from saltext.jobs.core.recorder.notices import Reported
from saltext.jobs.core.recorder.shell import Watch, known_of
from saltext.jobs.core.retry.entry import Entry, State
from saltext.jobs.core.site import site_of
from tests.event_bus import event_bus, options
from tests.functional.options import options_in
from tests.functional.retry.records import changes, queue_of
from tests.leading import leading, lock_of
from tests.unit.batch.bench import Bench
from tests.waiting import wait_for

from .receiver import receiving

CHECKOUT = pathlib.Path(__file__).resolve().parents[3]
SECRET = "a-secret-that-nobody-sees"


class Site:
    """A master's folder with a bus, and the engine as often as it is started."""

    def __init__(self, folder, url):
        self.opts = options(folder)
        self.folder, self.url = folder, url
        self.store = BatchStore(self.opts)
        self.log = folder / "engine.log"
        self.engine = None
        self._count = 0

    def start(self, more=None, **notices):
        given, others = json.dumps({"url": self.url, "secret": SECRET, **notices}), json.dumps(more or {})
        command = [sys.executable, "-m", "tests.functional.recorder.run", str(self.folder), given, others]
        with self.log.open("ab") as log:
            self.engine = subprocess.Popen(command, cwd=CHECKOUT, stderr=log, start_new_session=True)
        wait_for(lambda: requests.is_running(self.opts, JOB_RECORDER), what="the engine runs")
        wait_for(lambda: known_of(site_of(self.opts)), what="it has looked at batches and queue")

    def kill(self):
        if self.engine is not None:
            os.killpg(self.engine.pid, signal.SIGKILL)
            self.engine.wait()
            self.engine = None

    def fail_a_batch(self):
        """A batch that ends on two minions, on one without success."""
        self._count += 1
        jid = f"2026051610111213{self._count:04}"
        bench = Bench("ab", "2", jid=jid)
        bench.sent()
        bench.returns("a")
        bench.returns("b", retcode=1)
        bench.keep(self.store, ended=True)
        return jid

    def give_up(self, jid, *minions):
        """Jobs of the retry queue that are given up, as its engine leaves them."""
        snapshot = {"published_at": 1.0, "load": {"fun": "state.apply"}}
        given_up = {}
        for minion in minions:
            entry = Entry(minion, jid, 1.0, 9e9, "queued")
            entry.move(State.DEAD, 2.0, "it no longer matches the job's target")
            given_up[minion, jid] = entry.as_record()
        queue_of(self.opts).write(changes({jid: snapshot}, given_up))

    def stats(self):
        return requests.ask(self.opts, JOB_RECORDER, {"do": "stats"})["returners"]["notices:webhook"]


@pytest.fixture
def receiver():
    with receiving() as one:
        yield one


@pytest.fixture
def site(tmp_path, receiver):
    with event_bus(tmp_path):
        made = Site(tmp_path, receiver.url)
        yield made
        made.kill()
    assert SECRET not in made.log.read_text() and "of-the-address" not in made.log.read_text()


def test_a_batch_that_fails_is_reported_and_a_test_arrives(site, receiver):
    site.start()
    assert salt.loader.runner(site.opts)["job_recorder.test_notice"]() == {"notices:webhook": "arrived"}
    jid = site.fail_a_batch()
    wait_for(lambda: receiver.kinds() == ["test", "failed"], what="the failure is told")
    assert receiver.got[1][0]["jid"] == jid
    assert receiver.got[1][0]["minions"] == ["b"]
    assert site.stats()["trouble"] is None


def test_what_was_reported_of_a_batch_is_over_when_a_retry_and_the_queue_have_completed_it(site, receiver):
    site.start()
    jid, retry = "20260516101112131415", "20260516111112131415"
    first, again = Bench("abc", "3", jid=jid, offline="queue"), Bench("c", "1", jid=retry, parent=jid)
    first.now = time.time()  # one that ended a week ago is not looked at
    first.sent(missed=["a"])
    first.returns("b")
    first.returns("c", retcode=1)
    first.keep(site.store, ended=True)
    wait_for(lambda: receiver.kinds() == ["failed"], what="the failure is told")
    again.sent()
    again.returns("c")
    again.keep(site.store, ended=True)
    late = {"jid": jid, "id": "a", "fun": "test.ping", "return": True, "retcode": 0, "success": True}
    salt.loader.returners(site.opts, {})["local_cache.returner"](late)
    wait_for(lambda: receiver.kinds() == ["failed", "recovered"], what=lambda: f"it is over: {receiver.kinds()}")
    assert f"Batch {jid} is mended by {retry}." in receiver.got[1][0]["text"]


def test_an_engine_that_hangs_is_reported(site, receiver):
    with leading(site.opts, BATCH_MANAGER):
        site.start()
        os.utime(lock_of(site.opts, BATCH_MANAGER), (time.time() - 80,) * 2)
        wait_for(lambda: receiver.kinds() == ["engine"], what="the engine hangs")
        os.utime(lock_of(site.opts, BATCH_MANAGER))
        wait_for(lambda: receiver.kinds() == ["engine", "recovered"], what="it answers again")


@pytest.mark.slow
def test_an_engine_that_is_configured_and_does_not_run_is_reported(site, receiver):
    site.start({"engines": ["batch_manager", "job_retry"]})  # job_retry is not set to True
    wait_for(lambda: receiver.kinds() == ["engine"], 2 * SILENT, what="it does not start")
    assert "batch_manager" in receiver.got[0][0]["text"]
    with leading(site.opts, BATCH_MANAGER):
        wait_for(lambda: receiver.kinds() == ["engine", "recovered"], what="it has started")


def test_a_notice_outlives_a_kill_while_its_receiver_is_down(site, receiver):
    site.start()
    receiver.answer = 503
    site.fail_a_batch()
    wait_for(lambda: len(receiver.tried) > 1, what="it was tried")
    wait_for(lambda: "the receiver answers 503" in (site.stats()["trouble"] or ""), what="the trouble is told")
    site.kill()
    jid = site.fail_a_batch()  # while no engine runs
    receiver.answer = "hang"
    site.start()
    wait_for(lambda: len(receiver.tried) > 2, what="it is tried again")
    assert site.stats()["queued"] >= 1  # which answers, though the receiver does not
    site.kill()
    receiver.answer = 204
    site.start()
    wait_for(lambda: receiver.kinds() == ["failed", "failed"], what=lambda: f"all is told: {receiver.kinds()}")
    assert len(set(receiver.ids())) == 2
    assert receiver.got[1][0]["jid"] == jid


def test_tests_push_no_notice_out_and_of_too_many_notices_the_newest_stay(site, receiver):
    receiver.answer = 503
    waiting = [
        (f"m-{number}", {"id": f"m-{number}", "kind": "failed", "time": time.time() - 500 + number})
        for number in range(200)
    ]
    rows = [Row(Key("notice", name), one["time"], body=salt.payload.dumps(one)) for name, one in waiting]
    outbox_of(site_of(site.opts), "notices:webhook").add(rows)
    site.start()
    wait_for(lambda: len(receiver.tried) > 6, what="all that wait are at hand")
    for _ in range(3):
        requests.ask(site.opts, JOB_RECORDER, {"do": "test_notice"})
    wait_for(lambda: (site.stats()["queued"], site.stats()["dropped"]) == (200, 1), what="one is dropped")
    site.kill()
    receiver.answer = 204
    site.start()
    wait_for(lambda: len(receiver.kinds()) == 200, what="all that wait have arrived")
    assert receiver.kinds().count("test") == 1 and "m-0" not in receiver.ids() and "m-1" in receiver.ids()
    wait_for(lambda: (site.stats()["queued"], site.stats()["delivered"]) == (0, 200), what="none waits")


def test_a_notice_that_its_receiver_refuses_delays_no_other(site, receiver):
    test = Key("notice", "test")  # one that was refused for good
    outbox_of(site_of(site.opts), "notices:webhook").keep({test: Row(test, time.time(), 5, None, "no", b"")})
    site.start()
    receiver.refuses = "failed"
    site.fail_a_batch()
    wait_for(lambda: receiver.tried, what="it was tried")
    for _ in range(4):
        had = len(receiver.got)
        requests.ask(site.opts, JOB_RECORDER, {"do": "test_notice"})
        wait_for(lambda had=had: len(receiver.got) > had, what="a test arrives")
    assert receiver.kinds() == ["test"] * 4


def test_owed_jobs_that_are_given_up_are_reported(site, receiver):
    site.start()
    jid = "20260516101112139999"
    site.give_up(jid, "a", "b")
    wait_for(lambda: receiver.kinds() == ["dead"], what="it is told")
    notice = receiver.got[0][0]
    assert (notice["minions"], notice["jobs"]) == (["a", "b"], [{"jid": jid, "fun": "state.apply"}])
    assert "it no longer matches the job's target" in notice["text"]
    assert site.stats()["delivered"] == 1


class AtOnce:
    """A worker without a thread."""

    async def call(self, work):
        return work()


def test_it_looks_again_soon_after_a_look_that_failed_and_within_minutes_after_a_long_one(tmp_path, monkeypatch):
    (tmp_path / "cache").mkdir()
    here, looks, later = threading.current_thread(), [], [0.0]
    for name, real in (("monotonic", time.monotonic), ("time", time.time)):  # loops of Salt 3006 go by the second one
        monkeypatch.setattr(time, name, lambda real=real: real() + later[0] * (threading.current_thread() is here))

    def look(now):
        looks.append("look")
        later[0] += 60  # the database was away, or the machine stood still
        if len(looks) == 1:
            raise OSError("away")

    async def pass_seconds(count):
        for _ in range(0, count, 5):
            later[0] += 5
            await compat.sleep(0.01)

    tables = site_of(options_in(tmp_path, cache="sqlite"))
    watch = Watch({"batches": (look, 2.0)}, Reported("master", (), "", None), (), tables)
    loop = compat.new_loop()
    loop.spawn_callback(watch.run, AtOnce())
    loop.run_sync(functools.partial(pass_seconds, 10))
    assert len(looks) == 2
    loop.run_sync(functools.partial(pass_seconds, 310))
    assert len(looks) == 3
    watch.is_closed = True
    loop.close(all_fds=True)
