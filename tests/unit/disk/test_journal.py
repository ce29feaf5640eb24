"""The journal: what is synced is never lost, what is torn is cut off, what is damaged is reported."""

from __future__ import annotations

import contextlib
import datetime
import os
import struct
import zlib
from concurrent.futures import ThreadPoolExecutor

import pytest
import salt.payload
from hypothesis import given, settings
from hypothesis import strategies as st

from saltext.jobs.core.disk.journal import Journal
from saltext.jobs.core.errors import StateError
from tests.faults import failing_syncs, full_disk
from tests.open_files import open_files


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
    snapshot, records, length, _ = Journal(path).read()
    assert (snapshot, records) == ({"first": True}, [["ret", 1.5, "a", 0], ["tick", 2.0]])
    assert length == path.stat().st_size


def test_a_time_or_a_date_among_the_arguments_of_a_job_is_kept_as_salt_would_send_it(path):
    moment, day = datetime.datetime(2026, 5, 16, 10, 11, 12, 131415), datetime.date(2026, 5, 16)
    journal = Journal(path)
    journal.rewrite({"arg": [moment, {"since": day}]})
    journal.append([moment])
    journal.close()
    content = Journal(path).read()
    assert content.snapshot == salt.payload.loads(salt.payload.dumps({"arg": [moment, {"since": day}]}))
    assert content.records == [[moment]]


def test_only_its_owner_may_read_it(path):
    filled(path).close()
    assert path.stat().st_mode & 0o077 == 0
    assert path.parent.stat().st_mode & 0o077 == 0


def test_it_goes_on_after_a_restart(path):
    filled(path, ["a"]).close()
    again = Journal(path)
    again.open(Journal(path).read())
    again.append(["b"])
    again.sync()
    assert Journal(path).read()[1] == [["a"], ["b"]]


def test_rewriting_drops_the_records(path):
    opened = filled(path, ["a"], ["b"])
    opened.rewrite({"second": True})
    opened.append(["c"])
    assert Journal(path).read()[:2] == ({"second": True}, [["c"]])


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 60))
def test_a_torn_tail_is_cut_off_and_the_rest_is_whole(tmp_path_factory, cut):
    path = tmp_path_factory.mktemp("torn") / "j.journal"
    filled(path, ["a"], ["b"], ["c", "x" * 60]).close()
    whole = path.stat().st_size
    with path.open("ab") as stream:
        stream.truncate(whole - cut)
    assert Journal(path).read()[:2] == ({"first": True}, [["a"], ["b"]])
    again = Journal(path)
    again.open(Journal(path).read())
    again.append(["d"])
    assert Journal(path).read()[1] == [["a"], ["b"], ["d"]]


RECORDS = [["a"], ["pub", 2.0, []], ["ret", 3.0, "minion-0001", 0], ["b", "y" * 24], ["c"], ["tick", 9.5]]


@pytest.fixture
def whole(path):
    """The bytes of a journal, and where each of its frames ends."""
    opened = Journal(path)
    opened.rewrite({"first": True})
    ends = [path.stat().st_size]
    for record in RECORDS:
        opened.append(record)
        ends.append(path.stat().st_size)
    opened.close()
    return path.read_bytes(), ends


def held(path, data):
    """The records of a journal with these bytes, or None if it is damaged."""
    # In place: a file that is emptied and written again is sent to the disk at once by ext4.
    with path.open("r+b") as stream:
        stream.write(data)
        stream.truncate()
    try:
        snapshot, records, length, _ = Journal(path).read()
    except StateError:
        return None
    assert snapshot == {"first": True}
    assert records == RECORDS[: len(records)]
    assert length <= len(data)
    return records


@pytest.mark.parametrize("tail", [1, 7, 8, 9, 64, 4096])
def test_a_tail_of_zeros_is_torn(path, whole, tail):
    assert held(path, whole[0] + bytes(tail)) == RECORDS


def test_a_journal_cut_at_any_byte_holds_the_records_that_were_whole_before(path, whole):
    data, ends = whole
    for cut in range(len(data)):
        expected = sum(end <= cut for end in ends) - 1
        found = held(path, data[:cut])
        assert found == (None if expected < 0 else RECORDS[:expected]), cut


def test_a_byte_flipped_anywhere_but_in_the_last_record_is_damage(path, whole):
    """Cutting off the records after the damage would forget publishes."""
    data, ends = whole
    for position in range(len(data)):
        for mask in (0x01, 0x80, 0xFF):
            flipped = bytearray(data)
            flipped[position] ^= mask
            found = held(path, bytes(flipped))
            assert found == (None if position < ends[-2] else RECORDS[:-1]), (position, mask)


