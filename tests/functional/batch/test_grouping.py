"""From what an operator groups by to the layout of a batch."""

from __future__ import annotations

import pytest
import salt.cache
import salt.config

from saltext.jobs.core import compat
from saltext.jobs.core.batch.minion_data import find_groups, options_for
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
def test_what_groups_nobody_is_refused(opts, by, word):
    with pytest.raises(ValueError, match=word):
        find_groups(opts, by, MINIONS)


def test_sizes_and_a_budget_in_per_cent_are_of_each_group():
    groups = (Group("x", ("a", "b", "c", "d")), Group("y", ("e",)))
    assert options_for(groups, "grains:g", "1,50%", "25%") == {
        "by": "grains:g",
        "groups": (("x", 4), ("y", 1)),
        "minions": ("a", "b", "c", "d", "e"),
        "sizes": (1, 2, 1, 1),
        "group_failures_allowed": (1.0, 0.25),
    }


def test_a_budget_that_is_a_count_is_of_the_whole_batch():
    groups = (Group("x", ("a",)), Group("y", ("b",)))
    assert options_for(groups, "grains:g", 1, 3)["failures_allowed"] == 3.0
    assert "group_failures_allowed" not in options_for(groups, "grains:g", 1, None)
