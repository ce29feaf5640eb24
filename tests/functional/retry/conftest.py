"""Shared by the tests of job retry: a master's options and its job cache."""

from __future__ import annotations

import pytest
import salt.cache
import salt.config
import salt.loader

from saltext.jobs.core.master.job_cache import JobCache
from tests.functional.cache_servers import cache_servers

__all__ = ["cache_servers"]


@pytest.fixture
def opts(tmp_path):
    opts = salt.config.master_config(None)
    opts.update(
        id="here_master",
        cachedir=str(tmp_path / "cache"),
        pki_dir=str(tmp_path / "pki"),
        extension_modules=str(tmp_path / "ext"),
        sock_dir=str(tmp_path / "sock"),
        root_dir=str(tmp_path),
        cluster_id=None,
        master_job_cache="salt_cache",
    )
    for kind in ("minions", "minions_pre", "minions_rejected", "minions_denied"):
        (tmp_path / "pki" / kind).mkdir(parents=True)
    (tmp_path / "cache").mkdir()
    return opts


@pytest.fixture
def job_cache(opts):
    return JobCache(opts)
