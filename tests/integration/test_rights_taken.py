"""
Rights that were taken away: a batch that waits for its time, an approval or a resume. Jobs that wait to be delivered are in
test_backends.py.

The rights of some are taken by a change of the master's configuration, while the master is down; those of others by a
backend that has their lists and answers at any time.
"""

from __future__ import annotations

import json
import pathlib

import pytest
import yaml

from tests.integration.api import SECRET, Api, fronts, salt_api
from tests.integration.conftest import ask_runner, finished, look_at, make_master, make_minion, salt_run
from tests.waiting import stretched, wait_for

pytestmark = pytest.mark.story

RIGHTS = ["test.*", "file.append", {"@runner": ["batch.*", "job_retry.*"]}]
RUNNERS = [{"@runner": ["batch.*", "job_retry.*"]}]
#: Users who lose every right except the runners. The name has a meaning to Salt.
GONE = ["root"]
#: A backend whose lists are in a file, and which tells them without a password.
LISTED = """
import json

def _lists():
    with open(__opts__["listed"]) as stream:
        return json.load(stream)

def auth(username, password, **kwargs):
    return password == __opts__["sharedsecret"] and username in _lists()

def acl(username, **kwargs):
    return _lists().get(username, [])
"""


class World:
    """A master whose users may lose their rights, with the folder of traces of what has run."""

    def __init__(self, master, folder):
        self.master, self.folder = master, folder
        self.api = Api(master, "rest_cherrypy")
        self.tokens, self.jids = {}, {}

    def run(self, *args):
        return ask_runner(self.master, *args)

    def lists(self, **users):
        (self.folder / "lists").write_text(json.dumps(users))

    def runs(self, name):
        """How often a job has run, by the lines that it has left."""
        path = self.folder / f"ran-{name}"
        return path.read_text().count(name) if path.exists() else 0

    def job(self, name):
        (self.folder / f"ran-{name}").touch()
        return ["file.append", str(self.folder / f"ran-{name}"), name]

    def token(self, user, eauth="sharedsecret"):
        if (user, eauth) not in self.tokens:
            self.tokens[user, eauth] = self.api.log_in(user, eauth)
        return self.tokens[user, eauth]

    def start(self, name, user, eauth="sharedsecret", by_password=False, **options):
        """Start a batch in a session, or with the password."""
        who = {"user": user, "eauth": eauth} if by_password else {"token": self.token(user, eauth)}
        answer = self.api.call("batch.start", "a[12]", *self.job(name), **who, **{"batch": 1, **options})
        assert answer["success"], answer
        self.jids[name] = answer["return"]["jid"]

    def look(self, *args, **options):
        return look_at(self.master, *args, **options)

    def status(self, name):
        return self.look("batch.status", self.jids[name])

    def await_pause(self, name, reason):
        def paused():
            found = self.status(name)
            return reason in str(found["paused_reason"]) and found

        return wait_for(paused, what=lambda: f"{name} is paused: {self.status(name)}")

    def await_end(self, name):
        return finished(self.look, self.jids[name])


@pytest.fixture(scope="module")
def world(salt_factories, tmp_path_factory):
    folder = tmp_path_factory.mktemp("rights")
    (folder / "modules" / "auth").mkdir(parents=True)
    (folder / "modules" / "auth" / "listed.py").write_text(LISTED)
    before = {
        "sharedsecret": {**dict.fromkeys([*GONE, "keeps"], RIGHTS)},
        "listed": {"nobody": []},
    }
    daemon = make_master(
        salt_factories,
        sharedsecret=SECRET,
        external_auth=before,
        module_dirs=[str(folder / "modules")],
        listed=str(folder / "lists"),
        engines=[{"batch_manager": {}}],
        **fronts("rest_cherrypy"),
    )
    daemon.slow_stop = False
    world = World(daemon, folder)
    world.lists(listed=RIGHTS, other=RIGHTS)
    with daemon.started(), salt_api(daemon):
        present = [make_minion(daemon, name) for name in ("a1", "a2")]
        for minion in present:
            minion.slow_stop = False
            minion.start()
        world.token("keeps")
        prepare(world)

        daemon.terminate()
        path = pathlib.Path(daemon.config_file)
        config = yaml.safe_load(path.read_text())
        after = config["external_auth"]
        after["sharedsecret"].update(dict.fromkeys(GONE, RUNNERS))
        path.write_text(yaml.safe_dump(config))
        daemon.start()
        wait_for(lambda: salt_run(daemon, "batch.stats").returncode == 0, what="the engine is back")
        yield world
        for minion in present:
            minion.terminate()


