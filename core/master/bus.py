"""
One engine's subscription to the master event bus, on the engine's own loop. The second half of the file reads and fires
events through the publisher's own sockets, many events at a time.

Every subscriber of Salt's bus gets every event, so unwanted ones are dropped by their tag, before anything is decoded.
It must never block, and never fail silently: Salt 3008 silently cuts off a listener that falls behind, and on Salt 3006
a subscription does not outlive the publisher. So the engine listens for its own beat, which it numbers; if a beat does not
come back, events were lost. The tag of the beat has a random part, so a minion, which can fire events and hears none, cannot
fire one.
"""

from __future__ import annotations

import collections
import contextlib
import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import salt.payload
import salt.transport.frame
import salt.utils.event
import salt.utils.msgpack

from saltext.jobs.core import compat, lines
from saltext.jobs.core.lines import Quiet
from saltext.jobs.core.master import events

log = lines.logger(__name__)

#: Seconds between two beats. 3008 cuts a listener off at 10,000 queued events, which is five seconds of a very busy
#: bus: the lost events then contain a beat.
BEAT = 2.0
#: Seconds between two beats until the first one is heard.
FIRST_BEATS = 0.1
#: Seconds between two beats while only engines use the bus: each event wakes several of Salt's own processes.
IDLE_BEAT = 10.0
#: If two beats are this many seconds apart, this process stood still in between, and may have been cut off.
STALL = 3 * BEAT
#: Seconds without an echo of a beat after which the engine subscribes again.
PATIENCE = 10 * BEAT

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
    """
    :param name: the engine's name, for its beat.
    :param is_direct: whether to use the publisher's sockets instead of Salt's own client.
    :param patience: seconds of silence after which the engine subscribes again.
    """

    def __init__(
        self,
        opts: Mapping[str, Any],
        loop: Any,
        name: str,
        is_direct: bool = compat.HAS_PLAIN_BUS,
        patience: float = PATIENCE,
    ) -> None:
        self._opts, self._loop = dict(opts), loop
        self._listeners: list[Listener] = []
        self._beat_tag = events.beat_tag(name, secrets.token_hex(8))
        self._beat = Beat()
        self._is_direct, self._patience = is_direct, patience
        self._beaten, self._fired, self._pause = time.monotonic(), float("-inf"), 0.0
        self._is_used = False  # since the last beat by others than engines
        self._on_ready: Callable[[], None] | None = None
        self._subscription: Any = None
        self._publisher: Any = None
        self._timer: Any = None
        self._quiet = Quiet(log)
        #: How often events may have been lost since the start.
        self.gaps = 0
        #: Seconds between two beats.
        self.beat = BEAT
        self._delays: collections.deque[float] = collections.deque([0.0], maxlen=int(60 / BEAT))

    def listen(self, listener: Listener, on_ready: Callable[[], None] | None = None) -> None:
        """Subscribe. ``on_ready`` is called once the bus is heard; until then events may be missed."""
        self.tell_too(listener)
        self._on_ready = on_ready
        self._subscribe()
        self._next_beat()

    def tell_too(self, listener: Listener) -> None:
        """Let another listener hear what comes from now on."""
        self._listeners.append(listener)

    @property
    def lag(self) -> float:
        """The longest delay of the loop within the last minute, in seconds."""
        return max(self._delays)

    def fire(self, tag: str, data: dict[str, Any]) -> None:
        """Put an event on the bus. Best effort: a bus that is down is logged, and does not stop the engine."""
        try:
            self._publisher.fire_event(data, tag)
        except Exception as exc:
            # lines about the beat must not keep back lines about events
            subject = "its beat" if tag == self._beat_tag else "events"
            self._quiet.warning(subject, "Could not fire %s: %s", tag, exc)

    def close(self) -> None:
        """Unsubscribe and release the sockets."""
        if self._timer is not None:
            self._loop.remove_timeout(self._timer)
            self._timer = None
        self._disconnect()

    def _disconnect(self) -> None:
        for handle in (self._subscription, self._publisher):
            if handle is not None:
                handle.destroy()
        self._subscription = self._publisher = None

    def _subscribe(self) -> None:
        if self._is_direct:
            self._publisher = Sender(self._loop, self._opts)
            self._subscription = Stream(self._loop, self._opts, self._take, self._beat.skip)
        else:
            self._publisher = self._connect(listen=False)
            self._subscription = self._connect(listen=True)
            self._subscription.set_event_handler(self._receive)

    def _connect(self, listen: bool) -> Any:
        return salt.utils.event.get_event(
            "master", self._opts["sock_dir"], opts=self._opts, listen=listen, io_loop=self._loop, keep_loop=True
        )

    # Salt 3007 and later await the handler; 3006 takes a coroutine too.
    async def _receive(self, raw: bytes) -> None:
        self._take(raw)

    def _take(self, raw: bytes) -> None:
        end = raw.find(_TAG_END)
        tag = raw[:end].decode("utf-8", "replace")
        try:
            if not tag.startswith(events.OURS):
                self._is_used = True
            if tag == self._beat_tag:
                self._hear(salt.payload.loads(raw[end + 2 :], encoding="utf-8")["n"])
            elif wanted := [listener for listener in self._listeners if listener.wants(tag)]:
                data = salt.payload.loads(raw[end + 2 :], encoding="utf-8")
                for listener in wanted:
                    listener.handle(tag, data)
        except Exception as exc:
            self._quiet.error(
                type(exc).__name__, "Skipping an event that could not be handled: %.300r", tag, exc_info=exc
            )

    def _next_beat(self) -> None:
        stall, self._beaten = time.monotonic() - self._beaten, time.monotonic()
        if stall > STALL and self._beat.heard:
            self._report_gap(f"this process stood still for {stall:.0f} seconds")
        self._delays.append(max(0.0, stall - self._pause))
        self._pause = pause = self.beat if self._beat.heard else FIRST_BEATS
        if self._beat.unheard * pause >= self._patience:
            self._quiet.warning(
                "silent", "The event bus has been silent for %d seconds: subscribing again", self._patience
            )
            self._reconnect()
        if self._is_used or self._beat.unheard or not self._beat.heard or self._beaten - self._fired >= IDLE_BEAT:
            self._fired, self._is_used = self._beaten, False
            self.fire(self._beat_tag, self._beat.make())
        self._timer = self._loop.call_later(pause, self._next_beat)

    def _reconnect(self) -> None:
        self._disconnect()
        # Events fired meanwhile are lost, even if no beat was.
        self._beat.skip()
        self._subscribe()

    def _hear(self, number: int) -> None:
        is_first, lost = not self._beat.heard, self._beat.hear(number)
        if is_first:
            if self._on_ready is not None:
                self._on_ready()
        elif lost > 0:
            self._report_gap(f"{lost} beats did not come back")

    def _report_gap(self, why: str) -> None:
        self.gaps += 1
        log.warning("Events may have been lost on the bus, so returns are looked for in the job cache: %s", why)
        for listener in self._listeners:
            listener.on_gap()


