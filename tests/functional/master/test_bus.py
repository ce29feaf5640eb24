"""Hearing Salt's own event bus, directly and through Salt's own client."""

from __future__ import annotations

import pytest
import salt.utils.event

from saltext.jobs.core import compat
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
def loop(opts):
    with event_bus(opts["sock_dir"]):
        made = compat.new_loop()
        yield made
        made.close(all_fds=True)


@pytest.fixture
def fire(opts):
    with salt.utils.event.get_master_event(opts, opts["sock_dir"], listen=False) as event:
        yield lambda tag, number: event.fire_event({"number": number}, tag)


@pytest.mark.parametrize("is_direct", [compat.HAS_PLAIN_BUS, False], ids=["as the release wants", "Salt's own client"])
def test_wanted_events_are_heard_in_order(opts, loop, until, fire, is_direct, caplog):
    ears, ready, bus = Ears(), [], Bus(opts, loop, "test", is_direct)
    bus.listen(ears, lambda: ready.append(True))
    assert until(lambda: ready)
    for number in range(200):
        fire("wanted/one" if number % 2 else "other/one", number)
    assert until(lambda: len(ears.heard) == 100)
    assert ears.heard == [("wanted/one", number) for number in range(1, 200, 2)]
    assert "beats did not come back" not in caplog.text  # but a busy machine may have let this process stand still
    bus.close()


@pytest.mark.skipif(not compat.HAS_PLAIN_BUS, reason="this release's bus is never written directly")
def test_events_are_heard_whole_and_in_order_even_if_the_publisher_cannot_take_all_at_once(opts, loop, until):
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


def test_while_only_engines_use_the_bus_a_beat_is_rare(opts, loop, until, fire):
    heard, ready = [], []

    class Beats(Ears):
        def wants(self, tag):
            return "/beat/" in tag

        def handle(self, tag, data):
            heard.append(tag)

    engines = [Bus(opts, loop, name) for name in ("one", "two")]
    for engine in engines:
        engine.beat = 0.02
        engine.listen(Beats(), lambda: ready.append(True))
    assert until(lambda: len(ready) == 2)
    loop.run_sync(lambda: compat.sleep(0.5))
    heard.clear()
    loop.run_sync(lambda: compat.sleep(1.0))
    assert len(heard) <= 4, "each hears the other one's"
    for number in range(5):
        before = len(heard)
        fire("other/one", number)
        assert until(lambda before=before: len(heard) >= before + 2), "whoever uses the bus may lose events"
    for engine in engines:
        engine.close()
