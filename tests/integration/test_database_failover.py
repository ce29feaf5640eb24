"""
Two hot-hot masters whose database fails over, while a batch runs, to a replica that lacks what was written last.
"""

from __future__ import annotations

import pathlib

import pytest

from tests.integration.job_retry.desk import lines
from tests.integration.several import ADDRESSES, ended, has_begun, start, there
from tests.integration.test_hot_hot import MINIONS
from tests.integration.test_hot_hot import desks as desks
from tests.integration.test_hot_hot import masters as masters
from tests.postgresql import PostgreSQL

pytestmark = pytest.mark.slow


@pytest.fixture
def primary():
    server = PostgreSQL()
    yield server
    server.remove()


@pytest.fixture
def replica(primary):
    server = PostgreSQL(of=primary)
    yield server
    server.remove()


@pytest.fixture
def site(primary):
    place = {"host": "127.0.0.1", "port": primary.port, "user": "salt", "db": "postgres"}
    found = {f"postgresql.{name}": value for name, value in place.items()}
    return {**found, "cache": "postgresql", "saltext_jobs_site": "postgresql"}


def test_a_job_known_only_from_lost_transactions_does_not_run_twice(masters, desks, primary, replica, tmp_path):
    with there(MINIONS, masters[0], *desks, master=list(ADDRESSES), cache_jobs=True):
        trace = tmp_path / "trace"
        jid = start(desks[1], trace, MINIONS, seconds=3)
        has_begun(trace, 1)
        replica.stop()
        has_begun(trace, 2)
        primary.stop()
        replica.promote(primary)
        assert ended(masters[0], jid) == dict.fromkeys(MINIONS, "completed")
        assert lines(trace) == len(MINIONS)
        logs = [pathlib.Path(master.config["log_file"]).read_text(errors="replace") for master in masters]
        assert any("The batch_manager engine: the database has another history than before" in log for log in logs)
