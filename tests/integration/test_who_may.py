"""
Who may start, control and repeat jobs with the runners, by whichever way the call came, and under which name; and what a
batch does that came so.

Each row of the table in docs/from_anywhere.md. Both front ends of salt-api hand each call on to the same client of
Salt's, with what the user has shown, so each kind of login is tried on both, and each verb on one.
"""

from __future__ import annotations

import functools
import json
import pathlib
import re
import shutil

import pytest
import salt.config

from saltext.jobs.core import compat
from tests.integration.api import FRONTS, SECRET, Api, Denied, Python, access_lists, fronts, salt_api
from tests.integration.conftest import ask_runner, finished, look_at, make_master, minions, salt_cli
from tests.user import USER
from tests.waiting import stretched, wait_for

pytestmark = pytest.mark.story

RUNNERS = [{"@runner": ["batch.*", "job_retry.*", "job_cache.*"]}]
#: Users of the API whose names mean something to Salt. Their only right is to our runners.
NAMESAKES = ["root", "sudo_anna", "Reactor"]
USERS = {
    **dict.fromkeys(NAMESAKES, RUNNERS),
    "boss": ["test.*", {"@runner": ["batch.*", "job_retry.*", "state.orchestrate"]}],
    "watcher": [{"@runner": ["batch.status", "batch.list", "job_retry.list"]}],
    "publisher": ["test.*"],
}
#: Backend and name of users who may call our runners, and publish nothing.
NOBODIES = [("sharedsecret", "root"), ("sharedsecret", "sudo_anna"), ("sharedsecret", "Reactor"), ("rest", "root")]
BACKENDS = ["sharedsecret", "rest", "file"]
#: An accepted minion that is away.
AWAY = "a9"

#: An engine of the master's configuration that starts a batch when it is let to.
STARTER = """
import pathlib, time
import salt.runner

def start(gate):
    while not pathlib.Path(gate).exists():
        time.sleep(0.2)
    salt.runner.RunnerClient(dict(__opts__)).cmd("batch.start", ["a1", "cmd.run_all", "id"], print_event=False)
    while True:
        time.sleep(60)
"""
REACTION = """
start:
  runner.batch.start:
    - args: [{tgt: a1}, {fun: cmd.run_stdout}, {arg: [id]}]
"""
ORCHESTRATION = """
roll out:
  salt.runner:
    - name: batch.start
    - arg: [a1, {}]
"""
DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"
#: Salt calls these runners in threads of their own.
PARALLEL = """
roll out:
  salt.parallel_runners:
    - runners:
        one:
          - name: batch.start
          - kwarg: {arg: [a1, cmd.run, id]}
"""


@pytest.fixture(scope="module")
def master(salt_factories, tmp_path_factory):
    folder = tmp_path_factory.mktemp("who")
    for path, text in {
        "passwords": "".join(f"{user}:{SECRET}\n" for user in USERS),
        "modules/engines/starter.py": STARTER,
        "reaction.sls": REACTION,
        "states/harmless.sls": ORCHESTRATION.format("test.ping"),
        "states/forbidden.sls": ORCHESTRATION.format("cmd.run, id"),
        "states/parallel.sls": PARALLEL,
    }.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    with access_lists(USERS) as rest:
        daemon = make_master(
            salt_factories,
            sharedsecret=SECRET,
            external_auth={
                "sharedsecret": USERS,
                "rest": {"^url": rest},
                "file": {"^filename": str(folder / "passwords"), **USERS},
            },
            publisher_acl={"anna": ["test.*"]},
            client_acl_verify=False,  # this machine need not have such a user
            sudo_acl=True,
            peer_run={"a[12]": ["batch.*", "job_retry.*", "job_cache.*"]},
            batch_manager={"allow_peers": ["a2"]},
            module_dirs=[str(folder / "modules")],
            engines=[{"job_retry": {}}, {"batch_manager": {}}, {"starter": {"gate": str(folder / "gate")}}],
            reactor=[{"tests/start": [str(folder / "reaction.sls")]}],
            schedule={"nightly": {"function": "batch.start", "args": ["a1", "cmd.shell", "id"], "seconds": 10}},
            loop_interval=1,
            file_roots={"base": [str(folder / "states")]},
            **fronts(*FRONTS),
        )
        daemon.slow_stop = False
        daemon.folder = folder
        with daemon.started(), minions(daemon, "a1", "a2"), salt_api(daemon):
            keys = pathlib.Path(daemon.config["pki_dir"], "minions")
            shutil.copyfile(keys / "a1", keys / AWAY)
            for front in FRONTS:
                Api(daemon, front).log_in("boss")  # it answers
            yield daemon


