"""A state file of Salt 3008's own batches, which any minion can have written, does no harm whatever it contains."""

from __future__ import annotations

import os
import pathlib

import pytest
import salt.config
import salt.payload
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from saltext.jobs.core.batch.catalog import Catalog
from saltext.jobs.core.batch.store import BatchStore
from saltext.jobs.core.disk import files

JID = "20260516101112131415"
GOOD = {
    "jid": JID,
    "fun": "test.ping",
    "tgt": "*",
    "tgt_type": "glob",
    "user": "root",
    "driver": "master",
    "all_minions": ["a", "b"],
    "pending": ["b"],
    "active": {},
    "done": {"a": {"retcode": 0}},
    "failed": [],
    "created": 1.0,
    "last_progress": 2.0,
    "halted": False,
    "halted_reason": None,
    "batch_size": 1,
}
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
    return [batch["jid"] for batch in catalog.newest(20, None)]


def write(opts, jid, state):
    path = BatchStore(opts).native_path(jid)
    os.makedirs(path.parent, exist_ok=True)
    files.write_atomic(path, salt.payload.dumps(state))
    files.write_atomic(pathlib.Path(opts["cachedir"], "batch_active.p"), salt.payload.dumps([jid]))


def test_a_state_that_names_another_job_is_shown_nowhere(opts):
    write(opts, JID, {**GOOD, "jid": "20260516101112131416"})
    assert show_all(opts) == []
    assert Catalog(opts).native(JID) is None


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
    if Catalog(opts).native(JID) is not None:
        assert Catalog(opts).find(JID)[0]["jid"] == JID
