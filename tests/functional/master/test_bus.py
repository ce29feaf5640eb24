"""Hearing Salt's own event bus."""

from __future__ import annotations

import pytest
import salt.utils.event

from saltext.jobs.core.master.bus import Bus
from tests.event_bus import event_bus, options


class Ears:
    """Hears what begins with ``wanted/``."""

    def __init__(self):
        self.heard, self.gaps = [], 0

    def wants(self, tag):
        return tag.startswith("wanted/")

    def handle(self, tag, data):
        self.heard.append((tag, data["number"]))

    def on_gap(self):
        self.gaps += 1


@pytest.fixture
def opts(folder):
    return options(folder)


@pytest.fixture
def publisher(opts):
    with event_bus(opts["sock_dir"]):
        yield


@pytest.fixture
def fire(opts, publisher):
    with salt.utils.event.get_master_event(opts, opts["sock_dir"], listen=False) as event:
        yield lambda tag, number: event.fire_event({"number": number}, tag)


def test_wanted_events_are_heard_in_order(opts, loop, until, fire):
    ears, ready, bus = Ears(), [], Bus(opts, loop, "test")
    bus.listen(ears, lambda: ready.append(True))
    assert until(lambda: ready)
    for number in range(200):
        fire("wanted/one" if number % 2 else "other/one", number)
    assert until(lambda: len(ears.heard) == 100)
    assert ears.heard == [("wanted/one", number) for number in range(1, 200, 2)]
    assert ears.gaps == 0
    bus.close()


def test_a_publisher_that_is_restarted_is_heard_again_and_events_may_have_been_lost(opts, loop, until):
    ears, ready, bus = Ears(), [], Bus(opts, loop, "test")
    for number in range(3):
        with event_bus(opts["sock_dir"]):
            if not number:
                bus.listen(ears, lambda: ready.append(True))
            assert until(lambda number=number: ears.gaps == number and ready)
            bus.fire("wanted/one", {"number": number})
            assert until(lambda number=number: len(ears.heard) == number + 1)
    assert (ears.heard, bus.gaps) == ([("wanted/one", number) for number in range(3)], 2)
    bus.close()


def test_events_are_heard_whole_and_in_order_even_if_the_publisher_cannot_take_all(opts, loop, until, publisher):
    heard, bus = [], Bus(opts, loop, "test")

    class Big(Ears):
        def handle(self, tag, data):
            heard.append((data["number"], len(data["more"]), "_stamp" in data))

    ready = []
    bus.listen(Big(), lambda: ready.append(True))
    assert until(lambda: ready)
    sizes = [0, 300_000] * 10
    for number, size in enumerate(sizes):
        bus.fire("wanted/one", {"number": number, "more": "x" * size})
    assert until(lambda: len(heard) == len(sizes))
    assert heard == [(number, size, True) for number, size in enumerate(sizes)]
    bus.close()
