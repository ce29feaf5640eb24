"""What an engine knows of the master that has started it, whatever the wall clock is set to meanwhile."""

from __future__ import annotations

import multiprocessing
import os
import pathlib
import re
import time
import types

import psutil
import pytest

from saltext.jobs.core.engine import process
from saltext.jobs.core.engine.loop import Worker
from saltext.jobs.core.engine.names import JOB_RECORDER
from saltext.jobs.core.options.engines import EngineSettings
from tests.functional.options import options_in
from tests.waiting import SOON, stretched

HOURS = [-7200, 7200]


@pytest.fixture(params=HOURS, ids=["back", "forward"])
def set_clock(request, monkeypatch, tmp_path):
    """Make this process see a clock that was set. The kernel then reports another boot time, too."""

    def set_it(boot_too):
        true = time.time
        monkeypatch.setattr(time, "time", lambda: true() + request.param)
        told = re.sub(
            rb"btime (\d+)",
            lambda found: b"btime %d" % (int(found[1]) + request.param),
            pathlib.Path("/proc/stat").read_bytes(),
        )
        (tmp_path / "stat").write_bytes(told)
        (tmp_path / str(os.getppid())).symlink_to(f"/proc/{os.getppid()}")
        if boot_too:
            monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))

    return set_it


@pytest.mark.parametrize("boot_too", [True, False], ids=["with the boot time", "and a library remembers the boot time"])
def test_the_master_is_no_older_and_no_younger_after_its_clock_was_set(set_clock, boot_too):
    before = process.master_age()
    set_clock(boot_too)
    assert 0 <= process.master_age() - before < 60


def test_it_is_the_same_run_of_the_master_after_its_clock_was_set(set_clock):
    before = process.run_of_master()
    set_clock(True)
    assert process.run_of_master() == before


def test_an_engine_that_loses_its_lead_ends_though_a_call_of_it_hangs(tmp_path):
    def build(_settings, loop, lease):
        worker = Worker(loop)
        loop.spawn_callback(worker.call, time.sleep, 600)
        loop.call_later(0.5, lease.on_lost)
        service = types.SimpleNamespace(verbs={})
        return types.SimpleNamespace(service=service, start=lambda: None, metrics=dict, close=worker.close)

    opts = options_in(tmp_path)
    engine = multiprocessing.get_context("fork").Process(
        target=process.run, args=(opts, JOB_RECORDER, EngineSettings, build), daemon=True
    )
    engine.start()
    engine.join(stretched(SOON))
    assert engine.exitcode == 0
