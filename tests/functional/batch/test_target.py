"""The minions for which it is not known whether a target matches them."""

from __future__ import annotations

import pytest
import salt.cache
import salt.config

from saltext.jobs.core import compat
from saltext.jobs.core.batch.minion_data import without_data


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
        assert without_data({**known, "minion_data_cache": False}, tgt, tgt_type, ["web1", "new"]) == frozenset()


@pytest.mark.parametrize(
    "tgt, tgt_type",
    [
        ("role:db", "grain"),
        ("role:d.*", "grain_pcre"),
        ("role:db", "pillar"),
        ("role:db", "pillar_exact"),
        ("10.0.0.0/8", "ipcidr"),
        ("%dbs", "range"),
        ("web* and G@role:db", "compound"),
        ("dbs", "nodegroup"),
        ("web* or N@dbs", "compound"),
    ],
)
def test_a_minion_without_data_is_left_out_and_where_none_are_kept_the_target_is_refused(known, tgt, tgt_type):
    opts = {**known, "nodegroups": {"dbs": "G@role:db"}}
    assert without_data(opts, tgt, tgt_type, ["web1", "new"]) == frozenset({"new"})
    with pytest.raises(ValueError, match="with minion_data_cache: False the master cannot tell"):
        without_data({**opts, "minion_data_cache": False}, tgt, tgt_type, ["web1", "new"])
