"""Which batches are listed."""

from __future__ import annotations

import pytest

from saltext.jobs.core.batch.catalog import Catalog, chooser
from saltext.jobs.core.batch.store import BatchStore
from saltext.jobs.core.disk.journal import Journal
from saltext.jobs.core.errors import Refused
from tests.batches import journal_path
from tests.functional.options import options_in
from tests.unit.batch.bench import BEGIN, Bench

JIDS = [f"2026051610111213141{number}" for number in range(4)]


@pytest.fixture
def catalog(tmp_path):
    opts = options_in(tmp_path)
    batches = [("state.apply", "anna"), ("state.highstate", "bert"), ("cmd.run", "anna"), ("test.ping", "pam:root")]
    for jid, (fun, user) in zip(JIDS, batches, strict=True):
        bench = Bench("ab", "2", jid=jid, fun=fun, user=user)
        Journal(journal_path(BatchStore(opts), jid)).rewrite(bench.first)
    return Catalog(opts)


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


def test_a_native_batch_that_disappears_before_the_second_look_is_refused_as_unknown(tmp_path):
    opts, jid = options_in(tmp_path), JIDS[0]
    store, catalog = BatchStore(opts), Catalog(opts)
    store.write_native(jid, {"jid": jid, "driver": "cli"})
    assert catalog.find(jid)[0]["jid"] == catalog.need_native(jid)["jid"] == jid
    store.native_path(jid).unlink()  # as Salt's maintenance does between the two
    for look in (catalog.find, catalog.need_native):
        with pytest.raises(Refused, match=rf"^{jid} is no batch; "):
            look(jid)
