"""Salt's Job Management on a real master and real minions, with every job kept by ``salt_cache``."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest
from salt.client import LocalClient
from salt.utils.event import get_event

from benchmarks.fleet import wire
from benchmarks.fleet.crowd import Handle
from benchmarks.fleet.script import Script
from saltext.jobs.core import compat
from tests.integration.conftest import COMMAND, make_master, minions, salt_cli, salt_run
from tests.missing import missing
from tests.waiting import stretched, wait_for

pytestmark = pytest.mark.story


@pytest.fixture(scope="module")
def master(salt_factories):
    with make_master(salt_factories, engines=[], job_cache_store_endtime=True).started() as daemon:
        yield daemon


@pytest.fixture(scope="module")
def fleet(master):
    with minions(master, "alpha", "beta", process_count_max=-1) as daemons:
        yield {daemon.id: daemon for daemon in daemons}


@pytest.fixture
def salt(master, fleet):
    """``salt`` as typed at a prompt; its output, parsed."""
    return lambda target, *args: salt_cli(master, target, *args).data


@pytest.fixture
def run(master):
    return lambda *args: salt_run(master, *args).data  # some of these end with the status of the job


@pytest.fixture
def publish(master, fleet):
    """Publish and do not wait; the jid."""

    def publish(target, fun, *args, tgt_type="glob", **kwargs):
        script = "import json, sys, salt.client; job = json.loads(sys.argv[2])"
        script += "; print(salt.client.LocalClient(sys.argv[1]).run_job(**job)['jid'])"
        job = {"tgt": target, "fun": fun, "arg": list(args), "tgt_type": tgt_type, "kwarg": None, **kwargs}
        command = [sys.executable, "-c", script, str(pathlib.Path(master.config_dir) / "master"), json.dumps(job)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=stretched(COMMAND), check=True)
        return done.stdout.split()[-1]

    return publish


def typed(master, script, *args):
    """What an operator sees on the terminal."""
    command = [sys.executable, master.salt_cli().get_script_path().replace("cli_salt", f"cli_{script}")]
    if not os.path.exists(command[1]):
        command = [os.path.join(os.path.dirname(sys.executable), script.replace("_", "-"))]
    command += ["-c", str(master.config_dir), *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=stretched(COMMAND), check=False).stdout


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0] != "Z"


@pytest.fixture
def running_job(publish, look, returned, fleet):
    """A job that beta has done and alpha is busy with; its jid and alpha's process."""
    jid = publish("*", "cmd.run", "test {{ grains['id'] }} = beta || sleep 120", "template=jinja")
    active = wait_for(
        lambda: {**look("jobs.active")}.get(jid) or None if "beta" in returned(jid) else None,
        what="beta has returned and alpha is running the job",
    )
    yield jid, active["Running"][0]["alpha"]
    if os.path.exists(proc_entry(fleet, jid)):
        os.kill(active["Running"][0]["alpha"], 9)


def proc_entry(fleet, jid):
    return os.path.join(fleet["alpha"].config["cachedir"], "proc", jid)


def test_a_running_job_is_shown_and_can_be_signalled(running_job, run, salt, fleet):
    jid, pid = running_job
    active = run("jobs.active")[jid]
    assert (active["Running"], active["Returned"]) == ([{"alpha": pid}], ["beta"])
    assert (active["Function"], active["Target"]) == ("cmd.run", "*")
    assert alive(pid) and os.path.isfile(proc_entry(fleet, jid))
    assert salt("alpha", "saltutil.find_job", jid)["pid"] == pid
    assert salt("beta", "saltutil.find_job", jid) == {}
    assert run("jobs.lookup_jid", jid, "missing=True") == {"beta": "", "alpha": "Minion did not return"}
    assert run("jobs.exit_success", jid) == {"alpha": False, "beta": False}
    answer = salt("alpha", "saltutil.term_job", jid)
    assert str(pid) in answer and jid in answer
    wait_for(lambda: not alive(pid), what="the process is gone")
    wait_for(lambda: jid not in {job["jid"] for job in salt("alpha", "saltutil.running")}, what="it runs no more")