def test_a_journal_with_any_range_zeroed_is_damaged_or_holds_the_records_before_it(path, whole):
    data, ends = whole
    for begin in range(len(data)):
        for end in range(begin + 1, len(data) + 1):
            zeroed = data[:begin] + bytes(end - begin) + data[end:]
            found = held(path, zeroed)
            if zeroed == data:
                assert found == RECORDS
            elif end <= ends[-2]:
                assert found is None, (begin, end)
            elif found is not None:
                assert len(found) >= sum(mark <= begin for mark in ends) - 1, (begin, end)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_at_all_are_a_journal_or_damage(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("any") / "j.journal"
    path.write_bytes(data)
    with contextlib.suppress(StateError):
        Journal(path).read()


def test_a_record_with_a_right_checksum_that_is_no_msgpack_is_damage(path, whole):
    body = b"\xc1"
    path.write_bytes(whole[0] + struct.pack("<II", len(body), zlib.crc32(body)) + body)
    with pytest.raises(StateError, match="damaged at byte"):
        Journal(path).read()


def test_damage_in_the_middle_is_an_error_that_names_the_file(path):
    filled(path, ["a"], ["b" * 100], ["c"]).close()
    data = bytearray(path.read_bytes())
    data[60] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(StateError, match=r"j\.journal is damaged at byte"):
        Journal(path).read()


@pytest.mark.parametrize("content", [b"", b"\x01", b"garbage that is no journal at all"])
def test_a_file_that_is_no_journal_is_an_error(path, content):
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(StateError):
        Journal(path).read()


def test_a_missing_file_is_distinguished_from_a_broken_one(path):
    with pytest.raises(FileNotFoundError):
        Journal(path).read()


def test_a_closed_journal_takes_nothing(path):
    opened = filled(path)
    opened.close()
    with pytest.raises(OSError, match="not open"):
        opened.append(["a"])


# -- rewriting while records come in -----------------------------------------------------------------------------------


def test_records_that_come_during_a_rewrite_are_in_the_old_file_and_in_the_new_one(path):
    opened = filled(path, ["a"])
    opened.begin_rewrite({"second": True})
    opened.append(["b"])
    opened.sync()
    assert Journal(path).read()[:2] == ({"first": True}, [["a"], ["b"]])
    opened.append(["c"])
    opened.finish_rewrite()
    opened.append(["d"])
    assert Journal(path).read()[:2] == ({"second": True}, [["b"], ["c"], ["d"]])


def test_a_rewrite_that_cannot_begin_changes_nothing(path):
    opened = filled(path, ["a"])
    with full_disk(), pytest.raises(OSError, match="too large"):
        opened.begin_rewrite({"second": True})
    opened.append(["b"])
    assert Journal(path).read()[:2] == ({"first": True}, [["a"], ["b"]])


def test_a_rewrite_whose_new_file_does_not_take_a_record_is_given_up_and_the_old_file_is_complete(path):
    opened = filled(path, ["a"])
    opened.begin_rewrite({"second": "x" * 1000})
    with full_disk(1000):  # the old file has room for the record, and the new one has not
        opened.append(["b"])
    with pytest.raises(OSError, match="too large"):
        opened.finish_rewrite()
    opened.append(["c"])
    assert Journal(path).read()[:2] == ({"first": True}, [["a"], ["b"], ["c"]])
    assert os.listdir(path.parent) == [path.name]


def test_a_record_that_only_the_old_file_has_when_the_new_one_replaces_it_is_reported_as_lacking(path, monkeypatch):
    opened = filled(path, ["a"])
    true = os.replace

    def replace(*names):
        with full_disk(1000):
            opened.append(["b"])
        true(*names)

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(OSError, match="lacks a record"):
        opened.rewrite({"up to": "a" * 1000})
    assert not opened.whole
    with pytest.raises(OSError, match="lacks a record"):
        opened.append(["c"])
    monkeypatch.setattr(os, "replace", true)
    opened.rewrite({"up to": "c"})
    assert opened.whole
    opened.append(["d"])
    assert Journal(path).read()[:2] == ({"up to": "c"}, [["d"]])


def test_after_a_refused_record_no_other_is_taken_until_the_journal_is_rewritten(path):
    opened = filled(path, ["a"])
    with full_disk(), pytest.raises(OSError, match="too large"):
        opened.append(["b"])
    for refused in (lambda: opened.append(["c"]), opened.sync):
        with pytest.raises(OSError, match="lacks a record"):
            refused()
    opened.begin_rewrite({"up to": "c"})
    opened.append(["d"])
    with pytest.raises(OSError, match="lacks a record"):
        opened.sync()  # it is in the new file only
    assert Journal(path).read()[:2] == ({"first": True}, [["a"]])
    opened.finish_rewrite()
    opened.append(["e"])
    opened.sync()
    assert Journal(path).read()[:2] == ({"up to": "c"}, [["d"], ["e"]])


def test_after_a_rename_that_may_not_be_durable_nothing_is_appended_before_a_rewrite(path, monkeypatch):
    opened = filled(path, ["a"])
    with failing_syncs(monkeypatch, of_folders=True), pytest.raises(OSError, match="Input/output"):
        opened.rewrite({"second": True})
    with pytest.raises(OSError, match="not open"):
        opened.append(["b"])
    opened.rewrite({"third": True})
    opened.append(["c"])
    assert Journal(path).read()[:2] == ({"third": True}, [["c"]])


def test_a_rewrite_leaves_no_file_open(path):
    journal = filled(path)
    for _ in range(20):
        journal.rewrite({"again": True})
    assert open_files(path.parent) == [str(path)]
    journal.close()
    assert open_files(path.parent) == []


def test_records_appended_while_another_thread_rewrites_and_syncs_are_never_lost(path):
    opened = filled(path)
    appended = []
    with ThreadPoolExecutor(1) as pool:
        for number in range(20):
            opened.begin_rewrite({"records": list(appended)})
            done = pool.submit(lambda: (opened.sync(), opened.finish_rewrite()))
            for _ in range(100):  # a slow disk must not have it append without end
                record = ["r", number, len(appended)]
                opened.append(record)
                appended.append(record)
            done.result()
            snapshot, records, *_ = Journal(path).read()
            assert snapshot["records"] + records == appended


def test_a_journal_is_overgrown_if_its_records_take_more_than_twice_its_snapshot(path):
    opened = Journal(path)
    opened.rewrite({"minions": "x" * 400_000})
    size = 0
    while not opened.overgrown:
        opened.append(["y" * 1000])
        size += 1010
    assert 798_000 < size < 803_000
    opened.rewrite({"minions": ""})
    size = 0
    while not opened.overgrown:
        opened.append(["y" * 1000])
        size += 1010
    assert 200_000 < size < 300_000
