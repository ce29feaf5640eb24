"""What ``job_recorder.doctor`` finds, of returners and of notices."""

from __future__ import annotations

import threading
import time

import pytest

from saltext.jobs.core.disk.lease import Leader
from saltext.jobs.core.engine.names import JOB_RECORDER
from saltext.jobs.core.engine.requests import Service
from saltext.jobs.core.recorder import doctor
from tests.found import said
from tests.functional.options import options_in
from tests.leading import lock_of, single_holder
from tests.user import USER

WELL = {"trouble": None, "queued": 0, "lag": 0.0, "dropped": 0, "set_aside": 0}
TOKEN, SECRET = "of-the-address", "a-secret-that-nobody-sees"
NOTICES = {"url": f"https://ops.example.com/hooks?token={TOKEN}", "secret": SECRET}


@pytest.fixture
def opts(tmp_path):
    more = {"user": USER, "master_job_cache": "salt_cache", "job_recorder": {"returners": ["rawfile_json"]}}
    return options_in(tmp_path, id="m", engines=["job_recorder"], **more)


@pytest.fixture
def answering(opts):
    """Stands in for the engine's process: holds its lock, and answers one request for its figures."""

    def answer(figures):
        service = Service(opts, JOB_RECORDER, None)
        over = threading.Event()

        def serve():
            while not over.is_set():
                for request_id, request in service.taken():
                    assert request["do"] == "stats"
                    service.reply(request_id, {"value": {"returners": {"rawfile_json": {**WELL, **figures}}}})
                time.sleep(0.01)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            with single_holder(lock_of(opts, JOB_RECORDER)):
                return doctor.examine(opts)
        finally:
            over.set()
            thread.join()

    return answer


def test_nothing_is_found_where_all_is_well(answering):
    lead = dict.fromkeys(("engine_silent_seconds", "engine_master", "process", "since"))
    well = {"returners": ["rawfile_json"], "findings": [], "faults": 0, "retcode": 0}
    assert answering({}) == {"engine": True, **lead, **well}


@pytest.mark.parametrize(
    ("figures", "part"),
    [
        ({"trouble": "no route to it", "queued": 7}, "takes nothing, with 7 records in its queue: no route to it"),
        ({"lag": 90.0, "queued": 5}, "is 90 s behind, with 5 records in its queue"),
        ({"dropped": 3}, "records for rawfile_json were lost since the engine's start (3)"),
        ({"set_aside": 2}, "has refused records (2)"),
    ],
)
def test_problems_of_a_returner_are_reported(answering, figures, part):
    (finding,) = said(answering(figures))
    assert part in finding


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({}, "no job_recorder engine runs"),
        ({"job_recorder": {}}, "the engine does not start: job_recorder: returners is not set"),
        ({"job_recorder": {"returners": ["rawfile_json"], "spool_max_bytes": 0}}, "spool_max_bytes"),
        ({"master_job_cache": "local_cache"}, "job_recorder needs master_job_cache: salt_cache, which is 'local_"),
        ({"engines": [{"job_recorder": {"exclude": 7.5}}]}, "exclude is 7.5"),
        ({"job_recorder": {"returners": ["rawfil_json"]}}, "rawfil_json gets nothing: The returner 'rawfil_json'"),
        ({"job_recorder": {"returners": ["rawfil_json"]}}, "did you mean rawfile_json?"),
        ({"job_cache": False}, "stores no returns in a job cache of its own"),
        ({"ext_job_cache": "redis"}, "stores no returns in a job cache of its own"),
    ],
)
def test_obstacles_to_the_recorder_are_reported(opts, caplog, options, part):
    assert [part in finding for finding in said(doctor.examine({**opts, **options}))].count(True) == 1
    assert "__virtual__" not in caplog.text


def test_an_engine_of_another_version_is_reported_once_and_asked_for_nothing(opts):
    with single_holder(lock := lock_of(opts, JOB_RECORDER)):
        lock.write_bytes(Leader(17, "root", "here", "0.0.1").as_line())
        (found,) = [finding for finding in said(doctor.examine(opts)) if "0.0.1" in finding]
    assert found.startswith("the job_recorder engine runs 0.0.1") and found.endswith("restart the master")


@pytest.mark.parametrize(
    ("options", "part", "faults"),
    [
        ({}, "", 1),
        ({"secret": ""}, "notices are not signed", 1),
        ({"url": f"http://ops.example.com/{TOKEN}"}, "as plain text", 1),
        ({"url": f"ftp://ops.example.com/{TOKEN}"}, "url is '…'; accepted is an address", 1),
        ({"kinds": ["nothing"]}, "the engine does not start: job_notices: kinds", 1),
        ({"returners": ["no_such"]}, "no_such gets nothing", 2),
    ],
)
def test_what_is_wrong_with_notices_is_reported_without_a_secret(opts, options, part, faults):
    opts = {**opts, "master_job_cache": "local_cache", "job_recorder": {}, "job_notices": {**NOTICES, **options}}
    found = doctor.examine(opts)
    others = [finding for finding in said(found) if "no job_recorder engine" not in finding]
    assert [part in finding for finding in others] == [True] * bool(part)
    assert found["faults"] == faults, "one is that no engine runs, unless it is known why"
    assert TOKEN not in repr(found) and SECRET not in repr(found)


def test_targets_of_notices_are_named_beside_the_returners(opts):
    found = doctor.examine({**opts, "job_notices": {**NOTICES, "returners": ["rawfile_json"]}})
    assert found["returners"] == ["rawfile_json", "notices:webhook", "notices:rawfile_json"]
