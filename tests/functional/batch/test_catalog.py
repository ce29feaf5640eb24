"""Which batches are listed."""

from __future__ import annotations

import pytest

from saltext.jobs.core.batch.catalog import Catalog, chooser
from saltext.jobs.core.batch.store import BatchStore
from saltext.jobs.core.errors import JobCacheError
from saltext.jobs.core.master.job_cache import JobCache
from tests.functional.options import options_in
from tests.unit.batch.bench import BEGIN, Bench

JIDS = [f"2026051610111213141{number}" for number in range(4)]


@pytest.fixture
def catalog(tmp_path):
    opts = options_in(tmp_path)
    batches = [("state.apply", "anna"), ("state.highstate", "bert"), ("cmd.run", "anna"), ("test.ping", "pam:root")]
    for jid, (fun, user) in zip(JIDS, batches, strict=True):
        Bench("ab", "2", jid=jid, fun=fun, user=user).keep(BatchStore(opts))
    return Catalog(opts)


@pytest.fixture
def ended(tmp_path):
    """The options of a master with a batch that has ended without a return of any of its minions."""
    opts = options_in(tmp_path)
    bench = Bench("abcd", "4", jid=JIDS[0])
    bench.sent(missed="abcd")
    bench.keep(BatchStore(opts), ended=True)
    return opts


def test_a_return_that_comes_after_its_batch_has_ended_corrects_what_is_shown(ended):
    for minion, retcode in (("b", 0), ("c", 3), ("stranger", 0)):
        load = {"jid": JIDS[0], "id": minion, "fun": "test.ping", "return": True, "retcode": retcode}
        JobCache(ended).store_return(load)
    look = Catalog(ended).find(JIDS[0])
    found = look.summary
    assert {name: record["state"] for name, record in look.minions().items()} == {
        "a": "offline",
        "b": "completed",
        "c": "failed",
        "d": "offline",
    }
    assert (found["completed"], found["failed"], found["offline"], found["state"]) == (1, 1, 2, "complete")
    assert [batch["completed"] for batch in Catalog(ended).newest(10)] == [1]


def test_a_batch_that_has_ended_is_shown_as_it_was_left_while_the_job_cache_fails(ended):
    lost = {**ended, "master_job_cache": "nonesuch"}
    with pytest.raises(JobCacheError):
        JobCache(lost).returned(JIDS[0], ["a"])
    assert Catalog(lost).find(JIDS[0]).summary["offline"] == 4


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({}, [3, 2, 1, 0]),
        ({"fun": ("state.*",)}, [1, 0]),
        ({"fun": ("state.apply", "*.run")}, [2, 0]),
        ({"user": ("anna",)}, [2, 0]),
        ({"user": ("*root",), "fun": ("test.*",)}, [3]),
        ({"user": ("Anna",)}, []),
        ({"state": "running", "start": BEGIN}, [3, 2, 1, 0]),
        ({"state": "halted"}, []),
        ({"start": BEGIN + 1}, []),
        ({"end": BEGIN - 1}, []),
        ({"end": BEGIN}, [3, 2, 1, 0]),
    ],
)
def test_batches_are_listed_by_state_function_user_and_time(catalog, asked, found):
    wanted = chooser(**{"state": None, "fun": (), "user": (), "start": None, "end": None, **asked})
    assert [batch["jid"] for batch in catalog.newest(10, wanted)] == [JIDS[number] for number in found]
    assert [batch["jid"] for batch in catalog.newest(1, wanted)] == [JIDS[number] for number in found[:1]]
