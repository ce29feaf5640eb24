"""The job_cache runner, loaded by Salt."""

from __future__ import annotations

import itertools

import pytest
import salt.config
import salt.loader
from salt.exceptions import CommandExecutionError

from tests.functional.cache_servers import cache_servers, driver_options  # noqa: F401 (a fixture)
from tests.functional.store.test_contract import LOAD, Returner, a_return

TAGS = itertools.count(1000)
JIDS = [f"2026051612000000000{number}" for number in range(4)]


@pytest.fixture(params=["localfs", "postgresql", pytest.param("mysql", marks=pytest.mark.slow)])
def opts(request, cache_servers, tmp_path):  # noqa: F811
    settings = driver_options(request.param, cache_servers, tmp_path, next(TAGS))
    return {**salt.config.DEFAULT_MASTER_OPTS, "master_job_cache": "salt_cache", **settings}


def test_stats_count_the_records(opts):
    stats, job_cache = salt.loader.runner(opts)["job_cache.stats"], Returner(opts)
    nothing = {"driver": opts["cache"], "jobs": 0, "published": 0, "returns": 0, "oldest": None, "newest": None}
    assert stats() == nothing
    for jid in JIDS:
        job_cache.save_load(jid, LOAD, minions=["web1", "web2"])
        job_cache.returner(a_return("web1", jid))
    job_cache.save_load("20260517120000000000", {"fun": "test.arg", "id": "web1"})
    newest = "20260517120000000000"
    assert stats() == {**nothing, "jobs": 5, "published": 4, "returns": 4, "oldest": JIDS[0], "newest": newest}


def test_a_driver_that_is_not_there_is_an_error_of_the_command(tmp_path):
    opts = {**salt.config.DEFAULT_MASTER_OPTS, **driver_options("localfs", None, tmp_path, 0), "cache": "nonesuch"}
    with pytest.raises(CommandExecutionError, match="nonesuch"):
        salt.loader.runner(opts)["job_cache.stats"]()


@pytest.mark.parametrize("name", ["search", "minions"])
def test_of_jobs_that_the_master_stores_elsewhere_none_is_said_to_be_missing(tmp_path, name):
    (tmp_path / "pki" / "minions").mkdir(parents=True)
    opts = {**salt.config.DEFAULT_MASTER_OPTS, **driver_options("localfs", None, tmp_path, 0)}
    with pytest.raises(CommandExecutionError, match=r"master_job_cache is 'local_cache', so salt-run jobs\.list_jobs"):
        salt.loader.runner(opts)[f"job_cache.{name}"]()
