"""
Job retry with two masters on one redis, which goes away.
"""

from __future__ import annotations

import pytest

from saltext.jobs.core.errors import Refused
from tests.functional.cache_servers import redis_server
from tests.integration.conftest import make_minion
from tests.integration.job_retry.desk import Desk, kill, make_retry_master
from tests.waiting import wait_for

pytestmark = pytest.mark.slow


@pytest.fixture
def redis(tmp_path):
    server = redis_server(tmp_path).start()
    yield server
    server.stop()


def start_master(factories, **more):
    daemon = make_retry_master(factories, **more)
    daemon.start()
    return daemon


def start_minion(master, name):
    daemon = make_minion(master, name)
    daemon.start()
    return daemon


def stop(*daemons):
    """End daemons at once, whether they run or not."""
    for daemon in daemons:
        kill(daemon) if daemon.is_running() else daemon.terminate()


def test_masters_that_share_a_redis_keep_to_their_own_jobs(salt_factories, redis, tmp_path):
    one, two = (start_master(salt_factories, **redis.options) for _ in range(2))
    carl, dora = start_minion(one, "carl"), start_minion(two, "dora")
    desks = Desk(one, alone=False), Desk(two, alone=False)
    try:
        for minion in (carl, dora):
            kill(minion)
        ran = tmp_path / "ran"
        mine = desks[0].publish("cmd.run", f"echo carl >> {ran}", tgt="carl")
        other = desks[1].publish("cmd.run", f"echo dora >> {ran}", tgt="dora")
        desks[0].await_state("carl", mine, "pending")
        desks[1].await_state("dora", other, "pending")
        queued = [{row["minion"] for row in desk.run("job_retry.list")} for desk in desks]
        assert queued == [{"carl"}, {"dora"}]
        with pytest.raises(Refused, match="can be cancelled"):
            desks[0].run("job_retry.cancel", jid=other)
        # Redis goes and comes back: what is owed is still owed, and delivered.
        redis.stop()
        redis.start()
        carl.start()
        desks[0].await_return("carl", mine)
        wait_for(
            lambda: {row["minion"] for row in desks[1].run("job_retry.list")} == {"dora"},
            what="only the other master's job is still owed",
        )
        assert ran.read_text().split() == ["carl"]
    finally:
        for desk in desks:
            desk.close()
        stop(carl, dora, one, two)
