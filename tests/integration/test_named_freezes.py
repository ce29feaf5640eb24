"""
Two masters whose engines freeze at named points until another one leads and has gone on. Then they wake. The minions
themselves record what has run; they have ``job_once``.

After 12 s the lease is over, and another engine leads.
"""

from __future__ import annotations

import contextlib
import pathlib
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
from saltfactories.utils import random_string

from saltext.jobs.core.engine.names import BATCH_MANAGER, JOB_RETRY
from saltext.jobs.core.postgresql.tables import LEASES
from tests.functional.cache_servers import cache_servers as cache_servers
from tests.integration.faults import EngineProcess
from tests.integration.job_retry.desk import Desk, Ear, kill, lines
from tests.integration.several import ADDRESSES, ended, hot_hot, leads, start, there
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

#: One that a job is owed to, and those of a batch.
OWED, BATCH = "ice0", ["ice1", "ice2"]
#: Seconds that the other one leads until the frozen one wakes.
WAKES_AFTER = 5
DATABASE = "freezes"
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
#: Where both engines stand still at a time. They do not depend on each other.
POINTS = {
    "before the intent is durable, and after the claim": {
        BATCH_MANAGER: "before sync 1",
        JOB_RETRY: "after claim 1",
    },
    "between intent and publish, and just before the publish": {
        BATCH_MANAGER: "before publish 1",
        JOB_RETRY: "before publish 1",
    },
    "after the publish": {BATCH_MANAGER: "after publish 1"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("freezes")


@pytest.fixture(scope="module")
def masters(salt_factories, cache_servers, folder):
    """Two masters that run no engines themselves; a trap can be set in the first one's workers."""
    (folder / "modules" / "returners").mkdir(parents=True)
    code = OWN.read_text() + TRAP.format(trap=str(folder / "trap"), engine=BATCH_MANAGER)
    (folder / "modules" / "returners" / "salt_cache.py").write_text(code)
    options = {"first": {"module_dirs": [str(folder / "modules")]}, "engines": []}
    site = {**cache_servers("postgresql").make_database(DATABASE), "saltext_jobs_site": "postgresql"}
    with hot_hot(salt_factories, "ice", site, **options) as daemons:
        yield daemons


@pytest.fixture(scope="module")
def desks(masters):
    made = [Desk(master, alone=False) for master in masters]
    yield made
    for desk in made:
        desk.close()


@pytest.fixture(scope="module")
def minions(masters, desks):
    place, executors = {"master": list(ADDRESSES)}, ["job_once", "direct_call"]
    with there([OWED, *BATCH], masters[1], *desks, **place, module_executors=executors) as daemons:
        for daemon in daemons.values():
            daemon.get_check_events = list  # when it is started anew: it would wait for those on the bus of one master
        yield daemons


@pytest.fixture
def engines(masters, folder, cache_servers):
    """``engine(place, name, **trap)`` starts an engine of a master; the first one leads."""
    with contextlib.ExitStack() as stack:
        # the next test need not wait for the leases of engines that were killed
        end_leases = f"UPDATE {LEASES} SET until = '-infinity'"
        stack.callback(cache_servers("postgresql").server.execute, end_leases, database=DATABASE)

        def begin(place, name, **trap):
            process = EngineProcess(masters[place], folder / f"{name}-{place}-{random_string('')}.log", name)
            stack.callback(process.kill)
            process.start(**trap)
            if place == 0:
                wait_for(lambda: leads(masters[0], name, process.pid), what="the first one leads")
            return process

        yield begin


def stand_still(masters, name, engine):
    """Wait until an engine of the first master stands still and the other one leads, and wake it then: it ends."""
    engine.wait_for_standstill()
    assert leads(masters[0], name)
    wait_for(lambda: leads(masters[1], name), what=f"the other one leads {name}")
    time.sleep(WAKES_AFTER)
    engine.signal(signal.SIGCONT)
    wait_for(engine.has_died, what=lambda: f"the one that has woken ends: {engine.output()}")


def begin_owed_job(desks, daemon, trace):
    """Have a minion that was away come back to a job that it is owed; returns the jid."""
    owed = desks[0].publish("cmd.run", f"echo x >> {trace}", tgt=OWED)
    desks[1].await_state(OWED, owed, "pending")
    daemon.start()
    return owed


def await_owed_job(desks, jid):
    desks[1].await_return(OWED, jid)
    wait_for(lambda: not desks[1].queue(), what="the queue is empty")


@pytest.mark.parametrize("points", POINTS.values(), ids=POINTS)
def test_a_batch_and_an_owed_job_whose_engines_stand_still_run_once(masters, desks, minions, engines, tmp_path, points):
    owes = JOB_RETRY in points
    if owes:
        kill(minions[OWED])
    frozen = {name: engines(0, name, stop=point) for name, point in points.items()}
    for name in points:
        engines(1, name)
    with ThreadPoolExecutor() as pool:
        standing = [pool.submit(stand_still, masters, *each) for each in frozen.items()]
        owed = begin_owed_job(desks, minions[OWED], tmp_path / "owed") if owes else None
        jid = start(desks[1], tmp_path / "trace", BATCH, seconds=1)
        for each in standing:
            each.result()
    assert ended(masters[1], jid) == dict.fromkeys(BATCH, "completed")
    assert lines(tmp_path / "trace") == len(BATCH)
    if owes:
        await_owed_job(desks, owed)
        assert lines(tmp_path / "owed") == 1


def test_a_minion_refuses_a_job_from_a_master_that_was_frozen_just_before_it_sent_it(
    masters, desks, minions, engines, folder, tmp_path
):
    one = engines(0, BATCH_MANAGER)
    engines(1, BATCH_MANAGER)
    trap, trace = folder / "trap", tmp_path / "trace"
    trap.touch()
    jid = start(desks[1], trace, BATCH, seconds=1)
    (caught,) = wait_for(lambda: list(folder.glob("trap.*")), what="a worker stands still")
    worker = psutil.Process(int(caught.suffix[1:]))
    caught.unlink()
    wait_for(lambda: worker.status() == psutil.STATUS_STOPPED, what="it stands still")
    one.kill()
    assert lines(trace) == 0
    assert ended(masters[1], jid) == dict.fromkeys(BATCH, "completed")
    assert lines(trace) == len(BATCH)
    first = minions[BATCH[0]]  # for which the caught publish is
    with Ear(masters[0]) as ear:
        kill(first)
        first.start()
        wait_for(lambda: ear.count(f"salt/minion/{first.id}/start"), what="it is there again")
    log = pathlib.Path(masters[0].config["log_file"])
    sent = log.read_text(errors="replace").count(f"with jid {jid}")
    worker.resume()
    wait_for(lambda: log.read_text(errors="replace").count(f"with jid {jid}") > sent, what="the worker has gone on")
    told = pathlib.Path(first.config["log_file"])
    refused = f"Job {jid!r} was begun here before"
    wait_for(lambda: refused in told.read_text(errors="replace"), what="it refuses the job")
    for name in BATCH:  # what a master sends comes in order
        assert desks[0].ask(name, "test.ping")
        wait_for(lambda name=name: not desks[0].ask(name, "saltutil.running"), what=f"{name} runs nothing")
    assert lines(trace) == len(BATCH)
