"""What the recorder's tests have in common: a master that records, and the servers behind its returners."""

from __future__ import annotations

import pytest

from tests.functional import cache_servers
from tests.integration.conftest import make_master
from tests.postgresql import PostgreSQL
from tests.recorder_load import Load


def make_recorder_master(factories, returners, **options):
    """A master, not started, that records what comes back in ``returners``."""
    return make_master(
        factories,
        master_job_cache="salt_cache",
        job_retry=None,
        engines=[{"job_recorder": {}}],
        job_recorder={"returners": returners},
        keep_jobs_seconds=0,
        **options,
    )


@pytest.fixture(scope="module")
def postgresql():
    server = PostgreSQL()
    server.execute("CREATE DATABASE bulk")
    yield server
    server.remove()


@pytest.fixture(scope="module")
def redis(tmp_path_factory):
    server = cache_servers.redis_server(tmp_path_factory.mktemp("redis")).start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return tmp_path_factory.mktemp("raw") / "returns"


@pytest.fixture(scope="module")
def master(salt_factories, postgresql, redis, file):
    history = {f"history.{name}": value for name, value in redis.options.items()}
    options = {**postgresql.options, **history, "rawfile_json.filename": str(file), "returner.pgjsonb_bulk.db": "bulk"}
    returners = ["pgjsonb", "rawfile_json", {"salt_cache": {"ret_config": "history"}}, "pgjsonb_bulk"]
    events = {"event_return": ["pgjsonb_bulk"], "event_return_whitelist": ["salt/auth"]}
    with make_recorder_master(salt_factories, returners, **options, **events).started() as daemon:
        yield daemon


@pytest.fixture
def load(master):
    source = Load(master.config)
    yield source
    source.close()
