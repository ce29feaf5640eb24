"""A real master whose jobs are in Redis, which goes away and comes back."""

from __future__ import annotations

import time

import pytest

from tests.functional.cache_servers import cache_servers  # noqa: F401 (a fixture)
from tests.integration.conftest import make_master, minions

pytestmark = pytest.mark.slow
DEADLINE = 90  # seconds


def test_the_master_goes_on_when_the_server_of_its_job_cache_is_back(salt_factories, cache_servers):  # noqa: F811
    server = cache_servers("redis")
    master = make_master(salt_factories, engines=[], loop_interval=1, **server.options)
    master.slow_stop = False
    with master.started(), minions(master, "kept"):
        salt = master.salt_cli(timeout=DEADLINE)
        run = master.salt_run_cli(timeout=DEADLINE)
        assert salt.run("test.echo", "before", minion_tgt="kept").data == "before"
        server.stop()
        salt.run("test.echo", "meanwhile", minion_tgt="kept")
        assert master.is_running()
        server.start()
        deadline = time.monotonic() + DEADLINE
        while salt.run("test.echo", "after", minion_tgt="kept").data != "after":
            assert time.monotonic() < deadline, "the master does not publish any more"
        jobs = run.run("jobs.list_jobs", "search_function=test.echo").data
        said = {job["Arguments"][0] for job in jobs.values()}
        assert {"before", "after"} <= said <= {"before", "meanwhile", "after"}
        assert run.run("jobs.lookup_jid", max(jobs)).data == {"kept": "after"}
