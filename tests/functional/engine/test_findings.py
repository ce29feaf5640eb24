"""What a doctor says of an engine's surroundings, whichever engine it is."""

from __future__ import annotations

import os
import pathlib
import socket
import time

import pytest

from saltext.jobs.core.disk.lease import Leader
from saltext.jobs.core.engine import findings, requests
from saltext.jobs.core.engine.names import BATCH_MANAGER, JOB_RECORDER
from saltext.jobs.core.findings import ADVICE, FAULT
from saltext.jobs.core.site import site_of
from tests.found import said
from tests.leading import leading, lock_of, single_holder
from tests.user import OTHER, USER


@pytest.fixture
def opts(tmp_path):
    made = {"cachedir": str(tmp_path), "id": "m", "user": USER}
    with single_holder(lock_of(made, JOB_RECORDER)):
        yield made


@pytest.fixture
def told(tmp_path):
    """The options of a master whose engine leads, and says so."""
    made = {"cachedir": str(tmp_path), "id": "m", "user": USER}
    with leading(made, JOB_RECORDER):
        yield made


def around(opts, **more):
    return said(findings.around({**opts, **more}, JOB_RECORDER))


def test_nothing_is_found_where_all_is_well(opts):
    assert around(opts) == []


def test_files_of_another_user_are_named_with_the_command_that_mends_it(opts):
    (finding,) = around(opts, user=OTHER)
    folder = site_of(opts).folder(JOB_RECORDER)
    assert finding == f"{folder} does not belong to the master's user {OTHER}: chown -R {OTHER} {folder}"


@pytest.mark.parametrize(
    ("place", "mode", "what", "advice"),
    [
        ("saltext_jobs/job_recorder/lock", 0o604, "read", "go="),
        ("saltext_jobs/job_recorder/lock", 0o620, "written", "go="),
        ("saltext_jobs/job_recorder", 0o770, "written", "go="),
        ("saltext_jobs", 0o770, "written", "go-w"),
        (".", 0o707, "written", "go-w"),
    ],
)
def test_files_and_folders_that_others_may_read_or_write_are_named(opts, place, mode, what, advice):
    path = pathlib.Path(opts["cachedir"]).joinpath(place)
    path.chmod(mode)
    folder = site_of(opts).folder(JOB_RECORDER) if advice == "go=" else path
    assert around(opts) == [f"{path} can be {what} by others than {USER}: chmod -R {advice} {folder}"]


def test_a_database_that_others_may_read_is_named(opts):
    path = pathlib.Path(site_of(opts).place)
    assert around(opts) == []
    path.chmod(0o604)
    assert around(opts) == [f"{path} can be read by others than {USER}: chmod -R go= {path}"]


def test_a_disk_that_is_nearly_full_is_reported(opts, monkeypatch):
    real = os.statvfs
    nearly = {"f_bavail": 100 << 8, "f_frsize": 4096, "f_files": 1000, "f_favail": 10}

    def full(path):
        return type("Disk", (), {**{name: getattr(real(path), name) for name in nearly}, **nearly})

    monkeypatch.setattr(os, "statvfs", full)
    space, inodes = around(opts)
    assert "has 100 MB left" in space
    assert "has 10 inodes left, of 1000" in inodes


def test_the_process_of_an_engine_is_named_with_its_user_host_and_master(told):
    process = str(requests.process_of(told, JOB_RECORDER))
    assert process == f"{os.getpid()} of {told['user']} on {socket.gethostname()}, master m"
    assert around(told) == []


def test_an_engine_that_runs_as_another_user_is_named(opts):
    lock_of(opts, JOB_RECORDER).write_bytes(Leader(77, OTHER, "here").as_line())
    (finding,) = around(opts)
    assert finding.startswith(f"the job_recorder engine (process 77) runs as {OTHER}, and the master as {USER}, ")


def test_an_engine_that_hangs_and_one_of_another_version_are_named(told):
    path = lock_of(told, JOB_RECORDER)
    os.utime(path, (time.time() - 80,) * 2)
    (finding,) = around(told)
    assert finding.startswith("the job_recorder engine has not answered for 8")
    path.write_bytes(Leader(77, "root", "here", "0.0.1").as_line())
    assert around({**told, "user": "root"})[0].endswith("restart the master")


@pytest.mark.parametrize(
    ("engines", "trouble"),
    [
        ([], False),
        (None, False),
        ([{JOB_RECORDER: {}}], False),
        ([BATCH_MANAGER], True),
        ([{BATCH_MANAGER: {}}], True),
        ({BATCH_MANAGER: None}, True),
    ],
)
def test_an_engine_that_does_not_run_is_more_than_advice_only_if_it_is_configured(opts, engines, trouble):
    (finding,) = findings.about_engine({**opts, "engines": engines}, BATCH_MANAGER)
    assert finding.text.startswith("no batch_manager engine runs")
    assert finding.severity == (FAULT if trouble else ADVICE)


def test_a_cluster_whose_masters_are_not_one_site_is_reported(opts):
    cluster = {"cluster_id": "one"}
    assert around(opts, **cluster, cluster_isolated_filesystem=True) == []
    (finding,) = around(opts, **cluster)
    assert finding.startswith("no other master of this cluster can take over what this one has begun: set ")
