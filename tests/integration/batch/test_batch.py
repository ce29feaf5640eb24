"""What the batch runner does, on a real master with real minions."""

from __future__ import annotations

import json
import pathlib

import psutil
import pytest
import salt.client
import salt.config
import salt.runner
import salt.utils.event

from saltext.jobs.core import compat
from tests.integration.batch.conftest import batch_master, timeouts
from tests.integration.conftest import finished, log_of, minions, salt_cli
from tests.user import USER
from tests.waiting import stretched, wait_for

MINIONS = ("b1", "b2", "b3")


@pytest.fixture(scope="module")
def collected(tmp_path_factory):
    """The directory of the collector of metrics."""
    return tmp_path_factory.mktemp("collected")


@pytest.fixture(scope="module")
def master(salt_factories, collected):
    retry = {"metrics_dir": str(collected)}
    with batch_master(salt_factories, *MINIONS, job_retry=retry, batch_manager=retry) as daemon:
        yield daemon


# -- starting ----------------------------------------------------------------------------------------------------------


def test_every_sub_batch_carries_all_arguments_and_options_and_the_job_cache_shows_the_batch_s_target(run, tmp_path):
    where = tmp_path / "returned.jsonl"
    options = [
        "ret=rawfile_json",
        f'ret_kwargs={{"filename": "{where}"}}',
        'metadata={"ticket": "T1"}',
        'module_executors=["direct_call"]',
    ]
    # `batch` and `timeout` are the runner's own, so the function's go into kwarg.
    args = ("one", "two=2", 'kwarg={"batch": "theirs", "timeout": 7}')
    jid = run("batch.start", "b[123]", "test.arg", *args, "batch=1", *options)["jid"]
    assert run("batch.wait", jid)["publishes"] == 3
    job = run("jobs.list_job", jid)
    assert (job["Target"], job["Target-type"], job["User"]) == ("b[123]", "glob", USER)
    assert set(job["Minions"]) == set(job["Result"]) == set(MINIONS)
    found = job["Result"]["b1"]["return"]
    assert found["args"] == ["one"]
    kwargs = {name: value for name, value in found["kwargs"].items() if not name.startswith("__")}
    assert kwargs == {"two": 2, "batch": "theirs", "timeout": 7}
    lines = wait_for(
        lambda: where.exists() and len(lines := where.read_text().splitlines()) == 3 and lines,
        what="the returner has written all",
    )
    assert {(record["id"], record["metadata"]["ticket"]) for record in map(json.loads, lines)} == {
        (minion, "T1") for minion in MINIONS
    }


def test_a_ramp_that_fails_its_canary_stops_there_and_is_tried_again_and_all_reaches_prometheus(
    run, command, collected, tmp_path
):
    before = run("batch.stats")["saltext_jobs_batch_minions_total"]
    options = ("batch=1,100%", "max_failures=0", "presence=none")
    done = command("batch.wait", run("batch.start", "b[123]", "cmd.run", f"mkdir {tmp_path}/a/b", *options)["jid"])
    assert done.returncode == 1
    assert "halted (more minions failed than max_failures allows): 1 failed, 2 pending of 3" in done.data["Error"]
    (tmp_path / "a").mkdir()
    again = run("batch.retry", done.data["jid"])
    assert (again["parent"], again["total"], again["fun"]) == (done.data["jid"], 1, "cmd.run")
    watched = command("batch.watch", again["jid"])
    assert (watched.returncode, "1 of 1 succeeded" in watched.stderr) == (0, True)
    after = {**before, "completed": before["completed"] + 1, "failed": before["failed"] + 1}
    assert run("batch.stats")["saltext_jobs_batch_minions_total"] == after

    def written(engine):
        path = collected / f"saltext_jobs_{engine}.prom"
        return path.read_text() if path.exists() else ""

    line = f'saltext_jobs_batch_minions_total{{outcome="completed"}} {after["completed"]}\n'
    wait_for(lambda: line in written("batch_manager"), seconds=45, what="the figures are written")
    assert 'saltext_jobs_retry_entries{state="held"} 0\n' in written("job_retry")
    assert run("job_retry.stats")["metrics"]["saltext_jobs_retry_entries"]["held"] == 0


def test_a_batch_that_still_runs_is_retried_where_it_has_failed_and_is_mended_when_both_have_ended(
    run, command, look, tmp_path
):
    job = f"mkdir {tmp_path}/first && exit 3; until [ -e {tmp_path}/go ]; do sleep 0.1; done"
    jid = run("batch.start", "b[12]", "cmd.run", job, "batch=2", "presence=none")["jid"]
    wait_for(lambda: look("batch.status", jid)["failed"] == 1, what="one has failed")
    again = command("batch.retry", jid, "which=failed,killed")
    assert f"Batch {jid} has not ended on 1 minion" in again.stderr
    (tmp_path / "go").touch()
    assert [finished(look, one)["completed"] for one in (again.data["jid"], jid)] == [1, 1]
    assert jid in [one["jid"] for one in run("batch.list", "state=mended")]


