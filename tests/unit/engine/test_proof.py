"""What the proof of an engine has read by when."""

from __future__ import annotations

from saltext.jobs.core.engine.alarm import Clock
from saltext.jobs.core.engine.proof import Proof
from saltext.jobs.core.ledger.log import News
from saltext.jobs.core.log.records import Returned
from tests.virtual_loop import VirtualLoop


class Tail:
    """A log of which one record is read at a time."""

    there, position = True, None

    def __init__(self):
        self.records, self.failure, self.looks = [], None, []

    def look(self):
        """Looks are over, and their records there, when the first of ``looks`` has been asked for a third time."""
        asked = iter(range(3))

        def is_over():
            if self.looks and next(asked) == 2:
                self.records += self.looks.pop(0)
            return not self.looks

        return is_over

    def read(self):
        if self.failure:
            raise self.failure
        return News([self.records.pop(0)] if self.records else [], "", bool(self.records))

    def close(self):
        pass


class Listener:
    def __init__(self):
        self.told = []

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
    return [Returned("20260101000000000000", minion, "test.ping", 0, True, 1.0) for minion in minions]


def test_the_log_is_read_on_to_its_end_and_not_before_it_is_read_at_all_nor_for_ever_while_it_cannot_be_read():
    virtual, tail, listener = VirtualLoop(), Tail(), Listener()
    proof = Proof(virtual.loop, Clock(0.0, virtual.steady), None, None, tail, listener)
    tail.records = returns_of("ab")
    assert read_on(virtual, proof, listener) == [""]
    proof.start()
    assert read_on(virtual, proof, listener) == ["ab"]
    tail.records = returns_of("cdefgh")
    assert read_on(virtual, proof, listener) == ["abcdefgh"]
    tail.looks = [returns_of("ij")]
    assert read_on(virtual, proof, listener) == ["abcdefghij"]
    tail.failure = OSError("it cannot be read")
    assert read_on(virtual, proof, listener) == ["abcdefghij"]
    proof.close()
    virtual.close()
