"""Salt 3008's own batch manager beside ours: whatever is killed or stopped, it publishes nothing for our batches."""

from __future__ import annotations

import os
import pathlib
import signal

import psutil
import pytest

from saltext.jobs.core import compat
from saltext.jobs.core.batch.store import BatchStore
from tests.integration.conftest import ask_runner, make_master, minions, salt_cli
from tests.integration.faults import CountedJob, kill_the_master
from tests.waiting import SOON, lasting, stretched, wait_for

pytestmark = pytest.mark.skipif(
    not compat.HAS_NATIVE_BATCHES, reason="Salt 3008 is the first release with a batch manager of its own"
)

MINIONS = ("n1", "n2", "n3", "n4")
#: What Salt's manager logs before it publishes for a batch.
DISPATCH = "Dispatching sub-batch of"


@pytest.fixture(scope="module")
def master(salt_factories):
    daemon = make_master(
        salt_factories,
        engines=[{"batch_manager": {}}],
        job_retry=False,
        timeout=2,
        gather_job_timeout=2,
        batch_manager_loop_interval=1,
        log_level_logfile="info",
    )
    with daemon.started(), minions(daemon, *MINIONS):
        yield daemon


@pytest.fixture
def run(master):
    return lambda *args: ask_runner(master, *args)


@pytest.fixture
def store(master):
    return BatchStore(master.config)


def log_of(master):
    return pathlib.Path(master.config["log_file"]).read_text(errors="replace")


# -- what happens to Salt's manager ------------------------------------------------------------------------------------


def kill_the_manager(master):
    """Salt's process manager starts it anew."""
    (manager,) = (
        process
        for process in psutil.Process(master.pid).children(recursive=True)
        if "BatchManager" in " ".join(process.cmdline())
    )
    manager.kill()


def stop_the_master(master):
    os.kill(master.pid, signal.SIGTERM)
    psutil.Process(master.pid).wait(stretched(SOON))
    master.terminate()
    master.start()


# -- what our batch is doing then --------------------------------------------------------------------------------------


def paused(run, store, work):
    jid = begin(run, work, "batch=1")
    wait_for(work.begun, what="the first runs")
    assert run("batch.pause", jid) is True
    wait_for(lambda: not store.read(jid).flights, what="what ran has ended")
    return jid, work.begun()


def in_the_first_wave(run, _store, work):
    jid = begin(run, work, "batch=1,100%")
    wait_for(work.begun, what="the first runs")
    return jid, 1


def at_the_limit(run, _store, work):
    jid = begin(run, work, "batch=2")
    wait_for(lambda: work.begun() == 2, what="two run")
    return jid, 2


def begin(run, work, batch):
    return run("batch.start", "n*", "cmd.run", work.command, "presence=none", batch)["jid"]


HAPPENS = (kill_the_manager, stop_the_master, kill_the_master)
STATES = ((paused, 3), (in_the_first_wave, 600), (at_the_limit, 600))


@pytest.mark.parametrize(
    ("happens", "state", "seconds"),
    # `make test` runs each of them once.
    [
        pytest.param(happens, *state, marks=[] if place == other else pytest.mark.slow)
        for place, happens in enumerate(HAPPENS)
        for other, state in enumerate(STATES)
    ],
)
def test_only_this_extension_publishes_for_its_batches(master, run, store, tmp_path, state, seconds, happens):
    work = CountedJob(tmp_path, "work", seconds)
    jid, begun = state(run, store, work)
    seen = len(log_of(master))
    happens(master)
    wait_for(lambda: "BatchManager initialized" in log_of(master)[seen:], what="Salt's manager has started anew")
    native = a_batch_of_salts_own(master)
    # It is driven in the same loop: when it has ended, that loop has gone round for longer than our batch's time-outs.
    wait_for(lambda: is_over(store.read_native(native)), what="Salt's manager has driven a batch of its own")
    dispatched = [line for line in log_of(master)[seen:].splitlines() if DISPATCH in line and jid in line]
    assert dispatched == []
    assert work.begun() == begun
    (found,) = run("batch.list_active")
    assert (found["jid"], found["pending"]) == (jid, len(MINIONS) - begun)
    assert run("batch.stop", jid, "kill=True") is True
    wait_for(lambda: store.read(jid).finished, what="it has ended")


def is_over(state):
    return state and not state["pending"] and not state["active"]


def a_batch_of_salts_own(master):
    """
    Start one that takes longer than the time-outs of a batch of ours, and return its jid.

    First ``salt`` pings the minions. One of them may just be coming back, so it waits for the answer as long as it is told
    to.
    """

    def started():
        done = salt_cli(master, "n[12]", f"--timeout={lasting(5)}", "--async", "-b", "1", "test.sleep", "3")
        return next((word for word in (done.stdout + done.stderr).split() if word.isdigit() and len(word) == 20), None)

    return wait_for(started, what="the minions are back")
