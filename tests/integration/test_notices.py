"""Notices of a real master: a receiver that fails, hangs and comes back, and an engine that is killed in between."""

from __future__ import annotations

import hashlib
import hmac
import os
import pathlib
import signal

import pytest

from saltext.jobs.core.engine import requests
from saltext.jobs.core.engine.names import BATCH_MANAGER, JOB_RECORDER
from saltext.jobs.core.recorder.watch import known_of
from saltext.jobs.core.recorder.webhook import SIGNATURE
from saltext.jobs.core.site import site_of
from tests.faults import freeze, thaw
from tests.functional.recorder.receiver import receiving
from tests.integration.batch.conftest import batch_master
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
        has_looked(daemon)
        yield daemon


def has_looked(master):
    wait_for(lambda: known_of(site_of(master.config).tables), what="the engine has looked at the batches")


def kill(master, engine):
    before = wait_for(lambda: requests.process_of(master.config, engine), what=f"{engine} runs")
    os.kill(before.pid, signal.SIGKILL)
    return before.pid


def test_a_failure_is_reported_though_the_receiver_was_down_and_the_engine_killed(
    master, run, look, receiver, tmp_path
):
    receiver.answer = 503
    needed = tmp_path / "needed"
    jid = run("batch.start", "n*", "cmd.run", f"test -e {needed}", "batch=100%")["jid"]
    wait_for(lambda: look("batch.status", jid)["finished"], what="the batch has ended")
    wait_for(lambda: receiver.tried, what="its notice was sent")
    receiver.answer = "hang"
    pid = kill(master, JOB_RECORDER)
    tried = len(receiver.tried)
    wait_for(lambda: len(receiver.tried) > tried, what="another process of the engine tries")
    assert requests.process_of(master.config, JOB_RECORDER).pid != pid
    kill(master, JOB_RECORDER)
    receiver.answer = 204
    wait_for(lambda: receiver.kinds() == ["failed"], what=lambda: f"the notice has arrived: {receiver.kinds()}")
    notice, headers, body = receiver.got[0]
    assert headers[SIGNATURE] == "sha256=" + hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
    assert (notice["jid"], notice["minions"]) == (jid, ["n1", "n2"])
    assert notice["link"] == f"https://salt.example.com/console/index.html#/batches/{jid}"
    # Mended and retried, which is told too.
    needed.touch()
    again = run("batch.retry", jid)["jid"]
    wait_for(lambda: receiver.kinds() == ["failed", "recovered"], what=lambda: f"it is over: {receiver.kinds()}")
    assert f"Batch {again}, a retry of {jid}, has succeeded." in receiver.got[1][0]["text"]


def test_a_batch_that_waits_for_an_approval_is_announced_and_so_is_that_it_goes_on(master, run, receiver):
    receiver.got.clear()
    jid = run("batch.start", "n*", "test.ping", "batch=1,100%", "check=approve")["jid"]
    wait_for(lambda: receiver.kinds() == ["approval"], what=lambda: f"an approval is waited for: {receiver.kinds()}")
    run("batch.approve", jid, "stage=0")
    wait_for(lambda: receiver.kinds() == ["approval", "recovered"], what="it goes on")


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
    assert run("job_recorder.test_notice") == ["notices:webhook"]
    wait_for(lambda: receiver.kinds()[-1] == "test", what="the test has arrived")
    log = pathlib.Path(master.config["log_file"]).read_text(encoding="utf-8", errors="replace")
    assert SECRET not in log and "of-the-address" not in log
