"""
The event bus through the publisher's own sockets: reads many events at a time, and fires events.

Salt's own client takes a task, a lock and a read of 4 KiB for a handful of events, so its listener falls behind on a
busy bus and is cut off. To fire an event, it starts a thread and waits for it. This module must never wait, never mix
the bytes of two events, and never end silently: the listener hears when events may have been lost.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Mapping
from typing import Any

import salt.transport.frame
import salt.utils.event
import salt.utils.msgpack

from saltext.jobs.core import compat, lines

log = lines.logger(__name__)

#: Bytes that are read at a time. For more than 128 KiB each read gets memory from the kernel and gives it back, which
#: alone takes 18 us of CPU.
_CHUNK = 64 << 10
#: Chunks that are read before the loop may do other work.
_CHUNKS = 16
#: Seconds between two reads of a busy bus. Waking up for each event takes as much CPU as the event itself.
_PACE = 0.01
#: Seconds between two attempts to connect.
_RETRY = 0.2


class Stream:
    """
    :param loop: the engine's tornado loop.
    :param opts: the master's options.
    :param take: called, on the loop, with each event as the bus carries it: tag, two newlines, payload.
    :param on_break: called when the connection was lost, before it is made anew.
    """

    def __init__(
        self, loop: Any, opts: Mapping[str, Any], take: Callable[[bytes], None], on_break: Callable[[], None]
    ) -> None:
        self._loop, self._opts, self._take, self._on_break = loop, opts, take, on_break
        self._socket: socket.socket | None = None
        self._unpacker: Any = None
        self._timer: Any = None
        self._is_awaited = False
        self._woken = float("-inf")
        self._connect()

    def destroy(self) -> None:
        """Disconnect, for good."""
        if self._timer is not None:
            self._loop.remove_timeout(self._timer)
            self._timer = None
        self._disconnect()

    def _connect(self) -> None:
        self._timer = None
        try:
            self._socket = connected(self._opts)
        except OSError as exc:
            log.debug("The event bus is not there yet: %s", exc)
            self._timer = self._loop.call_later(_RETRY, self._connect)
            return
        # Drop the half event of the last connection.
        self._unpacker = salt.utils.msgpack.Unpacker()
        self._wait_for_events()

    def _disconnect(self) -> None:
        if self._socket is not None:
            if self._is_awaited:
                self._stop_waiting()
            self._socket.close()
            self._socket = None

    def _wait_for_events(self) -> None:
        assert self._socket is not None
        self._is_awaited = True
        self._loop.add_handler(self._socket.fileno(), self._on_events, self._loop.READ)

    def _stop_waiting(self) -> None:
        assert self._socket is not None
        self._is_awaited = False
        self._loop.remove_handler(self._socket.fileno())

    def _on_events(self, _fd: int, _events: int) -> None:
        """The loop was woken: read what is there. On a busy bus, read at intervals from then on."""
        last, self._woken = self._woken, self._loop.time()
        if self._read() and self._woken - last < _PACE:
            self._stop_waiting()
            self._timer = self._loop.call_later(_PACE, self._on_pace)

    def _on_pace(self) -> None:
        """An interval has passed: read what is there. When nothing is, wait to be woken again."""
        self._timer = None
        if self._read():
            self._timer = self._loop.call_later(_PACE, self._on_pace)
        elif self._socket is not None:
            self._wait_for_events()

    def _read(self) -> bool:
        """Take the events that are there. Returns whether there were any and the connection is still open."""
        size = 0
        try:
            for _ in range(_CHUNKS):
                if self._socket is None:
                    return False  # the handler of the last event has closed the stream
                data = self._socket.recv(_CHUNK)
                if not data:
                    raise ConnectionError("the publisher has closed it")
                size += len(data)
                self._unpacker.feed(data)
                for frame in self._unpacker:
                    self._take(frame[b"body"])
                    if self._socket is None:
                        return False
                if len(data) < _CHUNK:
                    break
        except BlockingIOError:
            pass
        except Exception as exc:  # msgpack raises many kinds for an invalid frame.
            log.debug("The connection to the event bus is made anew: %s: %s", type(exc).__name__, exc)
            self._disconnect()
            self._on_break()
            self._timer = self._loop.call_later(_RETRY, self._connect)
            return False
        return size > 0


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
    """
    :param loop: the engine's tornado loop.
    :param opts: the master's options.
    """

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
