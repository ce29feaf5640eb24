"""States that a minion runs by itself, and a state run that it is owed: Salt lets only one run at a time."""

from __future__ import annotations

import pytest

from tests.integration.job_retry.desk import Ear, retry_master, retry_minion
from tests.waiting import wait_for

pytestmark = pytest.mark.story

STATES = """
{name}:
  cmd.run:
    - name: echo {name} >> {ran}{and_then}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("states")


@pytest.fixture(scope="module")
def master(salt_factories, folder):
    ran, may_end = folder / "ran", folder / "may_end"
    for name, and_then in (("owed", ""), ("own", f"; until [ -e {may_end} ]; do sleep 0.2; done")):
        (folder / f"{name}.sls").write_text(STATES.format(name=name, ran=ran, and_then=and_then))
    with retry_master(salt_factories, file_roots={"base": [str(folder)]}) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def bert_once(master, folder):
    (folder / "may_end").touch()  # while its key becomes known
    with retry_minion(master, "bert", startup_states="sls", sls_list=["own"]) as daemon:
        yield daemon


def test_an_owed_state_run_waits_for_the_one_with_which_its_minion_starts(master, desk, bert, folder):
    ran, may_end = folder / "ran", folder / "may_end"
    may_end.unlink()
    ran.write_text("")
    jid = desk.publish("state.apply", "owed", tgt="bert")
    desk.await_state("bert", jid, "pending")
    with Ear(master) as ear:
        bert.start()
        wait_for(lambda: ran.read_text().split() == ["own"], what="the minion runs its own states")
        asked = "it was asked several times"
        wait_for(lambda: ear.count("salt/job/*/ret/bert") >= 3 or desk.returned(jid), what=asked)
    assert desk.returned(jid) == {}
    assert desk.state("bert", jid) == "pending"
    may_end.touch()
    desk.await_return("bert", jid)
    assert all(result["result"] for result in desk.returned(jid)["bert"].values())
    assert ran.read_text().split() == ["own", "owed"]
    wait_for(lambda: not desk.queue(), what="the queue is empty")
