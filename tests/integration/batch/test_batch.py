"""What the batch runner does, on a real master with real minions."""

from __future__ import annotations

import json
import os
import pathlib

import pytest
import salt.client
import salt.config
import salt.runner
import salt.utils.event

from saltext.jobs.core import compat
from saltext.jobs.core.batch.store import BatchStore
from saltext.jobs.core.engine.names import JOB_RETRY
from saltext.jobs.core.engine.requests import process_of
from saltext.jobs.core.site import FileSite
from tests.faults import freeze, thaw
from tests.integration.batch.conftest import batch_master, timeouts
from tests.integration.conftest import finished, salt_cli
from tests.integration.faults import CountedJob
from tests.user import USER
from tests.waiting import SOON, stretched, wait_for

MINIONS = ("b1", "b2", "b3")
ABSENT = "b9"


@pytest.fixture(scope="module")
def collected(tmp_path_factory):
    """The directory of the collector of metrics."""
    return tmp_path_factory.mktemp("collected")


@pytest.fixture(scope="module")
def master(salt_factories, collected):
    retry, batches = {"triggers": ["start"], "metrics_dir": str(collected)}, {"metrics_dir": str(collected)}
    with batch_master(salt_factories, *MINIONS, job_retry=retry, batch_manager=batches) as daemon:
        keys = pathlib.Path(daemon.config["pki_dir"], "minions")
        (keys / ABSENT).write_bytes((keys / MINIONS[0]).read_bytes())
        yield daemon


@pytest.fixture
def finish(run):
    """Start a batch and wait for its end."""
    return lambda *args: run("batch.wait", run("batch.start", *args)["jid"])


# -- starting ----------------------------------------------------------------------------------------------------------


def test_a_batch_completes_with_arguments_and_keyword_arguments(run):
    # `batch` and `timeout` are the runner's own, so the function's go into kwarg.
    args = ("one", "two=2", 'kwarg={"batch": "theirs", "timeout": 7}')
    jid = run("batch.start", "b[123]", "test.arg", *args, "batch=2")["jid"]
    assert run("batch.wait", jid)["success"] is True
    returned = run("jobs.lookup_jid", jid)
    assert set(returned) == set(MINIONS)
    assert returned["b1"]["args"] == ["one"]
    kwargs = {name: value for name, value in returned["b1"]["kwargs"].items() if not name.startswith("__")}
    assert kwargs == {"two": 2, "batch": "theirs", "timeout": 7}


def test_every_sub_batch_carries_every_option_of_the_job(run, tmp_path):
    where = tmp_path / "returned.jsonl"
    options = [
        "ret=rawfile_json",
        f'ret_kwargs={{"filename": "{where}"}}',
        'metadata={"ticket": "T1"}',
        'module_executors=["direct_call"]',
    ]
    jid = run("batch.start", "b[123]", "test.echo", "hello", "batch=1", *options)["jid"]
    assert run("batch.wait", jid)["publishes"] == 3
    wait_for(where.exists, what="the returner has written")
    records = wait_for(
        lambda: (lines := where.read_text().splitlines()) and len(lines) == 3 and lines, what="all are there"
    )
    assert {json.loads(record)["id"] for record in records} == set(MINIONS)
    assert {json.loads(record)["metadata"]["ticket"] for record in records} == {"T1"}