# -- who is there ------------------------------------------------------------------------------------------------------


@pytest.mark.story
def test_an_absent_minion_can_get_the_job_later_under_the_batch_s_jid(command, run, look, returned, master):
    away = master.fleet["b3"]
    away.terminate()
    try:
        jid = run("batch.start", "b[123]", "test.echo", "later", "batch=2", "offline=queue")["jid"]
        done = command("batch.wait", jid)
        assert (done.data["completed"], done.data["queued"]) == (2, 1)
        assert done.returncode == 1  # one of those it was for has not run it
        for which in ("offline", "all"):
            assert "job_retry owes it to 1" in command("batch.retry", jid, f"which={which}").stderr
        entries = wait_for(
            lambda: [entry for entry in look("job_retry.list") if entry["jid"] == jid], what="it is in the retry queue"
        )
        assert [entry["minion"] for entry in entries] == ["b3"]
        assert run("batch.minions", jid, "state=queued")["b3"]["why"].startswith("owed by job_retry: pending")
    finally:
        away.start()
    wait_for(lambda: returned(jid).get("b3") == "later", what="the minion has run it")
    wait_for(lambda: look("batch.status", jid)["completed"] == 3, what="the batch knows")
    assert run("jobs.list_job", jid)["Target"] == "b[123]"


@pytest.mark.story
def test_a_minion_without_a_process_for_the_ping_gets_the_job_when_it_has_one_while_the_batch_runs(
    run, command, look, master, tmp_path
):
    begun, free, ran = tmp_path / "begun", tmp_path / "free", tmp_path / "ran"
    with minions(master, "busy", process_count_max=1), salt.client.LocalClient(mopts=dict(master.config)) as client:
        client.run_job("busy", "cmd.run", [f"touch {begun}; until [ -e {free} ]; do sleep 0.2; done"], listen=False)
        wait_for(begun.exists, what="it is busy")
        both = f"echo >> {ran}; until [ $(wc -l < {ran}) -ge 2 ]; do sleep 0.2; done"  # b1 waits for the other one
        batch = ["tgt_type=list", "batch=2", *timeouts(1)]
        jid = run("batch.start", "b1,busy", "cmd.run", both, *batch)["jid"]
        wait_for(lambda: look("batch.status", jid)["offline"] == 1, what="it has answered no ping")
        assert "has not ended on 2 minions" in command("batch.retry", jid, "which=offline").stderr
        free.touch()
        assert finished(look, jid)["completed"] == 2
    assert len(ran.read_text().splitlines()) == 2


def test_a_minion_that_hangs_before_its_turn_is_lost_since_it_runs_the_job_when_it_wakes(run, look, master, tmp_path):
    free, ran, hangs = tmp_path / "free", tmp_path / "ran", psutil.Process(master.fleet["b2"].pid)
    command = f"echo >> {ran}; until [ -e {free} ]; do sleep 0.1; done"
    jid = run("batch.start", "b1,b2", "cmd.run", command, "tgt_type=list", "batch=1", *timeouts(1))["jid"]
    wait_for(ran.exists, what="b1 runs it")
    processes = [hangs, *hangs.children(recursive=True)]
    [process.suspend() for process in processes]
    try:
        free.touch()
        assert finished(look, jid)["lost"] == 1
    finally:
        [process.resume() for process in processes]
    wait_for(lambda: look("batch.status", jid)["completed"] == 2, what="it has run the job after all")


def test_where_an_operator_kills_the_job_of_a_batch_nobody_sends_it_again_and_the_batch_goes_on(
    run, look, master, tmp_path
):
    away, ran = master.fleet["b1"], tmp_path / "ran"
    away.terminate()
    try:
        command = f"echo >> {ran}; while [ $(wc -l < {ran}) = 1 ]; do sleep 0.1; done"  # the first one hangs
        batch = ["batch=1", "presence=none", "offline=queue", *timeouts(1)]
        jid = run("batch.start", "b[123]", "cmd.run", command, *batch)["jid"]
        wait_for(ran.exists, what="b2 runs it")
        with salt.client.LocalClient(mopts=dict(master.config)) as client:
            client.run_job("*", "saltutil.kill_job", [jid], listen=False)
        finished(look, jid)
        states = {minion: record["state"] for minion, record in look("batch.minions", jid).items()}
        # Salt's kill may meet the command first: then the minion still returns that it has failed.
        assert states.pop("b2") in ("lost", "failed")
        assert states.pop("b1") in ("queued", "lost")
        assert states == {"b3": "completed"}
        wait_for(lambda: look("job_retry.list", jid=jid) == [], what="b1 is owed nothing")
    finally:
        away.start()
    assert len(ran.read_text().splitlines()) == 2


# -- what a rollout of hours needs ------------------------------------------------------------------------------------


@pytest.fixture
def finish(command):
    """Wait for the end of a batch that was started with these arguments, whether or not it succeeds."""

    def wait(*args):
        started = command("batch.start", *args)
        assert started.returncode == 0, started
        return command("batch.wait", started.data["jid"], f"timeout={stretched(90)}").data

    return wait