@pytest.fixture(scope="module")
def front(master):
    return Api(master, FRONTS[0])


@pytest.fixture(scope="module", params=FRONTS)
def each_front(master, request):
    return Api(master, request.param)


@pytest.fixture
def api(front):
    """Call a runner over a front end of salt-api; what the runner's event tells."""
    return front.call


@pytest.fixture(scope="module")
def python(master):
    """The same with Salt's own client."""
    return Python(salt.config.client_config(master.config_file)).call


@pytest.fixture(scope="module")
def jobs(master):
    """Root's jobs of a function that no user may publish: a paused batch, one that failed, and a job that is owed."""

    def start(*args):
        return ask_runner(master, "batch.start", *args)["jid"]

    failed, paused = start("a1", "cmd.run", "exit 1"), start("a*", "cmd.run", "id", "start_at=+1d")
    assert ask_runner(master, "batch.pause", paused) is True
    assert salt_cli(master, AWAY, "--async", "cmd.run", "id").returncode == 0
    # It is asked to, since by itself the queue takes what is owed only when the minion has had its time.
    owed = next(jid for jid, job in ask_runner(master, "jobs.list_jobs").items() if job["Target"] == AWAY)
    ask_runner(master, "job_retry.enqueue", owed)
    finished(functools.partial(look_at, master), failed)
    return {"paused": paused, "failed": failed, "owed": owed}


def is_refused(answer, word="may not"):
    assert (answer["success"], answer["retcode"]) == (False, 1), answer
    assert word in answer["return"], answer
    return True


def starts(jobs):
    """Calls that have the master publish a job."""
    return [
        ("batch.start", ["a1", "cmd.run", "id"], {}),
        ("batch.run", ["a1", "test.ping"], {"__pub_user": "root"}),
        ("batch.retry", [jobs["failed"]], {}),
        ("batch.resume", [jobs["paused"]], {}),
        ("batch.stop", [jobs["paused"]], {"kill": True}),
        ("job_retry.enqueue", [jobs["owed"]], {}),
        ("job_retry.retry", [], {"minion": AWAY}),
    ]


def users_of(look):
    """The users of all batches, by function."""
    users = {}
    for batch in look("batch.list", limit=1000):
        users.setdefault(batch["fun"], set()).add(batch["user"])
    return users


# -- root, sudo, the master itself ------------------------------------------------------------------------------------


def test_nothing_is_limited_at_the_command_line_of_the_master(run):
    assert run("batch.run", "a1", "cmd.run", "exit 0")["user"] == USER


def test_a_sudo_user_may_start_what_publisher_acl_allows_and_stop_all(run, complaint, jobs, monkeypatch):
    monkeypatch.setenv("SUDO_USER", "anna")
    assert "sudo_anna may not publish cmd.run" in complaint("batch.start", "a1", "cmd.run", "id")
    assert "sudo_anna may not publish cmd.run" in complaint("batch.retry", jobs["failed"])
    assert run("batch.start", "a1", "test.ping")["user"] == "sudo_anna"
    assert "is paused" in complaint("batch.pause", jobs["paused"])
    assert "No entry of minion=a1 waits for delivery" in complaint("job_retry.replay", "a1")


def test_the_schedule_the_reactor_and_engines_of_the_master_start_what_they_like(master, look, command):
    (master.folder / "gate").touch()
    assert command("event.send", "tests/start").returncode == 0

    wanted = {"cmd.run_all", "cmd.run_stdout", "cmd.shell"}
    users = wait_for(lambda: wanted <= set(found := users_of(look)) and found, what="each has started one")
    assert users["cmd.run_stdout"] == {"Reactor"}


