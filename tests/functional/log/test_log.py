"""The log on a disk: many processes write it, others read it meanwhile, and things go wrong."""

from __future__ import annotations

import collections
import multiprocessing
import os
import random
import signal
import time

import pytest

from saltext.jobs.core.disk import files
from saltext.jobs.core.log import checkpoints, framing, records, segments
from saltext.jobs.core.log.reader import Reader
from saltext.jobs.core.log.writer import Writer
from tests.faults import full_disk, no_more_files, whole_seconds
from tests.waiting import SOON, Deadline, stretched, wait_for

FORK = multiprocessing.get_context("fork")
LENGTH = 4000  # of a segment: some 50 records


def returned(number, writer="web", filler=""):
    return records.Returned(str(number), str(writer), "test.ping" + filler, 0, True, 1.5)


@pytest.fixture
def folder(tmp_path):
    return segments.folder_of(tmp_path, "here_master")


@pytest.fixture
def writer(folder):
    made = Writer(folder, length=LENGTH)
    yield made
    made.close()


def all_of(reader):
    """All records that a reader finds, and the gaps that it reports."""
    found, gaps = [], []
    while True:
        news = reader.read()
        found += news.records
        gaps += [news.gap] if news.gap else []
        if not news.more:
            return found, gaps


def started(folder, writer, name="test", **more):
    """A reader that has begun at the end of an existing log. Later records stay until it has read them."""
    assert writer.append(returned(9999))
    reader = Reader(folder, **more)
    assert all_of(reader)[1] == ["it is not known how far it was read"]
    if name:
        checkpoints.write(folder, name, reader.position)
    return reader


def numbers(found):
    return [int(record.jid) for record in found]


def test_each_record_is_read_once_and_in_order(folder, writer):
    reader = started(folder, writer)
    for number in range(500):
        assert writer.append(returned(number))
        if number % 7 == 0:
            writer.close()  # as a process that has just begun
    found, gaps = all_of(reader)
    assert numbers(found) == list(range(500))
    assert not gaps
    assert all_of(reader) == ([], [])
    assert len(segments.numbers(folder)) > 1


def test_all_that_is_there_is_private(folder, writer):
    os.umask(os.umask(0))
    writer.append(returned(1))
    paths = [folder, *folder.iterdir()]
    assert {oct(path.stat().st_mode & 0o777) for path in paths if path.is_dir()} == {"0o700"}
    assert {oct(path.stat().st_mode & 0o777) for path in paths if path.is_file()} == {"0o600"}


def test_a_reader_can_go_on_from_any_place_that_it_has_reached(folder, writer):
    reader = started(folder, writer, part=300)
    for number in range(120):
        writer.append(returned(number))
    seen, places = [], []
    while True:
        news = reader.read()
        seen += numbers(news.records)
        places.append((len(seen), reader.position))
        if not news.more:
            break
    assert seen == list(range(120))
    for count, place in places:
        again = Reader(folder, checkpoints.Position.from_record(place._asdict()))
        found, gaps = all_of(again)
        assert (numbers(found), gaps) == (list(range(count, 120)), [])
        again.close()


def test_a_record_that_is_longer_than_a_segment_or_what_is_read_at_once_is_read(folder, writer):
    reader = started(folder, writer, part=200)
    long = returned(1, filler="x" * 3 * LENGTH)
    for record in (returned(0), long, long, returned(2)):
        assert writer.append(record)
    found, gaps = all_of(reader)
    assert numbers(found) == [0, 1, 1, 2]
    assert not gaps


# -- many at once -----------------------------------------------------------------------------------------------------


def write_many(folder, name, count, begin):
    begin.wait()
    writer = Writer(folder, size=1 << 30)
    for number in range(count):
        # With pauses here and there, so that some have an old segment open while others go on.
        if number % 97 == name * 17:
            time.sleep(0.002)
        assert writer.append(returned(number, name, "x" * (number % 50)))


def read_all(folder, position, total, results):
    reader, found, gaps = Reader(folder, position), [], []
    deadline = Deadline(SOON)
    while len(found) < total and not deadline.is_over():
        news = reader.read()
        found += [(record.minion, int(record.jid)) for record in news.records]
        gaps += [news.gap] if news.gap else []
        if not news.records:
            time.sleep(0.001)
    found += [(record.minion, int(record.jid)) for record in reader.read().records]
    results.put((found, gaps))


