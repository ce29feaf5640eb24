"""What functional tests of several wings need."""

from __future__ import annotations

import functools
import socket
import subprocess

import pytest

from docs import kept
from saltext.jobs.core import compat
from tests.functional.cache_servers import databases_given_back
from tests.waiting import comes_true


@pytest.fixture(autouse=True)
def databases_of_this_test():
    """The next test gets the databases that were made for this one. What was made for a whole file stays."""
    with databases_given_back():
        yield


@pytest.fixture(scope="session")
def files_named():
    """The names of files in docs/reference/files.md."""
    return kept.tables(kept.PAGE.read_text(encoding="utf-8"))["On the master"]


@pytest.fixture
def only_files_that_the_reference_names(tmp_path, files_named):
    """A test leaves no file below ``saltext_jobs`` that docs/reference/files.md does not name."""
    yield
    for below in [path.parent for path in tmp_path.rglob("saltext_jobs")]:
        left = [str(path.relative_to(below)) for path in below.glob("saltext_jobs/**/*") if path.is_file()]
        assert kept.strangers(left, files_named) == []


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
    A folder with the sockets of a bus without a reader. Without sockets a command of Salt tries to connect for a second or
    two, and takes a core for that. A link below the master's ``root_dir`` must lead to the folder, because Salt puts
    ``root_dir`` before every other path.
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


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1 MB."""
    folder = tmp_path / "small"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], check=False).returncode:
        pytest.skip("it takes root to mount a file system")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)
