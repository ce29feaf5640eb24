"""Shared by all tests: short temporary roots, time for daemons on a busy machine, and nothing left behind."""

from __future__ import annotations

import functools
import gc
import logging
import os
import pathlib
import shutil
import tempfile

import hypothesis
import pytest

from tests.waiting import Patience

# No example fails because it takes long: on a busy machine that says nothing about the code.
hypothesis.settings.register_profile("patient", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("patient")

# ``cmd.run`` takes the shell of the user who started the minion: use the plain one everywhere.
os.environ["SHELL"] = "/bin/sh"

# Salt opens the root logger to its finest level when it is imported, and pytest keeps every line: the loader's thousands.
logging.root.setLevel(logging.INFO)

# A process that a test forks may find a log file's stream locked for ever, by a thread that only pytest itself has.
os.register_at_fork(after_in_child=logging.root.handlers.clear)


@pytest.fixture(scope="session")
def salt_factories_default_root_dir():
    # Unix socket paths are limited to 107 bytes and the factories nest deeply: keep this short.
    root = tempfile.mkdtemp(prefix="sj-", dir=os.environ.get("SALTEXT_JOBS_TMP", tempfile.gettempdir()))
    yield pathlib.Path(root)
    shutil.rmtree(root, ignore_errors=True)


@pytest.fixture(scope="session")
def salt_factories_config():
    # A slow stop lets a daemon end by itself first, for measurements of coverage. It takes 5 to 10 s for each stop.
    return {"slow_stop": False, "start_timeout": Patience(60)}


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """
    Switch off Python's garbage collector while thousands of tests are collected: it would take a quarter of that time. From
    then on it passes over them, also in each process that a test forks.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


#: Files that take minutes, and those without daemons that take ten seconds, the longest first, as ``--durations``
#: tells. One that began late would run on alone at the end.
LONG = (
    "functional/test_fleet.py",
    "worlds/test_together.py",
    "worlds/test_adversary.py",
    "integration/test_job_once.py",
    "integration/batch/test_faults.py",
    "integration/job_retry/test_faults.py",
    "integration/job_retry/test_job_retry.py",
    "integration/batch/test_batch.py",
    "integration/job_recorder/test_job_recorder.py",
    "integration/job_retry/test_ways.py",
    "functional/store/test_contract.py",
    "integration/test_hot_hot.py",
    "functional/test_benchmarks.py",
    "functional/test_packaging.py",
    "integration/test_takeover.py",
    "integration/test_other_user.py",
    "integration/test_sessions.py",
    "integration/test_stories.py",
    "functional/store/test_driver.py",
    "functional/store/test_sqlite.py",
    "integration/test_who_may.py",
    "functional/store/test_job_index.py",
    "functional/store/test_postgresql.py",
    "functional/store/test_damage.py",
    "functional/recorder/test_pgjsonb_bulk.py",
    "unit/retry/test_machine.py",
    "functional/retry/test_shell.py",
    "functional/runners/test_limited.py",
    "unit/retry/test_openings.py",
    "functional/recorder/test_recording.py",
    "functional/recorder/test_returners.py",
)


def pytest_collection_modifyitems(items):
    """
    Let the files that take longest begin first, so that the others fill the rest. Then come those with daemons, and of
    these first the ones outside the wings' folders, which are about the whole.
    """

    def place(item):
        rank = next((rank for rank, name in enumerate(LONG) if str(item.path).endswith(name)), len(LONG))
        return rank, "integration" not in item.path.parts, len(item.path.parts)

    items.sort(key=place)


#: Characters of a failure in the list of .ci/run.
_WHY = 300


class _Told:
    """
    For .ci/run: ``PYTEST_FAILED`` gets a line for each failed test, with its id, a tab and why it failed. ``--last-failed``
    also runs tests that were not run, because pytest ends early when a worker is interrupted.
    """

    def __init__(self, config, path):
        self._cache, self._path, self._owed = config.cache, pathlib.Path(path), None
        self._path.write_text("")

    def pytest_collection_finish(self, session):
        self.pytest_xdist_node_collection_finished([item.nodeid for item in session.items])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids):
        if not self._owed:  # each worker has the same, and so has one that replaces a killed one
            self._owed = dict.fromkeys(ids, True)

    def pytest_collectreport(self, report):
        if report.failed:
            self._note(report)

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self._note(report)
        elif report.skipped or report.when == "call":
            self._owed.pop(report.nodeid, None)

    def _note(self, report):
        self._owed = {**(self._owed or {}), report.nodeid: True}
        crash = getattr(report.longrepr, "reprcrash", None)
        why = " ".join((crash.message if crash else report.longreprtext).split())
        with self._path.open("a") as stream:
            stream.write(f"{report.nodeid}\t{why[:_WHY]}\n")

    @pytest.hookimpl(trylast=True)  # after pytest's own
    def pytest_sessionfinish(self):
        self._cache.set("cache/lastfailed", self._owed or {})


def pytest_configure(config):
    if not hasattr(config, "workerinput"):
        # What all workers of this run share: they inherit the variable.
        config.add_cleanup(functools.partial(shutil.rmtree, _make_run_folder(), ignore_errors=True))
    path = os.environ.get("PYTEST_FAILED")
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Told(config, path))


def _make_run_folder():
    os.environ["SALTEXT_JOBS_RUN"] = folder = tempfile.mkdtemp(prefix="sj-run-")
    return folder


def pytest_unconfigure():
    # At exit Salt flushes log records that it kept since its start into streams that pytest has closed by then; the
    # tracebacks about it would hide the summary.
    logging.raiseExceptions = False
