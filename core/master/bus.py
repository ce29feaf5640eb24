"""
One engine's subscription to the master event bus, on the engine's own loop.

Drops what is not wanted by its tag, before anything is decoded: every subscriber of Salt's bus gets every event. It must
never block, and never fail silently: Salt 3008 cuts a listener that falls behind off without telling it, and on Salt 3006
a subscription does not outlive the publisher. So the engine hears its own beat, and a beat that does not come back means
that events were lost.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import Any

import salt.payload
import salt.utils.event

from saltext.jobs.core.master import events

log = logging.getLogger(__name__)

#: Seconds between two beats. 3008 cuts a listener off at 10,000 queued events, which is five seconds of a very busy
#: bus: whatever is lost then contains a beat.
BEAT = 2.0
#: Seconds between two beats until the first one is heard.
FIRST_BEATS = 0.1
#: Seconds between two beats after which this process must have stood still, and may have been cut off meanwhile.
STALL = 3 * BEAT
#: Beats without an echo after which the subscription is made anew.
PATIENCE = 10

_TAG_END = b"\n\n"


class Bus:
    """
    Calls back on the loop's thread; an exception of a callback is logged and goes no further.

    :param opts: the master's options.
    :param loop: the engine's tornado loop.
    :param name: the engine's name, for its beat.
    :param want: tells by tag whether an event is to be decoded and handled.
    :param handle: gets (tag, payload) of each wanted event.
    :param on_gap: called, without arguments, when events may have been lost: reconcile from the job cache.
    """

    def __init__(
        self,
        opts: dict[str, Any],
        loop: Any,
        name: str,
        want: Callable[[str], bool],
        handle: Callable[[str, Any], None],
        on_gap: Callable[[], None],
    ) -> None:
        self._opts, self._loop = opts, loop
        self._want, self._handle, self._on_gap = want, handle, on_gap
        self._beat_tag = events.beat_tag(name, os.getpid())
        self._sent = self._heard = 0
        self._beaten = time.monotonic()
        self._on_ready: Callable[[], None] | None = None
        self._subscription: Any = None
        self._publisher: Any = None
        self._timer: Any = None

    def start(self, on_ready: Callable[[], None] | None = None) -> None:
        """Subscribe. Events may be missed until ``on_ready`` is called: then the bus has been heard."""
        self._on_ready = on_ready
        self._subscribe()
        self._beat()

    def fire(self, tag: str, data: dict[str, Any]) -> None:
        """Put an event on the bus. Best effort: a bus that is down is logged, and does not stop the engine."""
        try:
            self._publisher.fire_event(data, tag)
        except Exception as exc:
            log.warning("Could not fire %s: %s", tag, exc)

    def close(self) -> None:
        """Unsubscribe and release the sockets."""
        if self._timer is not None:
            self._loop.remove_timeout(self._timer)
            self._timer = None
        for handle in (self._subscription, self._publisher):
            if handle is not None:
                handle.destroy()
        self._subscription = self._publisher = None

    def _subscribe(self) -> None:
        self._subscription = self._connect(listen=True)
        self._publisher = self._connect(listen=False)
        self._subscription.set_event_handler(self._receive)

    def _connect(self, listen: bool) -> Any:
        return salt.utils.event.get_event(
            "master", self._opts["sock_dir"], opts=self._opts, listen=listen, io_loop=self._loop, keep_loop=True
        )

    # Salt 3007 and later await the handler; 3006 takes a coroutine too.
    async def _receive(self, raw: bytes) -> None:
        end = raw.find(_TAG_END)
        tag = raw[:end].decode("utf-8", "replace")
        try:
            if tag == self._beat_tag:
                self._hear(salt.payload.loads(raw[end + 2 :], encoding="utf-8")["n"])
            elif self._want(tag):
                self._handle(tag, salt.payload.loads(raw[end + 2 :], encoding="utf-8"))
        except Exception:
            log.exception("An event could not be handled and is passed over: %s", tag)

    def _beat(self) -> None:
        stall, self._beaten = time.monotonic() - self._beaten, time.monotonic()
        if stall > STALL and self._heard:
            self._report_gap(f"this process stood still for {stall:.0f} seconds")
        pause = BEAT if self._heard else FIRST_BEATS
        if (self._sent - self._heard) * pause >= PATIENCE * BEAT:
            log.warning("The event bus has been silent for %d seconds: subscribing anew", PATIENCE * BEAT)
            self._reconnect()
        self._sent += 1
        self.fire(self._beat_tag, {"n": self._sent})
        self._timer = self._loop.call_later(pause, self._beat)

    def _reconnect(self) -> None:
        for handle in (self._subscription, self._publisher):
            handle.destroy()
        # The next beat that is heard is out of step, which reports the gap once the bus is heard again.
        self._sent += 1
        self._subscribe()

    def _hear(self, n: int) -> None:
        first, lost = not self._heard, n - self._heard - 1
        self._heard = max(n, self._heard)
        if first:
            if self._on_ready is not None:
                self._on_ready()
        elif lost > 0:
            self._report_gap(f"{lost} beats did not come back")

    def _report_gap(self, why: str) -> None:
        log.warning("Events may have been lost on the bus, so returns are looked for in the job cache: %s", why)
        self._on_gap()
