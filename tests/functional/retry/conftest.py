"""Shared by the tests of job retry: a master's options and its job cache."""

from __future__ import annotations

import pytest

from saltext.jobs.core.master.job_cache import JobCache
from tests.functional.cache_servers import cache_servers
from tests.functional.options import options_in

__all__ = ["cache_servers"]


@pytest.fixture
def opts(tmp_path):
    opts = options_in(tmp_path, master_job_cache="salt_cache")
    for kind in ("minions", "minions_pre", "minions_rejected", "minions_denied"):
        (tmp_path / "pki" / kind).mkdir(parents=True)
    (tmp_path / "cache").mkdir()
    return opts


@pytest.fixture
def job_cache(opts):
    return JobCache(opts)
