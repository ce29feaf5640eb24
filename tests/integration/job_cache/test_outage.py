"""A real master whose jobs are in Redis, which goes away and comes back."""

from __future__ import annotations

import pytest

from tests.functional.cache_servers import cache_servers  # noqa: F401 (a fixture)
from tests.integration.conftest import ask_runner, make_master, minions, salt_cli
from tests.waiting import wait_for

pytestmark = pytest.mark.slow


def test_the_master_goes_on_when_the_server_of_its_job_cache_is_back(salt_factories, cache_servers):  # noqa: F811
    server = cache_servers("redis")
    master = make_master(salt_factories, engines=[], loop_interval=1, **server.options)
    with master.started(), minions(master, "kept"):
        assert salt_cli(master, "kept", "test.echo", "before").data == "before"
        server.stop()
        salt_cli(master, "kept", "test.echo", "meanwhile")
        assert master.is_running()
        server.start()
        wait_for(
            lambda: salt_cli(master, "kept", "test.echo", "after").data == "after", what="the master publishes again"
        )
        jobs = ask_runner(master, "jobs.list_jobs", "search_function=test.echo")
        said = {job["Arguments"][0] for job in jobs.values()}
        assert {"before", "after"} <= said <= {"before", "meanwhile", "after"}
        assert ask_runner(master, "jobs.lookup_jid", max(jobs)) == {"kept": "after"}
