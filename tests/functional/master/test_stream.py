"""Reading the event bus from its socket: whole events, however they arrive, and no silent end."""

from __future__ import annotations

import math
import operator
import select

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


def test_events_are_heard_in_order_and_whole(publisher, ears, until):
    heard, breaks = ears
    publisher.peer.sendall(b"".join(frame(f"tag/{number}", b"\xa3a\n\n") for number in range(500)))  # 20 KiB
    assert until(lambda: len(heard) == 500)
    assert heard == [f"tag/{number}".encode() + b"\n\n\xa3a\n\n" for number in range(500)]
    assert breaks == []


@pytest.mark.parametrize("size", [1, 2, 7, 100])
def test_an_event_may_come_in_pieces(publisher, ears, until, size):
    heard, _ = ears
    data = b"".join(frame(f"tag/{number}") for number in range(4))
    for start in range(0, len(data), size):
        publisher.peer.sendall(data[start : start + size])
        until(lambda: False, seconds=0.001)
    assert until(lambda: len(heard) == 4)


def test_a_large_event_is_heard(loop, publisher, ears, until):
    heard, _ = ears
    data = memoryview(frame("large", b"x" * (20 << 20)) + frame("small"))
    publisher.peer.setblocking(False)

    def send():
        nonlocal data
        try:
            while data:
                data = data[publisher.peer.send(data) :]
        except BlockingIOError:
            loop.call_later(0.001, send)

    send()
    assert until(lambda: len(heard) == 2)
    assert len(heard[0]) == (20 << 20) + len(b"large\n\n")


class StagedLoop:
    """An engine's loop with a clock of its own. It counts how often the socket woke it, and how often it did anything."""

    READ = 1

    def __init__(self):
        self.woken = self.turns = 0
        self._now, self._timers, self._handlers = 0.0, [], {}

    def time(self):
        return self._now

    def call_later(self, seconds, call):
        self._timers.append((self._now + seconds, call))
        return self._timers[-1]

    def remove_timeout(self, timer):
        self._timers.remove(timer)

    def add_handler(self, handle, take, events):
        self._handlers[handle] = (take, events)

    def remove_handler(self, handle):
        del self._handlers[handle]

    def run(self, seconds):
        """Let time pass."""
        end = self._now + seconds
        while True:
            due = min(self._timers, key=operator.itemgetter(0), default=(math.inf, None))
            if handle := self._readable():
                self.woken += 1
                take, events = self._handlers[handle]
                take(handle, events)
            elif due[0] <= end:
                self._timers.remove(due)
                self._now, call = due
                call()
            else:
                self._now = end
                return
            self.turns += 1

    def _readable(self):
        poll = select.poll()  # unlike select, it takes any number of a file
        for handle in self._handlers:
            poll.register(handle, select.POLLIN)
        return next((handle for handle, _ in poll.poll(0)), None)


def test_a_busy_bus_is_read_at_intervals_and_a_calm_one_at_once_again(folder, publisher):
    loop, heard, count = StagedLoop(), [], 300
    stream = Stream(loop, {"sock_dir": str(folder)}, heard.append, lambda: pytest.fail("nothing broke"))
    assert publisher.has_peer()
    for number in range(count):
        publisher.peer.sendall(frame(f"tag/{number}"))
        loop.run(0.001)
    loop.run(0.1)
    assert len(heard) == count
    assert loop.woken == 2, "for the first event, and for the one so soon after it that the bus counts as busy"
    assert loop.turns < count / 8
    publisher.peer.sendall(frame("single"))
    loop.run(0)
    assert (len(heard), loop.woken) == (count + 1, 3)
    stream.destroy()


def test_a_publisher_that_goes_while_the_bus_is_busy_is_noticed(publisher, ears, until):
    heard, breaks = ears
    for number in range(2):
        publisher.peer.sendall(frame("tag"))
        assert until(lambda wanted=number: len(heard) > wanted)
    publisher.peer.sendall(b"".join(frame("tag") for _ in range(100)))
    publisher.stop()
    assert until(lambda: breaks == [102])
    publisher.start()
    assert until(publisher.has_peer)
    publisher.peer.sendall(frame("next"))
    assert until(lambda: len(heard) == 103)


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


def test_nothing_is_heard_after_the_end(loop, folder, publisher, until):
    heard = []
    stream = Stream(loop, {"sock_dir": str(folder)}, lambda raw: (heard.append(raw), stream.destroy()), lambda: None)
    assert until(publisher.has_peer)
    publisher.peer.sendall(frame("one") + frame("two"))
    assert until(lambda: heard)
    until(lambda: len(heard) > 1, seconds=0.2)
    assert len(heard) == 1