@pytest.mark.parametrize("length", [1000, 20_000])
def test_five_processes_write_through_many_segments_and_readers_see_each_record_once(folder, length):
    first = Writer(folder, length=length)
    reader = started(folder, first)
    count, begin, results = 1500, FORK.Event(), FORK.Queue()
    readers = [FORK.Process(target=read_all, args=(folder, reader.position, 5 * count, results)) for _ in range(2)]
    writers = [FORK.Process(target=write_many, args=(folder, name, count, begin)) for name in range(5)]
    for process in (*readers, *writers):
        process.start()
    begin.set()
    told = [results.get(timeout=stretched(5 * SOON)) for _ in readers]
    for process in (*readers, *writers):
        process.join()
    for found, gaps in (*told, read_here(reader)):
        assert gaps == []
        by_writer = collections.defaultdict(list)
        for name, number in found:
            by_writer[name].append(number)
        assert by_writer == {str(name): list(range(count)) for name in range(5)}
    assert len(segments.numbers(folder)) > 10
    first.close()


def read_here(reader):
    found, gaps = all_of(reader)
    return [(record.minion, int(record.jid)) for record in found], gaps


def test_a_writer_that_slept_since_long_before_loses_nothing(folder, writer):
    reader = started(folder, writer)
    late = [Writer(folder) for _ in range(3)]
    for number, one in enumerate(late):
        one.append(returned(number))
    for number in range(3, 400):
        writer.append(returned(number))
    before = len(segments.numbers(folder))
    assert numbers(all_of(reader)[0]) == list(range(400))
    for number, one in enumerate(late):
        one.append(returned(400 + number))
        one.close()
    assert len(segments.numbers(folder)) in (before, before + 1)
    assert numbers(all_of(reader)[0]) == [400, 401, 402]


def write_until_killed(folder, name, begun):
    writer = Writer(folder, size=1 << 30)
    number = 0
    while True:
        assert writer.append(returned(number, name, "x" * random.choice((0, 500, 9000))))
        if number == 0:
            os.write(begun, b".")
        number += 1


def test_writers_that_are_killed_in_the_middle_cost_nothing_that_was_appended_before(folder):
    first = Writer(folder, length=20_000)
    reader = started(folder, first)
    begun, begin = os.pipe()
    for round_ in range(6):
        names = [f"{round_}.{number}" for number in range(4)]
        processes = [FORK.Process(target=write_until_killed, args=(folder, name, begin)) for name in names]
        for process in processes:
            process.start()
        for _ in processes:
            assert os.read(begun, 1)
        seen = len(segments.numbers(folder))
        wait_for(lambda seen=seen: len(segments.numbers(folder)) > seen + 3, what="some segments are full")
        for process in processes:
            os.kill(process.pid, signal.SIGKILL)
            process.join()
        assert first.append(returned(round_, "after"))
    found, _ = all_of(reader)
    by_writer = collections.defaultdict(list)
    for record in found:
        by_writer[record.minion].append(int(record.jid))
    assert by_writer.pop("after") == list(range(6))
    assert len(by_writer) == 24
    assert all(seen == list(range(len(seen))) for seen in by_writer.values())
    first.close()
    os.close(begun)
    os.close(begin)


# -- what goes wrong --------------------------------------------------------------------------------------------------


def test_damage_is_passed_over_and_reported_once(folder, writer, caplog):
    reader = started(folder, writer)
    writer.append(returned(0))
    with open(segments.path_of(folder, 1), "ab") as stream:
        stream.write(b"\xc1\xc1\xc1\x01garbage" + bytes(100))
    writer.append(returned(1))
    found, gaps = all_of(reader)
    assert numbers(found) == [0, 1]
    assert gaps == ["111 bytes of it are damaged"]
    assert "Skipping 111 bytes of segment 1 of the log" in caplog.text
    assert all_of(reader) == ([], [])


def test_a_segment_that_is_cut_off_at_any_byte_gives_what_is_whole_and_a_gap(folder, writer):
    writer.append(returned(9999))
    start = Reader(folder)
    all_of(start)
    for number in range(3):
        writer.append(returned(number))
    path = segments.path_of(folder, 1)
    whole, size = path.read_bytes(), len(framing.pack(returned(0).fields()))
    for cut in range(start.position.offset, len(whole) + 1):
        path.write_bytes(whole[:cut])
        reader = Reader(folder, start.position)
        there = (cut - start.position.offset) // size
        assert numbers(all_of(reader)[0]) == list(range(there))
        late = Writer(folder)
        late.append(returned(7))
        found, gaps = all_of(reader)
        assert numbers(found) == [7]
        assert bool(gaps) == bool((cut - start.position.offset) % size)
        late.close()
        reader.close()


