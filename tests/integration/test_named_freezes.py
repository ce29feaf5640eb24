"""
Two masters whose engines freeze at named points: for a while in which they keep the lead, or until another one leads and has
gone on. Then they wake. The minions themselves record what has run; all but one have ``job_once``.

The length of a standstill changes what others do meanwhile, at these moments, and nothing later:

* hot-hot: after 12 s the lease is over, and another engine leads;
* on a shared disk: no other engine leads before the lock is gone. After 10 s a claim of the retry queue is too old to be
  published, and runners give up waiting; after 35 s the engine is reported as silent.
"""

from __future__ import annotations

import contextlib
import pathlib
import signal
import time

import psutil
import pytest
from salt.exceptions import CommandExecutionError
from saltfactories.utils import random_string

from saltext.jobs.core.engine.names import BATCH_MANAGER, JOB_RETRY
from saltext.jobs.core.postgresql.lease import TTL
from saltext.jobs.core.site import FileSite
from tests.functional.cache_servers import cache_servers as cache_servers
from tests.integration.faults import EngineProcess
from tests.integration.job_retry.desk import Desk, Ear, kill, lines
from tests.integration.several import FORMS, HOT_HOT, cluster, ended, hot_hot, leads, reached_at, start, there
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

MINIONS = ["ice0", "ice1"]
#: It keeps what it returns, and has no ``job_once``.
BARE = "ice2"
SHORT, LONG, VERY_LONG = 5, 20, 120
OWN = pathlib.Path(__file__).resolve().parents[2] / "returners" / "salt_cache.py"
#: Put behind this extension's returner, in one master: its worker stands still before it sends what an engine publishes.
TRAP = """

_prep_jid = prep_jid


def prep_jid(nocache=False, passed_jid=None, recurse_count=0):
    import os, pathlib, signal

    found, trap = _prep_jid(nocache, passed_jid, recurse_count), pathlib.Path({trap!r})
    if found and "~{engine}~" in str(passed_jid) and trap.exists():
        trap.rename(trap.with_suffix(f".{{os.getpid()}}"))
        os.kill(os.getpid(), signal.SIGSTOP)
    return found
"""
#: Where engines stand still, in (hot-hot masters, those that share a disk).
BATCH_POINTS = {
    "before the intent is durable": ("before sync of a table 1", "before sync 1"),
    "between intent and publish": ("before publish 1",) * 2,
    "after the publish": ("after publish 1",) * 2,
}
QUEUE_POINTS = {
    "after the claim": ("after claim in a table 1", "after claim 1"),
    "just before the publish": ("before publish 1",) * 2,
}


@pytest.fixture(scope="module", params=FORMS)
def form(request):
    return request.param


@pytest.fixture(scope="module")
def folder(form, tmp_path_factory):
    return tmp_path_factory.mktemp("freezes")


@pytest.fixture(scope="module")
def masters(form, salt_factories, cache_servers, folder):
    """Two masters that run no engines themselves; a trap can be set in the first one's workers."""
    (folder / "modules" / "returners").mkdir(parents=True)
    code = OWN.read_text() + TRAP.format(trap=str(folder / "trap"), engine=BATCH_MANAGER)
    (folder / "modules" / "returners" / "salt_cache.py").write_text(code)
    options = {"first": {"module_dirs": [str(folder / "modules")]}, "engines": []}
    if form == HOT_HOT:
        site = {**cache_servers("postgresql").make_database("freezes"), "saltext_jobs_site": "postgresql"}
        made = hot_hot(salt_factories, "ice", site, **options)
    else:
        made = cluster(salt_factories, folder, **options)
    with made as daemons:
        yield daemons


@pytest.fixture(scope="module")
def desks(masters):
    made = [Desk(master, alone=False) for master in masters]
    yield made
    for desk in made:
        desk.close()


@pytest.fixture(scope="module")
def minions(form, masters, desks):
    place, executors = {"master": reached_at(form)}, ["job_once", "direct_call"]
    with (
        there(MINIONS, masters[1], *desks, **place, module_executors=executors) as with_records,
        there([BARE], masters[1], *desks, **place, cache_jobs=True) as without,
    ):
        daemons = with_records | without
        for daemon in daemons.values():
            daemon.get_check_events = list  # when it is started anew: it would wait for those on the bus of one master
        yield daemons


