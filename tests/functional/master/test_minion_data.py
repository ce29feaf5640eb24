"""What the master's own cache tells of its minions."""

from __future__ import annotations

import time

import pytest
import salt.cache
import salt.config

from saltext.jobs.core import compat
from saltext.jobs.core.batch.minion_data import may_have_started


@pytest.fixture
def opts(tmp_path):
    return {**salt.config.master_config(None), "cachedir": str(tmp_path), "minion_data_cache": True}


def start(opts, minion):
    """What the master does when a minion fetches its pillar."""
    cache = salt.cache.factory(dict(opts))
    if compat.HAS_NATIVE_BATCHES:
        cache.store("grains", minion, {"id": minion})
    else:
        cache.store(f"minions/{minion}", "data", {"grains": {"id": minion}, "pillar": {}})


def test_a_minion_that_has_fetched_its_pillar_since_may_have_started_anew(opts):
    start(opts, "web1")
    now = time.time()
    assert may_have_started(opts, {"web1": now - 60, "web2": now - 60}) == {"web1"}
    assert may_have_started(opts, {"web1": now + 60}) == frozenset()


def test_a_master_that_caches_nothing_of_minions_reports_nothing(opts):
    start(opts, "web1")
    assert may_have_started({**opts, "minion_data_cache": False}, {"web1": 0.0}) == frozenset()