def test_the_figures_of_a_batch_reach_prometheus_and_the_runner(run, finish, collected):
    before = run("batch.stats")["saltext_jobs_batch_minions_total"]
    assert finish("b[123]", "test.ping", "batch=2")["completed"] == 3
    after = run("batch.stats")
    assert after["saltext_jobs_batch_minions_total"] == {**before, "completed": before["completed"] + 3}
    assert after["saltext_jobs_publishes_total"]["batch_manager"] >= 2

    def written(engine):
        path = collected / f"saltext_jobs_{engine}.prom"
        return path.read_text() if path.exists() else ""

    line = f'saltext_jobs_batch_minions_total{{outcome="completed"}} {before["completed"] + 3}\n'
    wait_for(lambda: line in written("batch_manager"), seconds=45, what="the figures are written")
    assert 'saltext_jobs_retry_entries{state="held"} 0\n' in written("job_retry")
    assert run("job_retry.stats")["metrics"]["saltext_jobs_retry_entries"]["held"] == 0


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["b*", "test.ping", "batch=many"], "'many'"),
        (["b*", "test.ping", "max_failures=lots"], "'lots'"),
        (["b*", "test.ping", "offline=wait"], "'wait'"),
        (["b*", "test.ping", "presence=maybe"], "'maybe'"),
        (["b*", "test.ping", "timeout=-1"], "timeout is -1"),
        (["b*", "test.ping", "max_failures=perhaps"], "'perhaps'"),
        (["b*", "test.ping", "min_executed=some"], "'some'"),
        (["b*", "test.ping", "kwarg=x"], "kwarg is 'x'"),
        (["nobody*", "test.ping"], "matches no accepted minion"),
        (["b*", "ping"], "fun is 'ping'"),
    ],
)
def test_bad_input_is_named_and_starts_nothing(master, arguments, word):
    # In this process, which is quicker than a command.
    store = BatchStore(master.config)
    before = store.open_jids() + store.ended_jids()
    opts = salt.config.client_config(master.config_file)
    with salt.runner.RunnerClient(opts) as client:
        values = [argument.split("=", 1) for argument in arguments[2:]]
        kwargs = {name: int(value) if value.lstrip("-").isdigit() else value for name, value in values}
        answer = client.cmd("batch.start", arguments[:2], kwarg=kwargs, print_event=False)
    assert word in str(answer)
    assert len(answer.splitlines()) == 1
    assert store.open_jids() + store.ended_jids() == before


# -- ramps and budgets -------------------------------------------------------------------------------------------------


def test_a_ramp_that_fails_its_canary_stops_there(run, command, tmp_path):
    work = CountedJob(tmp_path, "work", retcode=3)
    options = ("batch=1,100%", "max_failures=0", "presence=none")
    done = command("batch.wait", run("batch.start", "b[123]", "cmd.run", work.command, *options)["jid"])
    summary = done.data
    assert done.returncode == 1
    assert "halted (more minions failed than max_failures allows): 1 failed, 2 pending of 3 minions" in summary["Error"]
    assert (summary["state"], summary["halted_reason"]) == ("halted", "max_failures")
    assert (summary["failed"], summary["pending"], work.begun()) == (1, 2, 1)


def test_a_watched_batch_that_succeeds_exits_with_zero(run, command):
    watched = command("batch.watch", run("batch.start", "b[123]", "test.ping", "batch=2", "presence=none")["jid"])
    assert watched.returncode == 0
    assert "3/3 succeeded" in watched.stderr


# -- who is there ------------------------------------------------------------------------------------------------------


def test_an_absent_minion_is_left_out(finish):
    summary = finish("b*", "test.ping", "batch=4")
    assert (summary["completed"], summary["offline"], summary["success"]) == (3, 1, True)


def test_the_last_line_of_a_run_and_of_a_watch_says_how_many_were_left_out(command):
    ran = command("batch.run", "b*", "test.ping", "batch=4")
    assert ran.data["verdict"].endswith("3 of 4 minions completed; 1 not there and left out")
    watched = command("batch.watch", ran.data["jid"])
    assert watched.data["verdict"] == ran.data["verdict"]


def test_an_absent_minion_can_count_as_failed(command, run):
    jid = run("batch.start", "b*", "test.ping", "batch=4", "offline=fail")["jid"]
    done = command("batch.wait", jid)
    assert done.returncode == 1
    assert (done.data["completed"], done.data["failed"], done.data["success"]) == (3, 1, False)
    assert run("batch.minions", jid, "state=failed").keys() == {ABSENT}


@pytest.mark.story
def test_an_absent_minion_can_get_the_job_later_under_the_batch_s_jid(command, run, look, returned, master):
    away = master.fleet["b3"]
    away.terminate()
    try:
        jid = run("batch.start", "b[123]", "test.echo", "later", "batch=2", "offline=queue")["jid"]
        done = command("batch.wait", jid)
        assert (done.data["completed"], done.data["offline"]) == (2, 1)
        assert done.returncode == 1  # one of those it was for has not run it
        entries = wait_for(
            lambda: [entry for entry in look("job_retry.list") if entry["jid"] == jid], what="it is in the retry queue"
        )
        assert [entry["minion"] for entry in entries] == ["b3"]
    finally:
        away.start()
    wait_for(lambda: returned(jid).get("b3") == "later", what="the minion has run it")
    wait_for(lambda: look("batch.status", jid)["completed"] == 3, what="the batch knows")
    assert run("jobs.list_job", jid)["Target"] == "b[123]"


