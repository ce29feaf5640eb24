"""A real master whose disk is full: what it cannot record it does not publish, and it says so."""

from __future__ import annotations

import os
import pathlib
import subprocess

import pytest

from tests.integration.conftest import ask_runner, log_of, make_master, minions, salt_cli
from tests.missing import missing
from tests.waiting import wait_for

pytestmark = pytest.mark.slow


@pytest.fixture(params=["localfs", "sqlite"])
def master(salt_factories, request):
    """A master, not started, whose cachedir is a file system of its own."""
    daemon = make_master(salt_factories, engines=[], cache=request.param)
    folder = daemon.config["cachedir"]
    os.makedirs(folder, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", "size=64m,mode=755", "none", folder]
    made = subprocess.run(command, capture_output=True, check=False)
    if made.returncode:
        missing(f"a file system cannot be mounted: {made.stderr.decode().strip()}")
    yield daemon
    subprocess.run(["umount", "-l", folder], check=True)


def test_a_job_that_cannot_be_recorded_is_not_published_and_its_user_is_told(master, tmp_path):
    ballast = pathlib.Path(master.config["cachedir"], "ballast")
    with master.started(), minions(master, "there"):
        with ballast.open("wb", buffering=0) as stream, pytest.raises(OSError, match="No space"):
            while True:
                stream.write(bytes(1 << 20))
        for number, words in enumerate(([], ["--async"])):
            done = salt_cli(master, "there", *words, "file.touch", str(tmp_path / f"lost{number}"))
            assert "Nothing was published: the disk of" in done.stdout + done.stderr, done
            assert "job ID" not in done.stdout
        ballast.unlink()
        assert salt_cli(master, "there", "file.touch", str(tmp_path / "done")).data is True
        assert os.listdir(tmp_path) == ["done"]
        touched = ask_runner(master, "jobs.list_jobs", "search_function=file.touch").values()
        assert [job["Arguments"] for job in touched] == [[str(tmp_path / "done")]]
    log = log_of(master)
    assert "[CRITICAL" in log and "Nothing is published: the disk of" in log
    assert "stack trace" not in log


@pytest.mark.parametrize("master", ["localfs"], indirect=True)
def test_a_job_that_was_published_and_could_not_be_stored_is_named(master, tmp_path):
    loads = pathlib.Path(master.config["cachedir"], "jobs", "loads")
    with master.started(), minions(master, "there"):
        loads.parent.mkdir(exist_ok=True)
        loads.write_text("in the way of any record")
        salt_cli(master, "there", "file.touch", str(tmp_path / "done"))
        wait_for((tmp_path / "done").exists, what="the minion has run it")
    log = log_of(master)
    named = "is published, and not in the job cache"
    assert named in log
    assert "stack trace" not in log[: log.index(named)]  # the return cannot be stored either
