"""
One engine's subscription to the master event bus, on the engine's own loop. The second half of the file reads events from
the publisher's own socket, many at a time.

Every subscriber of Salt's bus gets every event, so unwanted ones are dropped by their tag, before anything is decoded.
It must never block, and never fail silently: Salt 3008 cuts off a listener that falls behind. A broken connection is made
again, and events may have been lost until an event of the engine's own comes back on it, a beat. The tag of the beat has a
random part, so nobody else can fire it.
"""

from __future__ import annotations

import collections
import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import salt.payload
import salt.transport.frame
import salt.utils.dicttrim

from saltext.jobs.core import compat, lines
from saltext.jobs.core.lines import Quiet
from saltext.jobs.core.master import events

log = lines.logger(__name__)

#: Seconds between two beats, which show to a console that the engine lives; and between the first ones of a connection.
BEAT, FIRST_BEATS = 10.0, 0.1
#: Seconds between two looks at how late the loop is.
_TICK = 2.0

_TAG_END = b"\n\n"


class Listener(Protocol):
    """An engine's side of the bus, on the loop's thread. Its exceptions are logged and go no further."""

    def wants(self, tag: str) -> bool:
        """Whether an event is to be decoded and handled. Called for every event on the bus."""

    def handle(self, tag: str, data: Any) -> None:
        """Take the payload of a wanted event. Its sender is not known."""

    def on_gap(self) -> None:
        """Events may have been lost: search the job cache instead."""


class Bus:
    """One engine's subscription. :param name: the engine's name, for its beat."""

    def __init__(self, opts: Mapping[str, Any], loop: Any, name: str) -> None:
        self._opts, self._loop = dict(opts), loop
        self.listeners: list[Listener] = []  # each hears what comes from now on
        self._beat_tag = events.beat_tag(name, secrets.token_hex(8))
        self._fired = float("-inf")
        # What to call once a beat comes back on a new connection.
        self._on_heard: Callable[[], None] | None = None
        self._stream: Stream | None = None
        self._sender: Any = None
        self._timer: Any = None
        self._quiet = Quiet(log)
        #: How often events may have been lost since the start.
        self.gaps = 0
        self._delays: collections.deque[float] = collections.deque([0.0], maxlen=int(60 / _TICK))

    def listen(self, listener: Listener | None = None, on_ready: Callable[[], None] | None = None) -> None:
        """Subscribe. ``on_ready`` is called once the bus is heard; until then events may be missed."""
        if listener is not None:
            self.listeners.append(listener)
        self._on_heard = on_ready or (lambda: None)
        self._stream = Stream(self._loop, self._opts, self._take, self._on_break)
        self._timer = self._loop.call_later(0.0, self._tick, time.monotonic())  # once it is connected

    @property
    def lag(self) -> float:
        """The longest delay of the loop within the last minute, in seconds."""
        return max(self._delays)

    def fire(self, tag: str, data: Mapping[str, Any]) -> None:
        """
        Put an event on the bus, now or as soon as the publisher takes it. Best effort: that the bus is down, or does not
        read, is logged, and does not stop the engine.
        """
        try:
            self._send(tag, {**data, "_stamp": compat.stamp()})
        except Exception as exc:
            # lines about the beat must not keep back lines about events
            subject = "its beat" if tag == self._beat_tag else "events"
            self._quiet.warning(subject, "Could not fire %s: %s", tag, exc)

    def close(self) -> None:
        """Unsubscribe and release the sockets. Events that wait are lost."""
        if self._timer is not None:
            self._loop.remove_timeout(self._timer)
            self._timer = None
        if self._stream is not None:
            self._stream.destroy()
        if self._sender is not None:
            self._sender.close()

    def _send(self, tag: str, data: Mapping[str, Any]) -> None:
        packed = salt.payload.dumps(data, use_bin_type=True)
        if most := self._opts.get("max_event_size"):
            packed = salt.utils.dicttrim.trim_dict(packed, most, is_msgpacked=True, use_bin_type=True)
        frame = salt.transport.frame.frame_msg_ipc(tag.encode() + _TAG_END + packed, raw_body=True)
        for _ in range(2):  # the publisher may have been restarted since the last event
            if self._sender is None or self._sender.closed():
                self._sender = connected(self._opts, "pull")
            self._sender.write(frame)
            if not self._sender.closed():
                return
        raise ConnectionError("the publisher has closed the connection")

    def _take(self, raw: bytes) -> None:
        end = raw.find(_TAG_END)
        tag = raw[:end].decode("utf-8", "replace")
        try:
            if tag == self._beat_tag:
                on_heard, self._on_heard = self._on_heard, None
                if on_heard is not None:
                    on_heard()
            elif wanted := [listener for listener in self.listeners if listener.wants(tag)]:
                data = salt.payload.loads(raw[end + 2 :], encoding="utf-8")
                for listener in wanted:
                    listener.handle(tag, data)
        except Exception as exc:
            self._quiet.error(
                type(exc).__name__, "Skipping an event that could not be handled: %.300r", tag, exc_info=exc
            )

    def _tick(self, due: float) -> None:
        now = time.monotonic()
        self._delays.append(max(0.0, now - due))
        if self._on_heard is not None or now - self._fired >= BEAT:
            self._fired = now
            self.fire(self._beat_tag, {})
        pause = _TICK if self._on_heard is None else FIRST_BEATS
        self._timer = self._loop.call_later(pause, self._tick, now + pause)

    def _on_break(self) -> None:
        self._on_heard = self._on_heard or self._report_gap

    def _report_gap(self) -> None:
        self.gaps += 1
        log.warning(
            "Events may have been lost on the bus, whose connection broke: returns are looked for in the job cache"
        )
        for listener in self.listeners:
            listener.on_gap()


