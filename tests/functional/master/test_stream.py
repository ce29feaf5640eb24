"""Reading the event bus from its socket: whole events, however they arrive, and no silent end."""

from __future__ import annotations

import msgpack
import pytest

from saltext.jobs.core.master.bus import Stream
from tests.functional.master.conftest import PublisherSocket


def frame(tag, payload=b"\x80"):
    return msgpack.packb({"head": {}, "body": tag.encode() + b"\n\n" + payload}, use_bin_type=True)


@pytest.fixture
def publisher(folder):
    made = PublisherSocket(folder, "pub")
    yield made
    made.stop()


@pytest.fixture
def ears(loop, folder, publisher, until):
    """What was heard, and how often the connection broke."""
    heard, breaks = [], []
    stream = Stream(loop, {"sock_dir": str(folder)}, heard.append, lambda: breaks.append(len(heard)))
    assert until(publisher.has_peer)
    yield heard, breaks
    stream.destroy()


@pytest.mark.parametrize("size", [1, 2, 7, 100])
def test_an_event_may_come_in_pieces(publisher, ears, until, size):
    heard, _ = ears
    data = b"".join(frame(f"tag/{number}") for number in range(4))
    for start in range(0, len(data), size):
        publisher.peer.sendall(data[start : start + size])
        until(lambda: False, seconds=0.001)
    assert until(lambda: len(heard) == 4)


def test_a_publisher_that_comes_late_is_heard(loop, folder, until):
    heard = []
    stream = Stream(loop, {"sock_dir": str(folder)}, heard.append, lambda: pytest.fail("nothing broke"))
    until(lambda: False, seconds=0.3)
    publisher = PublisherSocket(folder, "pub")
    assert until(publisher.has_peer)
    publisher.peer.sendall(frame("tag"))
    assert until(lambda: heard)
    stream.destroy()
    publisher.stop()


def test_a_publisher_that_goes_is_noticed_and_the_next_one_heard(publisher, ears, until):
    heard, breaks = ears
    publisher.peer.sendall(frame("one") + frame("half")[:5])
    assert until(lambda: heard)
    publisher.stop()
    assert until(lambda: breaks == [1])
    publisher.start()
    assert until(publisher.has_peer)
    publisher.peer.sendall(frame("two"))
    assert until(lambda: len(heard) == 2)
    assert heard == [b"one\n\n\x80", b"two\n\n\x80"]


@pytest.mark.parametrize("junk", [b"\xc1", b"\x01", b"\xa3abc", msgpack.packb({"a": 1})])
def test_data_that_are_no_event_break_the_connection_and_a_new_one_is_made(publisher, ears, until, junk):
    heard, breaks = ears
    publisher.peer.sendall(junk)
    assert until(lambda: breaks)
    publisher.peer.close()
    publisher.peer = None
    assert until(publisher.has_peer)
    publisher.peer.sendall(frame("tag"))
    assert until(lambda: heard)
