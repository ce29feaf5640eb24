"""
A user may publish only ``saltutil.find_job``, which Salt allows to every user, and names jids of other users' jobs.

A minion runs a jid once: it ignores a second job under that jid, and the first return is kept.
"""

from __future__ import annotations

import re
import time

import pytest
from salt.exceptions import SaltClientError

from tests.integration.api import SECRET
from tests.integration.conftest import finished, log_of, make_master, minions
from tests.integration.job_retry.desk import OPTIONS, TIMES, lines
from tests.waiting import stretched, wait_for

pytestmark = pytest.mark.story

#: A user who may publish to no minion here.
USERS = {"anna": [{"nobody": ["test.ping"]}]}


@pytest.fixture(scope="module")
def master(salt_factories):
    daemon = make_master(
        salt_factories,
        sharedsecret=SECRET,
        external_auth={"sharedsecret": USERS},
        job_retry=dict(OPTIONS),
        engines=[{"job_retry": {}}, {"batch_manager": {}}],
        **TIMES,
    )
    with daemon.started(), minions(daemon, "m1", "m2", "m3"):
        yield daemon


def borrow(desk, jid, tgt="*", user="anna", fun="saltutil.find_job", arg="20300101000000000000", **options):
    """Publish as a user under a jid; whether the master did."""
    who = {"eauth": "sharedsecret", "username": user, "password": SECRET}
    try:
        answer = desk.client.run_job(tgt, fun, [arg], jid=jid, listen=False, **who, **options)
    except SaltClientError:
        return False
    return bool(answer and answer.get("jid"))


def start(desk, notes, **options):
    """Start a batch on m1 to m3 that leaves a line for each run, one minion after the other."""
    command = f"echo x >> {notes}"
    return desk.run("batch.start", ["m1", "m2", "m3"], "cmd.run", command, tgt_type="list", batch=1, **options)["jid"]


def test_no_user_publishes_under_the_jid_of_a_batch_that_is_still_to_begin(master, desk, tmp_path):
    begins = time.time() + min(stretched(5), 40)
    jid = start(desk, tmp_path / "runs", start_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(begins)))
    assert not borrow(desk, jid)
    assert not borrow(desk, f"{jid}~batch_manager~0~{begins + 100:.0f}~{'0' * 64}")
    assert re.search(f"Refused to let anna publish under the jid {jid}", log_of(master))
    assert (finished(desk.run, jid)["completed"], lines(tmp_path / "runs")) == (3, 3)


def test_no_user_publishes_under_the_jid_of_a_running_batch_or_has_its_returns_thrown_away(desk, tmp_path):
    jid = start(desk, tmp_path / "runs", batch_wait=1)
    borrowed = [borrow(desk, jid), borrow(desk, jid, nocache=True)]
    assert (finished(desk.run, jid)["completed"], lines(tmp_path / "runs")) == (3, 3)
    assert borrowed == [False, False]
    assert not borrow(desk, jid)
    assert sorted(desk.returned(jid)) == ["m1", "m2", "m3"]


def test_a_run_under_a_borrowed_jid_is_no_return_of_the_owed_job(master, desk, bert, tmp_path):
    jid = desk.publish("cmd.run", f"echo x >> {tmp_path / 'runs'}", tgt="bert")
    desk.await_state("bert", jid, "pending")
    desk.run("job_retry.pause")
    bert.start()
    assert borrow(desk, jid, tgt="bert")
    told = rf"bert has run saltutil.find_job under the jid {jid} .*anna \(saltutil.find_job\)"
    wait_for(lambda: re.search(told, log_of(master)), what="the log says who has borrowed the jid")
    assert (desk.returned(jid), desk.state("bert", jid)) == ({}, "pending")
    bert.terminate()
    bert.start()
    desk.run("job_retry.resume")
    desk.await_return("bert", jid)
    wait_for(lambda: not desk.queue(), what="nothing is owed any more")
    assert lines(tmp_path / "runs") == 1
