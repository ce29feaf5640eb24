"""
Fixtures for a master that does not run the engine itself: a test starts the engine as a process of its own, and kills it. A
file imports ``master``, ``process`` and ``bert``, and has a fixture ``engine``, which is ``process``, started or not.
"""

from __future__ import annotations

import contextlib

import pytest

from saltext.jobs.core.engine.names import JOB_RETRY
from tests.integration.faults import EngineProcess
from tests.integration.job_retry.desk import retry_master

QUICK = {"gather": 0.1, "backoff": 1.0}


@pytest.fixture(scope="module")
def master(salt_factories):
    with retry_master(salt_factories, engines=[], job_retry=QUICK, timeout=1) as daemon:
        yield daemon


@pytest.fixture
def process(master, tmp_path):
    engine = EngineProcess(master, tmp_path / "engine.log", JOB_RETRY)
    with contextlib.ExitStack() as stack:
        stack.callback(engine.kill)
        yield engine


@pytest.fixture
def bert(engine, bert):
    """The minion, away; the queue is emptied again while the engine can still run."""
    return bert
