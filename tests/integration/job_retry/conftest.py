"""What the job retry tests have in common: a master, its operator's desk, and bert, a minion that comes and goes."""

from __future__ import annotations

import contextlib

import pytest

from tests.integration.job_retry.desk import Desk, away, retry_master, retry_minion


@pytest.fixture(scope="module")
def master(salt_factories):
    """A master with job retry; a file whose master is to be another one has a fixture of this name."""
    with retry_master(salt_factories) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def desk(master):
    with contextlib.closing(Desk(master)) as desk:
        yield desk


@pytest.fixture(scope="module")
def bert_once(master):
    """A minion that comes and goes."""
    with retry_minion(master, "bert") as daemon:
        yield daemon


@pytest.fixture
def bert(bert_once, desk):
    """The minion, away, with nothing in the queue."""
    with away(bert_once, desk) as daemon:
        yield daemon
