"""What ``job_notices.doctor`` finds."""

from __future__ import annotations

import contextlib
import threading
import time

import pytest

from saltext.jobs.core.disk.lease import Leader
from saltext.jobs.core.engine import requests
from saltext.jobs.core.engine.names import JOB_NOTICES
from saltext.jobs.core.notices import doctor
from saltext.jobs.core.notices.store import NoticesStore
from saltext.jobs.core.site import FileSite
from tests.database import database_of
from tests.leading import single_holder
from tests.user import USER

TOKEN, SECRET = "of-the-address", "a-secret-that-nobody-sees"
WELL = {"sent": 0, "waiting": 0, "failures": 0, "dropped": 0, "delivered": None, "trouble": None}


@pytest.fixture
def opts(tmp_path):
    notices = {"url": f"https://ops.example.com/hooks?token={TOKEN}", "secret": SECRET}
    return {
        "cachedir": str(tmp_path / "cache"),
        "sock_dir": str(tmp_path),
        "id": "m",
        "user": USER,
        "engines": ["job_notices"],
        "job_notices": notices,
    }


def examine(opts, missing=lambda choice: "", **notices):
    found = doctor.examine({**opts, "job_notices": {**opts["job_notices"], **notices}}, missing)
    assert TOKEN not in repr(found) and SECRET not in repr(found)
    return found


@contextlib.contextmanager
def an_engine(opts, **figures):
    """Stands in for the engine's process: holds its lock, and answers requests for its figures."""
    inbox, over = requests.Inbox(opts, JOB_NOTICES), threading.Event()

    def serve():
        while not over.is_set():
            for request_id, request in inbox.take():
                assert request["do"] == "stats"
                inbox.answer(request_id, {"webhook": {**WELL, **figures}})
            time.sleep(0.01)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with single_holder(FileSite(opts).lock_path(JOB_NOTICES)):
            yield
    finally:
        over.set()
        thread.join()


def kept(opts, delivered=None):
    """A notice that waits, or that has arrived."""
    waits = {} if delivered else {("webhook", "m-2-1"): {"id": "m-2-1", "time": 2.0, "kind": "dead"}}
    NoticesStore(FileSite(opts).tables).write({"begun": True, "delivered": {"webhook": delivered}}, waits)


def test_nothing_is_found_where_all_is_well(opts):
    kept(opts, delivered=5.0)
    with an_engine(opts):
        assert examine(opts) == {
            "engine": True,
            "process": None,
            "since": None,
            "targets": ["webhook"],
            "waiting": {"webhook": 0},
            "delivered": {"webhook": 5.0},
            "findings": [],
            "faults": 0,
            "retcode": 0,
        }


def test_it_is_advice_that_nothing_has_arrived_yet(opts):
    with an_engine(opts):
        found = examine(opts)
    assert found["retcode"] == 0
    assert "no notice has arrived at webhook yet: salt-run job_notices.test sends one" in found["findings"]


@pytest.mark.parametrize(
    ("figures", "part"),
    [
        (
            {"trouble": "the receiver answers 503", "waiting": 4},
            "do not arrive at webhook, and 4 wait: the receiver answers",
        ),
        ({"dropped": 3}, "were given up since the engine's start (3)"),
    ],
)
def test_trouble_of_a_target_that_the_engine_reports_is_found(opts, figures, part):
    kept(opts, delivered=5.0)
    with an_engine(opts, **figures):
        found = examine(opts)
    assert found["retcode"] == 1 and part in " ".join(found["findings"])


def test_notices_that_wait_for_an_engine_that_does_not_run_are_reported(opts):
    kept(opts)
    found = examine(opts)
    assert found["waiting"] == {"webhook": 1} and found["retcode"] == 1


@pytest.mark.parametrize(
    ("options", "part", "retcode"),
    [
        ({"secret": ""}, "notices are not signed", 0),
        ({"url": f"http://ops.example.com/{TOKEN}"}, "as plain text", 0),
        ({"url": f"ftp://ops.example.com/{TOKEN}"}, "url is no address of a webhook", 1),
        ({"url": ""}, "neither url nor returners", 1),
        ({"kinds": ["nothing"]}, "the engine does not start: job_notices: kinds", 1),
    ],
)
def test_invalid_options_are_reported(opts, options, part, retcode):
    kept(opts, delivered=5.0)
    with an_engine(opts):
        found = examine(opts, **options)
    assert [part in finding for finding in found["findings"]].count(True) == 1
    assert found["retcode"] == retcode


def test_a_returner_that_is_not_there_is_reported(opts):
    found = examine(opts, missing=lambda choice: f"no {choice.returner}", returners=["smtp"])
    assert found["targets"] == ["webhook", "smtp"] and "no notice reaches smtp: no smtp" in found["findings"]


def test_a_database_that_cannot_be_read_is_reported(opts):
    kept(opts)
    with database_of(opts) as sql:
        sql.execute("DROP TABLE saltext_jobs_outbox")
    assert "not all that the engine works on can be read" in " ".join(examine(opts)["findings"])


def test_an_engine_of_another_version_is_reported_once_and_asked_for_nothing(opts):
    with single_holder(lock := FileSite(opts).lock_path(JOB_NOTICES)):
        lock.write_bytes(Leader(17, "root", "here", "0.0.1").as_line())
        (found,) = [finding for finding in examine(opts)["findings"] if "0.0.1" in finding]
    assert found.startswith("the job_notices engine runs 0.0.1") and found.endswith("restart the master")
