"""Publishing through a master's request port: a real zmq server takes the place of the master."""

from __future__ import annotations

import threading

import pytest
import salt.config
import salt.payload
import zmq

from saltext.jobs.core import compat
from saltext.jobs.core.disk.lease import Lease
from saltext.jobs.core.errors import NoMinionMatched, PublishFailed
from saltext.jobs.core.master.publisher import Publisher
from saltext.jobs.core.postgresql.lease import Superseded
from saltext.jobs.core.retry.reader import limits_of
from tests.user import USER
from tests.waiting import stretched


class Master:
    """Answers publishes, and knows which connection each came over."""

    def __init__(self):
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.ROUTER)
        self.port = self.socket.bind_to_random_port("tcp://127.0.0.1")
        self.connections, self.keys, self.users = [], [], []
        self.answer = lambda load: {"load": {"jid": load["jid"], "minions": ["a"]}}
        self.gathered, self.together = [], 1
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self):
        while not self._stop.is_set():
            if self.socket.poll(20):
                self._take(*self.socket.recv_multipart())

    def _take(self, *frames):
        self.connections.append(frames[0])
        self.gathered.append(frames)
        if len(self.gathered) < self.together:
            return
        for *route, payload in self.gathered:
            load = salt.payload.loads(payload)["load"]
            self.keys.append(load["key"])
            self.users.append(load["user"])
            answer = self.answer(load)
            if answer is not None:
                self.socket.send_multipart([*route, salt.payload.dumps(answer)])
        self.gathered = []

    def stop(self):
        self._stop.set()
        self._thread.join()
        self.context.destroy(0)


class Lead(Lease):
    """The lead of an engine, until another process has it."""

    is_lost = False

    def check(self):
        if self.is_lost:
            raise Superseded("another process leads")


@pytest.fixture
def master():
    made = Master()
    yield made
    made.stop()


@pytest.fixture
def key(tmp_path):
    path = tmp_path / "cache" / f".{USER}_key"
    path.parent.mkdir()
    path.write_text("the first key")
    return path


@pytest.fixture
def publish(master, key, tmp_path, loop):
    seconds = stretched(1)  # which is also enough for an answer that comes
    (tmp_path / "publish_pull.ipc").touch()
    opts = salt.config.master_config(None)
    opts.update(
        interface="127.0.0.1",
        ret_port=master.port,
        cachedir=str(key.parent),
        key_dir=str(key.parent),
        sock_dir=str(tmp_path),
        pki_dir=str(tmp_path),
        user=USER,
        request_channel_tries=1,
        request_channel_timeout=seconds,
    )
    lease = Lead()
    publisher = Publisher(opts, loop, lease=lease)

    def publish(number=1):
        answers = []

        async def send():
            answers.append(await publisher.publish("test.ping", [], ["a"], jid="j", timeout=float(number * seconds)))

        async def send_all():
            for _ in range(number - 1):
                loop.spawn_callback(send)
            await send()
            while len(answers) < number:
                await compat.sleep(0.01)

        loop.run_sync(send_all)
        return answers if number > 1 else answers[0]

    publish.publisher, publish.lease = publisher, lease
    yield publish
    publisher.close()


def test_a_question_that_is_listed_among_the_jobs_is_not_owed_to_absent_minions(master, publish, loop):
    loads, answer = [], master.answer
    master.answer = lambda load: loads.append(load) or answer(load)
    ask = publish.publisher.publish
    for kept, options in ((True, {"metadata": {"job_retry": False}}), (True, None), (False, None)):
        asked = {"question": True, "kept": kept, "options": options}
        loop.run_sync(lambda asked=asked: ask("test.ping", [], "*", "glob", jid="j", **asked))
    listed, stored, unstored = (load["kwargs"] for load in loads)
    assert limits_of("j", listed["metadata"]).off
    assert "nocache" not in stored and "metadata" not in stored
    assert unstored["nocache"] is True


def test_publishes_at_the_same_time_have_a_connection_each_and_do_not_wait_for_one_another(master, publish):
    master.together = 6  # no caller gets an answer before all have asked
    assert publish(6) == [{"a"}] * 6
    assert len(set(master.connections)) == 6
    master.together = 1
    for _ in range(3):
        publish()
    assert len(set(master.connections)) == 6, "those that are there are used"
    master.together = 6
    publish(6)
    assert len(set(master.connections)) == 9, "three are kept, as each takes eight open files and two threads"


def test_a_connection_on_which_no_answer_came_is_not_used_again(master, publish):
    publish()
    genuine, master.answer = master.answer, lambda load: None
    with pytest.raises(PublishFailed) as failed:
        publish()
    assert not failed.value.certain
    master.answer = genuine
    before = set(master.connections)
    assert publish() == {"a"}
    assert master.connections[-1] not in before


def test_a_refusal_is_certain_and_leaves_the_connection_in_use(master, publish):
    genuine = master.answer
    for name in ("AuthenticationError", "AuthorizationError"):
        master.answer = lambda load, name=name: {"error": {"name": name, "message": "no"}}
        with pytest.raises(PublishFailed) as failed:
            publish()
        assert failed.value.certain
        assert failed.value.forbidden is (name == "AuthorizationError"), "it will refuse the same again"
    master.answer = genuine
    publish()
    assert len(set(master.connections)) == 1


def test_where_the_master_fails_at_a_publish_it_may_have_published(master, publish):
    master.answer = lambda load: "Some exception handling minion payload"
    with pytest.raises(PublishFailed) as failed:
        publish()
    assert not failed.value.certain


def test_a_publish_to_unknown_minions_matches_no_minion(master, publish):
    master.answer = lambda load: {"load": {"jid": load["jid"], "minions": []}}
    with pytest.raises(NoMinionMatched):
        publish()


def test_a_key_that_the_master_has_made_again_is_read_again(master, key, publish):
    publish()
    key.write_text("the second key")
    genuine = master.answer
    master.answer = lambda load: genuine(load) if load["key"] == "the second key" else ""
    assert publish() == {"a"}
    assert master.keys == ["the first key", "the second key"]


def test_nothing_is_published_while_the_master_has_no_publisher(master, publish, tmp_path):
    (tmp_path / "publish_pull.ipc").unlink()
    with pytest.raises(PublishFailed):
        publish()
    assert not master.connections


def test_an_engine_that_has_lost_the_lead_publishes_nothing(master, publish):
    publish()
    publish.lease.is_lost = True
    with pytest.raises(PublishFailed, match="another process leads") as caught:
        publish()
    assert (caught.value.certain, len(master.connections)) == (True, 1)
