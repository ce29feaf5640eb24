"""What the proof of an engine has read by when."""

from __future__ import annotations

import pytest

from saltext.jobs.core.engine.loop import Clock
from saltext.jobs.core.engine.proof import Proof
from saltext.jobs.core.ledger.log import News
from saltext.jobs.core.ledger.records import Returned
from saltext.jobs.core.master.questions import Questions
from tests.virtual_loop import VirtualLoop


class Tail:
    """A log of which one record is read at a time."""

    there, is_far, position = True, False, None

    def __init__(self):
        self.records, self.failure, self.reads = [], None, 0

    def read(self):
        self.reads += 1
        if self.failure:
            raise self.failure
        return News([self.records.pop(0)] if self.records else [], "", bool(self.records))


class Listener:
    def __init__(self):
        self.told, self.is_idle = [], False

    def logged(self, record):
        self.told.append(record.minion)

    def on_read(self):
        pass


def read_on(virtual, proof, listener):
    """Return what has been told when ``read_on`` returns."""
    found = []

    async def ask():
        await proof.read_on()
        found.append("".join(listener.told))

    virtual.loop.spawn_callback(ask)
    virtual.run(10.0, lambda: bool(found))
    return found


def returns_of(minions):
    return [Returned("20260101000000000000", minion, "test.ping", 0, 1.0) for minion in minions]


def test_the_log_is_read_on_to_its_end_and_not_before_it_is_read_at_all_nor_for_ever_while_it_cannot_be_read():
    virtual, tail, listener = VirtualLoop(), Tail(), Listener()
    proof = Proof(virtual.loop, Clock(0.0, virtual.steady), tail, Questions(virtual.loop, None), listener)
    tail.records = returns_of("ab")
    assert read_on(virtual, proof, listener) == [""]
    proof.start()
    assert read_on(virtual, proof, listener) == ["ab"]
    tail.records = returns_of("cdefgh")
    assert read_on(virtual, proof, listener) == ["abcdefgh"]
    tail.failure = OSError("it cannot be read")
    assert read_on(virtual, proof, listener) == ["abcdefgh"]
    proof.close()
    virtual.close()


def test_the_log_is_looked_at_twice_a_second_and_by_an_idle_engine_every_five_seconds_until_it_is_woken():
    virtual, tail, listener = VirtualLoop(), Tail(), Listener()
    proof = Proof(virtual.loop, Clock(0.0, virtual.steady), tail, Questions(virtual.loop, None), listener)
    proof.start()

    def reads_in(seconds):
        before = tail.reads
        virtual.run(seconds, lambda: False)
        return tail.reads - before

    reads_in(10.0)
    assert reads_in(60.0) == pytest.approx(120, abs=2)
    listener.is_idle = True
    reads_in(10.0)
    assert reads_in(60.0) == pytest.approx(12, abs=1)
    listener.is_idle, tail.records = False, returns_of("a")
    proof.wake()
    assert reads_in(0.1) and listener.told == ["a"]
    assert reads_in(60.0) > 115
    proof.close()
    virtual.close()
