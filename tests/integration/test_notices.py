"""Notices of a real master."""

from __future__ import annotations

import pytest

from saltext.jobs.core.engine import requests
from saltext.jobs.core.engine.names import BATCH_MANAGER
from saltext.jobs.core.recorder.shell import known_of
from saltext.jobs.core.site import site_of
from tests.faults import freeze, thaw
from tests.functional.recorder.receiver import receiving
from tests.integration.batch.conftest import batch_master
from tests.integration.conftest import log_of
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

MINIONS = ("n1", "n2")
SECRET = "a-secret-that-nobody-sees"


@pytest.fixture(scope="module")
def receiver():
    with receiving() as one:
        yield one


@pytest.fixture(scope="module")
def master(salt_factories, receiver):
    """A running master that tells a webhook, with its minions."""
    notices = {
        "url": receiver.url,
        "secret": SECRET,
        "console": "https://salt.example.com/console/index.html",
    }
    engines = [{"batch_manager": {}}, {"job_recorder": {}}]
    with batch_master(salt_factories, *MINIONS, job_retry=None, engines=engines, job_notices=notices) as daemon:
        wait_for(lambda: known_of(site_of(daemon.config)), what="the engine has looked at the batches")
        yield daemon


def test_an_engine_that_hangs_is_reported_and_no_secret_is_in_the_log(master, run, receiver):
    receiver.got.clear()
    process = requests.process_of(master.config, BATCH_MANAGER)
    freeze(process.pid)
    try:
        wait_for(lambda: receiver.kinds() == ["engine"], what=lambda: f"the engine hangs: {receiver.kinds()}")
        assert run("job_recorder.stats")["returners"]["notices:webhook"]["trouble"] is None
    finally:
        thaw(process.pid)
    wait_for(lambda: receiver.kinds() == ["engine", "recovered"], what="it answers again")
    assert run("job_recorder.test_notice") == {"notices:webhook": "arrived"}
    assert receiver.kinds()[-1] == "test"
    assert SECRET not in log_of(master) and "of-the-address" not in log_of(master)
