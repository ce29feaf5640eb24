"""
Two hot-hot masters whose engines stand still at named points: for a while in which they keep the lead, and until another one
leads and has gone on. Then they wake. What has run, the minions themselves write down; all of them have ``job_once``.
"""

from __future__ import annotations

import contextlib
import pathlib
import signal
import time

import psutil
import pytest
from saltfactories.utils import random_string

from saltext.jobs.core.engine import requests
from saltext.jobs.core.engine.names import BATCH_MANAGER, JOB_RETRY
from tests.functional.cache_servers import cache_servers as cache_servers
from tests.integration.faults import EngineProcess
from tests.integration.job_retry.desk import Desk, kill, lines, make_retry_master
from tests.integration.several import ended, share_keys, start, there
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

MINIONS = ["ice0", "ice1"]
ADDRESSES = ("127.0.0.1", "127.0.0.2")
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


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("freezes")


@pytest.fixture(scope="module")
def masters(salt_factories, cache_servers, folder):
    """Two masters with one key that run no engines themselves; a trap can be set in the first one's workers."""
    (folder / "modules" / "returners").mkdir(parents=True)
    code = OWN.read_text() + TRAP.format(trap=str(folder / "trap"), engine=BATCH_MANAGER)
    (folder / "modules" / "returners" / "salt_cache.py").write_text(code)
    common = {**cache_servers("postgresql").make_database("freezes"), "saltext_jobs_site": "postgresql", "engines": []}
    made = []
    for address in ADDRESSES:
        own = {} if made else {"module_dirs": [str(folder / "modules")]}
        daemon = make_retry_master(salt_factories, f"ice-{address[-1]}", interface=address, **common, **own)
        if made:
            share_keys(made[0], daemon)
        daemon.start()
        made.append(daemon)
        common |= {name: daemon.config[name] for name in ("ret_port", "publish_port")}
    yield made
    for daemon in made:
        kill(daemon) if daemon.is_running() else daemon.terminate()


@pytest.fixture(scope="module")
def desks(masters):
    made = [Desk(master, alone=False) for master in masters]
    yield made
    for desk in made:
        desk.close()


@pytest.fixture(scope="module")
def minions(masters, desks):
    with there(
        MINIONS, masters[0], *desks, master=list(ADDRESSES), module_executors=["job_once", "direct_call"]
    ) as daemons:
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


def leads(master, name=BATCH_MANAGER, pid=None):
    process = requests.process_of(master.config, name)
    is_it = process is not None and process.master == master.config["id"] and pid in (None, process.pid)
    return is_it and requests.is_running(master.config, name)


def sleep_through(master, engine, seconds, name=BATCH_MANAGER):
    """Wait ``seconds``, or without any until a master leads, and wake the engine that stands still."""
    if seconds:
        time.sleep(seconds)
        assert not leads(master, name)
    else:
        wait_for(lambda: leads(master, name), what="the other one leads")
    engine.signal(signal.SIGCONT)
    if not seconds:
        wait_for(engine.has_died, what=lambda: f"the one that has woken ends: {engine.output()}")


@pytest.mark.parametrize("seconds", [5, 0], ids=["for five seconds", "until another one leads"])
@pytest.mark.parametrize("point", ["before sync of a table 1", "before publish 1", "after publish 1"])
def test_a_batch_whose_engine_stands_still_runs_once_everywhere(
    masters, desks, minions, engines, tmp_path, point, seconds
):
    one = engines(0, BATCH_MANAGER, stop=point)
    engines(1, BATCH_MANAGER)
    trace = tmp_path / "trace"
    jid = start(desks[1], trace, MINIONS, seconds=1)
    one.wait_for_standstill()
    assert leads(masters[0])
    sleep_through(masters[1], one, seconds)
    assert ended(masters[1], jid) == dict.fromkeys(MINIONS, "completed")
    assert lines(trace) == len(MINIONS)


def test_what_a_master_sends_that_stood_still_just_before_is_refused_by_the_minion(
    masters, desks, minions, engines, folder, tmp_path
):
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
    log = pathlib.Path(masters[0].config["log_file"])
    sent = log.read_text(errors="replace").count(f"with jid {jid}")
    worker.resume()
    wait_for(lambda: log.read_text(errors="replace").count(f"with jid {jid}") > sent, what="the worker has gone on")
    for name in MINIONS:  # what a master sends comes in order
        assert desks[0].ask(name, "test.ping")
        wait_for(lambda name=name: not desks[0].ask(name, "saltutil.running"), what=f"{name} runs nothing")
    assert lines(trace) == len(MINIONS)


@pytest.mark.parametrize("seconds", [5, 0], ids=["for five seconds", "until another one leads"])
@pytest.mark.parametrize("point", ["after claim in a table 1", "before publish 1"])
def test_an_owed_job_whose_engine_stands_still_is_delivered_once(
    masters, desks, minions, engines, tmp_path, point, seconds
):
    name, daemon = MINIONS[0], minions[MINIONS[0]]
    kill(daemon)
    one = engines(0, JOB_RETRY, stop=point)
    engines(1, JOB_RETRY)
    owed = desks[0].publish("cmd.run", f"echo x >> {tmp_path / 'owed'}", tgt=name)
    desks[1].await_state(name, owed, "pending")
    daemon.get_check_events = list  # it would wait for those on the bus of the first one
    daemon.start()
    one.wait_for_standstill()
    sleep_through(masters[1], one, seconds, JOB_RETRY)
    desks[1].await_return(name, owed)
    wait_for(lambda: not desks[1].queue(), what="the queue is empty")
    assert lines(tmp_path / "owed") == 1
