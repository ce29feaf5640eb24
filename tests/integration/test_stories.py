"""The extension's main job on a real master with real minions, from start to stop. Runs on every supported release."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time

import psutil
import pytest
from salt.payload import loads

import saltext.jobs.reactor
from saltext.jobs.core.engine import requests
from tests.integration.conftest import ask_runner, finished, log_of, make_master, minions, salt_cli
from tests.integration.faults import CountedJob
from tests.private import not_private
from tests.waiting import SOON, stretched, wait_for

pytestmark = pytest.mark.story

MINIONS = ("s1", "s2", "s3", "s4")
ENGINES = ("batch_manager", "job_retry")
#: Seconds after which Salt starts an engine anew that has ended.
RESTART = 10


@pytest.fixture(scope="module")
def master(salt_factories, tmp_path_factory):
    files = tmp_path_factory.mktemp("states")
    (files / "top.sls").write_text("base:\n  '*':\n    - motd\n")
    (files / "motd.sls").write_text(f"{files}/motd-{{{{ grains.id }}}}:\n  file.managed:\n    - contents: welcome\n")
    sls = pathlib.Path(saltext.jobs.reactor.__path__[0]) / "batched_highstate.sls"
    options = {"reactor": [{"operations/highstate": [str(sls)]}], "file_roots": {"base": [str(files)]}}
    options |= {"job_recorder": {"returners": ["rawfile_json"]}, "rawfile_json.filename": str(files / "returns")}
    options["engines"] = [{"job_retry": {}}, {"batch_manager": {}}, {"job_recorder": {}}]
    with make_master(salt_factories, **options).started() as daemon:
        daemon.files = files
        yield daemon


@pytest.fixture(scope="module")
def fleet(master):
    # Where a master goes away in mid-request, a minion of Salt 3007 notices after auth_timeout, by default a minute.
    with minions(master, *MINIONS, auth_timeout=5, request_channel_timeout=5) as daemons:
        yield {daemon.id: daemon for daemon in daemons}


@pytest.fixture
def run(master, fleet):
    return lambda *args: ask_runner(master, *args)


@pytest.fixture
def salt(master, fleet):
    return lambda *args: salt_cli(master, *args)


def lines_of(daemon, level, engine):
    """The log's lines of a level about one of our engines."""
    return [line for line in log_of(daemon).splitlines() if f"[{level}" in line and f"The {engine} engine" in line]