def test_a_full_disk_delays_no_writer_and_the_reader_learns_of_it_once(folder, writer):
    reader = started(folder, writer)
    writer.append(returned(0))
    size = segments.path_of(folder, 1).stat().st_size
    for most in (size, size + 1, size + 30):
        with full_disk(most):
            assert not writer.append(returned(1))
            assert not writer.append(returned(1))
    found, gaps = all_of(reader)
    assert numbers(found) == [0]
    assert gaps == ["a record could not be written"]
    writer.append(returned(2))
    found, gaps = all_of(reader)
    assert numbers(found) == [2]
    assert len(gaps) == 1, "what was cut off"
    assert all_of(reader) == ([], [])


def test_a_reader_that_was_away_learns_of_a_gap(folder, writer):
    reader = started(folder, writer)
    place = reader.position
    with full_disk():
        assert not writer.append(returned(1))
    writer.append(returned(2))
    again = Reader(folder, place)
    found, gaps = all_of(again)
    assert (numbers(found), gaps) == ([2], ["a record could not be written"])
    assert all_of(Reader(folder, again.position)) == ([], [])


def test_a_process_that_may_open_no_file_marks_the_gap(folder, writer):
    reader = started(folder, writer)
    writer.close()
    with no_more_files():
        assert not writer.append(returned(1))
    assert all_of(reader) == ([], ["a record could not be written"])


def test_a_log_that_cannot_be_made_refuses_nothing(folder, writer):
    folder.parent.mkdir(parents=True)
    folder.write_text("a file")
    assert not writer.append(returned(1))
    reader = Reader(folder)
    folder.unlink()
    assert writer.append(returned(2))
    assert all_of(reader) == ([], ["it is not known how far it was read"])


def test_a_missing_log_makes_a_gap_once_and_all_of_it_is_read_when_it_is_there(folder, writer):
    reader = Reader(folder)
    assert all_of(reader) == ([], ["it does not exist"])
    assert all_of(reader) == ([], [])
    assert reader.position is None
    assert not reader.there
    writer.append(returned(1))
    found, gaps = all_of(reader)
    assert (numbers(found), gaps) == ([1], [])
    writer.append(returned(2))
    assert numbers(all_of(reader)[0]) == [2]


def test_a_removed_log_begins_again_and_makes_a_gap(folder, writer):
    reader = started(folder, writer)
    place = reader.position
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    assert all_of(reader) == ([], ["it does not exist"])
    for number in range(100):
        assert writer.append(returned(number))
    assert all_of(reader)[1] == ["it was removed before it was read"]
    writer.append(returned(100))
    assert numbers(all_of(reader)[0]) == [100]
    assert all_of(Reader(folder, place))[1] == ["it is another log than before"]


def test_after_a_power_cut_the_segment_is_read_again_so_that_nothing_new_is_missed(folder, writer):
    reader = started(folder, writer)
    writer.append(returned(1))
    before = checkpoints.Position(*reader.position[:4], "another boot")
    found, gaps = all_of(Reader(folder, before))
    assert (numbers(found), gaps) == ([9999, 1], ["the machine was restarted since it was read"])


@pytest.mark.parametrize("lost", [1, 2, 5])
def test_records_written_after_a_power_cut_that_took_segments_are_read(folder, writer, lost):
    reader = started(folder, writer)
    fill(writer, 500)
    all_of(reader)
    place = checkpoints.Position(*reader.position[:4], "another boot")
    writer.close()
    for number in segments.numbers(folder)[-lost:]:
        segments.path_of(folder, number).unlink()
    again = Writer(folder)
    assert again.append(returned(7777))
    assert numbers(all_of(Reader(folder, place))[0])[-1] == 7777
    again.close()


def test_a_log_that_was_made_again_is_read_from_its_beginning(folder, writer):
    reader = started(folder, writer)
    place = reader.position
    (folder / segments.NAME).unlink()
    for path in folder.glob("*.segment"):
        path.unlink()
    fill(writer, 100)
    for each in (reader, Reader(folder, place)):
        found, gaps = all_of(each)
        assert (numbers(found), len(gaps)) == (list(range(100)), 1)


