"""The minions for which it is not known whether a target matches them."""

from __future__ import annotations

import pytest
import salt.cache
import salt.config

from saltext.jobs.core import compat
from saltext.jobs.core.batch.minion_data import doubts_about


@pytest.fixture
def known(tmp_path):
    """The options of a master that has the grains of web1 only."""
    opts = salt.config.master_config(None)
    opts.update(cachedir=str(tmp_path / "cache"), pki_dir=str(tmp_path / "pki"))
    cache, grains = salt.cache.factory(opts), {"id": "web1", "role": "db"}
    if compat.HAS_NATIVE_BATCHES:
        cache.store("grains", "web1", grains)
        cache.store("pillar", "web1", {})
    else:
        cache.store("minions/web1", "data", {"grains": grains, "pillar": {}})
    return opts


def test_a_target_by_id_leaves_no_doubt(known):
    for tgt, tgt_type in (("*", "glob"), ("web.*", "pcre"), (["web1"], "list"), ("web* or E@db.* or L@x", "compound")):
        assert doubts_about(known, tgt, tgt_type, ["web1", "new"]) == (frozenset(), "")


@pytest.mark.parametrize(
    "tgt, tgt_type, condition",
    [
        ("role:db", "grain", "G@role:db"),
        ("role:d.*", "grain_pcre", "P@role:d.*"),
        ("role:db", "pillar", "I@role:db"),
        ("10.0.0.0/8", "ipcidr", "S@10.0.0.0/8"),
        ("web* and G@role:db", "compound", "web* and G@role:db"),
        ("dbs", "nodegroup", "( G@role:db )"),
        ("web* or N@dbs", "compound", "web* or ( G@role:db )"),
    ],
)
def test_a_minion_without_data_is_not_known_to_match(known, tgt, tgt_type, condition):
    opts = {**known, "nodegroups": {"dbs": "G@role:db"}}
    unsure, written = doubts_about(opts, tgt, tgt_type, ["web1", "new"])
    assert (unsure, written) == (frozenset({"new"}), condition)


def test_without_cached_data_no_minion_is_known_to_match(known):
    opts = {**known, "minion_data_cache": False}
    if compat.SENDS_COMPOUND_WITHOUT_DATA:
        assert doubts_about(opts, "role:db", "grain", ["web1"]) == (frozenset({"web1"}), "G@role:db")
        return
    with pytest.raises(ValueError, match=r"'role:db'.*set that to True"):
        doubts_about(opts, "role:db", "grain", ["web1"])


def test_another_delimiter_travels_too(known):
    assert doubts_about(known, "role|db", "grain", ["new"], "|")[1] == "G|@role|db"


@pytest.mark.parametrize("tgt, tgt_type", [("role:db", "pillar_exact"), ("os:Red Hat", "grain")])
def test_a_target_that_cannot_be_sent_along_is_refused_with_the_reason(known, tgt, tgt_type):
    assert doubts_about(known, tgt, tgt_type, ["web1"]) == (frozenset(), "")
    with pytest.raises(ValueError, match=r"no grains and pillar of 1 minions \(new\)"):
        doubts_about(known, tgt, tgt_type, ["web1", "new"])