def test_an_absent_minion_does_not_get_the_job_of_a_batch_that_was_stopped(run, look, master):
    away = master.fleet["b3"]
    away.terminate()
    try:
        jid = run("batch.start", "b[123]", "test.sleep", "300", "batch=2", "offline=queue")["jid"]
        wait_for(lambda: look("batch.status", jid)["offline"] == 1, what="the batch knows that it is absent")
        run("batch.stop", jid, "kill=True")
        assert finished(look, jid)["halted"]
        assert look("job_retry.list", jid=jid) == []
    finally:
        away.start()


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
        assert states == {"b1": "killed", "b2": "killed", "b3": "completed"}
        assert look("job_retry.list", jid=jid) == []
    finally:
        away.start()
    assert len(ran.read_text().splitlines()) == 2


def test_a_hand_over_that_a_frozen_retry_queue_has_not_read_is_taken_back_with_its_batch(run, look, returned, master):
    away = master.fleet["b3"]
    away.terminate()
    engine = process_of(master.config, JOB_RETRY).pid
    folder = FileSite(master.config).folder(JOB_RETRY)

    def hand_over():
        jid = run("batch.start", "b[123]", "test.echo", "later", "offline=queue")["jid"]
        wait_for(
            lambda: any(jid.encode() in folder.read(name) for name in folder.names("requests")),
            what="the queue is asked",
        )
        return jid

    try:
        freeze(engine)
        try:
            stopped, kept = hand_over(), hand_over()
            run("batch.stop", stopped)
            assert finished(look, stopped)["halted"]
        finally:
            thaw(engine)
        wait_for(lambda: look("job_retry.list", jid=kept), what="the other batch's minion is in the queue")
        assert {entry["state"] for entry in look("job_retry.list", jid=stopped)} <= {"cancelled"}
    finally:
        away.start()
    wait_for(lambda: returned(kept).get("b3") == "later", what="the minion has run what it is owed")
    assert set(returned(stopped)) == {"b1", "b2"}


# -- looking -----------------------------------------------------------------------------------------------------------


def test_the_job_cache_shows_the_batch_s_own_target_user_and_minions(finish, run):
    job = run("jobs.list_job", finish("b[123]", "test.ping", "batch=1", "presence=none")["jid"])
    assert (job["Target"], job["Target-type"], job["User"]) == ("b[123]", "glob", USER)
    assert sorted(job["Minions"]) == sorted(MINIONS)


def test_batches_are_listed_newest_first_and_by_state(run, finish):
    first = finish("b1", "test.ping", "presence=none")["jid"]
    second = finish("b1", "test.ping", "presence=none")["jid"]
    assert [batch["jid"] for batch in run("batch.list", "limit=2")] == [second, first]
    assert all(batch["state"] == "complete" for batch in run("batch.list", "state=complete"))
    assert run("batch.list", "state=paused") == []


@pytest.mark.parametrize("verb", ["status", "minions", "stop", "pause", "resume", "wait", "watch", "retry"])
def test_a_jid_that_never_was_a_batch_is_refused(master, verb):
    done = master.salt_run_cli(timeout=stretched(60)).run(f"batch.{verb}", "20200101000000000000")
    assert (done.returncode, done.stdout.strip()) == (1, "false")  # an outputter was chosen: json
    assert "20200101000000000000 is no batch" in done.stderr


def test_progress_is_announced_at_most_once_a_second(run, master):
    with salt.utils.event.get_master_event(master.config, master.config["sock_dir"], listen=True) as bus:
        jid = run("batch.start", "b[123]", "test.sleep", "2", "batch=1", "presence=none")["jid"]
        seen = []
        while not seen or not seen[-1]["tag"].endswith("/complete"):
            event = bus.get_event(tag=f"salt/batch/{jid}/", wait=stretched(SOON), full=True)
            assert event, f"nothing more after {[found['tag'] for found in seen]}"
            seen.append(event)
    kinds = [event["tag"].rpartition("/")[2] for event in seen]
    assert (kinds[0], kinds[-1], set(kinds[1:-1])) == ("new", "complete", {"progress"})
    assert len(kinds) - 2 <= run("batch.status", jid)["finished"] - run("batch.status", jid)["created"] + 1
    assert seen[-1]["data"]["completed"] == 3
    assert seen[-1]["data"]["success"] is True


# -- control -----------------------------------------------------------------------------------------------------------