@pytest.fixture
def engines(masters, folder):
    """``engine(place, name, **trap)`` starts an engine of a master; the first one leads."""
    with contextlib.ExitStack() as stack:

        def begin(place, name, **trap):
            process = EngineProcess(masters[place], folder / f"{name}-{place}-{random_string('')}.log", name)
            stack.callback(process.kill)
            process.start(**trap)
            if place == 0:  # the lease of an engine that was killed before has to end first
                wait_for(lambda: leads(masters[0], name, process.pid), what="the first one leads")
            return process

        yield begin


def at(form, points):
    """The name of a point in such a form."""
    return points[0] if form == HOT_HOT else points[1]


class Standstill:
    """
    A standstill of engines of the first master, ``{name: process}``, from now on. They keep the lead unless the other one
    takes it.
    """

    def __init__(self, form, masters, engines):
        self._form, self._masters, self._engines, self._begun = form, masters, engines, time.monotonic()

    def lose_the_lead(self):
        """Wait until the other master leads: on a shared disk because its server does not hear of the first one any more."""
        for name in self._engines:
            if self._form != HOT_HOT:
                FileSite(self._masters[0].config).lock_path(name).unlink()
            wait_for(lambda name=name: leads(self._masters[1], name), what=f"the other one leads {name}")

    def end(self, seconds):
        """Wake them after so many seconds. Those that have lost the lead end; returns their names."""
        time.sleep(max(0.0, self._begun + seconds - time.monotonic()))
        lost = [name for name in self._engines if leads(self._masters[1], name)]
        for name, engine in self._engines.items():
            engine.signal(signal.SIGCONT)
            if name in lost:
                wait_for(engine.has_died, what=lambda engine=engine: f"the one that has woken ends: {engine.output()}")
        return lost


def stand_still(form, masters, name, engine, seconds):
    standstill = Standstill(form, masters, {name: engine})
    if seconds > TTL:
        standstill.lose_the_lead()
    assert standstill.end(seconds) == [name] * (seconds > TTL)


def begin_owed_job(desks, name, daemon, trace):
    """Have a minion that was away come back to a job that it is owed; returns the jid."""
    owed = desks[0].publish("cmd.run", f"echo x >> {trace}", tgt=name)
    desks[1].await_state(name, owed, "pending")
    daemon.start()
    return owed


@pytest.mark.parametrize("seconds", [SHORT, LONG])
@pytest.mark.parametrize("point", BATCH_POINTS)
def test_a_batch_whose_engine_stands_still_runs_once_everywhere(
    form, masters, desks, minions, engines, tmp_path, point, seconds
):
    one = engines(0, BATCH_MANAGER, stop=at(form, BATCH_POINTS[point]))
    engines(1, BATCH_MANAGER)
    trace = tmp_path / "trace"
    jid = start(desks[1], trace, MINIONS, seconds=1)
    one.wait_for_standstill()
    assert leads(masters[0])
    stand_still(form, masters, BATCH_MANAGER, one, seconds)
    assert ended(masters[1], jid) == dict.fromkeys(MINIONS, "completed")
    assert lines(trace) == len(MINIONS)


@pytest.mark.parametrize("seconds", [SHORT, LONG])
@pytest.mark.parametrize("point", QUEUE_POINTS)
def test_an_owed_job_whose_engine_stands_still_is_delivered_once(
    form, masters, desks, minions, engines, tmp_path, point, seconds
):
    name, daemon = MINIONS[0], minions[MINIONS[0]]
    kill(daemon)
    one = engines(0, JOB_RETRY, stop=at(form, QUEUE_POINTS[point]))
    engines(1, JOB_RETRY)
    owed = begin_owed_job(desks, name, daemon, tmp_path / "owed")
    one.wait_for_standstill()
    stand_still(form, masters, JOB_RETRY, one, seconds)
    desks[1].await_return(name, owed)
    wait_for(lambda: not desks[1].queue(), what="the queue is empty")
    assert lines(tmp_path / "owed") == 1