def test_writers_go_on_after_a_power_cut_that_shortened_the_last_segments(folder, writer):
    reader = started(folder, writer)
    for number in range(300):
        writer.append(returned(number))
    writer.close()
    there = segments.numbers(folder)
    for number in there[-2:]:
        os.truncate(segments.path_of(folder, number), 100)
    again = Writer(folder)
    for number in range(300, 500):
        assert again.append(returned(number))
    found, gaps = all_of(reader)
    assert numbers(found)[-200:] == list(range(300, 500))
    assert gaps
    again.close()


def test_a_damaged_name_of_the_log_makes_the_log_begin_again(folder, writer, caplog):
    reader = started(folder, writer)
    writer.close()
    (folder / segments.NAME).write_bytes(b"")
    assert writer.append(returned(1))
    assert "begins again" in caplog.text
    assert len(all_of(reader)[1]) == 1


def test_a_log_of_another_format_begins_again(folder, writer):
    reader = started(folder, writer)
    writer.close()
    files.write_msgpack(folder / segments.NAME, {"format": 99, "new": 1})
    assert writer.append(returned(2))
    found, gaps = all_of(reader)
    assert found == [returned(2)] and len(gaps) == 1


def test_a_clock_that_is_set_back_changes_nothing(folder, writer):
    reader = started(folder, writer)
    with full_disk():
        writer.append(returned(0))
    os.utime(folder / segments.NAME, (4e9, 4e9))
    assert len(all_of(reader)[1]) == 1
    with full_disk():
        writer.append(returned(0))
    assert all_of(reader)[1] == ["a record could not be written"]


def test_each_gap_is_reported_where_the_times_of_files_are_whole_seconds(folder, writer, monkeypatch):
    reader = started(folder, writer)
    with whole_seconds(monkeypatch):
        for _ in range(5):
            with full_disk():
                assert not writer.append(returned(0))
            assert all_of(reader) == ([], ["a record could not be written"])
        assert all_of(Reader(folder, reader.position)) == ([], [])


# -- retention --------------------------------------------------------------------------------------------------------


def fill(writer, count):
    for number in range(count):
        assert writer.append(returned(number))


def test_without_readers_few_segments_stay(folder, writer):
    fill(writer, 2000)
    assert len(segments.numbers(folder)) <= 5


def test_segments_stay_until_every_reader_is_past_them(folder, writer):
    fast, slow = started(folder, writer, "fast"), started(folder, writer, "slow")
    fill(writer, 1000)
    assert segments.numbers(folder)[0] == 1
    all_of(fast)
    checkpoints.write(folder, "fast", fast.position)
    fill(writer, 1000)
    assert segments.numbers(folder)[0] == 1
    assert numbers(all_of(slow)[0]) == [*range(1000), *range(1000)]
    checkpoints.write(folder, "slow", slow.position)
    fill(writer, 1000)
    assert segments.numbers(folder)[0] > 1
    assert numbers(all_of(fast)[0]) == [*range(1000), *range(1000)]


def test_a_reader_that_is_too_slow_for_the_size_is_overtaken_and_learns_it(folder):
    writer = Writer(folder, size=40_000, length=LENGTH)
    slow, asleep = started(folder, writer), started(folder, writer, "")
    place = slow.position
    fill(writer, 3000)
    assert sum(path.stat().st_size for path in folder.glob("*.segment")) <= 40_000 + 2 * LENGTH
    found, gaps = all_of(slow)
    assert gaps == ["it was removed before it was read"]
    missing = 3001 - len(found)
    first = next(n for n, record in enumerate(numbers(found)) if n and record != n - 1)
    assert missing > 0
    assert numbers(found) == [9999, *range(first - 1), *range(first - 1 + missing, 3000)]
    writer.append(returned(5000))
    assert numbers(all_of(slow)[0]) == [5000]
    assert all_of(Reader(folder, place))[1] == ["it was not read for so long that older records are gone"]
    assert all_of(asleep)[1] == ["it was removed before it was read"]
    writer.close()


def test_an_unreadable_checkpoint_of_a_reader_keeps_all_segments(folder, writer):
    reader = started(folder, writer)
    checkpoints.write(folder, "one", reader.position)
    (folder / "two.reader").write_bytes(b"garbage")
    all_of(reader)
    fill(writer, 1000)
    assert segments.numbers(folder)[0] == 1
    with pytest.raises(ValueError, match="no place"):
        checkpoints.Position.from_record({"log": "x"})