# -- users of the API -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("eauth", "user"), NOBODIES)
def test_a_right_to_the_runners_starts_no_job_whatever_the_user_is_called(api, look, jobs, eauth, user):
    calls = starts(jobs)
    # Every verb that starts jobs makes the same check: one name is tried with each, the others with a new and an old job.
    for verb, arg, kwarg in calls if (eauth, user) == NOBODIES[0] else [calls[0], calls[5]]:
        assert is_refused(api(verb, *arg, eauth=eauth, user=user, **kwarg))
    assert users_of(look)["cmd.run"] == {USER}


@pytest.mark.parametrize("eauth", BACKENDS)
def test_a_user_may_start_only_jobs_that_they_may_publish(each_front, eauth):
    api = each_front.call
    assert is_refused(api("batch.start", "*", "cmd.run", "id", eauth=eauth, user="boss"))
    assert api("batch.start", "a1", "test.ping", eauth=eauth, user="boss")["return"]["user"] == "boss"


# By `rest`: if it is configured, Salt keeps the lists in all tokens, and the other backends give it none.
def test_a_token_gives_what_its_user_has(each_front):
    api, (root, boss) = each_front.call, (each_front.log_in(user, eauth="rest") for user in ("root", "boss"))
    for token in (root, boss):
        assert is_refused(api("batch.start", "*", "cmd.run", "id", token=token))
    assert is_refused(api("batch.start", "*", "test.ping", token=root))
    assert api("batch.start", "a1", "test.ping", token=boss)["return"]["user"] == "boss"


def test_a_user_of_the_runners_may_look_stop_and_pause_and_is_named(api, run, jobs):
    def ask(verb, *arg, **kwarg):
        answer = api(verb, *arg, user="root", **kwarg)
        assert answer["success"], answer
        return answer["return"]

    jid = run("batch.start", "a*", "cmd.run", "id", "start_at=+1d")["jid"]
    assert ask("batch.status", jid)["state"] == "paused"
    assert jid in {batch["jid"] for batch in ask("batch.list")}
    assert ask("job_retry.list", AWAY)[0]["jid"] == jobs["owed"]
    assert ask("job_retry.replay", AWAY) == 1
    assert ask("job_retry.pause") is True
    assert ask("job_retry.resume") is True
    assert "is not paused; there is nothing to resume" in str(api("job_retry.resume", user="root"))
    assert ask("batch.pause", jid) is True
    assert ask("batch.stop", jid) is True
    assert run("batch.status", jid)["stopped_by"] == "sharedsecret:root"


def test_a_user_who_may_not_publish_a_job_sees_no_return_of_it_and_cannot_repeat_it(master, front, api, python, jobs):
    key = pathlib.Path(master.config["cachedir"], ".anna_key").read_text(encoding="utf-8")
    calls = [
        ("batch.failures", [jobs["failed"]], {}),
        ("batch.output", [jobs["failed"], "a1"], {}),
        ("job_cache.outcome", [jobs["failed"]], {}),
        ("batch.preview", [], {"like": jobs["failed"], "tgt": "a1", "fun": "test.ping"}),
        ("batch.start", [], {"like": jobs["owed"]}),
        ("job_cache.running", [], {}),
    ]
    token = front.log_in("root", eauth="rest")
    for verb, arg, kwarg in calls:
        assert is_refused(api(verb, *arg, user="root", **kwarg))
        assert is_refused(api(verb, *arg, token=token, **kwarg))
        assert is_refused(python(verb, *arg, user="anna", key=key, **kwarg))


def test_no_user_of_the_api_changes_or_copies_what_the_job_cache_keeps(api, tmp_path):
    copy = tmp_path / "copy"
    for verb, arg in {"backup": [str(copy)], "recover": [str(copy)]}.items():
        assert is_refused(api(f"job_cache.{verb}", *arg, user="root"), "it is for the command line of the master")
    assert not copy.exists()


def test_a_user_who_may_only_look_or_only_publish_may_not_call_the_other_verbs(api, jobs):
    assert api("batch.status", jobs["paused"], user="watcher")["success"] is True
    assert api("job_retry.list", user="watcher")["success"] is True
    for user in ("watcher", "publisher"):
        for verb, arg, kwarg in [*starts(jobs), ("batch.pause", [jobs["paused"]], {})][
            :: 7 if user == "publisher" else 2
        ]:
            with pytest.raises(Denied):
                api(verb, *arg, user=user, **kwarg)


