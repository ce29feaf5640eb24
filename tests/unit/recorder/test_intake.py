"""What waits in memory for the recorder's spool."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
import types

import pytest

from saltext.jobs.core.engine.alarm import Clock
from saltext.jobs.core.recorder.files import Seen
from saltext.jobs.core.recorder.intake import LIMIT, Intake
from saltext.jobs.core.recorder.spool import Spool
from saltext.jobs.core.settings import RecorderSettings

MEGABYTE = 1 << 20
NUMBERS = itertools.count()


class Disk:
    """A thread that writes to a disk, which fails. During each call the minions go on returning."""

    def __init__(self, trouble):
        self.meanwhile, self.trouble = lambda: None, trouble

    async def call(self, *_):
        self.meanwhile()
        raise self.trouble


@pytest.fixture
def moment():
    return [time.time()]


@pytest.fixture
def full():
    return Disk(OSError(28, "No space left on device"))


def make(disk, moment):
    clock = Clock(moment[0], lambda: moment[0])
    return Intake(RecorderSettings(), clock, types.SimpleNamespace(size=0), None, None, disk)


def give_back(intake, count):
    for _ in range(count):
        jid, minion = "20261127000000000000", f"m{next(NUMBERS)}"
        data = {"jid": jid, "id": minion, "fun": "cmd.run", "fun_args": [], "retcode": 0, "success": True}
        intake.accept(jid, minion, {**data, "return": MEGABYTE * "x"})


def test_a_disk_that_takes_nothing_keeps_no_more_in_memory_than_the_limit(full, moment):
    intake = make(full, moment)
    full.meanwhile = lambda: give_back(intake, 40)
    for _ in range(6):
        give_back(intake, 10)
        asyncio.run(intake.flush())
        moment[0] += 60
    assert intake.waiting <= LIMIT // MEGABYTE


def nested(depth):
    value = "x"
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("depth", [500, 900, 1015, 1018, 1019, 1020, 1021, 1022, 1023, 1024, 1100])
def test_a_job_nested_as_deeply_as_it_may_be_keeps_no_other_from_being_recorded(tmp_path, moment, depth):
    """Salt packs some 1,000 levels."""

    class Writing:
        async def call(self, function, *args):
            return function(*args)

    class NoLoads:
        def load(self, jid):
            return {}

    clock, spool = Clock(moment[0], lambda: moment[0]), Spool(tmp_path / "spool", 1 << 24)
    intake = Intake(RecorderSettings(), clock, spool, Seen(tmp_path / "seen", 3600), NoLoads(), Writing())
    with contextlib.suppress(ValueError, RecursionError):  # the bus refuses it
        intake.announce("20261127000000000001", {"jid": "20261127000000000001", "fun": "x.y", "arg": nested(depth)})
    moment[0] += 60
    give_back(intake, 3)
    asyncio.run(intake.flush())
    assert intake.waiting == 0 and spool.next >= 3
