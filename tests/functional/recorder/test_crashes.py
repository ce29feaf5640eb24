"""A recorder that is killed: no return is missing, and none comes twice where the returner can be asked."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import sys

import pytest

from tests.interrupted import FORK
from tests.waiting import SOON, stretched

from .stage import Returner, Stage

JIDS = [f"2026112110000000{number:04d}" for number in range(2)]
MINIONS = ["m0", "m1"]
WANTED = sorted((jid, minion) for jid in JIDS for minion in MINIONS)


class File(Returner):
    """A returner whose records outlive the process, one line each. The process is killed at a step after the first one."""

    def __init__(self, path, can_be_asked, killed_at=None):
        super().__init__(can_be_asked)
        self.path, self._steps = path, None if killed_at is None else iter(range(killed_at))
        self.is_over = False

    def store_return(self, ret):
        if self.is_down:
            raise ConnectionError("down")
        if self._steps is not None:
            sys.setprofile(self._trap)  # of this thread: that of the consumer
            self._step()
        with open(self.path, "a") as stream:
            stream.write(f"{ret['jid']} {ret['id']}\n")
        self._step()

    def _trap(self, frame, event, called):
        """What the recorder asks of the database is a step."""
        if event == "c_call" and called.__name__ == "execute" and "/core/" in frame.f_code.co_filename:
            self._step()

    def _step(self):
        if self._steps is not None and not self.is_over and next(self._steps, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)

    def stored(self):
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        return sorted(tuple(line.split()) for line in lines)

    def returns(self, jid):
        return {minion: {} for of, minion in self.stored() if of == jid}


def prepare(folder):
    """All has returned, and a returner that is down has got nothing yet."""
    folder.mkdir()
    stage = Stage(folder)
    stage.returner.is_down = True
    for jid in JIDS:
        stage.job_cache.publish(jid)
        for minion in MINIONS:
            stage.job_cache.give_back(jid, minion)
    stage.settle()
    stage.close()


def record(folder, returner):
    """Let a recorder hand over what there is; whether the returner has all in the end."""
    stage = Stage(folder, returner)
    try:
        wanted = stage.until(lambda: set(returner.stored()) == set(WANTED), stretched(SOON))
        stage.settle()
        returner.is_over = True
        return wanted
    finally:
        stage.close()


@pytest.mark.parametrize("can_be_asked", [True, False])
def test_a_recorder_that_is_killed_at_any_step_loses_nothing_and_doubles_at_most_the_last(tmp_path, can_be_asked):
    prepare(tmp_path / "before")
    for number in itertools.count():
        folder, path = tmp_path / str(number), tmp_path / f"{number}.stored"
        shutil.copytree(tmp_path / "before", folder)
        process = FORK.Process(target=record, args=(folder, File(path, can_be_asked, number)))
        process.start()
        process.join(stretched(SOON))
        returner = File(path, can_be_asked)
        assert record(folder, returner), (number, returner.stored())
        doubled = len(returner.stored()) - len(WANTED)
        assert doubled == 0 if can_be_asked else doubled <= 1, number
        if process.exitcode == 0:
            break
    assert number > 10
