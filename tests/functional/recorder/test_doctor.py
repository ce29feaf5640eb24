"""What ``job_recorder.doctor`` finds."""

from __future__ import annotations

import threading
import time

import pytest

from saltext.jobs.core.disk.lease import Leader
from saltext.jobs.core.engine import requests
from saltext.jobs.core.engine.names import JOB_RECORDER
from saltext.jobs.core.recorder import doctor
from saltext.jobs.core.site import FileSite
from tests.leading import single_holder
from tests.user import USER

WELL = {"trouble": None, "queued": 0, "lag": 0.0, "dropped": 0, "set_aside": 0}


@pytest.fixture
def opts(tmp_path):
    return {
        "cachedir": str(tmp_path),
        "sock_dir": str(tmp_path),
        "id": "m",
        "user": USER,
        "master_job_cache": "salt_cache",
        "job_recorder": {"returners": ["pgjsonb"]},
    }


@pytest.fixture
def answering(opts):
    """Stands in for the engine's process: holds its lock, and answers one request for its figures."""

    def answer(figures):
        inbox = requests.Inbox(opts, JOB_RECORDER)
        over = threading.Event()

        def serve():
            while not over.is_set():
                for request_id, request in inbox.take():
                    assert request["do"] == "stats"
                    inbox.answer(request_id, {"returners": {"pgjsonb": {**WELL, **figures}}})
                time.sleep(0.01)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            with single_holder(FileSite(opts).lock_path(JOB_RECORDER)):
                return doctor.examine(opts)
        finally:
            over.set()
            thread.join()

    return answer


def test_nothing_is_found_where_all_is_well(answering):
    assert answering({}) == {
        "engine": True,
        "process": None,
        "since": None,
        "returners": ["pgjsonb"],
        "findings": [],
        "faults": 0,
        "retcode": 0,
    }


@pytest.mark.parametrize(
    ("figures", "part"),
    [
        ({"trouble": "connection refused", "queued": 7}, "takes nothing, and 7 records wait: connection refused"),
        ({"lag": 90.0, "queued": 5}, "is 90 s behind (5 records wait)"),
        ({"dropped": 3}, "records for the returner pgjsonb were lost since the engine's start (3)"),
        ({"set_aside": 2}, "has refused records (2)"),
    ],
)
def test_problems_of_a_returner_are_reported(answering, figures, part):
    (finding,) = answering(figures)["findings"]
    assert part in finding


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({}, "no job_recorder engine runs"),
        ({"job_recorder": {}}, "the engine does not start: job_recorder: returners is not set"),
        ({"job_recorder": {"returners": ["pgjsonb"], "spool_max_bytes": 0}}, "spool_max_bytes"),
        (
            {"master_job_cache": "local_cache"},
            "job_recorder needs master_job_cache: salt_cache, which is 'local_cache'",
        ),
        ({"engines": [{"job_recorder": {"catch_up": "soon"}}]}, "'soon'"),
        ({"job_cache": False}, "stores no returns in a job cache of its own"),
        ({"ext_job_cache": "redis"}, "stores no returns in a job cache of its own"),
    ],
)
def test_obstacles_to_the_recorder_are_reported(opts, options, part):
    assert [part in finding for finding in doctor.examine({**opts, **options})["findings"]].count(True) == 1


def test_an_engine_of_another_version_is_reported_once_and_asked_for_nothing(opts):
    with single_holder(lock := FileSite(opts).lock_path(JOB_RECORDER)):
        lock.write_bytes(Leader(17, "root", "here", "0.0.1").as_line())
        (found,) = [finding for finding in doctor.examine(opts)["findings"] if "0.0.1" in finding]
    assert found.startswith("the job_recorder engine runs 0.0.1") and found.endswith("restart the master")
