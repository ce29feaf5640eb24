"""What functional tests of several wings need."""

from __future__ import annotations

import functools
import socket

import pytest

from saltext.jobs.core import compat
from tests.waiting import comes_true


@pytest.fixture
def loop():
    """An engine's loop, of the release that the tests run on."""
    made = compat.new_loop()
    yield made
    made.close(all_fds=True)


@pytest.fixture
def until(loop):
    """Runs the loop until a condition is true or the time is over, and tells whether it is."""
    return functools.partial(comes_true, loop)


@pytest.fixture(scope="session")
def deaf_bus(salt_factories_default_root_dir):
    """
    A folder with the sockets of a bus, without a reader. A command of Salt that finds none tries for a second or two to
    connect, and takes a core for it. It must be linked to from below the master's ``root_dir``, which Salt puts before each
    other path.
    """
    folder = salt_factories_default_root_dir / "bus"
    folder.mkdir()
    sockets = []
    for side in ("pub", "pull"):
        sockets.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        sockets[-1].bind(str(folder / f"master_event_{side}.ipc"))
        sockets[-1].listen(4096)
    yield folder
    for each in sockets:
        each.close()
