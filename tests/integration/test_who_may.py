"""Who may start, control and repeat jobs with the runners, by whichever way the call came, and under which name."""

from __future__ import annotations

import http.server
import json
import threading

import pytest
import salt.channel.client
import salt.config
import salt.runner

from tests.integration.conftest import make_master, minions
from tests.waiting import wait_for

pytestmark = pytest.mark.story

SECRET = "a long shared secret"
RUNNERS = [{"@runner": ["batch.*", "job_retry.*"]}]
#: Users of the API whose names mean something to Salt, with a right to our runners and to nothing else.
NAMESAKES = ["root", "sudo_anna", "UNKNOWN", "Reactor"]
USERS = {
    **dict.fromkeys(NAMESAKES, RUNNERS),
    "runs_runners_only": ["@runner"],
    "boss": ["test.*", *RUNNERS],
    "of_a1": [{"a1": ["test.*"]}, *RUNNERS],
}


class Lists(http.server.BaseHTTPRequestHandler):
    """The server behind eauth ``rest``: it tells the access list with the password, and never without."""

    def do_POST(self):
        sent = self.rfile.read(int(self.headers["Content-Length"])).decode()
        good = SECRET.replace(" ", "+") in sent or SECRET.replace(" ", "%20") in sent
        body = json.dumps(USERS["boss"] if "username=boss" in sent else RUNNERS).encode()
        self.send_response(200 if good else 401)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def rest():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Lists)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/acl"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def master(salt_factories, rest):
    daemon = make_master(
        salt_factories,
        sharedsecret=SECRET,
        external_auth={"sharedsecret": USERS, "rest": {"^url": rest}},
        peer_run={"a[12]": ["batch.*", "job_retry.*"]},
        batch_manager={"allow_peers": ["a2"]},
    )
    daemon.slow_stop = False
    with daemon.started(), minions(daemon, "a1", "a2"):
        yield daemon


@pytest.fixture(scope="module")
def opts(master):
    return salt.config.client_config(master.config_file)


@pytest.fixture(scope="module")
def api(opts):
    """Call a runner as salt-api does, whichever of its front ends it is; what the runner's event tells."""

    def call(fun, /, *arg, eauth="sharedsecret", user=None, token=None, **kwarg):
        who = {"token": token} if token else {"eauth": eauth, "username": user, "password": SECRET}
        client = salt.runner.RunnerClient(dict(opts))
        return client.cmd_sync({"fun": fun, "arg": list(arg), "kwarg": kwarg, **who}, full_return=True)["data"]

    return call


def batches(api):
    return api("batch.list", user="boss")["return"]


def is_refused(answer, word="may not"):
    assert (answer["success"], answer["retcode"]) == (False, 1), answer
    assert word in answer["return"], answer
    return True


@pytest.mark.parametrize("user", [*NAMESAKES, "runs_runners_only"])
@pytest.mark.parametrize("verb", ["batch.start", "batch.run"])
def test_a_right_to_the_runner_is_none_on_any_function_whatever_the_user_is_called(api, user, verb):
    before = len(batches(api))
    assert is_refused(api(verb, "*", "cmd.run", "id", user=user))
    assert is_refused(api(verb, "*", "test.ping", user=user, __pub_user="root"))
    assert len(batches(api)) == before


def test_a_user_may_batch_what_he_may_publish_and_nothing_else(api):
    assert is_refused(api("batch.start", "*", "cmd.run", "id", user="boss"))
    started = api("batch.start", "*", "test.ping", user="boss")
    assert started["return"]["user"] == "boss"
    assert is_refused(api("batch.start", "*", "test.ping", user="of_a1"))
    assert api("batch.start", "a1", "test.ping", user="of_a1")["return"]["user"] == "of_a1"


def test_a_list_that_is_known_with_the_password_only_is_the_limit(api):
    assert is_refused(api("batch.start", "*", "test.ping", eauth="rest", user="root"))
    assert is_refused(api("batch.start", "*", "cmd.run", "id", eauth="rest", user="boss"))
    assert api("batch.start", "*", "test.ping", eauth="rest", user="boss")["return"]["user"] == "boss"


def test_a_token_gives_what_its_user_has(api, opts):
    # Of `rest`, since Salt keeps the lists in all tokens where that is configured, and the other backends give it none.
    def token_of(user):
        with salt.channel.client.ReqChannel.factory(dict(opts), crypt="clear") as channel:
            load = {"cmd": "mk_token", "eauth": "rest", "username": user, "password": SECRET}
            return channel.send(load)["token"]

    assert is_refused(api("batch.start", "*", "cmd.run", "id", token=token_of("root")))
    assert is_refused(api("batch.start", "*", "cmd.run", "id", token=token_of("boss")))
    assert api("batch.start", "*", "test.ping", token=token_of("boss"))["return"]["user"] == "boss"


def test_who_may_not_publish_a_job_may_not_repeat_resume_or_kill_it_either(api, run):
    jid = run("batch.start", "a*", "cmd.run", "sleep 300", "batch=1")["jid"]
    assert run("batch.pause", jid) is True
    for user in ("boss", "root"):
        assert is_refused(api("batch.resume", jid, user=user))
        assert is_refused(api("batch.stop", jid, kill=True, user=user))
        assert api("batch.status", jid, user=user)["return"]["state"] == "paused"
    assert run("batch.stop", jid, "kill=True") is True
    wait_for(lambda: run("batch.status", jid)["finished"], what="the batch has ended")
    assert is_refused(api("batch.retry", jid, which="all", user="boss"))


def test_a_user_may_stop_a_batch_without_killing_and_is_named(api, run):
    jid = run("batch.start", "a*", "cmd.run", "sleep 5", "batch=1")["jid"]
    assert api("batch.stop", jid, user="root")["return"] is True
    assert run("batch.status", jid)["stopped_by"] == "sharedsecret:root"


def test_a_job_is_queued_by_hand_by_those_who_may_publish_it_and_for_its_own_minions_only(api, run, command):
    jid = run("batch.run", "a1", "cmd.run", "exit 0", "batch=1")["jid"]
    assert is_refused(api("job_retry.enqueue", jid, user="boss"))
    assert is_refused(api("job_retry.enqueue", jid, minions="a2", user="root"))
    refused = command("job_retry.enqueue", jid, "minions=a2")
    assert refused.returncode == 1
    assert f"Job {jid} was not published to a2" in refused.stderr


def test_a_minion_may_start_a_batch_only_where_it_is_named(master, run):
    def ask(minion, fun, *arg):
        return master.salt_cli(timeout=90).run("publish.runner", fun, json.dumps(list(arg)), minion_tgt=minion).data

    assert "may look at this, and change nothing" in str(ask("a1", "batch.start", "a*", "test.ping"))
    assert "may look at this, and change nothing" in str(ask("a2", "job_retry.pause"))
    assert isinstance(ask("a1", "batch.list"), (list, str))
    ask("a2", "batch.start", "a*", "test.echo", "by a peer")
    wait_for(
        lambda: [batch["user"] for batch in run("batch.list") if batch["fun"] == "test.echo"] == ["a2"],
        what="the batch of the minion that may",
    )
    assert run("job_retry.stats")["paused"] is False


def test_at_the_master_s_command_line_nothing_is_limited(run):
    assert run("batch.run", "a*", "cmd.run", "exit 0", "batch=1")["user"] == "root"