def test_all_runs_once_where_both_engines_stand_still_for_two_minutes(form, masters, desks, minions, engines, tmp_path):
    name, *others = *MINIONS, BARE
    kill(minions[name])
    points = {BATCH_MANAGER: BATCH_POINTS["between intent and publish"], JOB_RETRY: QUEUE_POINTS["after the claim"]}
    frozen = {engine: engines(0, engine, stop=at(form, points[engine])) for engine in points}
    for engine in points:
        engines(1, engine)
    owed = begin_owed_job(desks, name, minions[name], tmp_path / "owed")
    jid = start(desks[1], tmp_path / "trace", others, seconds=1)
    for engine in frozen.values():
        engine.wait_for_standstill()
    standstill = Standstill(form, masters, frozen)
    if form == HOT_HOT:
        standstill.lose_the_lead()
        assert ended(masters[1], jid) == dict.fromkeys(others, "completed")
        desks[1].await_return(name, owed)
        assert standstill.end(VERY_LONG) == list(frozen)
    else:
        wait_for(lambda: desks[1].run("batch.status", jid)["engine_silent_seconds"], what="it is reported as silent")
        with pytest.raises(
            CommandExecutionError, match=r"has not answered for .* the request stays and will be carried out"
        ):
            desks[1].run("batch.pause", jid)
        assert (lines(tmp_path / "trace"), lines(tmp_path / "owed")) == (0, 0)
        assert standstill.end(VERY_LONG) == []
        wait_for(lambda: desks[1].run("batch.status", jid)["paused_by"] == "operator", what="it is paused")
        desks[1].run("batch.resume", jid)
    assert ended(masters[1], jid) == dict.fromkeys(others, "completed")
    desks[1].await_return(name, owed)
    wait_for(lambda: not desks[1].queue(), what="the queue is empty")
    assert (lines(tmp_path / "trace"), lines(tmp_path / "owed")) == (len(others), 1)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_minion_refuses_a_job_from_a_master_that_was_frozen_just_before_it_sent_it(
    form, masters, desks, minions, engines, folder, tmp_path, restarted
):
    """By what it remembers; if it was restarted meanwhile, by ``job_once``."""
    one = engines(0, BATCH_MANAGER)
    engines(1, BATCH_MANAGER)
    trap, trace = folder / "trap", tmp_path / "trace"
    trap.touch()
    jid = start(desks[1], trace, MINIONS, seconds=1)
    (caught,) = wait_for(lambda: list(folder.glob("trap.*")), what="a worker stands still")
    worker = psutil.Process(int(caught.suffix[1:]))
    caught.unlink()
    wait_for(lambda: worker.status() == psutil.STATUS_STOPPED, what="it stands still")
    one.kill()
    assert lines(trace) == 0
    assert ended(masters[1], jid) == dict.fromkeys(MINIONS, "completed")
    assert lines(trace) == len(MINIONS)
    first = minions[MINIONS[0]]  # for which the caught publish is
    if restarted:
        with Ear(masters[0 if form == HOT_HOT else 1]) as ear:
            kill(first)
            first.start()
            wait_for(lambda: ear.count(f"salt/minion/{first.id}/start"), what="it is there again")
    log = pathlib.Path(masters[0].config["log_file"])
    sent = log.read_text(errors="replace").count(f"with jid {jid}")
    worker.resume()
    wait_for(lambda: log.read_text(errors="replace").count(f"with jid {jid}") > sent, what="the worker has gone on")
    if restarted:
        told = pathlib.Path(first.config["log_file"])
        refused = f"Job {jid!r} was begun here before"
        wait_for(lambda: refused in told.read_text(errors="replace"), what="it refuses the job")
    for name in MINIONS:  # what a master sends comes in order
        assert desks[0].ask(name, "test.ping")
        wait_for(lambda name=name: not desks[0].ask(name, "saltutil.running"), what=f"{name} runs nothing")
    assert lines(trace) == len(MINIONS)