class Beat:
    """The beats of one process, by which it notices what the bus has lost."""

    def __init__(self) -> None:
        #: The number of the last beat that was made, and of the last one that came back.
        self.sent = self.heard = 0

    @property
    def unheard(self) -> int:
        """How many beats have not come back since the last one that did."""
        return self.sent - self.heard

    def make(self) -> dict[str, Any]:
        """Return the payload of the next beat."""
        self.sent += 1
        return {"n": self.sent}

    def skip(self) -> None:
        """Count one beat as lost, so that the next one that comes back shows a gap."""
        self.sent += 1

    def hear(self, n: int) -> int:
        """Take the number of a beat from the bus, and return how many beats were lost since the last one."""
        lost, self.heard = max(0, n - self.heard - 1), max(n, self.heard)
        return lost


# -- the publisher's own sockets ------------------------------------------------------------------------------------------
# Salt's own client takes a task, a lock and a read of 4 KiB for a handful of events, so its listener falls behind on a busy
# bus and is cut off. To fire an event, it starts a thread and waits for it. What follows must never wait, never mix the
# bytes of two events, and never end silently: the listener hears when events may have been lost.

#: Bytes that are read at a time. For more than 128 KiB each read gets memory from the kernel and gives it back, which
#: alone takes 18 us of CPU.
_CHUNK = 64 << 10
#: Chunks that are read before the loop may do other work.
_CHUNKS = 16
#: Seconds between two reads. Waking up for each event of a busy bus takes as much CPU as the event itself.
_PACE = 0.01
#: Seconds between two attempts to connect.
_RETRY = 0.2


