"""
Job retry on a real master: every way in which a job is published, taken back, given up, forged, and asked for.

The minion bert comes and goes. The key of carol is accepted, but carol is never there. The key of mallory is accepted too,
and mallory sends the master whatever it likes. The engine is a process of its own, so that a test can run it with another
configuration.
"""

from __future__ import annotations

import contextlib
import datetime
import pathlib
import socket
import types

import pytest
import salt.channel.client
import salt.client
import salt.config
import salt.netapi
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from salt.exceptions import CommandExecutionError

from saltext.jobs.core.errors import Refused
from tests.integration.conftest import make_master, make_minion, salt_run
from tests.integration.faults import EngineProcess
from tests.integration.job_retry.desk import OPTIONS, TIMES, Ear, kill, lines
from tests.waiting import stretched, wait_for

SECRET = "a long shared secret"
#: A system user with limits in publisher_acl, and a user of salt-api.
SYSTEM_USER, API_USER = "games", "boss"
RETRY = {**OPTIONS, "supersede": ["cmd.run"]}
NEVER = "20300101000000000000"

REACTION = """
remember:
  local.cmd.run:
    - tgt: bert
    - arg:
      - {{ data['command'] | json }}
"""

RUNNER = '''
import pathlib

def publish_once(order):
    """Publish what a file says, and remove it."""
    order = pathlib.Path(order)
    if order.exists():
        command = order.read_text()
        order.unlink()
        __salt__["salt.execute"]("bert", "cmd.run", [command])
'''


@pytest.fixture(scope="module")
def master(salt_factories, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ways")
    (folder / "reaction.sls").write_text(REACTION)
    (folder / "runners").mkdir()
    (folder / "runners" / "ways.py").write_text(RUNNER)
    order = folder / "order"
    daemon = make_master(
        salt_factories,
        job_retry=RETRY,
        engines=[],
        publisher_acl={SYSTEM_USER: ["cmd.run"]},
        sharedsecret=SECRET,
        external_auth={"sharedsecret": {API_USER: ["cmd.run", {"@runner": ["job_retry.*"]}]}},
        netapi_enable_clients=["local_async", "runner"],
        peer={"mallory": ["cmd.run"]},
        reactor=[{"ways/react": [str(folder / "reaction.sls")]}],
        runner_dirs=[str(folder / "runners")],
        schedule={"ways": {"function": "ways.publish_once", "args": [str(order)], "seconds": 1}},
        loop_interval=1,
        presence_events=True,
        **TIMES,
    )
    daemon.order = order
    with daemon.started():
        yield daemon


@pytest.fixture(scope="module")
def engine(master, tmp_path_factory):
    """The engine with the master's own configuration."""
    engine = EngineProcess(master, tmp_path_factory.mktemp("engine") / "log", "job_retry").start()
    yield engine
    if engine.is_running():
        engine.kill()


@pytest.fixture(scope="module")
def desk(engine, desk):
    return desk


def introduce(master, name):
    """A minion, not started, whose key the master has accepted."""
    daemon = make_minion(master, name)
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    folder = pathlib.Path(daemon.config["pki_dir"])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "minion.pem").write_bytes(private)
    (folder / "minion.pub").write_bytes(public)
    (pathlib.Path(master.config["pki_dir"]) / "minions" / name).write_bytes(public)
    return daemon


@pytest.fixture(scope="module")
def bert_once(master, desk):
    daemon = introduce(master, "bert")
    introduce(master, "carol")
    yield daemon
    if daemon.is_running():
        kill(daemon)


@pytest.fixture(scope="module")
def mallory(master):
    """What an accepted minion can send to the master: anything."""
    config = dict(introduce(master, "mallory").config)
    config["master_uri"] = f"tcp://127.0.0.1:{config['master_port']}"
    with salt.channel.client.ReqChannel.factory(config) as channel:

        def send(command, **load):
            token = channel.auth.gen_token(b"salt")
            return channel.send({"cmd": command, "id": "mallory", "tok": token, **load}, timeout=stretched(20))

        yield send


@contextlib.contextmanager
def other_engine(master, engine, folder, **changes):
    """The engine with a changed configuration, instead of its own."""
    config = yaml.safe_load(pathlib.Path(master.config_file).read_text())
    path = folder / "master"
    path.write_text(yaml.safe_dump({**config, **changes}))
    changed = types.SimpleNamespace(config_file=str(path), config=master.config)
    engine.kill()
    other = EngineProcess(changed, folder / "engine.log", "job_retry").start()
    try:
        yield other
    finally:
        other.kill()
        engine.start()


