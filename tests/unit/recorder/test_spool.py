"""The spool and its companions on disk: order, bounds, and what a crash leaves behind."""

from __future__ import annotations

import os
import stat

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from saltext.jobs.core.recorder import files
from saltext.jobs.core.recorder import spool as spools
from saltext.jobs.core.recorder.files import Aside, Known
from tests.faults import full_disk

BIG = 1 << 30

_made = []


def _closed_after_the_test(kind):
    """What a crash leaves open stays open while a test runs, and no longer."""

    def make(*args, **options):
        _made.append(kind(*args, **options))
        return _made[-1]

    return make


Spool, Reader = _closed_after_the_test(spools.Spool), _closed_after_the_test(spools.Reader)
Progress, Seen = _closed_after_the_test(files.Progress), _closed_after_the_test(files.Seen)


@pytest.fixture(autouse=True)
def closed():
    yield
    while _made:
        _made.pop().close()


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
    (path,) = folder.glob("*.spool")
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
    assert len(list(folder.glob("*.spool"))) > 3
    assert all_of(Reader(spool, 0)) == list(enumerate(payloads(0, 1000, 50)))


def test_an_empty_append_changes_nothing(folder):
    spool = Spool(folder, BIG)
    spool.append([])
    assert spool.next == 0
    assert not list(folder.iterdir())


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.binary(min_size=1, max_size=300), max_size=8), max_size=12), st.integers(0, 60))
def test_appended_records_are_read_after_a_restart(tmp_path_factory, appends, start):
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
    assert sum(path.stat().st_size for path in folder.iterdir()) == spool.size <= 80_000
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


def test_only_segments_that_every_reader_has_read_are_removed(folder):
    spool = filled(folder, 1000, max_bytes=80_000, size=50)
    spool.trim(keep_from=500)
    assert 0 < spool.first <= 500
    assert [number for number, _ in all_of(Reader(spool, 500))] == list(range(500, 1000))


def test_only_their_owner_may_read_the_files(folder):
    filled(folder, 10)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(only_segment(folder).stat().st_mode) == 0o600


# -- crashes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("torn", range(1, 18, 2))
def test_a_torn_end_is_cut_off_and_everything_before_it_is_there(folder, torn):
    filled(folder, 20).close()
    path = only_segment(folder)
    os.truncate(path, path.stat().st_size - torn)
    spool = Spool(folder, BIG)
    assert spool.next == 19
    spool.append([b"new"])
    assert all_of(Reader(spool, 0))[-1] == (19, b"new")


def test_zeros_at_the_end_are_no_records(folder):
    filled(folder, 20).close()
    with only_segment(folder).open("ab") as stream:
        stream.write(bytes(4096))
    assert Spool(folder, BIG).next == 20


FRAME = 8  # bytes of a frame before its payload


def flip(path, offset, bit=0):
    with path.open("r+b") as stream:
        stream.seek(offset)
        byte = stream.read(1)[0]
        stream.seek(offset)
        stream.write(bytes([byte ^ 1 << bit]))


@pytest.mark.parametrize("part", range(0, FRAME + 50, 3))
@pytest.mark.parametrize("record", [0, 3, 98])
def test_a_flipped_bit_costs_no_record_before_it_and_none_in_another_segment(folder, part, record):
    spool = filled(folder, 100, max_bytes=80_000, size=50)
    spool.append(payloads(100, 100, 50))
    spool.append(payloads(200, 100, 50))
    first, second = sorted(folder.glob("*.spool"))[:2]
    flip(first, (FRAME + 50) * record + part, bit=part % 8)
    reader, following = Reader(spool, 0), int(second.stem)
    assert [number for number, _ in all_of(reader)] == [*range(record), *range(following, 300)]
    assert reader.lost == following - record


def test_damage_to_the_last_segment_is_counted_and_ends_with_that_segment(folder):
    spool = filled(folder, 100, max_bytes=80_000, size=50)
    reader = Reader(spool, 0)
    flip(only_segment(folder), (FRAME + 50) * 50)
    assert [number for number, _ in all_of(reader)] == list(range(50))
    assert (reader.lost, reader.next) == (50, spool.next)
    while len(list(folder.glob("*.spool"))) < 2:
        spool.append(payloads(0, 10, 50))
    assert [number for number, _ in all_of(reader)] == list(range(spool.next - 10, spool.next))


def test_a_segment_that_is_gone_is_counted(folder):
    spool = filled(folder, 1000, max_bytes=80_000, size=50)
    second, third = sorted(folder.glob("*.spool"))[1:3]
    second.unlink()
    reader = Reader(spool, 0)
    numbers = [number for number, _ in all_of(reader)]
    assert numbers == [*range(int(second.stem)), *range(int(third.stem), 1000)]
    assert reader.lost == int(third.stem) - int(second.stem)


def test_a_spool_whose_files_are_gone_goes_on_above_the_last_number_read(folder):
    spool = Spool(folder, BIG)
    spool.skip_to(500)
    spool.append([b"a"])
    assert all_of(Reader(spool, 500)) == [(500, b"a")]
    spool.close()
    assert Spool(folder, BIG).next == 501


