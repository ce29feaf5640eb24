"""
The clock of a master is set back and forward by hours while its processes run: batches, the retry queue and kills go on. The
minions have clocks of their own, and write down what has run.
"""

from __future__ import annotations

import contextlib
import math
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
from saltfactories.utils import random_string

from saltext.jobs.core.batch.store import BatchStore
from saltext.jobs.core.engine import requests
from saltext.jobs.core.engine.names import BATCH_MANAGER, JOB_RETRY
from saltext.jobs.core.ids import jid_time
from saltext.jobs.core.retry.checkpoint import read_checkpoint
from saltext.jobs.core.site import FileSite
from tests.faults import freeze
from tests.integration.batch.conftest import timeouts
from tests.integration.conftest import make_minion
from tests.integration.faults import CountedJob
from tests.integration.job_retry.desk import Desk, away, family, kill, make_retry_master
from tests.integration.wall_clock import WallClock
from tests.waiting import SOON, wait_for

pytestmark = pytest.mark.slow

MINIONS = ("c1", "c2", "c3", "c4")
BACK, FORWARD = -7200, 7200
#: Prints what each clock shows.
CLOCKS = """
import datetime, time
steady = (time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME))
print(time.time(), datetime.datetime.now().timestamp(), time.clock_gettime(time.CLOCK_REALTIME), *steady)
"""


@pytest.fixture(scope="module")
def wall_once(tmp_path_factory):
    with contextlib.closing(WallClock(tmp_path_factory.mktemp("wall"))) as clock:
        yield clock


@pytest.fixture
def wall(wall_once):
    """The clock of the master, right at first, and set right afterwards."""
    yield wall_once
    wall_once.set(0)


@pytest.fixture(scope="module")
def master(salt_factories, wall_once):
    engines = [{JOB_RETRY: {}}, {BATCH_MANAGER: {}}]
    with make_retry_master(salt_factories, environment=wall_once.environment, engines=engines).started() as daemon:
        yield daemon


@pytest.fixture(scope="module")
def minions(master):
    with contextlib.ExitStack() as stack:
        daemons = {name: make_minion(master, name) for name in MINIONS}
        for daemon in daemons.values():
            daemon.start()
            stack.callback(kill, daemon)
            daemon.get_check_events = list  # from now on the master dates its events as its clock is set
        yield daemons


@pytest.fixture(scope="module")
def desk(master, minions):
    with contextlib.closing(Desk(master)) as made:
        assert made.ask(
            MINIONS[-1], "test.ping"
        )  # with the first publish the log begins, and a search of the job cache
        yield made


@pytest.fixture
def bert(minions, desk):
    """A minion that is away, and has nothing in the queue."""
    with away(minions["c1"], desk) as daemon:
        yield daemon
    if not daemon.is_running():
        daemon.start()
    wait_for(lambda: desk.ask(daemon.id, "test.ping"), what="it is there again")


@pytest.fixture
def ran(tmp_path):
    return tmp_path / "ran"


def pid_of(master, engine):
    # An engine that notices that the clock was set starts anew, and is away for a moment.
    return wait_for(lambda: requests.process_of(master.config, engine), what=f"the {engine} engine runs").pid


def kill_engine(master, engine):
    """Have the master start an engine anew."""
    before = pid_of(master, engine)
    os.kill(before, signal.SIGKILL)
    wait_for(
        lambda: requests.is_running(master.config, engine) and pid_of(master, engine) != before,
        what=f"the {engine} engine runs again",
    )


@contextlib.contextmanager
def unaware(master, engine, is_it=True):
    """The engine is frozen during the block, and then killed. The next one finds what was done when it starts."""
    if is_it:
        freeze(pid_of(master, engine))
    yield
    if is_it:
        kill_engine(master, engine)


def test_all_processes_of_the_master_go_by_the_clock_that_is_set_and_no_other_clock_is_touched(wall, master, desk):
    family_maps = [pathlib.Path(f"/proc/{pid}/maps").read_text() for pid in family(master)]
    assert len(family_maps) > 8
    assert all(wall.environment["LD_PRELOAD"] in maps for maps in family_maps)
    for step in (0, BACK, FORWARD):
        wall.set(step)
        here = (time.time(),) * 3 + (time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME))
        command, environment = [sys.executable, "-c", CLOCKS], {**os.environ, **wall.environment}
        printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
        wrong = [float(there) - before for there, before in zip(printed.split(), here, strict=True)]
        assert [round(each / FORWARD) * FORWARD for each in wrong] == [step, step, step, 0, 0]
        shown = jid_time(desk.publish("test.ping", tgt="c2"))  # as a worker has read it
        assert abs(shown - time.time() - step) < SOON


