"""A state file of Salt 3008's own batches, which any minion can have written, does no harm whatever it contains."""

from __future__ import annotations

import os
import pathlib

import pytest
import salt.config
import salt.payload
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from saltext.jobs.core.batch.catalog import Catalog, of_salt
from saltext.jobs.core.batch.store import BatchStore, path_of
from saltext.jobs.core.disk import files
from tests.unit.batch.bench import Bench

JID = "20260516101112131415"
GOOD = {"jid": JID, "fun": "test.ping", "tgt": "*", "tgt_type": "glob", "user": "root", "driver": "master"}
GOOD |= {"all_minions": ["a", "b"], "pending": ["b"], "active": {}, "done": {"a": {"retcode": 0}}, "failed": []}
GOOD |= {"created": 1.0, "last_progress": 2.0, "halted": False, "halted_reason": None, "batch_size": 1}
ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(),
    st.sampled_from(["", "x", "../x", "9" * 30]),
    st.binary(max_size=3),
    st.lists(st.one_of(st.none(), st.text(max_size=3), st.lists(st.none(), max_size=1)), max_size=3),
    st.dictionaries(st.text(max_size=3), st.one_of(st.none(), st.text(max_size=2)), max_size=3),
)


@pytest.fixture
def opts(tmp_path):
    opts = salt.config.master_config(None)
    opts.update(cachedir=str(tmp_path), user="root")
    return opts


def show_all(opts):
    catalog = Catalog(opts)
    catalog.active()
    return [batch["jid"] for batch in catalog.newest(20)]


def write(opts, jid, state):
    path = path_of(opts, jid)
    os.makedirs(path.parent, exist_ok=True)
    files.write_atomic(path, salt.payload.dumps(state))
    index = pathlib.Path(opts["cachedir"], "batch_active.p")
    jids = salt.payload.loads(index.read_bytes()) if index.exists() else []
    files.write_atomic(index, salt.payload.dumps([*jids, jid]))


def test_it_is_summed_up_as_a_batch_of_ours(opts):
    done = {"a": {"retcode": 0}, "d": {"retcode": 2}}
    write(opts, JID, {**GOOD, "all_minions": ["a", "b", "c", "d"], "failed": {"c": "timeout"}, "done": done})
    found = Catalog(opts).find(JID)
    summary, minions = found.summary, found.minions()
    counts = {name: summary[name] for name in ("total", "completed", "pending", "failed", "lost", "state", "driver")}
    assert counts == {
        "total": 4,
        "completed": 1,
        "pending": 1,
        "failed": 2,
        "lost": 0,
        "state": "running",
        "driver": "master",
    }
    assert [minions[name]["state"] for name in "abcd"] == ["completed", "pending", "failed", "failed"]
    write(opts, JID, {**GOOD, "pending": [], "done": done})
    assert Catalog(opts).find(JID).summary["success"] is False


def test_the_state_file_of_a_batch_of_ours_is_never_read_whatever_is_in_it(opts):
    for jid, ended in (("1", False), ("2", True)):
        Bench("ab", "2", jid=jid).keep(BatchStore(opts), ended=ended)
        write(opts, jid, {**GOOD, "jid": jid, "driver": "cli"})
        assert Catalog(opts).find(jid).summary["driver"] == "engine"


@pytest.mark.parametrize("content", [b"", b"\xc1", {"a": 1}, ["../x", 3]], ids=str)
def test_what_is_damaged_or_invalid_in_the_index_of_salts_own_manager_is_passed_over(opts, content):
    index = pathlib.Path(opts["cachedir"], "batch_active.p")
    index.write_bytes(content if isinstance(content, bytes) else salt.payload.dumps(content))
    assert Catalog(opts).active() == []


def test_a_state_that_names_another_job_is_shown_nowhere(opts):
    write(opts, JID, {**GOOD, "jid": "20260516101112131416"})
    assert show_all(opts) == []
    assert of_salt(opts, JID) is None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    changes=st.dictionaries(st.sampled_from(sorted(GOOD)), ODD, max_size=4),
    missing=st.sets(st.sampled_from(sorted(GOOD)), max_size=3),
)
def test_no_state_keeps_the_others_from_being_listed(opts, changes, missing):
    other = "20260516101112131499"
    write(opts, other, {**GOOD, "jid": other})
    write(opts, JID, {name: value for name, value in {**GOOD, **changes}.items() if name not in missing})
    assert other in show_all(opts)
    if of_salt(opts, JID) is not None:
        assert Catalog(opts).find(JID).summary["jid"] == JID
