"""The spool and its companions on disk: order, bounds, and what a crash leaves behind."""

from __future__ import annotations

import os
import stat

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from saltext.jobs.core.disk.spool import Reader, Spool
from saltext.jobs.core.recorder.files import Aside, Known, Progress, Seen

BIG = 1 << 30


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "spool"


def payloads(first, count, size=10):
    return [f"{number:0{size}d}".encode() for number in range(first, first + count)]


def filled(folder, count, max_bytes=BIG, size=10, step=10):
    spool = Spool(folder, max_bytes)
    for first in range(0, count, step):
        spool.append(payloads(first, min(step, count - first), size))
    return spool


def all_of(reader, count=10**6):
    found = []
    while batch := reader.read(count, BIG):
        found += batch
    return found


def only_segment(folder):
    (path,) = folder.glob("*.log")
    return path


# -- order ------------------------------------------------------------------------------------------------------------


def test_records_come_back_in_order_with_their_numbers(folder):
    spool = filled(folder, 95)
    assert all_of(Reader(spool, 0)) == list(enumerate(payloads(0, 95)))


def test_a_reader_starts_where_it_is_told_to(folder):
    assert all_of(Reader(filled(folder, 95), 42)) == list(enumerate(payloads(0, 95)))[42:]


def test_a_reader_sees_what_is_appended_after_it_reached_the_end(folder):
    spool = filled(folder, 10)
    reader = Reader(spool, 0)
    assert len(all_of(reader)) == 10
    spool.append(payloads(10, 3))
    assert all_of(reader) == [(10, b"0000000010"), (11, b"0000000011"), (12, b"0000000012")]


def test_a_read_is_bounded_by_count_and_by_bytes(folder):
    reader = Reader(filled(folder, 100, size=100), 0)
    assert len(reader.read(7, BIG)) == 7
    assert len(reader.read(100, 1000)) == 10


def test_records_go_on_over_segments(folder):
    spool = filled(folder, 1000, max_bytes=80_000, size=50)
    assert len(list(folder.glob("*.log"))) > 3
    assert all_of(Reader(spool, 0)) == list(enumerate(payloads(0, 1000, 50)))


def test_an_empty_append_changes_nothing(folder):
    spool = Spool(folder, BIG)
    spool.append([])
    assert spool.next == 0
    assert not list(folder.iterdir())


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.binary(min_size=1, max_size=300), max_size=8), max_size=12), st.integers(0, 60))
def test_what_is_read_after_a_restart_is_what_was_appended(tmp_path_factory, appends, start):
    folder = tmp_path_factory.mktemp("spool")
    spool = Spool(folder, 4000)
    for batch in appends:
        spool.append(batch)
    spool.close()
    written = [payload for batch in appends for payload in batch]
    again = Spool(folder, 4000)
    assert again.next == len(written)
    assert [payload for _, payload in all_of(Reader(again, start))] == written[start:]


# -- bounds -----------------------------------------------------------------------------------------------------------


def test_the_oldest_segments_go_when_the_bound_is_reached(folder):
    spool = Spool(folder, 80_000)
    for first in range(0, 5000, 10):
        spool.append(payloads(first, 10, 50))
        spool.drop_oldest()
    assert spool.size <= 80_000
    assert sum(path.stat().st_size for path in folder.iterdir()) == spool.size
    found = all_of(Reader(spool, spool.first))
    assert found[-1][0] == 4999
    assert [number for number, _ in found] == list(range(spool.first, 5000))


def test_a_reader_that_was_overtaken_goes_on_with_the_oldest_and_knows_how_many_it_lost(folder):
    spool = filled(folder, 100, max_bytes=80_000, size=50)
    reader = Reader(spool, 0)
    reader.read(10, BIG)
    for first in range(100, 5000, 10):
        spool.append(payloads(first, 10, 50))
        spool.drop_oldest()
    found = all_of(reader)
    assert found[0][0] == spool.first
    assert reader.lost == spool.first - 10


def test_what_everybody_has_read_is_removed_and_nothing_else(folder):
    spool = filled(folder, 1000, max_bytes=80_000, size=50)
    spool.trim(keep_from=500)
    assert 0 < spool.first <= 500
    assert [number for number, _ in all_of(Reader(spool, 500))] == list(range(500, 1000))


def test_what_is_behind_is_counted_in_bytes(folder):
    spool = filled(folder, 100, size=92)
    reader = Reader(spool, 0)
    assert reader.behind == spool.size == 100 * 100
    reader.read(40, BIG)
    assert reader.behind == 60 * 100
    all_of(reader)
    assert reader.behind == 0


def test_nobody_else_may_read_the_files(folder):
    filled(folder, 10)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(only_segment(folder).stat().st_mode) == 0o600


# -- crashes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("torn", [1, 7, 8, 9, 17])
def test_a_torn_end_is_cut_off_and_everything_before_it_is_there(folder, torn):
    filled(folder, 20).close()
    path = only_segment(folder)
    os.truncate(path, path.stat().st_size - torn)
    spool = Spool(folder, BIG)
    assert spool.next == 20 - (2 if torn > 18 else 1)
    spool.append([b"new"])
    assert all_of(Reader(spool, 0))[-1] == (19, b"new")


def test_zeros_at_the_end_are_no_records(folder):
    filled(folder, 20).close()
    with only_segment(folder).open("ab") as stream:
        stream.write(bytes(4096))
    assert Spool(folder, BIG).next == 20


