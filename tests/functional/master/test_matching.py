"""Which minions Salt's master and its minions take the targets of this extension for."""

from __future__ import annotations

import pytest
import salt.cache
import salt.config
import salt.loader

from saltext.jobs.core import compat
from saltext.jobs.core.retry.reader import narrowed

#: Ids that Salt accepts. A compound target is split at blanks, and a list in it at commas.
ODD = ["web 1", "a,b", "ü x", "w[1]", "a.b", "x(1)", "it's it", "-a, $z", "$y", "a"]
#: Minions that match the job's own target as well, and that a target for others must leave alone.
OTHERS = ["1", "web", "b", "w1", "aXb", "axb", "web 12", "x1", "a, b", "ab"]


def matched(tmp_path, tgt, tgt_type):
    """The minions that match by themselves, and those that the master takes for matching."""
    opts = {**salt.config.minion_config(None), "cachedir": str(tmp_path), "grains": {"role": "web"}}
    matches = salt.loader.matchers(opts)[f"{tgt_type}_match.match"]
    by_themselves = {name for name in ODD + OTHERS if matches(tgt, opts={**opts, "id": name})}
    keys = tmp_path / "pki" / "minions"
    keys.mkdir(parents=True)
    master = {**salt.config.master_config(None), "cachedir": str(tmp_path), "pki_dir": str(keys.parent)}
    cache = salt.cache.factory(master)
    for name in ODD + OTHERS:
        (keys / name).touch()
        if compat.HAS_NATIVE_BATCHES:
            cache.store("grains", name, opts["grains"])
        else:
            cache.store(f"minions/{name}", "data", {"grains": opts["grains"], "pillar": {}})
    return by_themselves, set(compat.matched_minions(master, tgt, tgt_type))


@pytest.mark.parametrize("queued", [[], ODD[::2]], ids=["by itself", "by an operator"])
def test_a_job_that_goes_by_grains_is_delivered_to_the_minions_that_it_is_owed_whatever_their_ids_are(tmp_path, queued):
    job = {"tgt": "role:web", "tgt_type": "grain"}
    assert matched(tmp_path, *narrowed(job, ODD, queued)) == (set(ODD), set(ODD))
