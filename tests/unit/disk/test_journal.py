"""The journal: what is synced is never lost, what is torn is cut off, what is damaged is said."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from saltext.jobs.core.disk import journal
from saltext.jobs.core.disk.journal import Journal
from saltext.jobs.core.errors import StateError


@pytest.fixture
def path(tmp_path):
    return tmp_path / "batches" / "j.journal"


def filled(path, *records):
    opened = Journal(path)
    opened.rewrite({"first": True})
    for record in records:
        opened.append(record)
    return opened


def test_it_holds_a_snapshot_and_the_records_since(path):
    filled(path, ["ret", 1.5, "a", 0], ["tick", 2.0]).close()
    snapshot, records, length = journal.read(path)
    assert (snapshot, records) == ({"first": True}, [["ret", 1.5, "a", 0], ["tick", 2.0]])
    assert length == path.stat().st_size


def test_nobody_else_may_read_it(path):
    filled(path).close()
    assert path.stat().st_mode & 0o077 == 0
    assert path.parent.stat().st_mode & 0o077 == 0


def test_it_goes_on_after_a_restart(path):
    filled(path, ["a"]).close()
    _, records, length = journal.read(path)
    again = Journal(path)
    again.open(length, len(records))
    again.append(["b"])
    again.sync()
    assert journal.read(path)[1] == [["a"], ["b"]]


def test_rewriting_drops_the_records(path):
    opened = filled(path, ["a"], ["b"])
    opened.rewrite({"second": True})
    opened.append(["c"])
    assert journal.read(path)[:2] == ({"second": True}, [["c"]])
    assert opened.records == 1


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 60))
def test_a_torn_tail_is_cut_off_and_the_rest_is_whole(tmp_path_factory, cut):
    path = tmp_path_factory.mktemp("torn") / "j.journal"
    filled(path, ["a"], ["b"], ["c", "x" * 60]).close()
    whole = path.stat().st_size
    with path.open("ab") as stream:
        stream.truncate(whole - cut)
    snapshot, records, length = journal.read(path)
    assert (snapshot, records) == ({"first": True}, [["a"], ["b"]])
    again = Journal(path)
    again.open(length, len(records))
    again.append(["d"])
    assert journal.read(path)[1] == [["a"], ["b"], ["d"]]


def test_damage_in_the_middle_is_an_error_that_names_the_file(path):
    filled(path, ["a"], ["b" * 100], ["c"]).close()
    data = bytearray(path.read_bytes())
    data[60] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(StateError, match=r"j\.journal is damaged at byte"):
        journal.read(path)


@pytest.mark.parametrize("content", [b"", b"\x01", b"garbage that is no journal at all"])
def test_what_is_no_journal_is_an_error(path, content):
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(StateError):
        journal.read(path)


def test_a_missing_file_is_told_from_a_broken_one(path):
    with pytest.raises(FileNotFoundError):
        journal.read(path)


def test_a_closed_journal_takes_nothing(path):
    opened = filled(path)
    opened.close()
    with pytest.raises(OSError, match="not open"):
        opened.append(["a"])
