"""Batches over salt-api, from an orchestration, from a schedule and from Python, and who they say started them."""

from __future__ import annotations

import contextlib
import pathlib
import re
import urllib.request

import pytest
import salt.config
import salt.runner

from tests.integration.api import SECRET, Api, Denied, fronts, salt_api
from tests.integration.conftest import COMMAND, finished, make_master, minions
from tests.waiting import stretched, wait_for

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"

ORCHESTRATION = """
roll out:
  salt.runner:
    - name: batch.run
    - arg: ['a*', {fun}]
    - batch: '1'

afterwards:
  salt.function:
    - name: file.touch
    - tgt: a1
    - arg: ['{marker}']
    - require:
      - salt: roll out
"""


@pytest.fixture(scope="module")
def master(salt_factories, tmp_path_factory):
    states = tmp_path_factory.mktemp("states")
    daemon = make_master(
        salt_factories,
        file_roots={"base": [str(states)]},
        sharedsecret=SECRET,
        external_auth={
            "sharedsecret": {
                "boss": ["test.*", "@runner"],
                "watcher": [{"@runner": ["batch.status", "batch.list", "job_retry.list"]}],
            }
        },
        loop_interval=1,
        schedule={
            "nightly": {
                "function": "batch.start",
                "args": ["a*", "test.arg"],
                "kwargs": {"batch": 1},
                "seconds": 8,
            }
        },
        **fronts("rest_cherrypy"),
    )
    daemon.states = states
    with daemon.started(), minions(daemon, "a1", "a2"):
        yield daemon


@pytest.fixture(scope="module")
def api(master):
    with salt_api(master):
        yield lambda user: User(master, user)


class User(Api):
    """One user of salt-api, logged in."""

    def __init__(self, master, user):
        super().__init__(master, "rest_cherrypy")
        self.token = self.log_in(user)

    def ask_api(self, call):
        return self.post("/", [{"client": "runner", **call}], self.token)[0]

    def run(self, name, /, **kwarg):
        return self.ask_api({"fun": name, "kwarg": kwarg})

    def ask(self, name, jid):
        return self.run(name, jid=jid)

    def tags(self):
        """Yield the tags of the event stream."""
        request = urllib.request.Request(f"{self.url}/events", headers={"X-Auth-Token": self.token})
        with urllib.request.urlopen(request, timeout=stretched(COMMAND)) as stream:
            for line in stream:
                if line.startswith(b"tag: "):
                    yield line[5:].decode().strip()


# -- salt-api ---------------------------------------------------------------------------------------------------------


def test_a_batch_is_started_and_watched_over_the_api_and_shows_its_user(api, run):
    boss, watcher = api("boss"), api("watcher")
    stream = boss.tags()
    next(stream)  # the stream is open
    jid = boss.run("batch.start", tgt="a*", fun="test.sleep", batch="1", kwarg={"length": 1})["jid"]
    seen = set()
    for tag in stream:
        seen |= {tag} if tag.startswith(f"salt/batch/{jid}/") else set()
        if tag == f"salt/batch/{jid}/complete":
            break
    assert {f"salt/batch/{jid}/new", f"salt/batch/{jid}/progress"} <= seen
    status = finished(watcher.ask, jid)
    assert (status["user"], status["completed"], status["success"]) == ("boss", 2, True)
    assert run("jobs.list_job", jid)["User"] == "boss"


def test_a_user_who_may_only_look_may_not_start_a_batch(api):
    watcher = api("watcher")
    assert isinstance(watcher.run("batch.list"), list)
    with pytest.raises(Denied):
        watcher.run("batch.start", tgt="a*", fun="test.version", batch="1")
    assert not [batch for batch in watcher.run("batch.list") if batch["user"] == "watcher"]


def test_a_user_who_may_start_batches_may_not_batch_a_job_that_they_may_not_publish(api):
    boss = api("boss")
    with contextlib.suppress(Denied):
        answer = boss.run("batch.start", tgt="a*", fun="cmd.run", batch="1", kwarg={"cmd": "id"})
        assert "jid" not in answer
    assert not [batch for batch in boss.run("batch.list") if batch["fun"] == "cmd.run"]


@pytest.mark.parametrize(
    ("verb", "kwarg", "line"),
    [
        ("batch.status", {"jid": "UNKNOWN"}, "UNKNOWN is no batch"),
        ("batch.start", {"tgt": "x*", "fun": "test.ping"}, "matches no accepted minion"),
        ("batch.start", {"tgt": "a*", "fun": "test.ping", "fail_hard": True}, "did you mean max_failures=0?"),
        ("batch.list", {"limt": 3}, "did you mean limit?"),
        ("job_retry.show", {}, "job_retry.show needs minion and jid"),
        ("job_retry.replay", {"minion": "a1"}, "No entry of minion=a1 waits for delivery"),
        ("job_retry.retry", {"minion": "a1"}, "No entry of minion=a1 is held or dead"),
        ("job_retry.cancel", {"minion": "a1"}, "No entry of minion=a1 can be cancelled"),
    ],
)
def test_a_refusal_is_no_success_over_the_api(api, verb, kwarg, line):
    answer = api("boss").ask_api({"fun": verb, "kwarg": kwarg, "full_return": True})["data"]
    assert (answer["success"], answer["retcode"]) == (False, 1)
    assert line in answer["return"]
    assert len(answer["return"].splitlines()) == 1


