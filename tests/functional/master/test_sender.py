"""Putting events on the bus through the publisher's socket: never waiting, and never half an event before a whole one."""

from __future__ import annotations

import contextlib
import socket
import struct
import time

import msgpack
import pytest

from saltext.jobs.core.master.bus import Bus
from tests.functional.master.conftest import PublisherSocket
from tests.waiting import stretched


class Publisher(PublisherSocket):
    """The publisher's side of the socket that events are given to, and what came over it."""

    def __init__(self, folder):
        super().__init__(folder, "pull")

    def start(self):
        super().start()
        self.data = b""

    def read(self):
        """Return the numbers of the events that came so far."""
        with contextlib.suppress(BlockingIOError):
            while self.has_peer() and (more := self.peer.recv(1 << 20, socket.MSG_DONTWAIT)):
                self.data += more
        numbers, rest = [], self.data
        while len(rest) >= 4 and len(rest) >= 4 + (size := struct.unpack(">I", rest[:4])[0]):
            body = msgpack.unpackb(rest[4 : 4 + size])["body"]
            numbers.append(msgpack.unpackb(body.partition(b"\n\n")[2])["number"])
            rest = rest[4 + size :]
        return numbers


@pytest.fixture
def publisher(folder):
    made = Publisher(folder)
    yield made
    made.stop()


@pytest.fixture
def bus(loop, folder):
    made = Bus({"sock_dir": str(folder)}, loop, "test")
    yield made
    made.close()


def test_a_publisher_that_does_not_read_blocks_nothing_and_gets_all_once_it_reads(bus, publisher, until):
    begun = time.monotonic()
    for number in range(100):
        bus.fire("tag", {"number": number, "more": "x" * 50_000})
    assert time.monotonic() - begun < stretched(5)
    assert until(lambda: publisher.read() == list(range(100)))
    bus.fire("tag", {"number": 100})
    assert until(lambda: publisher.read() == list(range(101)))


def test_a_publisher_that_never_reads_is_given_up_at_some_point(bus, publisher, caplog):
    for number in range(100):
        bus.fire("tag", {"number": number, "more": "x" * 1_000_000})
    (record,) = caplog.records
    assert record.getMessage() == "Could not fire tag: Reached maximum write buffer size"


def test_after_a_break_the_new_publisher_gets_whole_events_only(bus, publisher, until):
    for number in range(20):
        bus.fire("tag", {"number": number, "more": "x" * 50_000})
    publisher.read()
    publisher.stop()
    publisher.start()

    # What was fired before the break was noticed may be lost; nothing comes in halves.
    assert until(lambda: [bus.fire("tag", {"number": 100}), publisher.read()][1])
    assert set(publisher.read()) == {100}
