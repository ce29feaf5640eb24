"""A master for batches, with its minions."""

from __future__ import annotations

import contextlib

import pytest

from saltext.jobs.core.batch.store import BatchStore
from tests.integration.conftest import make_master, minions
from tests.integration.faults import EngineProcess
from tests.waiting import lasting


@contextlib.contextmanager
def batch_master(factories, *names, of_minions=None, **overrides):
    """A running master with short timeouts, and its minions, with the options ``of_minions``, by name in ``fleet``."""
    daemon = make_master(factories, **{"timeout": 3, "gather_job_timeout": 3, **overrides})
    with daemon.started(), minions(daemon, *names, **(of_minions or {})) as daemons:
        daemon.fleet = {minion.id: minion for minion in daemons}
        yield daemon


def timeouts(seconds):
    """The arguments of ``batch.start`` by which a batch soon asks what has become of a minion."""
    return f"timeout={lasting(seconds)}", f"gather_job_timeout={lasting(seconds)}"


@pytest.fixture
def engine(master, tmp_path):
    """The engine of the module's master, in a process of its own."""
    process = EngineProcess(master, tmp_path / "engine.log")
    yield process
    process.kill()


@pytest.fixture
def store(master):
    return BatchStore(master.config)