def test_an_orchestration_has_the_rights_of_its_user(api, look):
    assert api("state.orchestrate", "harmless", user="boss")["success"] is True
    answer = api("state.orchestrate", "forbidden", user="boss")
    assert answer["success"] is False
    assert "boss may not publish cmd.run" in str(answer["return"])
    assert api("state.orchestrate", "parallel", user="boss")["success"] is False  # Salt shows no more of the refusal
    assert users_of(look)["cmd.run"] == {USER}


def test_a_runner_function_of_a_check_has_the_rights_of_the_batch_s_user(api, look):
    check = "runner:batch.start * cmd.run id"
    jid = api("batch.start", "a[12]", "test.ping", user="boss", batch="1,1", check=check)["return"]["jid"]
    assert "boss may not publish cmd.run" in finished(look, jid)["halted_reason"]
    assert users_of(look).get("cmd.run", {USER}) == {USER}


# -- what a batch does there -----------------------------------------------------------------------------------------


def orchestration_in(page):
    """The orchestration below that title of a page of the documentation, with our minions and a failing function."""
    text = (DOCS / page).read_text(encoding="utf-8")
    section = text[re.search(r"^#+ (From an o|O)rchestration$", text, re.M).end() :]
    return next(block for block in re.findall(r"^```yaml\n(.*?)^```$", section, re.M | re.S) if "batch.run" in block)


def test_the_documented_orchestration_of_a_rollout_does_what_it_says(master, command, run):
    shown = orchestration_in("batch.md")
    assert "max_failures: 0" in shown
    changed = shown.replace("web*", "a[12]").replace("state.apply, nginx", "test.exception").replace("25%", "1")
    (master.folder / "states" / "rollout.sls").write_text(changed)
    assert command("state.orchestrate", "rollout").returncode != 0
    batch = next(batch for batch in run("batch.list") if batch["fun"] == "test.exception")
    assert (batch["tgt"], batch["failed"], batch["pending"], batch["halted"]) == ("a[12]", 1, 1, True)


# -- key files, minions -----------------------------------------------------------------------------------------------


def test_a_user_of_publisher_acl_may_start_what_it_allows_and_stop_all(master, python, jobs):
    key = pathlib.Path(master.config["cachedir"], ".anna_key").read_text(encoding="utf-8")
    for verb, arg, kwarg in starts(jobs)[::2]:
        assert is_refused(python(verb, *arg, user="anna", key=key, **{**kwarg, "__pub_user": "anna"}))
    assert python("batch.start", "a1", "test.ping", user="anna", key=key)["return"]["user"] == "anna"
    assert python("batch.status", jobs["paused"], user="anna", key=key)["return"]["state"] == "paused"
    assert "is paused" in python("batch.pause", jobs["paused"], user="anna", key=key)["return"]


def test_a_minion_may_start_a_batch_only_where_it_is_named(master, run, look):
    def ask(minion, fun, *arg):
        return (
            master.salt_cli(timeout=stretched(90))
            .run("publish.runner", fun, json.dumps(list(arg)), minion_tgt=minion)
            .data
        )

    assert "may look at this, and change nothing" in str(ask("a1", "batch.start", "a*", "test.ping"))
    assert "may look at this, and change nothing" in str(ask("a2", "job_retry.pause"))
    assert "may not call job_cache.recover" in str(ask("a2", "job_cache.recover", "/x"))
    assert isinstance(ask("a1", "batch.list"), (list, str))
    ask("a2", "batch.start", "a*", "test.echo", "by a peer")
    wait_for(lambda: users_of(look).get("test.echo") == {"a2"}, what="the batch of the minion that may")
    assert run("job_retry.stats")["paused"] is False


# -- nobody knows who -------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not compat.HAS_NATIVE_BATCHES, reason="Salt 3008 is the first with master_async_mworker")
def test_an_unknown_caller_may_look_at_everything_and_do_nothing(salt_factories):
    daemon = make_master(
        salt_factories,
        sharedsecret=SECRET,
        external_auth={"sharedsecret": USERS},
        master_async_mworker=True,
        engines=[{"batch_manager": {}}],
        job_retry=False,
    )
    daemon.slow_stop = False
    with daemon.started():
        call = Python(salt.config.client_config(daemon.config_file)).call
        assert is_refused(call("batch.start", "*", "test.ping", user="boss"), "not known who asks")
        assert call("batch.list", user="boss")["return"] == []
