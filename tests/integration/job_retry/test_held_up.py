"""A job that cannot be delivered does not keep those behind it from their minion: on a real master with real minions."""

from __future__ import annotations

import contextlib
import pathlib

import pytest
import yaml

from saltext.jobs.core.errors import Refused
from tests.integration.faults import Link
from tests.integration.job_retry.desk import lines, retry_minion
from tests.waiting import wait_for


@pytest.fixture
def link(master):
    with contextlib.closing(Link(master.config["publish_port"])) as link:
        yield link


@pytest.fixture
def dora(master, link):
    """A minion whose link to the master's publishes can be cut."""
    with retry_minion(master, "dora", publish_port=link.port) as daemon:
        yield daemon


def test_a_job_that_a_living_minion_knows_and_does_not_return_is_held_and_those_behind_it_go_on(
    desk, dora, link, tmp_path
):
    ran, behind = tmp_path / "ran", tmp_path / "behind"
    jid = desk.publish("cmd.run", f"echo x >> {ran}; kill -9 $PPID", tgt="dora")  # its process on the minion
    wait_for(lambda: lines(ran) == 1, what="the job has run")
    link.cut()
    missed = [desk.publish("cmd.run", f"echo {name} >> {behind}", tgt="dora") for name in "bc"]
    for each in (jid, *missed):
        desk.await_state("dora", each, "pending")
    link.mend()
    wait_for(lambda: desk.ask("dora", "test.true"), what="the link is back")
    with contextlib.suppress(Refused):  # if its answer was a sign of life, nothing waits any more
        desk.run("job_retry.replay", "dora")
    desk.await_state("dora", jid, "held")
    for each in missed:
        desk.await_return("dora", each)
    wait_for(lambda: desk.queue() == {("dora", jid): "held"}, what="only what nobody can tell about is left")
    entry = desk.run("job_retry.show", "dora", jid)
    assert entry["attempts"] == 0
    assert entry["reason"].startswith("it ran without a return")
    assert (lines(ran), behind.read_text().split()) == (1, ["b", "c"])


def test_a_job_whose_function_has_been_forbidden_is_held_and_those_behind_it_go_on(master, desk, bert, tmp_path):
    ran = tmp_path / "ran"
    jid = desk.publish("cmd.run", f"echo x >> {ran}", tgt="bert")
    behind = desk.publish("test.echo", "behind", tgt="bert")
    desk.await_state("bert", behind, "pending")
    master.terminate()
    path = pathlib.Path(master.config_file)
    allowed = path.read_text()
    path.write_text(yaml.safe_dump({**yaml.safe_load(allowed), "publisher_acl_blacklist": {"modules": ["cmd.*"]}}))
    master.start()
    desk.await_engine()
    bert.start()
    desk.await_return("bert", behind)
    desk.await_state("bert", jid, "held")
    entry = desk.run("job_retry.show", "bert", jid)
    assert entry["reason"].startswith("the master does not let it be published: AuthorizationError")
    path.write_text(allowed)
    master.terminate()
    master.start()
    desk.await_engine()
    assert desk.run("job_retry.retry", "bert", jid) == 1
    desk.await_return("bert", jid)
    assert lines(ran) == 1
