"""How the engines read the job cache's records: only a record that is malformed is passed over."""

from __future__ import annotations

import pathlib

import hypothesis.strategies as st
import pytest
import salt.cache
import salt.config
import salt.loader
import salt.payload
from hypothesis import HealthCheck, given, settings

from saltext.jobs.core.master.job_cache import JobCache
from tests.functional.options import options_in

JID = "20260516101112131415"
RETURNS = f"jobs/returns/{JID}"


@pytest.fixture(params=["salt_cache", "local_cache"])
def opts(tmp_path, request):
    opts = options_in(tmp_path, master_job_cache=request.param)
    (tmp_path / "cache").mkdir()
    return opts


@pytest.fixture
def ours(tmp_path):
    return options_in(tmp_path, master_job_cache="salt_cache")


@pytest.fixture
def bank(ours):
    """Writes a record past the returner."""
    cache = salt.cache.Cache(ours)
    return lambda minion, record: cache.store(RETURNS, minion, record)


def give(cache, minion, **fields):
    cache.store_return({"jid": JID, "id": minion, "fun": "test.ping", "return": True, **fields})


@pytest.mark.parametrize(
    ("retcode", "code"), [(0, 0), (7, 7), (float("inf"), 1), (2**63, 1), ("9" * 30, 1), ([0, 3], 3), (b"\\xff", 1)]
)
def test_a_return_counts_with_whatever_retcode_it_was_stored(opts, retcode, code):
    cache = JobCache(opts)
    cache.keep_load(JID, {"fun": "test.ping", "tgt": "*", "tgt_type": "glob", "arg": [], "user": "root"}, ["a", "b"])
    give(cache, "a", retcode=retcode, success=True)
    give(cache, "b", retcode=0, success=True)
    assert cache.returned(JID, ["a", "b", "c"]) == {"a": code, "b": 0}


def test_a_question_in_local_cache_can_be_forgotten(opts):
    cache = JobCache({**opts, "master_job_cache": "local_cache"})
    load = {"fun": "test.ping", "tgt": "*", "tgt_type": "glob", "arg": [], "user": "root"}
    for jid in (JID, "20260516101112131416"):
        cache.keep_load(jid, {**load, "jid": jid}, ["a"])
        cache.store_return({"jid": jid, "id": "a", "fun": "test.ping", "return": {"x": 1}, "retcode": 0})
    cache.forget(JID)
    cache.forget(JID)
    assert cache.load(JID) == {} and cache.returned(JID, ["a"]) == {}
    assert dict(cache.each_return("20260516101112131416", ["a", "../a"]))["a"]["return"] == {"x": 1}


def test_a_return_that_a_minion_had_kept_is_stored_as_its_own(opts):
    cache = JobCache(opts)
    cache.keep_load(JID, {"jid": JID, "fun": "test.ping", "tgt": "*", "tgt_type": "glob"}, ["a", "b"])
    answer = {"jid": "another", "id": "somebody else", "fun": "cmd.run", "return": "done", "retcode": 3, "load": "x"}
    cache.store_kept(JID, "test.ping", {"a": answer})
    assert cache.returned(JID, ["a", "b", "somebody else"]) == {"a": 3}
    ((_, stored),) = cache.each_return(JID, ["a"])
    assert stored["return"] == "done" and "load" not in stored


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
    max_leaves=8,
)
RECORDS = VALUES | st.dictionaries(st.sampled_from(["return", "retcode", "success", "out", "jid"]), VALUES)


@given(record=RECORDS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
def test_no_record_makes_reading_fail_or_give_an_invalid_retcode(ours, bank, record):
    bank("a", record)
    bank("b", {"return": True, "retcode": 5})
    found = JobCache(ours).returned(JID, ["a", "b"])
    assert found.pop("b") == 5
    assert all(type(code) is int and -(2**31) <= code < 2**31 for code in found.values())


def test_a_look_for_one_return_in_local_cache_reads_no_other(opts, caplog):
    opts["master_job_cache"] = "local_cache"
    cache = JobCache(opts)
    give(cache, "m1", retcode=3)
    give(cache, "m2")
    (other,) = pathlib.Path(opts["cachedir"], "jobs").glob("*/*/m2/return.p")
    other.write_bytes(b"\xc1 damaged")
    assert cache.returned(JID, ["m1", "m3", "../m1"]) == {"m1": 3}
    assert "damaged" not in caplog.text
    assert cache.returned(JID, ["m1", "m2"]) == {"m1": 3}
    assert "m2's return" in caplog.text
