"""
Job retry with real daemons whose master keeps all that it caches in PostgreSQL: jobs, the queue, what it knows of minions.

The server is killed while a job is owed, and while one is published.
"""

from __future__ import annotations

import pathlib

import pytest

from tests.functional.cache_servers import cache_servers  # noqa: F401 (a fixture)
from tests.integration.job_retry.desk import kill, lines, retry_master
from tests.waiting import wait_for

pytestmark = pytest.mark.story


@pytest.fixture(scope="module")
def server(cache_servers):  # noqa: F811
    return cache_servers("postgresql")


@pytest.fixture(scope="module")
def master(salt_factories, server):
    with retry_master(salt_factories, **server.make_database("retry")) as daemon:
        yield daemon


@pytest.fixture
def banks(server):
    """A function that returns the banks that there are, as the server has them."""
    query = "SELECT DISTINCT bank FROM saltext_jobs_values"
    return lambda: {row[0] for row in server.server.execute(query, database="retry")}


def test_a_minion_that_was_away_gets_its_job_once_though_the_server_was_killed(
    master, server, desk, bert, banks, tmp_path
):
    ran = tmp_path / "ran"
    jid = desk.publish("cmd.run", f"echo >> {ran}", tgt="bert")
    desk.await_state("bert", jid, "pending")
    assert {"jobs/loads", "jobs/published"} <= banks()
    assert {"grains", "minions/bert"} & banks(), "what the master knows of minions, by the release"
    folder = pathlib.Path(desk.opts["cachedir"])
    assert not (folder / "jobs" / "loads").exists()
    server.kill()
    server.start()
    bert.start()
    desk.await_return("bert", jid)
    wait_for(lambda: not desk.queue(), what="nothing is owed any more")
    assert lines(ran) == 1
    found = desk.run("job_cache.search", minion="bert", outcome="returned")["jobs"]
    assert [row["JID"] for row in found if row["Function"] == "cmd.run"] == [jid]
    kill(bert)
    bert.start()
    later = desk.publish("test.arg", "later", tgt="bert")
    desk.await_return("bert", later)
    assert lines(ran) == 1