class Stream:
    """
    Reads events from the publisher's socket.

    :param take: called, on the loop, with each event as the bus carries it: tag, two newlines, payload.
    :param on_break: called when the connection was lost, before it is made again.
    """

    def __init__(
        self, loop: Any, opts: Mapping[str, Any], take: Callable[[bytes], None], on_break: Callable[[], None]
    ) -> None:
        self._loop, self._opts, self._take, self._on_break = loop, opts, take, on_break
        self._socket: socket.socket | None = None
        self._unpacker: Any = None
        self._timer: Any = None
        self._connect()

    def destroy(self) -> None:
        """Disconnect."""
        if self._timer is not None:
            self._loop.remove_timeout(self._timer)
            self._timer = None
        if self._socket is not None:
            self._loop.remove_handler(self._socket.fileno())
            self._socket.close()
            self._socket = None

    def _connect(self) -> None:
        self._timer = None
        try:
            self._socket = connected(self._opts)
        except OSError as exc:
            log.debug("The event bus is not there yet: %s", exc)
            self._timer = self._loop.call_later(_RETRY, self._connect)
            return
        # Drop the incomplete event of the last connection.
        self._unpacker = salt.utils.msgpack.Unpacker()
        self._wait_for_events()

    def _wait_for_events(self) -> None:
        assert self._socket is not None
        self._timer = None
        self._loop.add_handler(self._socket.fileno(), self._on_events, self._loop.READ)

    def _on_events(self, fd: int, _events: int) -> None:
        """Take the events that are there; then wait a moment, until there are more."""
        self._loop.remove_handler(fd)
        self._timer = self._loop.call_later(_PACE, self._wait_for_events)
        try:
            for _ in range(_CHUNKS):
                if self._socket is None:
                    return  # the handler of the last event has closed the stream
                data = self._socket.recv(_CHUNK)
                if not data:
                    raise ConnectionError("the publisher has closed it")
                self._unpacker.feed(data)
                for frame in self._unpacker:
                    self._take(frame[b"body"])
                    if self._socket is None:
                        return
                if len(data) < _CHUNK:
                    break
        except BlockingIOError:
            pass
        except Exception as exc:  # msgpack raises many kinds for an invalid frame.
            log.debug("Connecting to the event bus again: %s: %s", type(exc).__name__, exc)
            self.destroy()
            self._on_break()
            self._timer = self._loop.call_later(_RETRY, self._connect)


def connected(opts: Mapping[str, Any], side: str = "pub") -> socket.socket:
    """
    Return a non-blocking connection to the publisher.

    :param side: ``pub`` to listen, or ``pull`` to fire events.
    :raises OSError: when it is not there.
    """
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
    made.setblocking(False)
    return made


#: Most bytes that wait for a publisher that does not read; events beyond that are refused.
_MOST = 64 << 20


class Sender:
    """Fires events through the publisher's socket."""

    def __init__(self, loop: Any, opts: Mapping[str, Any]) -> None:
        self._loop, self._opts = loop, opts
        self._socket: socket.socket | None = None
        self._left = bytearray()  # what the socket has not taken yet
        self._waits = False

    def fire_event(self, data: Mapping[str, Any], tag: str) -> None:
        """
        Put an event on the bus, now or as soon as the publisher takes it.

        :raises OSError: when there is no publisher, or when it has not read for a long time.
        """
        stamped = {**data, "_stamp": compat.stamp()}
        event = salt.utils.event.SaltEvent.pack(tag, stamped, max_size=self._opts.get("max_event_size"))
        if len(self._left) > _MOST:
            raise BlockingIOError(f"{len(self._left)} bytes wait for the publisher, which does not read")
        frame = salt.transport.frame.frame_msg_ipc(event, raw_body=True)
        try:
            self._send(frame)
        except ConnectionError:  # the publisher was restarted
            self._send(frame)

    def destroy(self) -> None:
        """Disconnect. Waiting events are lost."""
        if self._socket is not None:
            if self._waits:
                self._loop.remove_handler(self._socket.fileno())
            self._socket.close()
        self._socket, self._waits = None, False
        self._left.clear()

    def _send(self, frame: bytes) -> None:
        if self._socket is None:
            self._socket = connected(self._opts, "pull")
        self._left += frame
        if not self._waits:
            self._write(self._socket)

    def _write(self, to: socket.socket) -> None:
        try:
            while self._left:
                del self._left[: to.send(self._left)]
        except BlockingIOError:
            if not self._waits:
                self._waits = True
                self._loop.add_handler(to.fileno(), self._on_room, self._loop.WRITE)
            return
        except OSError:
            self.destroy()
            raise
        if self._waits:
            self._waits = False
            self._loop.remove_handler(to.fileno())

    def _on_room(self, _fd: int, _events: int) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):  # the next event makes a new connection
                self._write(self._socket)
