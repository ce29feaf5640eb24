"""
Puts events on the bus straight through the publisher's socket.

Salt's own client starts a thread for each event and waits for it, which takes an engine's loop a millisecond or two. This
must never wait, and never mix the bytes of two events: after a break the rest of an event is given up.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping
from typing import Any

import salt.transport.frame
import salt.utils.event

from saltext.jobs.core import compat
from saltext.jobs.core.master.stream import connected

#: Bytes that wait for a publisher that does not read; an event beyond that is refused.
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

        :raises OSError: when there is no publisher, or when it has not read for long.
        """
        stamped = {**data, "_stamp": compat.stamp()}
        event = salt.utils.event.SaltEvent.pack(tag, stamped, max_size=self._opts.get("max_event_size"))
        if len(self._left) > _MOST:
            raise BlockingIOError(f"{len(self._left)} bytes wait for the publisher, which does not read")
        frame = salt.transport.frame.frame_msg_ipc(event, raw_body=True)
        try:
            self._send(frame)
        except ConnectionError:  # the publisher has been started anew
            self._send(frame)

    def destroy(self) -> None:
        """Disconnect. What waits is lost."""
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
