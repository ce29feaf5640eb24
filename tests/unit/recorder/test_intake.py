"""What waits in memory for the recorder's spool."""

from __future__ import annotations

import asyncio
import time
import types

from saltext.jobs.core.engine.alarm import Clock
from saltext.jobs.core.recorder.intake import LIMIT, Intake
from saltext.jobs.core.settings import RecorderSettings

MEGABYTE = 1 << 20


class FullDisk:
    """A thread that writes to a full disk. During each call the minions go on returning."""

    def __init__(self):
        self.meanwhile = lambda: None

    async def call(self, *_):
        self.meanwhile()
        raise OSError(28, "No space left on device")


def test_a_disk_that_takes_nothing_keeps_no_more_in_memory_than_the_limit():
    disk, moment = FullDisk(), [time.time()]
    clock = Clock(moment[0], lambda: moment[0])
    intake = Intake(RecorderSettings(), clock, types.SimpleNamespace(size=0), None, None, disk)

    def give_back(count):
        for _ in range(count):
            number = next(numbers)
            data = {"jid": "20261127000000000000", "id": f"m{number}", "fun": "cmd.run", "fun_args": []}
            intake.accept(data["jid"], data["id"], {**data, "return": MEGABYTE * "x", "retcode": 0, "success": True})

    numbers = iter(range(10_000))
    disk.meanwhile = lambda: give_back(40)
    for _ in range(6):
        give_back(10)
        asyncio.run(intake.flush())
        moment[0] += 60
    assert intake.waiting <= LIMIT // MEGABYTE