class TestAFinishedJob:
    def jid_of(self, run, function):
        jobs = run("jobs.list_jobs", f"search_function={function}")
        return max(jobs)

    def test_lookup_prints_what_the_first_invocation_printed(self, master, fleet, run):
        first = typed(master, "salt", "alpha", "test.arg", "one", "two=2")
        jid = self.jid_of(run, "test.arg")
        assert "one" in first
        assert typed(master, "salt_run", "jobs.lookup_jid", jid) == first

    def test_it_is_listed_as_it_was_published(self, publish, run, returned):
        jid = publish("alpha,beta", "test.arg", "x", "y=1", tgt_type="list", metadata={"ticket": "OPS-7"})
        wait_for(lambda: len(returned(jid)) == 2, what="both have returned")
        job = run("jobs.list_job", jid)
        assert job["Function"] == "test.arg"
        assert job["Target"] in ("alpha,beta", ["alpha", "beta"])
        assert job["Target-type"] == "list"
        assert job["Arguments"][0] == "x"
        assert job["Minions"] == ["alpha", "beta"]
        assert set(job["Result"]) == {"alpha", "beta"}
        assert job["Result"]["alpha"]["success"] is True and job["Result"]["alpha"]["retcode"] == 0
        assert job["StartTime"] and job["EndTime"]
        assert run("jobs.exit_success", jid) == {"alpha": True, "beta": True}
        assert run("jobs.last_run", "function=test.arg", "metadata={ticket: OPS-7}").keys() == {jid}

    def test_a_job_that_a_minion_ran_by_itself_is_listed(self, fleet, run):
        call = fleet["beta"].salt_call_cli(timeout=stretched(COMMAND))
        assert call.run("test.echo", "by itself").data == "by itself"
        jobs = run("jobs.list_jobs", "search_function=test.echo", "search_target=beta")
        job = jobs[max(jobs)]
        assert job["Arguments"] == ["by itself"]
        assert (job["Target"], job["Target-type"]) == ("beta", "glob")
        assert run("jobs.lookup_jid", max(jobs)) == {"beta": "by itself"}

    def test_a_job_of_a_runner_is_listed(self, master, run):
        run("test.arg", "of a runner")
        jobs = run("jobs.list_jobs", "search_function=runner.test.arg")
        job = jobs[max(jobs)]
        assert job["Arguments"] == ["of a runner"]
        assert job["Target"] == f"{master.config['id']}"
        assert list(run("jobs.list_job", max(jobs))["Result"]) == [master.config["id"]]

    def test_a_job_of_salt_ssh_is_listed_with_those_who_answered(self, master, fleet, run, tmp_path):
        if shutil.which("ssh") is None:
            missing("ssh is not installed")
        roster = tmp_path / "roster"
        # Nothing listens on this port: an unreachable box is an answer too.
        roster.write_text("box:\n  host: 127.0.0.1\n  port: 1\n  user: nobody\n", encoding="utf-8")
        typed(master, "salt_ssh", "--roster-file", str(roster), "-i", "--no-host-keys", "*", "test.echo", "over ssh")
        jobs = run("jobs.list_jobs", "search_function=test.echo", "search_target=*")
        job = run("jobs.list_job", max(jobs))
        assert (job["Target"], job["Arguments"], job["Target-type"]) == ("*", ["over ssh"], "glob")
        assert list(job["Result"]) == ["box"]
        assert job["Minions"] == ["box"], "not those whose keys are accepted"


def test_jobs_are_removed_when_their_time_is_over(salt_factories):
    daemon = make_master(salt_factories, engines=[], keep_jobs_seconds=4, loop_interval=1)
    with daemon.started():
        jobs = pathlib.Path(daemon.config["cachedir"]) / "jobs"
        salt_run(daemon, "test.arg", "of a runner")  # whose job is stored as well
        assert list(jobs.glob("loads/*.p"))
        wait_for(lambda: not [path for path in jobs.rglob("*") if path.is_file()], what="nothing is left of the job")


# -- the minions of benchmarks/fleet -------------------------------------------------------------------------------------


def shape(value):
    """What a value is made of."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items() if key != "_stamp"}
    return [shape(item) for item in value[:1]] if isinstance(value, list) else type(value).__name__


class Told:
    """What a master's bus has told of some minions since it was made."""

    def __init__(self, master):
        self._bus = get_event("master", opts=dict(master.config), listen=True)
        self._found = []

    def of(self, minion, jids):
        """``{tag: what its payload is made of}``, with M for the minion, and the jobs' names for their jids."""
        while event := self._bus.get_event(wait=0.1, full=True):
            self._found.append((event["tag"], event["data"]))
        names = {minion: "M", **{jid: name for name, jid in jids.items()}}
        told = {}
        for tag, data in self._found:
            words = tag.split("/")
            about = minion in words or (words[:2] == ["salt", "auth"] and data.get("id") == minion)
            if about and words[1] in ("auth", "job", "minion"):
                told["/".join(names.get(word, word) for word in words)] = shape(data)
        return told


@pytest.mark.skipif(not compat.HAS_START_EVENT, reason="benchmarks/fleet speaks as minions of Salt 3008 do")
def test_a_featherweight_minion_tells_the_master_what_a_real_one_does(master):
    told, jids = Told(master), {}
    client = LocalClient(mopts=dict(master.config))
    crowd = Handle([dict(master.config)], wire.accept(master.config, ["feather"]), ["feather"], 0.0)
    crowd.script(Script(seconds=(1.0, 1.0)))

    def publish(name, fun, *arg, **more):
        listed = ["feather", "gamma"]
        jids[name] = client.run_job(listed, fun, list(arg), "list", listen=False, **more)["jid"]

    def wait_until_told(*tags):
        def both():
            return all(told.of(minion, jids).keys() >= set(tags) for minion in ("feather", "gamma"))

        wait_for(both, what=lambda: f"{tags}: {told.of('gamma', jids)}, {told.of('feather', jids)}")

    try:
        crowd.start(["feather"])
        with minions(master, "gamma"):
            publish("PING", "test.ping")
            publish("JOB", "test.sleep", 1, start_event=True, metadata={"ticket": "T1"})
            wait_until_told("salt/job/PING/ret/M", "salt/job/JOB/ret/M")
            crowd.script(Script(seconds=(300.0, 300.0)))
            publish("LONG", "test.sleep", 300, start_event=True)
            wait_until_told("salt/job/LONG/start/M")
            questions = ["saltutil.find_job", "saltutil.find_cached_job", "saltutil.running"]
            publish("ASKED", questions, [jids["JOB"]], [jids["JOB"]], [])
            wait_until_told("salt/job/ASKED/ret/M")  # else it may find FOUND running, too
            publish("FOUND", "saltutil.find_job", jids["LONG"])
            wait_until_told("salt/job/FOUND/ret/M")
            publish("KILLED", "saltutil.kill_job", jids["LONG"])
            wait_until_told("salt/job/KILLED/ret/M")
            real, light = told.of("gamma", jids), told.of("feather", jids)
    finally:
        crowd.end()
        client.destroy()
    real["salt/job/JOB/ret/M"]["return"] = light["salt/job/JOB/ret/M"]["return"]  # nothing is run
    differing = {tag: (light.get(tag), real.get(tag)) for tag in {*light, *real} if light.get(tag) != real.get(tag)}
    assert not differing, f"(ours, a real one's): {differing}"
