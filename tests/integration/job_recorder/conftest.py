"""What the recorder's tests have in common: a master that records, and the servers behind its returners."""

from __future__ import annotations

import time

import pytest
import salt.utils.jid

from tests.functional import cache_servers
from tests.functional.recorder.stage import JobCache
from tests.integration.conftest import make_master
from tests.postgresql import PostgreSQL


class Load(JobCache):
    """Jobs and returns of a master that runs, without minions."""

    def __init__(self, opts):
        super().__init__(dict(opts))
        self.made = []  # (jid, minion) of every return

    def publish(self, minions, jid=None):
        jid = jid or salt.utils.jid.gen_jid(self.opts)
        super().publish(jid, "test.echo", minions, kwargs={"metadata": {"ticket": 7}})
        return jid

    def give_back(self, jid, minion, value="x"):
        super().give_back(jid, minion, value, fun="test.echo")
        self.made.append((jid, minion))

    def run(self, rate, seconds, minions=50):
        """Give back so many returns a second for some seconds."""
        for number in range(rate * seconds):
            if number % minions == 0:
                jid = self.publish([f"m{n}" for n in range(minions)])
            self.give_back(jid, f"m{number % minions}", {"number": number, "text": "y" * 200})
            time.sleep(1 / rate)


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
    return Load(master.config)