@contextlib.contextmanager
def on_a_terminal(master, *words, columns):
    """Run ``salt-run`` on a terminal of so many columns; its process, and a function that returns what is on the screen."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    os.set_blocking(ours, False)
    env = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    command = [
        os.path.join(os.path.dirname(sys.executable), "salt-run"),
        "-c",
        os.path.dirname(master.config_file),
        *words,
    ]
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env={**env, "TERM": "xterm"}, start_new_session=True
    )
    read, is_open = [], [True]

    def screen():
        with contextlib.suppress(BlockingIOError, OSError):
            while is_open and (part := os.read(ours, 65536)):
                read.append(part)
        return b"".join(read).decode(errors="replace")

    try:
        yield process, screen
    finally:
        process.kill()
        process.wait()
        screen()
        is_open.clear()
        os.close(theirs)
        os.close(ours)


def test_the_engines_of_a_fresh_master_warn_of_nothing(master, salt, look):
    assert salt("s1", "test.version").data
    wait_for(lambda: look("job_recorder.stats")["returners"]["rawfile_json"]["delivered"], what="it is recorded")
    warned = re.compile(r"\[(WARNING|ERROR|CRITICAL) *\]\[Engine\(")
    assert [line for line in log_of(master).splitlines() if warned.search(line)] == []


def queue(look, jid):
    return [entry for entry in look("job_retry.list") if entry["jid"] == jid]


def processes_of(fleet, jid):
    """The process of a job on each minion that runs it, by minion."""
    found = {}
    for name, daemon in fleet.items():
        entry = pathlib.Path(daemon.config["cachedir"]) / "proc" / jid
        for process in psutil.Process(daemon.pid).children(recursive=True) if entry.exists() else ():
            with contextlib.suppress(psutil.NoSuchProcess):  # what has ended meanwhile runs no job
                if process.name() == "sleep":
                    found[name] = process
    return found


def test_a_batch_reaches_every_minion_and_never_more_than_its_size_at_once(run, look, tmp_path):
    trace = tmp_path / "trace"
    # Each minion records when it begins and ends: what the minions did, and not what a manager believes.
    command = f"echo begin >> {trace}; sleep 2; echo end >> {trace}"
    started = run("batch.start", "*", "cmd.run", command, "batch=2")
    final = finished(look, started["jid"])
    assert (final["state"], final["completed"], final["success"]) == ("complete", 4, True)
    assert sorted(run("jobs.lookup_jid", started["jid"])) == sorted(MINIONS)
    busy = most = 0
    for line in trace.read_text().split():
        busy += 1 if line == "begin" else -1
        most = max(most, busy)
    assert (most, busy) == (2, 0)


def test_a_started_batch_is_listed_until_it_has_ended_and_ctrl_c_ends_the_watching_alone(
    run, look, master, fleet, tmp_path
):
    work = CountedJob(tmp_path, "work", gated=True)
    jid = run("batch.start", "*", "cmd.run", work.command, "batch=4")["jid"]
    assert jid in [batch["jid"] for batch in run("batch.list_active")]
    with on_a_terminal(master, "batch.watch", jid, columns=40) as (process, screen):
        wait_for(lambda: "0 of 4 running" in screen(), what=lambda: f"the bar is drawn: {screen()!r}")
        process.send_signal(signal.SIGINT)
        status = process.wait(stretched(SOON))
        wait_for(lambda: "shows the batch again" in screen(), what=lambda: f"it is said how: {screen()!r}")
    assert status == 1
    assert f"That ends the waiting only; salt-run batch.watch {jid} shows the batch again" in screen()
    assert "Traceback" not in screen()
    drawn = screen().partition("That ends")[0]
    assert max(len(line) for line in re.split(r"\x1b\[K|[\r\n]+", drawn)) <= 40
    with on_a_terminal(master, "batch.list_active", columns=60) as (process, screen):
        assert process.wait(stretched(SOON)) == 0
        wait_for(lambda: "Next: salt-run" in screen(), what=lambda: f"the table is printed: {screen()!r}")
    assert re.search(rf"{jid}  running\s+0/4\s+0  cmd", screen())
    work.open_gate()
    finished(look, jid)
    assert jid not in [batch["jid"] for batch in run("batch.list_active")]


def test_a_minion_that_was_away_gets_its_job_under_the_same_jid_when_it_is_back(run, look, returned, salt, fleet):
    absent, present = MINIONS[-1], list(MINIONS[:-1])
    fleet[absent].terminate()
    jid = re.search(r"\d{20}", salt("*", "--async", "cmd.run", "echo made it").stdout)[0]
    (entry,) = wait_for(lambda: queue(look, jid), what=f"{absent} is queued")
    assert {"minion", "jid", "fun", "state", "attempts", "queued_at", "expires_at"} <= set(entry)
    assert (entry["minion"], entry["fun"], "arg" in entry) == (absent, "cmd.run", False)
    assert look("job_retry.show", absent, jid)["arg"] == ["echo made it"]
    wait_for(lambda: sorted(returned(jid)) == present, what="the others have returned")
    fleet[absent].start()
    wait_for(lambda: absent in returned(jid), what=f"{absent} has returned")
    assert run("jobs.lookup_jid", jid) == dict.fromkeys(MINIONS, "made it")
    wait_for(lambda: not queue(look, jid), what="the queue is empty")
    done = look("job_retry.show", absent, jid)
    assert (done["state"], done["attempts"]) == ("done", 1)
    assert done["queued_at"] < done["last_sent_at"] <= done["ended_at"]
    job = look("jobs.list_job", jid)
    assert (job["Target"], job["Target-type"], sorted(job["Minions"])) == ("*", "glob", sorted(MINIONS))


def test_a_killed_batch_leaves_no_process_and_starts_none(run, look, fleet):
    jid = run("batch.start", "*", "cmd.run", "sleep 600", "batch=3")["jid"]
    running = wait_for(lambda: len(found := processes_of(fleet, jid)) == 3 and found, what="three minions run the job")
    # On one of them it ends a moment before the kill, and leaves neither a return nor a record.
    ended = next(iter(running))
    proc = pathlib.Path(fleet[ended].config["cachedir"]) / "proc" / jid
    os.kill(loads(proc.read_bytes())["pid"], signal.SIGKILL)
    running[ended].kill()
    run("batch.stop", jid, "kill=True")
    wait_for(lambda: not any(process.is_running() for process in running.values()), what="the processes are gone")
    final = finished(look, jid)
    assert (final["state"], final["halted"], final["killed"], final["survivors"]) == ("halted", True, 2, [])
    assert run("batch.minions", jid)[ended]["state"] == "lost", "nobody has killed it there"
    assert not processes_of(fleet, jid)


def test_engines_stop_within_two_seconds_and_go_on_where_they_were(run, look, master, fleet, tmp_path):
    trace, gate = tmp_path / "trace", tmp_path / "gate"
    # The job waits for the gate, so that no minion returns while there is no master to take its return.
    command = f"echo {{{{ grains.id }}}} >> {trace}; until test -e {gate}; do sleep 0.1; done"
    jid = run("batch.start", "*", "cmd.run", command, "template=jinja", "batch=1")["jid"]
    wait_for(lambda: trace.exists() and trace.read_text(), what="the first minion runs the job")
    (busy,) = trace.read_text().split()
    # The others are down meanwhile: a minion of Salt 3007 that reconnects may hang for good in closing a zmq context.
    others = [daemon for name, daemon in fleet.items() if name != busy]
    for daemon in others:
        daemon.terminate()
    os.kill(master.pid, signal.SIGTERM)
    wait_for(lambda: not any(alive(master).values()), what="no engine is left", seconds=2)
    master.terminate()
    master.start()
    for daemon in others:
        daemon.start()
    standing = run("batch.status", jid)
    assert (standing["state"], standing["active"], standing["pending"]) == ("running", 1, 3)
    gate.touch()
    # A return that is lost is found when the minion is asked next: the longer the job has run, the later.
    finished(look, jid, seconds=600)
    assert sorted(trace.read_text().split()) == sorted(MINIONS), "each minion ran the job once"
    # After a restart of the master a minion of Salt 3007 may fail to return what it ran, and says so: that one is lost.
    left = {name: found["state"] for name, found in run("batch.minions", jid).items() if found["state"] != "completed"}
    given_up = f"failed to return the job information for job {jid}"
    assert {name: (state, given_up in log_of(fleet[name])) for name, state in left.items()} == dict.fromkeys(
        left, ("lost", True)
    )


def alive(master):
    return {engine: requests.is_running(master.config, engine) for engine in ENGINES}


def test_an_engine_that_is_not_to_run_says_why_once_and_the_master_goes_on(salt_factories):
    engines = [{"batch_manager": {"max_inflight": 5}}, {"job_retry": {}}]
    daemon = make_master(salt_factories, engines=engines, master_job_cache="local_cache")
    expected = {
        "batch_manager": ["max_inflight", "max_in_flight"],
        "job_retry": ["master_job_cache", "local_cache", "salt_cache"],
    }
    with daemon.started(), minions(daemon, "lone"):
        for engine in expected:
            wait_for(lambda e=engine: lines_of(daemon, "CRITICAL", e), what=f"{engine} says why it does not run")
        time.sleep(RESTART + 2)
        for engine, words in expected.items():
            (line,) = lines_of(daemon, "CRITICAL", engine)
            assert all(word in line for word in words), line
            assert not requests.is_running(daemon.config, engine)
        assert salt_cli(daemon, "lone", "test.ping").data is True


def test_an_operators_event_starts_the_batch_of_a_reactor_file(master, fleet, look, command):
    assert command("event.send", "operations/highstate").returncode == 0
    (batch,) = wait_for(
        lambda: [each for each in look("batch.list", state="complete") if each["fun"] == "state.apply"],
        what="the batch is complete",
    )
    assert (batch["driver"], batch["tgt"], batch["completed"], batch["success"]) == ("engine", "*", 4, True)
    assert len(list(master.files.glob("motd-*"))) == len(MINIONS)


def test_every_file_of_every_engine_is_private(master, fleet, run, look):
    assert run("job_recorder.stats")["returners"]["rawfile_json"]["delivered"] >= 2
    folder = pathlib.Path(master.config["cachedir"]) / "saltext_jobs"
    assert {"job_retry", "batch_manager", "job_recorder"} <= {path.name for path in folder.iterdir()}
    assert len(list(folder.rglob("*"))) > 5
    assert not_private(folder) == []
