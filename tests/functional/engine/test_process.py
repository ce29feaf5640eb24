"""What an engine knows of the master that has started it, whatever the wall clock is set to meanwhile."""

from __future__ import annotations

import os
import pathlib
import re
import time

import psutil
import pytest

from saltext.jobs.core.engine import process

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
