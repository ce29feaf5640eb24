"""
Job retry on a real master: every way in which a job is published, or is forged.

The minion bert comes and goes. The key of carol is accepted, but carol is never there. The key of mallory is accepted too,
and mallory sends the master whatever it likes.
"""

from __future__ import annotations

import pathlib

import pytest
import salt.channel.client
import salt.client
import salt.config
import salt.netapi
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.integration.conftest import make_master, make_minion
from tests.integration.job_retry.desk import OPTIONS, TIMES, kill
from tests.waiting import stretched, wait_for

SECRET = "a long shared secret"
#: A system user with limits in publisher_acl, and a user of salt-api.
SYSTEM_USER, API_USER = "games", "boss"
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
        job_retry=dict(OPTIONS),
        engines=[{"job_retry": {}}],
        publisher_acl={SYSTEM_USER: ["cmd.run"]},
        sharedsecret=SECRET,
        external_auth={"sharedsecret": {API_USER: ["cmd.run"]}},
        netapi_enable_clients=["local_async"],
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


def publish_as(desk, user, command):
    """Publish with the key that the master has made for a system user, as ``salt`` does when that user runs it."""
    client = salt.client.LocalClient(mopts=dict(desk.opts))
    try:
        client.salt_user = user
        client.key = pathlib.Path(desk.opts["cachedir"], f".{user}_key").read_text()
        return client.run_job("bert", "cmd.run", [command], listen=False)["jid"]
    finally:
        client.destroy()


def publish_by_api(master, command):
    """Publish as salt-api does for a user of its own."""
    api = salt.netapi.NetapiClient(salt.config.api_config(master.config_file))
    user = {"eauth": "sharedsecret", "username": API_USER, "password": SECRET}
    return api.run({"client": "local_async", "tgt": "bert", "fun": "cmd.run", "arg": [command], **user})["jid"]


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