def test_an_append_that_fails_half_way_leaves_the_spool_as_it_was(folder):
    spool = filled(folder, 20)
    before = only_segment(folder).read_bytes()
    with full_disk(len(before) + 25), pytest.raises(OSError, match="too large"):
        spool.append(payloads(20, 10))
    assert only_segment(folder).read_bytes() == before
    spool.append(payloads(20, 10))
    assert all_of(Reader(spool, 0)) == list(enumerate(payloads(0, 30)))


# -- progress ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def progress_path(tmp_path):
    return tmp_path / "pgjsonb" / "progress"


def test_a_returner_that_was_never_there_begins_at_the_end(progress_path):
    progress = Progress(progress_path, oldest=3, end=7)
    assert (progress.base, progress.is_new, progress.is_lost) == (7, True, False)


def test_progress_is_there_after_a_restart(progress_path):
    progress = Progress(progress_path, 0, 7)
    progress.mark(7)
    progress.mark(9)
    again = Progress(progress_path, 3, 20)
    assert (again.base, again.done, again.is_new, again.is_lost) == (7, {7, 9}, False, False)


@pytest.mark.parametrize("left", [None, b"", b"\0\0\0", b"\0" * 12, b"text that is no progress at all"])
def test_a_returner_whose_progress_is_lost_is_not_new_and_begins_with_the_oldest_record(progress_path, left):
    Progress(progress_path, 0, 7).close()
    progress_path.unlink()
    if left is not None:
        progress_path.write_bytes(left)
    again = Progress(progress_path, oldest=3, end=1003)
    assert (again.base, again.is_new, again.is_lost) == (3, False, True)
    assert Progress(progress_path, 3, 2000).base == 3, "it is written anew"


@pytest.mark.parametrize("byte", range(12))
def test_a_flipped_bit_in_the_base_leads_to_no_number_that_never_was(progress_path, byte):
    progress = Progress(progress_path, 0, 7)
    progress.mark(8)
    progress.close()
    flip(progress_path, byte)
    again = Progress(progress_path, oldest=3, end=1003)
    assert (again.base, again.is_lost) == (3, True)


def test_a_flipped_bit_in_a_mark_costs_that_mark(progress_path):
    progress = Progress(progress_path, 0, 7)
    for number in (8, 9, 10):
        progress.mark(number)
    progress.close()
    flip(progress_path, 12 * 2)
    assert Progress(progress_path, 0, 100).done == {8, 10}


def test_rebasing_forgets_lower_numbers(progress_path):
    progress = Progress(progress_path, 0, 0)
    for number in (0, 1, 5):
        progress.mark(number)
    progress.rebase(2, progress.done)
    again = Progress(progress_path, 0, 100)
    assert (again.base, again.done) == (2, {5})


def test_a_torn_note_of_progress_is_passed_over(progress_path):
    progress = Progress(progress_path, 0, 0)
    progress.mark(3)
    progress.close()
    with progress_path.open("ab") as stream:
        stream.write(b"\0\0\0")
    again = Progress(progress_path, 0, 9)
    assert again.done == {3}
    again.mark(4)
    assert Progress(progress_path, 0, 9).done == {3, 4}


# -- what was seen ----------------------------------------------------------------------------------------------------


def test_seen_digests_are_known_after_a_restart(tmp_path):
    Seen(tmp_path, keep=1000).add([1, 2**64 - 1], now=5000)
    Seen(tmp_path, keep=1000).add([3], now=5001)
    known = Seen(tmp_path, keep=1000).load()
    assert 1 in known
    assert 2**64 - 1 in known
    assert 3 in known
    assert 4 not in known


def test_a_digest_is_forgotten_when_it_can_no_longer_be_needed_and_not_before(tmp_path):
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


def test_records_set_aside_are_there_after_a_restart_and_can_be_taken_back(tmp_path):
    Aside(tmp_path, BIG).add(5, {"reason": "r"}, b"record")
    again = Aside(tmp_path, BIG)
    (name,) = again.names()
    assert again.read(name) == ({"reason": "r"}, b"record")
    again.remove(name)
    assert len(again) == 0
    assert Aside(tmp_path, BIG).names() == []
    assert again.read(name) is None


def test_the_oldest_go_when_what_is_set_aside_reaches_its_bound_on_the_disk(tmp_path):
    aside = Aside(tmp_path, 50_000)
    gone = sum(aside.add(number, {}, b"x" * 100) for number in range(40))
    assert gone == 40 - len(aside) > 0
    assert sum(path.stat().st_blocks * 512 for path in tmp_path.iterdir()) <= 50_000
    assert aside.names()[-1].endswith("39")


@pytest.mark.parametrize("content", [b"", b"\xc1", b"\0\0\0\1\xc1", b"\0\0\0\1\7", b"\xff\xff\xff\xff"])
def test_an_unreadable_entry_harms_no_other(tmp_path, content):
    aside = Aside(tmp_path, BIG)
    aside.add(1, {"a": 1}, b"one")
    aside.add(2, {"a": 2}, b"two")
    sorted(tmp_path.glob("*.p"))[0].write_bytes(content)
    assert [aside.read(name) for name in aside.names()] == [None, ({"a": 2}, b"two")]
    assert len(aside) == 1
