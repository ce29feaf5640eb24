"""Job retry on a real master when the disk of its queue is full."""

from __future__ import annotations

import contextlib
import pathlib
import subprocess

import pytest

from tests.integration.conftest import make_master
from tests.integration.faults import CountedJob
from tests.integration.retry_help import OPTIONS, TIMES, Desk, kill, wait_for
from tests.missing import missing


@pytest.fixture(scope="module")
def master(salt_factories):
    daemon = make_master(salt_factories, job_retry=dict(OPTIONS), engines=[{"job_retry": {}}], **TIMES)
    daemon.slow_stop = False
    with daemon.started():
        yield daemon


@pytest.fixture(scope="module")
def desk(master):
    desk = Desk(master)
    yield desk
    desk.close()


@pytest.fixture(scope="module")
def bert_once(master):
    """A minion that comes and goes; its key is known."""
    daemon = master.salt_minion_daemon("bert", defaults={"log_level": "info"})
    daemon.slow_stop = False
    daemon.start()
    yield daemon
    kill(daemon)


@pytest.fixture
def bert(bert_once, desk):
    """The minion, away."""
    if bert_once.is_running():
        kill(bert_once)
    return bert_once


@pytest.fixture
def small_disk(desk):
    """A file system of 64 kB over the queue."""
    folder = pathlib.Path(desk.opts["cachedir"]) / "job_retry"
    folder.mkdir(mode=0o700, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "none", str(folder)]
    made = subprocess.run(command, capture_output=True, check=False)
    if made.returncode:
        missing(f"a small file system cannot be mounted: {made.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_delays_the_queue_and_loses_nothing(desk, bert, small_disk, tmp_path):
    ballast, log = small_disk / "ballast", pathlib.Path(desk.opts["log_file"])
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as stream:
        while True:
            stream.write(bytes(4096))
    job = CountedJob(tmp_path, "ran")
    jid = desk.publish("cmd.run", job.command, tgt="bert")
    complaint = "The retry queue cannot be written"
    wait_for(lambda: complaint in log.read_text(errors="replace"), 30, "the engine complains")
    assert not desk.queue()
    ballast.unlink()
    desk.await_state("bert", jid, "pending")
    bert.start()
    desk.await_return("bert", jid)
    wait_for(lambda: not desk.queue(), what="the entry is gone")
    assert job.begun() == 1
