"""From what an operator groups by to groups of minions."""

from __future__ import annotations

import pytest
import salt.cache
import salt.config

from saltext.jobs.core import compat
from saltext.jobs.core.batch.minion_data import find_groups
from saltext.jobs.core.batch.plan import NOT_KNOWN, WITHOUT, Group

MINIONS = ("m1", "m2", "m3", "m4", "m5")


@pytest.fixture
def opts(tmp_path):
    opts = salt.config.master_config(None)
    opts.update(
        cachedir=str(tmp_path / "cache"), pki_dir=str(tmp_path / "pki"), nodegroups={"canary": "L@m4", "eu": "m*"}
    )
    (tmp_path / "pki" / "minions").mkdir(parents=True)
    for minion in MINIONS:
        (tmp_path / "pki" / "minions" / minion).write_text("key")
    cache = salt.cache.factory(opts)
    for minion, grains in {
        "m1": {"rack": "r10"},
        "m2": {"rack": "r2"},
        "m3": {"os": "x"},
        "m4": {"rack": "r2"},
    }.items():
        if compat.HAS_NATIVE_BATCHES:
            cache.store("grains", minion, grains)
        else:
            cache.store(f"minions/{minion}", "data", {"grains": grains, "pillar": {}})
    return opts


def test_minions_are_grouped_by_a_grain_and_those_without_it_or_not_known_come_last(opts):
    assert find_groups(opts, "grains:rack", MINIONS) == (
        Group("r2", ("m2", "m4")),
        Group("r10", ("m1",)),
        Group(WITHOUT, ("m3",)),
        Group(NOT_KNOWN, ("m5",)),
    )


def test_minions_are_grouped_by_nodegroups_in_the_given_order(opts):
    assert find_groups(opts, "nodegroups:[canary,eu]", MINIONS) == (
        Group("canary", ("m4",)),
        Group("eu", ("m1", "m2", "m3", "m5")),
    )


@pytest.mark.parametrize(
    ("by", "word"),
    [
        ("grains:rcak", "by is 'grains:rcak', but no minion of the target is in such a group; 4 of the 5"),
        ("pillar:ring", "no minion"),
        ("nodegroups:[canary,mars]", "no nodegroup mars"),
        ("racks", "accepted is"),
    ],
)
def test_a_grouping_that_groups_no_minion_is_refused(opts, by, word):
    with pytest.raises(ValueError, match=word):
        find_groups(opts, by, MINIONS)
