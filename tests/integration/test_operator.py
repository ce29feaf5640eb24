"""What an operator does at night: from a list to the reasons, a repair, and another run; what runs, and how to end it."""

from __future__ import annotations

import re

import pytest

from tests.integration.conftest import ask_runner, finished, make_master, minions, salt_cli
from tests.integration.faults import CountedJob
from tests.integration.prompt import at_prompt
from tests.waiting import wait_for

pytestmark = [pytest.mark.story, pytest.mark.slow]

MINIONS = tuple(f"w{number}" for number in range(1, 5))
#: Three of the four fail, each in a way of its own.
BROKEN = """
{% if grains.id == "w2" %}
site:
  nosuch.managed: []
{% elif grains.id == "w3" %}
site:
  cmd.run:
    - name: echo 'no space left on device' >&2; exit 1
restart:
  test.nop:
    - require: [cmd: site]
{% elif grains.id == "w4" %}
site:
  file.managed:
    - name: /nonexistent/folder/site.conf
    - contents: x
{% else %}
site:
  test.nop: []
{% endif %}
"""
MENDED = "site:\n  test.nop: []\n"


@pytest.fixture(scope="module")
def states(tmp_path_factory):
    folder = tmp_path_factory.mktemp("states")
    (folder / "site.sls").write_text(BROKEN)
    return folder


@pytest.fixture(scope="module")
def master(salt_factories, states):
    with make_master(
        salt_factories, file_roots={"base": [str(states)]}, fileserver_list_cache_time=0
    ).started() as daemon:
        yield daemon


@pytest.fixture(scope="module")
def fleet(master):
    with minions(master, *MINIONS) as daemons:
        yield daemons


@pytest.fixture
def run(master, fleet):
    return lambda *args: ask_runner(master, *args)


@pytest.fixture
def typed(master, fleet):
    """What a command prints, whatever its exit status."""
    return lambda line: at_prompt(line, master.config_dir)[1]


def next_of(printed):
    """The command that the last line names."""
    return re.search(r"^Next: (salt-run [a-z_.]+( [0-9]+| JID)?)", printed, re.MULTILINE)[1]


def test_the_list_of_batches_leads_to_the_reasons_a_repair_and_a_retry(run, look, typed, states):
    jid = run("batch.start", "*", "state.apply", "site", "batch=3")["jid"]
    finished(look, jid)

    listed = typed("salt-run batch.list")
    assert re.search(rf"^{jid} +unsuccessful +4/4 +3 +state.apply site ", listed, re.MULTILINE), listed
    assert next_of(listed) == "salt-run batch.failures JID"
    told = typed(f"salt-run batch.failures {jid}")
    assert "3 of 4 minions did not succeed, for 3 reasons" in told
    for minion, reason in (
        ("w2", "State 'nosuch.managed' was not found in SLS 'site'"),
        ("w3", "no space left on device"),
        ("w4", "Parent directory not present"),
    ):
        assert re.search(
            rf"^1 minion, failed \(retcode \d\): {minion}\n(?:  +.*\n)*? +.*{reason}", told, re.MULTILINE
        ), told
    assert "and 1 not run, since what they require failed" in told

    (states / "site.sls").write_text(MENDED)
    assert next_of(told) == f"salt-run batch.retry {jid}"
    again = re.search(r"^\d{20}", typed(next_of(told)), re.MULTILINE)[0]
    found = finished(look, again)
    assert (found["success"], found["completed"], found["parent"], found["arguments"]) == (True, 3, jid, ["site"])


def test_running_jobs_are_shown_with_the_command_that_ends_them(master, run, look, typed, tmp_path):
    batch, plain = (CountedJob(tmp_path, name, gated=True) for name in ("batch", "plain"))
    jid = run("batch.start", "w1,w2,w3", "cmd.run", batch.command, "tgt_type=list", "batch=2")["jid"]
    salt_cli(master, "w4", "cmd.run", plain.command, "--async")
    try:
        found = wait_for(
            lambda: (
                len(rows := {row["kind"]: row for row in look("job_cache.running")["jobs"]}) == 2
                and len(rows["batch"]["minions"]) == 2
                and rows
            ),
            what="a batch and a job run",
        )
        assert (found["batch"]["jid"], found["job"]["minions"]) == (jid, ["w4"])
        assert "2 jobs: 1 job, 1 batch; 4 minions asked" in typed("salt-run job_cache.running")
        for kind in ("batch", "job"):
            typed(found[kind]["kill"])
        wait_for(lambda: not look("job_cache.running")["jobs"], what="nothing runs any more")
    finally:
        batch.open_gate()
        plain.open_gate()


def test_a_batch_that_another_user_has_to_approve_waits_for_them(run, look, master, fleet):
    options = ("tgt_type=list", "batch=1,1", "check=approve", "approve_by=anna,bert", "presence=none")
    jid = run("batch.start", "w1,w2", "test.version", *options)["jid"]
    wait_for(lambda: look("batch.status", jid)["approve"] == 0, what="it waits for an approval")

    def approve(user):
        # With this variable Salt treats root as a sudo user.
        return at_prompt(f"SUDO_USER={user} $(command -v salt-run) batch.approve {jid}", master.config_dir)

    status, said = approve("root")
    assert (status, "another user has to approve it" in said) == (1, True), said
    status, said = approve("carl")
    assert (status, "carl may not approve batch" in said) == (1, True), said
    assert run("batch.status", jid)["approve"] == 0
    status, said = approve("anna")
    assert status == 0, said
    found = finished(look, jid)
    assert (found["success"], found["completed"]) == (True, 2)
