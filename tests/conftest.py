"""Shared by all tests: short temporary roots, time for daemons on a busy machine, and nothing left behind."""

from __future__ import annotations

import logging
import os
import pathlib
import shutil
import tempfile

import hypothesis
import pytest

from tests.waiting import Patience

# Neither an example nor the making of examples fails for its time, which on a busy machine says nothing about the code.
hypothesis.settings.register_profile("patient", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("patient")

# ``cmd.run`` takes the shell of whoever started the minion: the plain one, wherever the tests run.
os.environ["SHELL"] = "/bin/sh"

# Salt opens the root logger to its finest level when it is imported, and pytest keeps every line. The loader alone writes
# thousands, which nobody reads.
logging.root.setLevel(logging.INFO)

# A process that a test forks may find the stream of a log file locked for ever, by a thread of pytest that it does not have.
os.register_at_fork(after_in_child=logging.root.handlers.clear)


@pytest.fixture(scope="session")
def salt_factories_default_root_dir():
    # Unix socket paths are limited to 107 bytes and the factories nest deeply: keep this short.
    root = tempfile.mkdtemp(prefix="sj-", dir=os.environ.get("SALTEXT_JOBS_TMP", tempfile.gettempdir()))
    yield pathlib.Path(root)
    shutil.rmtree(root, ignore_errors=True)


@pytest.fixture(scope="session")
def salt_factories_config():
    # A slow stop lets a daemon end by itself first, which is for those who measure coverage: 5 to 10 s for each stop.
    return {"slow_stop": False, "start_timeout": Patience(60)}


def pytest_collection_modifyitems(items):
    """
    Let the files that take longest begin first, so that the others fill what they leave: the fleet, for five minutes, then
    those with daemons, and of these the ones about the whole, which stand outside the wings' folders.
    """

    def place(item):
        return item.path.name != "test_fleet.py", "integration" not in item.path.parts, len(item.path.parts)

    items.sort(key=place)


def pytest_sessionfinish(session, exitstatus):
    """Tell .ci/run how it ended: make has one status for tests that failed and for a pytest that did not run them."""
    path = os.environ.get("PYTEST_STATUS")
    if path and not hasattr(session.config, "workerinput"):
        pathlib.Path(path).write_text(str(int(exitstatus)))


def pytest_unconfigure():
    # At exit Salt flushes log records that it kept since its start into streams that pytest has closed by then; the
    # tracebacks about it would hide the summary.
    logging.raiseExceptions = False