@pytest.mark.parametrize("restarts", [False, True], ids=["the engine runs on", "the engine is killed at each step"])
def test_jobs_are_owed_and_delivered_once_whatever_the_clock_shows(wall, master, desk, bert, ran, restarts):
    jids, steps = [], (0, BACK, FORWARD, BACK, 0)
    for number, step in enumerate(steps):
        with unaware(master, JOB_RETRY, restarts):
            wall.set(step)
            jids.append(desk.publish("cmd.run", f"echo {number} >> {ran}", tgt=bert.id))
        desk.await_state(bert.id, jids[-1], "pending")
    assert desk.queue() == dict.fromkeys(((bert.id, jid) for jid in jids), "pending")
    bert.start()
    for jid in jids:
        desk.await_return(bert.id, jid)
    wait_for(lambda: not desk.queue(), what=lambda: f"the queue is empty: {desk.queue()}")
    assert sorted(ran.read_text().split()) == [str(number) for number in range(len(steps))]


@pytest.mark.parametrize("restarts", [False, True], ids=["the engine runs on", "the engine is killed at each step"])
def test_a_kill_ends_jobs_published_before_it_whatever_the_clock_shows(wall, master, desk, bert, ran, restarts):
    folder = FileSite(master.config).folder(JOB_RETRY)
    # A search has no order.
    wait_for(
        lambda: read_checkpoint(folder)["search"] == math.inf, seconds=3 * SOON, what="nothing is searched any more"
    )
    again, over = [], set()
    for number, step in enumerate((BACK, FORWARD, 0)):
        command, never = f"echo {number} >> {ran}", f"echo never >> {ran}"
        pending = desk.publish("cmd.run", never, tgt=bert.id)
        desk.await_state(bert.id, pending, "pending")
        with unaware(master, JOB_RETRY, restarts):
            jid, ended = desk.publish("cmd.run", command, tgt=bert.id), desk.publish("cmd.run", never, tgt=bert.id)
            wall.set(step)
            for killed, function in ((pending, "kill_job"), (jid, "term_job"), (ended, "kill_job")):
                desk.publish(f"saltutil.{function}", killed, tgt=bert.id)
            assert desk.publish("cmd.run", command, tgt=bert.id, jid=jid) == jid
        desk.await_state(bert.id, pending, "cancelled")
        desk.await_state(bert.id, jid, "pending")
        again.append(jid)
        over |= {(bert.id, pending), (bert.id, ended)}
    bert.start()
    for jid in again:
        desk.await_return(bert.id, jid)
    wait_for(lambda: desk.queue().keys() <= over, what=lambda: f"the rest is done: {desk.queue()}")
    assert set(desk.queue().values()) == {"cancelled"}
    # What is published while no engine runs counts as older if the clock is set forward before one does.
    order = sorted if restarts else list
    assert order(ran.read_text().split()) == ["0", "1", "2"]


def begin(desk, work, *minions, **options):
    times = dict(each.split("=") for each in timeouts(3))
    options = {"tgt_type": "list", "presence": "none", **times, **options}
    return desk.run("batch.start", ",".join(minions), "cmd.run", work.command, **options)["jid"]


def ended(store, jid):
    """The outcomes of a batch, once it has ended."""
    batch = wait_for(lambda: (found := store.read(jid)) and found.finished and found, what=f"{jid} has ended")
    return {minion: outcome.value for minion, (outcome, *_) in batch.outcomes.items()}


@pytest.mark.parametrize("restarts", [False, True], ids=["the engine runs on", "the engine is killed at each step"])
def test_a_batch_that_runs_while_the_clock_is_set_keeps_to_its_size_and_runs_each_job_once(
    wall, master, desk, minions, tmp_path, restarts
):
    store, work = BatchStore(master.config), CountedJob(tmp_path, random_string("work-"), seconds=5)
    # A clock that is set moves what is due by wall time: an engine that starts then may take a job for older than it is.
    jid = begin(desk, work, *MINIONS, batch=2, batch_wait=1, **({} if restarts else {"max_runtime": 600}))
    for begun, step in ((1, BACK), (3, FORWARD), (4, BACK)):
        wait_for(lambda begun=begun: work.begun() >= begun, what=lambda: f"it goes on: {store.read(jid).outcomes}")
        wall.set(step)
        if restarts:
            kill_engine(master, BATCH_MANAGER)
    assert ended(store, jid) == dict.fromkeys(MINIONS, "completed")
    assert (work.begun(), work.most_at_once()) == (len(MINIONS), 2)


@pytest.mark.parametrize("step", [BACK, FORWARD], ids=["back", "forward"])
def test_a_job_that_runs_for_too_long_is_killed_at_its_time_whatever_the_clock_shows(
    wall, master, desk, minions, tmp_path, step
):
    store, work, most = BatchStore(master.config), CountedJob(tmp_path, random_string("work-"), seconds=3600), 20
    since = time.monotonic()
    jid = begin(desk, work, "c2", batch=1, max_runtime=most)
    wait_for(work.begun, what="it runs")
    wall.set(step)
    assert ended(store, jid) == {"c2": "timed_out"}
    assert time.monotonic() - since >= most
    assert work.lines() == ["begin"]