def publish_as(desk, user, command):
    """Publish with the key that the master has made for a system user, as ``salt`` does when that user runs it."""
    client = salt.client.LocalClient(mopts=dict(desk.opts))
    try:
        client.salt_user = user
        client.key = pathlib.Path(desk.opts["cachedir"], f".{user}_key").read_text()
        return client.run_job("bert", "cmd.run", [command], listen=False)["jid"]
    finally:
        client.destroy()


def call_api(master, **low):
    """Ask for something as salt-api does for a user of its own."""
    api = salt.netapi.NetapiClient(salt.config.api_config(master.config_file))
    credentials = {"eauth": "sharedsecret", "username": API_USER, "password": SECRET}
    return api.run({**low, **credentials})


def publish_by_api(master, command):
    return call_api(master, client="local_async", tgt="bert", fun="cmd.run", arg=[command])["jid"]


def commands(desk):
    """The queue as ``{command: jid}``."""
    return {desk.run("job_retry.show", *entry)["arg"][0]: entry[1] for entry in desk.queue(state="pending")}


def test_whatever_published_a_job_it_reaches_the_minion_that_was_away(desk, master, mallory, bert, tmp_path):
    ran = tmp_path / "ran"
    origins = ("a user of the system", "salt-api", "a reactor", "the schedule", "a minion", "a runner")
    wanted = {origin: f"echo '{origin}' >> {ran}" for origin in origins}
    publish_as(desk, SYSTEM_USER, wanted["a user of the system"])
    publish_by_api(master, wanted["salt-api"])
    desk.fire("ways/react", {"command": wanted["a reactor"]})
    master.order.write_text(wanted["the schedule"])
    mallory("minion_pub", fun="cmd.run", arg=[wanted["a minion"]], tgt="bert", tgt_type="glob", ret="")
    desk.run("salt.execute", "bert", "cmd.run", [wanted["a runner"]])
    wait_for(lambda: commands(desk).keys() == set(wanted.values()), what="all are queued")
    jids = {origin: commands(desk)[command] for origin, command in wanted.items()}
    bert.start()
    for jid in jids.values():
        desk.await_return("bert", jid)
    wait_for(lambda: not desk.queue(), what="the queue is empty")
    assert sorted(ran.read_text().splitlines()) == sorted(origins)
    users = {origin: desk.run("jobs.list_job", jid)["User"] for origin, jid in jids.items()}
    assert (users["a user of the system"], users["salt-api"]) == (SYSTEM_USER, API_USER)


def test_a_job_of_a_user_who_has_lost_the_permission_is_dead_and_says_so(desk, master, engine, bert, tmp_path):
    ran = tmp_path / "ran"
    by_system_user = publish_as(desk, SYSTEM_USER, f"echo system >> {ran}")
    by_api_user = publish_by_api(master, f"echo api >> {ran}")
    by_root = desk.publish("cmd.run", f"echo root >> {ran}", tgt="bert")
    unkept = desk.publish("cmd.run", f"echo by hand >> {ran}", tgt="bert", metadata={"job_retry": False})
    assert call_api(master, client="runner", fun="job_retry.enqueue", arg=[unkept, "bert"]) == 1
    assert desk.run("job_retry.show", "bert", unkept)["asked_for_by"] == API_USER
    wait_for(lambda: len(desk.queue(state="pending")) == 4, what="all are queued")
    fewer = {
        "publisher_acl": {SYSTEM_USER: ["test.*"]},
        "external_auth": {"sharedsecret": {API_USER: ["test.*"]}},
    }
    with other_engine(master, engine, tmp_path, **fewer):
        bert.start()
        desk.await_return("bert", by_root)
        for jid, user in ((by_system_user, SYSTEM_USER), (by_api_user, API_USER)):
            desk.await_state("bert", jid, "dead")
            entry = desk.run("job_retry.show", "bert", jid)
            assert (entry["user"], entry["attempts"]) == (user, 0)
            assert entry["reason"] == f"{user} may not publish cmd.run to it any more"
        desk.await_state("bert", unkept, "dead")
        reason = desk.run("job_retry.show", "bert", unkept)["reason"]
        assert reason == f"{API_USER} may not publish cmd.run to it any more"
    assert ran.read_text().split() == ["root"]