def test_a_damaged_place_costs_the_rest_of_its_segment_and_no_more(folder):
    spool = filled(folder, 1000, max_bytes=80_000, size=50)
    first, second = sorted(folder.glob("*.log"))[:2]
    with first.open("r+b") as stream:
        stream.seek(58 * 3 + 20)
        stream.write(b"!")
    reader = Reader(spool, 0)
    numbers = [number for number, _ in all_of(reader)]
    assert numbers == [0, 1, 2, *range(int(second.stem), 1000)]
    assert reader.lost == int(second.stem) - 3


def test_a_spool_whose_files_are_gone_goes_on_above_what_was_read(folder):
    spool = Spool(folder, BIG)
    spool.skip_to(500)
    spool.append([b"a"])
    assert all_of(Reader(spool, 500)) == [(500, b"a")]
    spool.close()
    assert Spool(folder, BIG).next == 501


class FullDisk:
    """Lets a few bytes through, and then nothing, as a full disk does."""

    def __init__(self, monkeypatch, left):
        self.left = left
        self.write = os.write
        monkeypatch.setattr("saltext.jobs.core.disk.spool.os.write", self)

    def __call__(self, handle, data):
        if not self.left:
            raise OSError(28, "No space left on device")
        part = bytes(data)[: self.left]
        self.left -= len(part)
        return self.write(handle, part)


def test_an_append_that_fails_half_way_leaves_the_spool_as_it_was(folder, monkeypatch):
    spool = filled(folder, 20)
    before = only_segment(folder).read_bytes()
    disk = FullDisk(monkeypatch, left=25)
    with pytest.raises(OSError, match="No space"):
        spool.append(payloads(20, 10))
    assert only_segment(folder).read_bytes() == before
    disk.left = BIG
    spool.append(payloads(20, 10))
    assert all_of(Reader(spool, 0)) == list(enumerate(payloads(0, 30)))


# -- progress ---------------------------------------------------------------------------------------------------------


def test_progress_is_there_after_a_restart(tmp_path):
    progress = Progress(tmp_path / "p", 7)
    assert progress.is_new
    progress.mark(7)
    progress.mark(9)
    again = Progress(tmp_path / "p", 0)
    assert (again.base, again.done, again.is_new) == (7, {7, 9}, False)


def test_rebasing_forgets_what_is_below(tmp_path):
    progress = Progress(tmp_path / "p", 0)
    for number in (0, 1, 5):
        progress.mark(number)
    progress.rebase(2, progress.done)
    again = Progress(tmp_path / "p", 0)
    assert (again.base, again.done) == (2, {5})


def test_a_torn_note_of_progress_is_passed_over(tmp_path):
    progress = Progress(tmp_path / "p", 0)
    progress.mark(3)
    progress.close()
    with (tmp_path / "p").open("ab") as stream:
        stream.write(b"\0\0\0")
    again = Progress(tmp_path / "p", 0)
    assert again.done == {3}
    again.mark(4)
    assert Progress(tmp_path / "p", 0).done == {3, 4}


# -- what was seen ----------------------------------------------------------------------------------------------------


def test_what_was_seen_is_known_after_a_restart(tmp_path):
    Seen(tmp_path, keep=1000).add([1, 2**64 - 1], now=5000)
    Seen(tmp_path, keep=1000).add([3], now=5001)
    known = Seen(tmp_path, keep=1000).load()
    assert 1 in known
    assert 2**64 - 1 in known
    assert 3 in known
    assert 4 not in known


def test_what_was_seen_is_forgotten_when_nobody_can_ask_for_it_any_more_and_not_before(tmp_path):
    seen = Seen(tmp_path, keep=800)
    for now in range(0, 10_000, 100):
        seen.add([now], now)
        seen.forget_old(now)
    known = seen.load()
    assert all(now in known for now in range(9_900 - 800, 10_000, 100))
    assert not any(now in known for now in range(0, 8_000, 100))


def test_a_torn_digest_does_not_shift_those_that_follow(tmp_path):
    Seen(tmp_path, keep=1000).add([1], now=100)
    (path,) = tmp_path.glob("*.ids")
    with path.open("ab") as stream:
        stream.write(b"\1\2\3")
    Seen(tmp_path, keep=1000).add([5], now=100)
    known = Seen(tmp_path, keep=1000).load()
    assert 1 in known
    assert 5 in known


@given(st.sets(st.integers(0, 2**64 - 1), max_size=50), st.integers(0, 2**64 - 1))
def test_known_is_a_set(items, probe):
    known = Known(items)
    assert all(item in known for item in items)
    assert (probe in known) == (probe in items)


# -- set aside --------------------------------------------------------------------------------------------------------


def test_what_is_set_aside_is_there_after_a_restart_and_can_be_taken_back(tmp_path):
    Aside(tmp_path, BIG).add(5, {"reason": "r"})
    again = Aside(tmp_path, BIG)
    ((name, entry),) = again.entries()
    assert entry == {"reason": "r"}
    again.remove(name)
    assert len(again) == 0
    assert not list(Aside(tmp_path, BIG).entries())


def test_the_oldest_go_when_what_is_set_aside_reaches_its_bound(tmp_path):
    aside = Aside(tmp_path, 5_000)
    gone = sum(aside.add(number, {"payload": b"x" * 1000}) for number in range(20))
    assert gone == 20 - len(aside)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 5_000
    assert max(name for name, _ in aside.entries()).endswith("19")


def test_an_unreadable_entry_harms_no_other(tmp_path):
    aside = Aside(tmp_path, BIG)
    aside.add(1, {"a": 1})
    aside.add(2, {"a": 2})
    sorted(tmp_path.glob("*.p"))[0].write_bytes(b"\xc1")
    assert [entry for _, entry in aside.entries()] == [{"a": 2}]
