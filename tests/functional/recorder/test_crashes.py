"""
A recorder that is killed, whose files are damaged, or whose returner stays away: no return is missing, none comes twice,
and lost ones are counted.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import sys
import threading
import time

import pytest

from tests.waiting import SOON, stretched

from .stage import JobCache, Returner, Stage

FORK = multiprocessing.get_context("fork")
JIDS = [f"2026112110000000{number:04d}" for number in range(3)]
MINIONS = ["m0", "m1"]
WANTED = sorted((jid, minion) for jid in JIDS for minion in MINIONS)
#: What the recorder asks of the operating system, and of a database, by the names of Python's functions.
STEPS = {"open", "write", "fsync", "fdatasync", "rename", "replace", "unlink", "truncate", "execute", "commit"}


class File(Returner):
    """A returner whose records outlive the process, one line each."""

    def __init__(self, path):
        super().__init__()
        self.path = path

    def store_return(self, ret):
        if self.is_down:
            raise ConnectionError("down")
        with open(self.path, "a") as stream:
            stream.write(f"{ret['jid']} {ret['id']}\n")

    def stored(self):
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        return sorted(tuple(line.split()) for line in lines)

    def returns(self, jid):
        return {minion: {} for of, minion in self.stored() if of == jid}


@pytest.fixture
def job_cache():
    made = JobCache()
    for jid in JIDS:
        made.publish(jid, "cmd.run")
        for minion in MINIONS:
            made.give_back(jid, minion, "x")
    return made


def killed_at(number):
    """Have this process killed right before its recorder takes the nth step, in whichever thread."""
    left = iter(range(number))

    def trap(frame, event, called):
        ours = event == "c_call" and called.__name__ in STEPS and "/core/" in frame.f_code.co_filename
        if ours and next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(trap)
    threading.setprofile(trap)


def record(folder, job_cache, returner):
    """Let a recorder take in all returns; whether the returner has them in the end."""
    stage = Stage(folder, job_cache, returner, flush=0.01)
    try:
        for jid, minion in WANTED:
            stage.event(jid, minion, "x")
        wanted = stage.until(lambda: returner.stored() == WANTED, stretched(SOON))
        stage.settle()
        return wanted
    finally:
        stage.close()


def test_a_recorder_that_is_killed_at_any_step_loses_nothing_and_doubles_nothing(tmp_path, job_cache):
    for number in itertools.count():
        folder, returner = tmp_path / str(number), File(tmp_path / f"{number}.stored")
        folder.mkdir()

        def run(number=number, folder=folder, returner=returner):
            killed_at(number)
            record(folder, job_cache, returner)
            sys.setprofile(None)

        process = FORK.Process(target=run)
        process.start()
        process.join(stretched(SOON))
        assert record(folder, job_cache, returner), (number, returner.stored())
        assert returner.stored() == WANTED, number
        if process.exitcode == 0:
            break
    assert number > 10


@pytest.mark.parametrize("harm", ["a flipped bit", "a lost end", "nothing left"])
def test_whatever_file_of_the_recorder_is_damaged_it_goes_on_and_doubles_nothing(tmp_path, job_cache, harm):
    for turn in itertools.count():
        folder, returner = tmp_path / str(turn), File(tmp_path / f"{turn}.stored")
        folder.mkdir()
        returner.is_down = True
        stage = Stage(folder, job_cache, returner, flush=0.01)
        for jid, minion in WANTED:
            stage.event(jid, minion, "x")
        stage.settle()
        stage.close()
        paths = sorted(path for path in stage.folder.rglob("*") if path.is_file() and path.stat().st_size)
        if turn == len(paths):
            break
        content = bytearray(paths[turn].read_bytes())
        content[len(content) // 2] ^= 1
        left = {"a flipped bit": content, "a lost end": content[:-3], "nothing left": b""}[harm]
        paths[turn].write_bytes(left)
        returner.is_down = False
        stage = Stage(folder, job_cache, returner, flush=0.01)
        stage.event(JIDS[0], "later", "x")
        assert stage.until(lambda stored=returner.stored: (JIDS[0], "later") in stored()), paths[turn]
        stage.settle()
        stage.close()
        assert len(returner.stored()) == len(set(returner.stored())), paths[turn]
    assert turn > 2


def test_of_more_records_than_may_wait_on_the_disk_the_newest_stay_and_the_lost_ones_are_counted(tmp_path):
    stage = Stage(tmp_path, spool_max_bytes=1 << 20, catch_up=0)
    stage.returner.is_down = True
    stage.job_cache.publish(JIDS[0], "cmd.run")
    for number in range(300):
        stage.event(JIDS[0], f"m{number}", os.urandom(100_000))
        if number % 20 == 0:
            stage.settle()
    stage.settle()
    assert sum(path.stat().st_size for path in stage.folder.rglob("*") if path.is_file()) < 2 << 20
    stage.returner.is_down = False
    assert stage.until(lambda: stage.returns and not stage.consumer.stats(time.time())["queued"])
    lost = {f"m{number}" for number in range(300)} - {minion for _, minion, _ in stage.returns}
    assert 0 < len(lost) <= stage.consumer.stats(time.time())["dropped"]
    assert "m299" not in lost and len(stage.returns) == 300 - len(lost)
    stage.close()
