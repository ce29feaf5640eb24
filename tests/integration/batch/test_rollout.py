"""What a rollout of hours needs: limits for each minion, groups, windows and checks; on a real master with minions."""

from __future__ import annotations

import psutil
import pytest

from tests.integration.batch.conftest import batch_master
from tests.integration.conftest import minions, salt_cli, salt_run
from tests.integration.faults import EngineProcess
from tests.waiting import stretched, wait_for

RACKS = {"c1": "r10", "c2": "r2", "c3": "r2"}


@pytest.fixture(scope="module")
def master(salt_factories):
    nodegroups = {"canary": "L@c3", "rest": "c*"}
    with (
        batch_master(
            salt_factories,
            engines=[],
            job_retry=False,
            nodegroups=nodegroups,
            batch_manager={"show_groups_of": ["grains:rack"]},
        ) as daemon,
        minions(daemon, "c1", grains={"rack": "r10"}),
        minions(daemon, "c2", "c3", grains={"rack": "r2"}),
    ):
        yield daemon


@pytest.fixture(scope="module")
def engine(master, tmp_path_factory):
    process = EngineProcess(master, tmp_path_factory.mktemp("engine") / "engine.log").start()
    yield process
    process.kill()


@pytest.fixture
def command(master, engine):
    return lambda *args: salt_run(master, *args)


@pytest.fixture
def run(command):
    def succeed(*args):
        done = command(*args)
        assert done.returncode == 0, done
        return done.data

    return succeed


@pytest.fixture
def finish(command):
    """Wait for the end of a batch that was started with these arguments, whether or not it succeeds."""

    def wait(*args):
        started = command("batch.start", *args)
        assert started.returncode == 0, started
        return command("batch.wait", started.data["jid"], f"timeout={stretched(90)}").data

    return wait


# -- max_runtime -------------------------------------------------------------------------------------------------------


@pytest.mark.story
def test_a_job_that_hangs_is_ended_and_the_batch_goes_on(run, command, finish, master, tmp_path):
    hang = f"mkdir {tmp_path / 'hangs'} || exit 0; exec sleep 3456"
    found = finish("c*", "cmd.run", hang, "batch=1", "presence=none", "max_runtime=4", "max_failures=1")
    assert (found["state"], found["completed"], found["timed_out"]) == ("complete", 2, 1)
    assert found["success"] is False
    (late,) = run("batch.minions", found["jid"], "state=timed_out")
    assert salt_cli(master, late, "saltutil.find_job", found["jid"]).data == {}
    assert not [process for process in psutil.process_iter(["cmdline"]) if process.info["cmdline"] == ["sleep", "3456"]]
    again = run("batch.retry", found["jid"], "which=timed_out")
    assert run("batch.wait", again["jid"])["completed"] == 1


# -- groups ------------------------------------------------------------------------------------------------------------


@pytest.mark.story
def test_a_batch_goes_by_a_grain_that_the_master_knows(run, command, finish, tmp_path):
    # The master caches grains when a minion fetches its pillar, which it does when it starts.
    found = finish("c*", "test.sleep", "1", "batch=100%", "by=grains:rack", "presence=none")
    assert (found["success"], found["groups"], found["group"], found["publishes"]) == (True, 2, "r10", 2)
    records = run("batch.minions", found["jid"])
    assert {minion: record["group"] for minion, record in records.items()} == RACKS
    assert records["c1"]["since"] > max(records["c2"]["since"], records["c3"]["since"])
    assert "group r10 (2/2)" in command("batch.watch", found["jid"]).stderr


# -- windows -----------------------------------------------------------------------------------------------------------


# -- checks ------------------------------------------------------------------------------------------------------------


@pytest.mark.story
def test_a_function_on_the_minions_just_done_or_a_runner_decides_whether_a_batch_goes_on(finish):
    options = ("batch=1,100%", "presence=none", f"check_timeout={stretched(60)}")
    for check in ("test.echo fine", "runner:batch.status {jid}"):
        assert finish("c*", "test.ping", *options, f"check={check}")["completed"] == 3
    failed = finish("c*", "test.ping", *options, "check=test.false")
    assert failed["halted_reason"].startswith("check test.false: c1: ")
    assert (failed["completed"], failed["pending"]) == (1, 2)
    wrong = finish("c*", "test.ping", *options, "check=runner:batch.status 123")
    assert wrong["halted_reason"].startswith("check batch.status: it failed: 123 is no batch")


@pytest.mark.story
def test_a_batch_waits_for_approval_through_the_death_of_its_engine(run, look, complaint, engine):
    jid = run("batch.start", "c*", "test.ping", "batch=1,100%", "presence=none", "check=approve")["jid"]
    wait_for(lambda: look("batch.status", jid)["approve"] == 0, what="it waits for approval")
    engine.kill()
    found = run("batch.status", jid)
    assert (found["state"], found["paused_by"], found["engine"]) == ("paused", "approval", False)
    engine.start()
    wait_for(lambda: look("batch.status", jid)["engine"], what="the engine is back")
    assert f"approve {jid} stage=0" in complaint("batch.approve", jid, "stage=1")
    assert run("batch.status", jid)["publishes"] == 1
    assert run("batch.approve", jid) is True
    assert "Batch" in complaint("batch.approve", jid)
    assert run("batch.wait", jid)["completed"] == 3
