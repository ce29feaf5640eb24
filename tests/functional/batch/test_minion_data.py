"""
Which grains, pillar and nodegroups the master knows of minions, from the cache that Salt fills: the groups that a batch goes
by, and the minions for which it is not known whether a target matches them.
"""

from __future__ import annotations

import time

import pytest
import salt.config

from saltext.jobs.core.batch.minion_data import find_groups, may_have_started, without_data
from saltext.jobs.core.batch.spec import NOT_KNOWN, WITHOUT, Group
from saltext.jobs.core.errors import JobCacheError, Refused
from tests.minion_data import know

GROUPS = {"named": "L@m1,m3", "by_rack": "G@rack:r1", "nested": "N@by_rack or L@m3", "listed": ["m2"], "all": "m*"}


@pytest.fixture
def opts(tmp_path):
    opts = salt.config.master_config(None)
    opts.update(cachedir=str(tmp_path / "cache"), pki_dir=str(tmp_path / "pki"), nodegroups=GROUPS)
    keys = tmp_path / "pki" / "minions"
    keys.mkdir(parents=True)
    for minion in ("m1", "m2", "m3", "m4"):
        (keys / minion).write_text("key")
    return opts


@pytest.fixture
def known(opts):
    know(opts, "m1", {"id": "m1", "rack": "r1", "place": {"row": 7}}, {"ring": ["a", "b"]})
    know(opts, "m2", {"id": "m2", "rack": "r2"})


# -- the groups that a batch goes by -----------------------------------------------------------------------------------


def test_minions_are_grouped_by_a_grain_and_those_without_it_or_not_known_come_last(opts, known):
    know(opts, "m3", {"os": "x"})
    assert find_groups(opts, "grains:rack", ("m1", "m2", "m3", "m4")) == (
        Group("r1", ("m1",)),
        Group("r2", ("m2",)),
        Group(WITHOUT, ("m3",)),
        Group(NOT_KNOWN, ("m4",)),
    )


def test_minions_are_grouped_by_a_nested_grain_and_by_each_value_of_a_list_in_pillar(opts, known):
    assert find_groups(opts, "grains:place:row", ("m1", "m2")) == (Group("7", ("m1",)), Group(WITHOUT, ("m2",)))
    assert find_groups(opts, "pillar:ring:[b]", ("m1", "m2")) == (Group("b", ("m1",)), Group(WITHOUT, ("m2",)))


@pytest.mark.parametrize("name", ["by_rack", "nested"])
def test_a_nodegroup_of_grains_is_known_only_for_minions_with_known_grains(opts, known, name):
    groups = Group(name, ("m1",)), Group(WITHOUT, ("m2",)), Group(NOT_KNOWN, ("m4",))
    assert find_groups(opts, f"nodegroups:[{name}]", ("m1", "m2", "m4")) == groups
    groups = Group("named", ("m1", "m3")), Group("all", ("m2", "m4"))
    assert find_groups(opts, "nodegroups:[named,all]", ("m1", "m2", "m3", "m4")) == groups


@pytest.mark.parametrize("by", ["grains:rack", "nodegroups:[by_rack]"])
def test_without_a_cache_of_minion_data_nothing_is_known(opts, known, by):
    with pytest.raises(Refused, match="the master knows 0 of 2 minions"):
        find_groups({**opts, "minion_data_cache": False}, by, ("m1", "m2"))


def test_a_failing_cache_does_not_mean_that_a_value_is_absent(opts, known):
    with pytest.raises(JobCacheError, match="m1"):
        find_groups({**opts, "cache": "nosuchdriver"}, "grains:rack", ("m1",))


@pytest.mark.parametrize(
    ("by", "word"),
    [
        ("grains:rcak", "by is 'grains:rcak', but no minion of the target is in such a group; the master knows 2 of"),
        ("pillar:nosuch", "no minion"),
        ("nodegroups:[named,mars,venus]", "no nodegroup mars, venus; the master's configuration has all, by_rack, l"),
    ],
)
def test_a_grouping_that_groups_no_minion_is_refused(opts, known, by, word):
    with pytest.raises(Refused, match=word):
        find_groups(opts, by, ("m1", "m2", "m3", "m4"))


def test_the_minions_of_a_retry_may_all_be_in_no_group(opts, known):
    assert find_groups(opts, "nodegroups:[by_rack]", ("m2",), is_retry=True) == (Group(WITHOUT, ("m2",)),)


# -- targets -----------------------------------------------------------------------------------------------------------


def test_a_target_by_id_leaves_no_doubt(opts, known):
    for tgt, tgt_type in (("*", "glob"), ("web.*", "pcre"), (["m1"], "list"), ("web* or E@db.* or L@x", "compound")):
        assert without_data({**opts, "minion_data_cache": False}, tgt, tgt_type, ["m1", "new"]) == frozenset()


@pytest.mark.parametrize(
    "tgt, tgt_type",
    [
        *(("role:db", "grain"), ("role:d.*", "grain_pcre"), ("role:db", "pillar"), ("role:db", "pillar_exact")),
        *(("10.0.0.0/8", "ipcidr"), ("%dbs", "range"), ("dbs", "nodegroup")),
        *(("web* and G@role:db", "compound"), ("web* or N@dbs", "compound")),
    ],
)
def test_a_minion_without_data_is_left_out_and_where_none_are_kept_the_target_is_refused(opts, known, tgt, tgt_type):
    opts = {**opts, "nodegroups": {"dbs": "G@role:db"}}
    assert without_data(opts, tgt, tgt_type, ["m1", "new"]) == frozenset({"new"})
    with pytest.raises(Refused, match="with minion_data_cache: False the master cannot tell"):
        without_data({**opts, "minion_data_cache": False}, tgt, tgt_type, ["m1", "new"])


def test_a_minion_that_has_fetched_its_pillar_since_may_have_started_anew(opts, known):
    now = time.time()
    assert may_have_started(opts, {"m1": now - 60, "m3": now - 60}) == {"m1"}
    assert may_have_started(opts, {"m1": now + 60}) == frozenset()
    assert may_have_started({**opts, "minion_data_cache": False}, {"m1": 0.0}) == frozenset()
