"""The job_cache runner, loaded by Salt."""

from __future__ import annotations

import itertools

import pytest
import salt.config
import salt.loader
from salt.exceptions import CommandExecutionError

from tests.functional.cache_servers import cache_servers, driver_options  # noqa: F401 (a fixture)

TAGS = itertools.count(1000)
JIDS = [f"2026051612000000000{number}" for number in range(4)]
OURS = {"master_job_cache": "salt_cache"}
LOAD = {"fun": "test.arg", "arg": ["x"], "tgt": "web*", "tgt_type": "glob", "user": "anna", "ret": "", "kwargs": {}}


class Master:
    def __init__(self, opts):
        self.opts = opts
        self.returners = salt.loader.returners(opts, {})
        self.runners = salt.loader.runner(opts)

    def run(self, function, **kwargs):
        return self.runners[f"job_cache.{function}"](**kwargs)

    def ours(self, function, *args, **kwargs):
        return self.returners[f"salt_cache.{function}"](*args, **kwargs)


@pytest.fixture(params=["localfs", "postgresql", pytest.param("mysql", marks=pytest.mark.slow)])
def master(request, cache_servers, tmp_path):  # noqa: F811
    settings = driver_options(request.param, cache_servers, tmp_path, next(TAGS))
    return Master({**salt.config.DEFAULT_MASTER_OPTS, **OURS, **settings})


def test_stats_count_the_records(master):
    for jid in JIDS:
        master.ours("save_load", jid, LOAD, minions=["web1", "web2"])
        master.ours("returner", {"jid": jid, "id": "web1", "fun": "test.arg", "return": True})
    master.ours("save_load", "20260517120000000000", {"fun": "test.arg", "id": "web1"})
    master.ours("save_load", "special", LOAD, minions=["web1"])
    found = master.run("stats")
    assert found == {
        "driver": master.opts["cache"],
        "jobs": 6,
        "published": 5,
        "returns": 4,
        "oldest": JIDS[0],
        "newest": "20260517120000000000",
    }


def test_an_empty_job_cache_has_nothing(master):
    found = master.run("stats")
    assert (found["jobs"], found["returns"], found["oldest"], found["newest"]) == (0, 0, None, None)


def test_a_driver_that_is_not_there_is_an_error_of_the_command(tmp_path):
    opts = {**salt.config.DEFAULT_MASTER_OPTS, **driver_options("localfs", None, tmp_path, 0), "cache": "nonesuch"}
    with pytest.raises(CommandExecutionError, match="nonesuch"):
        Master(opts).run("stats")