def test_a_paused_batch_waits_and_goes_on_when_resumed(run, look, complaint, tmp_path):
    work = CountedJob(tmp_path, "work", gated=True)
    jid = run("batch.start", "b[123]", "cmd.run", work.command, "batch=1", "presence=none")["jid"]
    assert run("batch.pause", jid) is True
    assert f"Batch {jid} is paused already: paused by {USER}" in complaint("batch.pause", jid)
    work.open_gate()
    wait_for(lambda: not look("batch.status", jid)["active"], what="what ran has ended")
    begun = work.begun()
    summary = run("batch.status", jid)
    assert (summary["state"], summary["paused_reason"]) == ("paused", f"paused by {USER}")
    assert begun < 3
    assert run("batch.resume", jid) is True
    assert f"Batch {jid} " in complaint("batch.resume", jid)
    assert run("batch.wait", jid)["completed"] == work.begun() == 3


def test_a_batch_that_does_not_end_in_time_goes_on(command, run, tmp_path):
    work = CountedJob(tmp_path, "work", gated=True)
    jid = run("batch.start", "b1", "cmd.run", work.command, "presence=none")["jid"]
    done = command("batch.wait", jid, "timeout=1")
    assert done.returncode != 0
    assert "has not ended within 1 s" in done.stdout + done.stderr
    work.open_gate()
    assert run("batch.wait", jid)["success"] is True


def test_a_minion_that_keeps_the_job_in_its_own_queue_of_states_is_not_given_up(run, look, master, tmp_path):
    work = CountedJob(tmp_path, "work", gated=True)
    assert salt_cli(master, "b1", "--async", "state.single", "cmd.run", f"name={work.command}").returncode == 0
    wait_for(work.begun, what="the minion runs states")
    options = ("max_failures=0", "presence=none", *timeouts(2))
    jid = run("batch.start", "b1", "state.single", "test.nop", "name=x", "queue=True", *options)["jid"]

    def is_seen_again():
        record = look("batch.minions", jid)["b1"]
        return record["state"] != "active" or record["seen"] > record["since"] + 4

    wait_for(is_seen_again, what="it was asked several times", seconds=stretched(120))
    assert look("batch.minions", jid)["b1"]["state"] == "active"
    work.open_gate()
    assert run("batch.wait", jid)["success"] is True


def test_the_failed_minions_are_retried_in_a_new_batch(run, command, tmp_path):
    once = tmp_path / "once"
    jid = run("batch.start", "b[123]", "cmd.run", f"mkdir {once}", "batch=1", "presence=none")["jid"]
    assert command("batch.wait", jid).returncode == 1
    os.rmdir(once)
    assert run("batch.status", jid)["failed"] == 2
    again = run("batch.retry", jid)
    assert (again["parent"], again["total"], again["fun"]) == (jid, 2, "cmd.run")
    assert again["jid"] != jid
    command("batch.wait", again["jid"])
    assert run("batch.status", again["jid"])["completed"] == 1


def test_there_is_nothing_to_retry_in_a_batch_that_succeeded(command, finish):
    jid = finish("b1", "test.ping", "presence=none")["jid"]
    done = command("batch.retry", jid)
    assert "No minion of batch" in done.stdout + done.stderr


# -- orchestration -----------------------------------------------------------------------------------------------------


@pytest.mark.story
def test_an_orchestration_fails_when_the_batch_fails_and_goes_on_when_it_succeeds(command, master, tmp_path):
    root = pathlib.Path(master.config["file_roots"]["base"][0])
    root.mkdir(parents=True, exist_ok=True)
    orchestrations = {
        "good": ["b[123]", "cmd.run", "exit 0"],
        "bad": ["b[123]", "cmd.run", "exit 1"],
        "wrong": ["nobody*", "cmd.run", "exit 0"],
    }
    for name, arguments in orchestrations.items():
        (root / f"{name}.sls").write_text(
            f"""
rollout:
  salt.runner:
    - name: batch.run
    - arg: {arguments}
    - batch: '2'
    - presence: none
after:
  test.succeed_without_changes:
    - require:
      - salt: rollout
"""
        )
    good = command("state.orchestrate", "good")
    assert good.returncode == 0, good
    assert good.stdout.count('"result": true') == 2
    for name in ("bad", "wrong"):
        done = command("state.orchestrate", name)
        assert done.returncode != 0, done.stdout
        assert '"result": true' not in done.stdout


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
    assert f"Batch {jid} has ended (halted): there is nothing to stop" in complaint("batch.stop", jid)


def test_salt_finds_nothing_to_recover_in_a_long_batch_of_ours(run, master):
    log = pathlib.Path(master.config["log_file"])
    assert "BatchManager failed" not in log.read_text()
    assert "is stale" not in log.read_text()
