"""Which grains, pillar and nodegroups the master knows of minions, from the cache that Salt fills."""

from __future__ import annotations

import pytest
import salt.cache
import salt.config

from saltext.jobs.core import compat
from saltext.jobs.core.batch.minion_data import MinionDataUnreadable, nodegroups_of, values_of


@pytest.fixture
def opts(tmp_path):
    opts = salt.config.master_config(None)
    opts.update(
        cachedir=str(tmp_path / "cache"),
        pki_dir=str(tmp_path / "pki"),
        nodegroups={
            "named": "L@m1,m3",
            "by_rack": "G@rack:r1",
            "nested": "N@by_rack or L@m3",
            "listed": ["m2"],
        },
    )
    keys = tmp_path / "pki" / "minions"
    keys.mkdir(parents=True)
    for minion in ("m1", "m2", "m3", "m4"):
        (keys / minion).write_text("key")
    return opts


@pytest.fixture
def known(opts):
    """Cache the grains and pillar of a minion as the master does when it compiles that pillar."""
    cache = salt.cache.factory(opts)

    def store(minion, grains, pillar):
        if compat.HAS_NATIVE_BATCHES:
            cache.store("grains", minion, grains)
            cache.store("pillar", minion, pillar)
        else:
            cache.store(f"minions/{minion}", "data", {"grains": grains, "pillar": pillar})

    store("m1", {"id": "m1", "rack": "r1", "place": {"row": 7}}, {"ring": ["a", "b"]})
    store("m2", {"id": "m2", "rack": "r2"}, {})
    return store


def test_a_minion_without_cached_data_is_missing_and_one_without_the_value_is_not(opts, known):
    assert values_of(opts, "grains", "rack", ["m1", "m2", "m3"]) == {"m1": "r1", "m2": "r2"}
    assert values_of(opts, "grains", "place:row", ["m1", "m2", "m3"]) == {"m1": 7, "m2": None}
    assert values_of(opts, "pillar", "ring", ["m1", "m2", "m3"]) == {"m1": ["a", "b"], "m2": None}


def test_without_a_cache_of_minion_data_nothing_is_known(opts, known):
    opts["minion_data_cache"] = False
    assert values_of(opts, "grains", "rack", ["m1", "m2"]) == {}
    assert nodegroups_of(opts, ["by_rack", "named"], ["m1", "m2"]) == {}


def test_a_nodegroup_that_lists_minions_is_known_for_every_minion(opts, known):
    assert nodegroups_of(opts, ["named", "listed"], ["m1", "m2", "m3"]) == {
        "m1": ("named",),
        "m2": ("listed",),
        "m3": ("named",),
    }


@pytest.mark.parametrize("name", ["by_rack", "nested"])
def test_a_nodegroup_of_grains_is_known_only_for_minions_with_known_grains(opts, known, name):
    assert nodegroups_of(opts, [name], ["m1", "m2", "m4"]) == {"m1": (name,), "m2": ()}


def test_a_nodegroup_that_does_not_exist_is_named(opts):
    with pytest.raises(ValueError, match="no nodegroup mars, venus; the master's configuration has by_rack, listed"):
        nodegroups_of(opts, ["named", "mars", "venus"], ["m1"])


def test_a_failing_cache_does_not_mean_that_a_value_is_absent(opts, known, monkeypatch):
    opts["cache"] = "nosuchdriver"
    with pytest.raises(MinionDataUnreadable, match="m1"):
        values_of(opts, "grains", "rack", ["m1"])
