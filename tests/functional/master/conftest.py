"""The publisher's side of the bus's sockets."""

from __future__ import annotations

import contextlib
import pathlib
import socket
import tempfile

import pytest


class PublisherSocket:
    """
    A socket of the publisher, with one connection.

    :param side: ``pub``, where events are heard, or ``pull``, where they are given to it.
    """

    def __init__(self, folder, side):
        self.path = folder / f"master_event_{side}.ipc"
        self.peer = None
        self.start()

    def start(self):
        self.path.unlink(missing_ok=True)
        self.server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.server.bind(str(self.path))
        self.server.listen(5)
        self.server.setblocking(False)

    def has_peer(self):
        """Whether a client has connected since the start, or since ``peer`` was set to None."""
        if self.peer is None:
            with contextlib.suppress(BlockingIOError):
                self.peer, _ = self.server.accept()
        return self.peer is not None

    def stop(self):
        if self.peer is not None:
            self.peer.close()
            self.peer = None
        self.server.close()


@pytest.fixture
def folder(salt_factories_default_root_dir):
    """The folder of the sockets, whose path is short."""
    return pathlib.Path(tempfile.mkdtemp(prefix="bus", dir=salt_factories_default_root_dir))