def test_outside_its_window_a_job_waits_until_an_operator_wants_it_now(desk, master, engine, bert, tmp_path):
    ran, noon = tmp_path / "ran", datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(hours=6)
    shut = {"window": f"{noon:%H:%M}-{noon + datetime.timedelta(hours=6):%H:%M}", "timezone": "UTC"}
    with other_engine(master, engine, tmp_path, job_retry={**RETRY, **shut}):
        waits = desk.publish("cmd.run", f"echo waits >> {ran}", tgt="bert")
        at_any_time = {"job_retry": {"window": ""}}
        goes = desk.publish("cmd.run", f"echo goes >> {ran}", tgt="bert", metadata=at_any_time)
        wait_for(lambda: len(desk.queue(state="pending")) == 2, what="both are queued")
        bert.start()
        desk.await_return("bert", goes)
        assert desk.state("bert", waits) == "pending"
        assert desk.run("job_retry.replay", "bert") == 1
        desk.await_return("bert", waits)
        wait_for(lambda: not desk.queue(), what="the queue is empty")
    assert ran.read_text().split() == ["goes", "waits"]


def test_the_same_job_published_again_takes_the_place_of_the_older_one(desk, bert, tmp_path):
    ran = tmp_path / "ran"
    older, newer = (desk.publish("cmd.run", f"echo same >> {ran}", tgt="bert") for _ in range(2))
    other = desk.publish("cmd.run", f"echo other >> {ran}", tgt="bert")
    desk.await_state("bert", other, "pending")
    wait_for(lambda: desk.state("bert", older) == "cancelled", what="the older one gives way")
    assert desk.run("job_retry.show", "bert", older)["reason"] == f"the same job was published again: {newer}"
    bert.start()
    desk.await_return("bert", newer)
    desk.await_return("bert", other)
    assert ran.read_text().split() == ["same", "other"]
    assert "bert" not in (desk.returned(older) or {})


def test_an_operator_lists_shows_enqueues_and_purges_and_is_told_what_is_wrong(desk, master, bert, tmp_path):
    def refused(message, function, *args, **kwargs):
        with pytest.raises(CommandExecutionError, match=message):
            desk.run(f"job_retry.{function}", *args, **kwargs)

    excluded = desk.publish("test.ping", tgt="carol")
    owed = desk.publish("cmd.run", f"echo x >> {tmp_path}/ran", tgt="carol", metadata={"ticket": "T-1"}, ret="smtp")
    assert desk.run("job_retry.enqueue", excluded, minions=["carol"]) == 1
    assert desk.run("job_retry.enqueue", int(excluded), minions="carol") == 0
    desk.await_state("carol", owed, "pending")
    assert desk.run("job_retry.cancel", minion="carol", jid=excluded) == 1
    assert desk.queue(state="pending") == {("carol", owed): "pending"}
    assert desk.queue(state=["cancelled", "held"], jid=excluded) == {("carol", excluded): "cancelled"}
    assert desk.queue(minion="bert") == {}

    shown = desk.run("job_retry.show", "carol", int(owed))
    assert (shown["tgt"], shown["tgt_type"], shown["ret"], shown["metadata"]) == (
        "carol",
        "glob",
        "smtp",
        {"ticket": "T-1"},
    )
    assert [(step["state"], step["reason"]) for step in desk.run("job_retry.show", "carol", excluded)["history"]] == [
        ("pending", "by an operator"),
        ("cancelled", "by an operator"),
    ]

    refused("is not in the job cache", "enqueue", NEVER)
    refused("no accepted key here: nobody", "enqueue", owed, minions="carol,nobody")
    refused("jid is '../../etc'", "enqueue", "../../etc")
    refused("minion is 'a/b'", "replay", "a/b")
    refused("a/b", "enqueue", owed, minions="a/b")
    refused("Name a minion, a jid, or both", "retry")
    refused("state is 'lost'", "list", state="lost")
    refused("state is 'pending'", "purge", "pending")
    refused(f"bert has no entry for job {owed}", "show", "bert", owed)
    refused("No entry of minion=bert waits for delivery", "replay", "bert")
    with pytest.raises(Refused, match="No entry of minion=carol is held or dead"):
        desk.run("job_retry.retry", minion="carol")
    told = salt_run(master, "job_retry.enqueue", NEVER)
    assert told.returncode != 0
    assert f"Job {NEVER} is not in the job cache as one that this master has published" in told.stdout + told.stderr

    assert desk.run("job_retry.purge", state=["expired", "cancelled"]) == 1
    assert desk.queue() == {("carol", owed): "pending"}