@pytest.mark.story
def test_a_job_that_hangs_is_ended_and_the_batch_goes_on(run, finish, master, tmp_path):
    hang = f"mkdir {tmp_path / 'hangs'} || exit 0; exec sleep 3456"
    found = finish("b[123]", "cmd.run", hang, "batch=1", "presence=none", "max_runtime=4", "max_failures=1")
    assert (found["state"], found["completed"], found["timed_out"]) == ("complete", 2, 1)
    assert found["success"] is False
    (late,) = run("batch.minions", found["jid"], "state=timed_out")
    assert salt_cli(master, late, "saltutil.find_job", found["jid"]).data == {}
    assert not [process for process in psutil.process_iter(["cmdline"]) if process.info["cmdline"] == ["sleep", "3456"]]
    assert run("batch.wait", run("batch.retry", found["jid"], "which=timed_out")["jid"])["completed"] == 1


@pytest.mark.story
def test_a_batch_goes_by_a_grain_that_the_master_knows(run, command, finish):
    # The master caches grains when a minion fetches its pillar, which it does when it starts.
    found = finish("b[12]", "test.sleep", "1", "batch=100%", "by=grains:id", "presence=none")
    assert (found["success"], found["groups"], found["group"], found["publishes"]) == (True, 2, "2", 2)
    records = run("batch.minions", found["jid"])
    assert {minion: record["group"] for minion, record in records.items()} == {"b1": "1", "b2": "2"}
    assert records["b2"]["since"] > records["b1"]["since"]


@pytest.mark.story
def test_a_function_on_the_minions_just_done_or_a_runner_decides_whether_a_batch_goes_on(finish):
    options = ("batch=1,100%", "presence=none", f"check_timeout={stretched(60)}")
    for check in ("test.echo fine", "runner:batch.status {jid}"):
        assert finish("b[123]", "test.ping", *options, f"check={check}")["completed"] == 3
    failed = finish("b[123]", "test.ping", *options, "check=test.false")
    assert failed["halted_reason"].startswith("check test.false: b1: ")
    assert (failed["completed"], failed["pending"]) == (1, 2)
    wrong = finish("b[123]", "test.ping", *options, "check=runner:batch.status 123")
    assert wrong["halted_reason"].startswith("check batch.status: it failed: 123 is no batch")


# -- orchestration -----------------------------------------------------------------------------------------------------


@pytest.mark.story
def test_an_orchestration_fails_when_the_batch_fails_and_goes_on_when_it_succeeds(command, master, tmp_path):
    root = pathlib.Path(master.config["file_roots"]["base"][0])
    root.mkdir(parents=True, exist_ok=True)
    orchestrations = {
        "good": ["b[123]", "cmd.run", "exit 0"],
        "begun": ["b[123]", "cmd.run", "exit 0"],
        "bad": ["b[123]", "cmd.run", "echo no room; exit 1"],
        "wrong": ["nobody*", "cmd.run", "exit 0"],
    }
    for name, arguments in orchestrations.items():
        (root / f"{name}.sls").write_text(
            f"""
rollout:
  salt.runner:
    - name: batch.{"start" if name == "begun" else "run"}
    - arg: {arguments}
    - batch: '2'
    - presence: none
after:
  test.succeed_without_changes:
    - require:
      - salt: rollout
"""
        )
    for name in ("good", "begun"):
        good = command("state.orchestrate", name)
        assert good.returncode == 0, good
        assert good.stdout.count('"result": true') == 2
        assert "null" not in good.stdout, "what says nothing is left out"
    for name in ("bad", "wrong"):
        done = command("state.orchestrate", name)
        assert done.returncode != 0, done.stdout
        assert '"result": true' not in done.stdout
        if name == "bad":
            assert '"3 minions, failed (retcode 1): b1, b2, b3": "no room"' in done.stdout
            assert "null" not in done.stdout, "what says nothing is left out"


# -- beside Salt's own -------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not compat.HAS_NATIVE_BATCHES, reason="Salt 3008 is the first release with batches of its own")
def test_batches_of_salt_s_own_are_shown_and_stopped(run, look, complaint, master):
    started = salt_cli(master, "b[123]", "--async", "-b", "1", "test.sleep", "30")
    jid = next(word for word in (started.stdout + started.stderr).split() if word.isdigit() and len(word) == 20)
    summary = wait_for(lambda: look("batch.status", jid), what="the batch is there")
    assert summary["driver"] == "master"
    assert jid in [batch["jid"] for batch in run("batch.list_active")]
    assert jid in [batch["jid"] for batch in run("batch.list")]
    assert set(run("batch.minions", jid)) == set(MINIONS)
    assert run("batch.stop", jid) is True
    wait_for(lambda: look("batch.status", jid)["halted"], what="Salt's manager has halted it")
    assert f"Batch {jid} is halted; there is nothing to stop" in complaint("batch.stop", jid)


def test_salt_finds_nothing_to_recover_in_a_long_batch_of_ours(run, master):
    assert "BatchManager failed" not in log_of(master)
    assert "is stale" not in log_of(master)