def test_a_batch_is_stopped_over_the_api(api):
    boss = api("boss")
    jid = boss.run("batch.start", tgt="a*", fun="test.sleep", batch="1", kwarg={"length": 20})["jid"]
    boss.run("batch.stop", jid=jid)
    assert finished(boss.ask, jid)["state"] == "halted"


def test_a_user_who_may_list_the_retry_queue_over_the_api_may_not_replay_it(api):
    assert api("watcher").run("job_retry.list") is not None
    with pytest.raises(Denied):
        api("watcher").run("job_retry.replay", minion="a1")


# -- orchestration ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("fun", "succeeds"), [("test.version", True), ("test.exception", False)])
def test_an_orchestration_goes_on_only_after_a_batch_that_succeeded(master, command, tmp_path, fun, succeeds):
    marker = tmp_path / "marker"
    (master.states / "rollout.sls").write_text(ORCHESTRATION.format(fun=fun, marker=marker))
    result = command("state.orchestrate", "rollout")
    assert marker.exists() is succeeds, result.data
    assert (result.returncode == 0) is succeeds


def orchestration_in(page):
    """The orchestration below that title of a page of the documentation, with our minions and a failing function."""
    text = (DOCS / page).read_text(encoding="utf-8")
    section = text[re.search(r"^#+ (From an o|O)rchestration$", text, re.M).end() :]
    return next(block for block in re.findall(r"^```yaml\n(.*?)^```$", section, re.M | re.S) if "batch.run" in block)


@pytest.mark.parametrize(
    ("options", "halts"),
    [
        ("- max_failures: 0", True),
        ("- kwarg: {max_failures: 0}", True),
        ("- failhard: True", False),  # a word of the state system, which never arrives: the documentation says so
    ],
)
def test_a_batch_of_an_orchestration_stops_at_the_first_failure(master, command, run, options, halts):
    (master.states / "rollout.sls").write_text(f"""
roll out:
  salt.runner:
    - name: batch.run
    - arg: ['a*', test.exception]
    - batch: 1
    {options}
""")
    assert command("state.orchestrate", "rollout").returncode != 0
    batch = next(batch for batch in run("batch.list") if batch["fun"] == "test.exception")
    assert (batch["failed"], batch["pending"], batch["halted"]) == ((1, 1, True) if halts else (2, 0, False))


def test_the_documented_orchestration_of_a_rollout_does_what_it_says(master, command, run):
    shown = orchestration_in("batch.md")
    assert "max_failures: 0" in shown
    changed = shown.replace("web*", "a*").replace("state.apply, nginx", "test.exception").replace("25%", "1")
    (master.states / "rollout.sls").write_text(changed)
    assert command("state.orchestrate", "rollout").returncode != 0
    batch = next(batch for batch in run("batch.list") if batch["fun"] == "test.exception")
    assert (batch["tgt"], batch["failed"], batch["pending"], batch["halted"]) == ("a*", 1, 1, True)


@pytest.mark.parametrize(
    ("verb", "arg"),
    [
        ("batch.wait", "[UNKNOWN]"),
        ("batch.start", "[nobody, test.ping]"),
        ("job_retry.replay", "[a1]"),
        ("job_retry.retry", "[a1]"),
        ("job_retry.cancel", "[a1]"),
    ],
)
def test_a_refusal_fails_an_orchestration(master, command, verb, arg):
    (master.states / "refused.sls").write_text(f"refused:\n  salt.runner:\n    - name: {verb}\n    - arg: {arg}\n")
    result = command("state.orchestrate", "refused")
    (state,) = next(iter(result.data["data"].values())).values() if "data" in result.data else result.data.values()
    assert (result.returncode, state["result"]) == (1, False)
    assert "Traceback" not in result.stdout


# -- schedule, Python, sudo -------------------------------------------------------------------------------------------


def test_a_schedule_of_the_master_starts_a_batch(look):
    wait_for(lambda: "test.arg" in {batch["fun"] for batch in look("batch.list")}, what="the schedule has started one")


def test_the_python_client_starts_a_batch(master, look):
    client = salt.runner.RunnerClient(salt.config.master_config(master.config_file))
    jid = client.cmd("batch.start", ["a*", "test.version"], kwarg={"batch": 1}, print_event=False)["jid"]
    assert finished(look, jid)["completed"] == 2


def test_a_batch_by_sudo_shows_who_it_was(run, look, monkeypatch):
    monkeypatch.setenv("SUDO_USER", "anna")
    jid = run("batch.start", "a*", "test.version", "batch=1")["jid"]
    monkeypatch.delenv("SUDO_USER")
    assert run("batch.status", jid)["user"] == "sudo_anna"
    wait_for(
        lambda: look("jobs.list_job", jid).get("User") == "sudo_anna", what="its first publish is in the job cache"
    )