def test_an_accepted_minion_that_forges_loads_and_targets_gets_no_minion_a_job(desk, mallory, bert, tmp_path):
    ran = tmp_path / "ran"
    owed = desk.publish("cmd.run", f"echo owed >> {ran}", tgt="bert")
    carols = desk.publish("cmd.run", f"echo carols >> {ran}", tgt="carol")
    later = "20300101000000000001"
    forged = {
        "fun": "cmd.run",
        "arg": [f"echo forged >> {ran}"],
        "tgt": "bert",
        "tgt_type": "list",
        "user": "root",
        "ret": "",
    }

    # As a syndic hands on what its minions return: with the load of the job. One alone, and several together.
    for jid in (NEVER, later, owed):
        load = {**forged, "jid": jid, "minions": ["bert", "mallory"]}
        one = {"jid": jid, "load": load, "return": {"mallory": {"return": "x", "retcode": 0}}}
        mallory("_syndic_return", **one)
        mallory("_syndic_return", load=[{**one, "id": "mallory"}])
    # As a syndic says which minions it has published a job to.
    for jid in (NEVER, later, carols):
        mallory(
            "_minion_event", events=[{"tag": f"syndic/job/{jid}", "data": {"jid": jid, "minions": ["bert", "mallory"]}}]
        )
    assert "bert" in desk.run("jobs.list_job", carols)["Minions"], "Salt takes her word"
    assert desk.run("jobs.list_job", NEVER)["Function"] == "cmd.run", "Salt takes her word"

    assert desk.publish("cmd.run", f"echo later >> {ran}", tgt="bert", jid=later) == later
    for jid in (NEVER, carols):
        desk.fire(f"salt/job/{jid}/new", {**forged, "jid": jid, "minions": ["bert"]})
    marker = desk.publish("cmd.run", f"echo marker >> {ran}", tgt="carol")
    desk.await_state("carol", marker, "pending")
    assert desk.queue().keys() == {("bert", owed), ("bert", later), ("carol", carols), ("carol", marker)}
    bert.start()
    for jid in (owed, later):
        desk.await_return("bert", jid)
    assert sorted(ran.read_text().split()) == ["later", "owed"]
    assert desk.run("jobs.list_job", owed)["Arguments"] == [f"echo owed >> {ran}"]


def test_an_accepted_minion_that_answers_for_another_ends_nothing_and_runs_nothing(desk, mallory, bert, tmp_path):
    ran = tmp_path / "ran"
    jid = desk.publish("cmd.run", f"echo x >> {ran}", tgt="bert")
    desk.await_state("bert", jid, "pending")
    asked, forged = [], {"jid": jid, "fun": "cmd.run", "return": "forged", "retcode": 0, "success": True}

    def answer(tag):
        _, job, question, kind = tag.split("/")[:4]
        if (job, kind) == ("job", "new") and question != jid:
            asked.append(question)
            answers = {"saltutil.find_job": {}, "saltutil.find_cached_job": forged}
            data = {"jid": question, "id": "bert", "fun": list(answers), "return": answers, "retcode": 0}
            event = {"tag": f"salt/job/{question}/ret/bert", "data": data}
            mallory("_minion_event", events=[event])

    with Ear(desk.master) as ear:
        mallory("_minion_event", events=[{"tag": "salt/minion/bert/start", "data": {"id": "bert"}}])
        wait_for(lambda: ear.count("salt/job/*/new"), what="bert is asked")
        for tag in ear.tags("salt/job/*/new"):
            answer(f"/{tag}".lstrip("/"))
        wait_for(lambda: desk.run("job_retry.stats")["states"] == {"pending": 1}, what="nothing is concluded")
    assert asked
    assert "bert" not in (desk.returned(jid) or {})
    bert.start()
    desk.await_return("bert", jid)
    wait_for(lambda: not desk.queue(), what="the queue is empty")
    assert lines(ran) == 1
    assert (desk.returned(jid) or {})["bert"] != "forged"


def test_with_triggers_presence_only_presence_or_an_operator_gets_a_minion_its_jobs(
    desk, master, engine, bert, tmp_path
):
    """Salt detects minions by their addresses. While another one is connected from here, it does not miss bert."""
    ran = tmp_path / "ran"
    first = desk.publish("cmd.run", f"echo first >> {ran}", tgt="bert")
    desk.await_state("bert", first, "pending")
    # Bert is seen when it connects, a good while before it can answer.
    patient = {"job_retry": {**RETRY, "triggers": ["presence"]}, "gather_job_timeout": 10}
    with other_engine(master, engine, tmp_path, **patient):
        bert.start()
        desk.await_return("bert", first)
        with socket.create_connection(("127.0.0.1", master.config["publish_port"])):
            kill(bert)
            second = desk.publish("cmd.run", f"echo second >> {ran}", tgt="bert")
            assert desk.run("job_retry.enqueue", second) == 1
            bert.start()
            assert desk.ask("bert", "test.sleep", 2) is True
            assert desk.state("bert", second) == "pending"
            assert desk.run("job_retry.replay", "bert") == 1
            desk.await_return("bert", second)
    assert ran.read_text().split() == ["first", "second"]