def prepare(world):
    """What waits when the rights are taken."""
    for user in ("keeps", *GONE):
        world.start(f"asks-{user}", user, check="approve", batch="1,1")
    for user in ("keeps", *GONE):
        wait_for(lambda user=user: world.status(f"asks-{user}")["approve"] == 0, what="it waits for approval")
    # Their time comes when the master is back.
    soon = f"+{stretched(20)}s"
    for user in ("keeps", *GONE):
        world.start(f"timed-{user}", user, start_at=soon)
        world.start(f"paused-{user}", user, start_at=soon)
        assert world.run("batch.pause", world.jids[f"paused-{user}"]) is True
    world.start("by-password", "root", by_password=True, start_at=soon)


# -- batches that wait ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["timed", "asks", "paused"])
def test_a_batch_of_a_user_who_still_has_the_right_goes_on(world, kind):
    name = f"{kind}-keeps"
    if kind == "asks":
        world.run("batch.approve", world.jids[name])
    if kind == "paused":
        world.run("batch.resume", world.jids[name])
    assert world.await_end(name)["success"] is True
    assert world.runs(name) == 2


@pytest.mark.parametrize("kind", ["timed", "asks", "paused"])
def test_a_batch_whose_owner_has_lost_the_right_waits_until_another_user_takes_it_over(world, kind):
    name = f"{kind}-root"
    before = 1 if kind == "asks" else 0
    if kind == "asks":
        world.run("batch.approve", world.jids[name])
    if kind == "paused":  # who resumes it knows nothing of the owner
        world.run("batch.resume", world.jids[name])
    world.await_pause(name, "may not publish file.append to")
    assert world.runs(name) == before

    answer = world.api.call("batch.resume", world.jids[name], token=world.token("root"))
    assert answer["success"] is False, answer  # the user who has lost the rights cannot resume it
    assert world.run("batch.resume", world.jids[name]) is True
    ended = world.await_end(name)
    assert ended["success"] is True
    assert ended["taken_over_by"]
    assert world.runs(name) == 2


def test_another_user_with_rights_takes_it_over_and_is_limited_in_the_same_way(world):
    world.await_pause("by-password", "may not publish file.append to")
    answer = world.api.call("batch.resume", world.jids["by-password"], token=world.token("keeps"))
    assert answer["return"] is True, answer
    ended = world.await_end("by-password")
    assert (ended["success"], ended["user"], ended["taken_over_by"]) == (True, "sharedsecret:root", "keeps")


def test_rights_are_checked_again_at_each_stage(world):
    options = {"by_password": True, "eauth": "listed", "batch": "1,1", "batch_wait": 6}
    world.start("stages", "listed", **options)
    wait_for(lambda: world.runs("stages") == 1, what="the first stage has run")
    world.lists(other=RIGHTS)
    world.await_pause("stages", "may not publish file.append to")
    assert world.runs("stages") == 1
    # And the rights of the user who has taken it over.
    who = {"user": "other", "eauth": "listed"}
    assert "is paused" in world.api.call("batch.pause", world.jids["stages"], **who)["return"]
    assert world.api.call("batch.resume", world.jids["stages"], **who)["return"] is True
    assert world.await_end("stages")["success"] is True


# -- a lie about the backend ------------------------------------------------------------------------------------------


def test_a_token_with_the_name_of_another_user_is_refused(world):
    world.lists(other=RIGHTS)  # the name that Salt itself finds for another user's token sent beside it
    low = {"client": "runner", "fun": "batch.start", "arg": ["a1", *world.job("lie")], "full_return": True}
    told = world.api.post("/", [{**low, "eauth": "listed", "username": "other"}], world.token("root"))
    assert "not known who asks" in told[0]["data"]["return"], told
    assert world.runs("lie") == 0