# -- the publisher's own sockets ------------------------------------------------------------------------------------------
# Salt's own client takes a task, a lock and a read of 4 KiB for a handful of events, so its listener falls behind on a busy
# bus and is cut off. To fire an event, it starts a thread and waits for it. What follows must never wait, never mix the
# bytes of two events, and never end silently: the listener hears when events may have been lost.

#: Bytes that are read at a time. More than 128 KiB take memory from the kernel for each read, which costs 18 us of CPU.
_CHUNK = 64 << 10
#: Seconds between two reads. Waking up for each event of a busy bus takes as much CPU as the event itself.
_PACE = 0.01
#: Seconds between two attempts to connect.
_RETRY = 0.2
#: Most bytes that wait for a publisher that does not read; events beyond that are refused.
_MOST = 64 << 20


def connected(opts: Mapping[str, Any], side: str) -> Any:
    """Return a stream from the publisher's side ``pub``, to listen, or to ``pull``, to fire. :raises OSError:"""
    if opts.get("ipc_mode") == "tcp":
        made = socket.create_connection(("localhost", int(opts[f"tcp_master_{side}_port"])), timeout=1.0)
    else:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            made.settimeout(1.0)
            made.connect(os.path.join(opts["sock_dir"], f"master_event_{side}.ipc"))
        except OSError:
            made.close()
            raise
    return compat.IOStream(made, read_chunk_size=_CHUNK, max_write_buffer_size=_MOST)


class Stream:
    """Calls ``take`` with each event of the publisher's socket: tag, two newlines, payload; ``on_break`` when it breaks."""

    def __init__(
        self, loop: Any, opts: Mapping[str, Any], take: Callable[[bytes], None], on_break: Callable[[], None]
    ) -> None:
        self._opts, self._take, self._on_break = opts, take, on_break
        self._stream: Any = None
        self._is_over = False
        loop.spawn_callback(self._follow)

    def destroy(self) -> None:
        """Disconnect."""
        self._is_over = True
        if self._stream is not None:
            self._stream.close()

    async def _follow(self) -> None:
        while not self._is_over:
            try:
                self._stream = connected(self._opts, "pub")
            except OSError as exc:
                log.debug("The event bus is not there yet: %s", exc)
            else:
                await self._read(self._stream)
            await compat.sleep(_RETRY)

    async def _read(self, stream: Any) -> None:
        """Take events until the connection breaks."""
        frames = compat.Frames()
        try:
            while not self._is_over:
                data = await stream.read_bytes(_CHUNK, partial=True)
                for event in frames.take(data):
                    if not self._is_over:  # the handler of the last event may have ended this
                        self._take(event)
                if len(data) < _CHUNK:
                    await compat.sleep(_PACE)
        except Exception as exc:  # msgpack raises many kinds for an invalid frame
            stream.close()
            if not self._is_over:
                log.debug("Connecting to the event bus again: %s: %s", type(exc).__name__, exc)
                self._on_break()
