"""The logs of several masters, read as one by the one whose engine leads."""

from __future__ import annotations

import os
import shutil

import pytest

from saltext.jobs.core.log import segments
from saltext.jobs.core.log.masters import LogOfAll, shares
from saltext.jobs.core.log.records import Returned
from saltext.jobs.core.log.segments import NAME, folder_of
from saltext.jobs.core.log.writer import Writer


class Master:
    def __init__(self, cachedir, name):
        self.folder, self._count = folder_of(cachedir, name), 0
        self.writer, self.name = Writer(self.folder, length=2000), name

    def returns(self, *times):
        for at in times:
            self.writer.append(Returned(f"{at}", self.name, "test.ping", 0, True, float(at)))


@pytest.fixture
def masters(tmp_path):
    return [Master(tmp_path, name) for name in ("one", "two")]


def told(log):
    """Read to the end, and return the records and why some may be missing."""
    jids, gaps = [], []
    while True:
        news = log.read()
        jids += [record.jid for record in news.records]
        gaps += [news.gap] if news.gap else []
        if not news.more:
            return jids, gaps


@pytest.fixture
def log(tmp_path, masters):
    """A log that was read up to now."""
    for master in masters:
        master.returns(0)
    made = LogOfAll(tmp_path, "one")
    assert told(made)[0] == []
    yield made
    made.close()


def test_records_of_all_masters_are_read_by_the_clock_and_those_of_each_in_its_own_order(masters, log):
    masters[0].returns(10, 30, 25)
    masters[1].returns(20, 40, 5)
    assert told(log) == (["10", "20", "30", "25", "40", "5"], [])
    assert told(log) == ([], [])


def test_long_logs_are_read_to_their_ends(masters, log):
    for at in range(1, 200):
        masters[at % 2].returns(at)
    jids, gaps = told(log)
    assert (sorted(map(int, jids)), gaps) == (list(range(1, 200)), [])


def test_a_reader_goes_on_in_each_log_where_the_one_before_ended(tmp_path, masters, log):
    positions = log.positions
    assert set(positions) == {"one", "two"}
    masters[0].returns(1)
    masters[1].returns(2)
    # Another master takes over.
    assert told(LogOfAll(tmp_path, "two", positions)) == (["1", "2"], [])


@pytest.fixture
def synced(monkeypatch):
    """The segments that were synced since the last call, as paths from the folder of the logs on."""
    found = []
    monkeypatch.setattr(os, "fdatasync", lambda handle: found.append(os.readlink(f"/proc/self/fd/{handle}")))

    def names():
        told = {"/".join(path.rsplit("/", 2)[1:]) for path in found}
        found.clear()
        return told

    return names


def there(masters):
    """The segments of all logs, in the same form."""
    return {
        f"{master.name}/{segments.path_of(master.folder, number).name}"
        for master in masters
        for number in segments.numbers(master.folder)
    }


def test_all_that_was_read_since_the_last_time_is_synced(masters, log, synced):
    masters[0].returns(*range(1, 100))
    masters[1].returns(1)
    told(log)
    log.sync(log.positions)
    assert synced() == there(masters)
    last = segments.numbers(masters[0].folder)[-1]
    masters[0].returns(*range(100, 200))
    told(log)
    log.sync(log.positions)
    assert synced() == {name for name in there(masters) if name.startswith("two/") or int(name[4:16]) >= last}


def test_a_segment_that_was_removed_needs_no_sync(masters, log):
    masters[0].returns(*range(1, 200))
    positions = log.positions
    told(log)
    shutil.rmtree(masters[0].folder)
    log.sync(positions)


def test_a_new_master_makes_a_gap_and_is_read_from_then_on(tmp_path, log):
    third = Master(tmp_path, "three")
    third.returns(1)
    jids, (gap,) = told(log)
    assert jids == []
    assert gap.startswith("of three: ")
    third.returns(2)
    assert told(log) == (["2"], [])


def test_a_log_is_found_that_was_made_in_the_moment_of_the_last_look(tmp_path, masters, log):
    above = masters[0].folder.parent
    before = above.stat().st_mtime_ns
    assert told(log) == ([], [])
    third = Master(tmp_path, "three")
    third.returns(1)
    os.utime(above, ns=(before, before))  # the clocks of file systems are coarse
    assert told(log)[1]
    third.returns(2)
    assert told(log) == (["2"], [])


def test_a_log_that_is_about_to_be_made_is_found_once_it_is_there(tmp_path, log):
    folder_of(tmp_path, "three").mkdir()
    assert told(log) == ([], [])
    third = Master(tmp_path, "three")
    third.returns(1)
    assert told(log)[1]
    third.returns(2)
    assert told(log) == (["2"], [])


def test_a_log_that_goes_away_makes_a_gap_and_keeps_no_other_from_being_read(masters, log):
    shutil.rmtree(masters[1].folder)
    masters[0].returns(1)
    jids, gaps = told(log)
    assert jids == ["1"]
    assert "of two: it does not exist" in " ".join(gaps)
    masters[0].returns(2)
    assert told(log) == (["2"], [])
    assert set(log.positions) == {"one"}


def test_a_log_that_cannot_be_read_keeps_no_other_from_being_read(masters, log):
    (masters[1].folder / NAME).unlink()
    (masters[1].folder / NAME).mkdir()
    masters[0].returns(1)
    assert told(log)[0] == ["1"]


def test_a_log_that_is_made_anew_in_its_folder_is_read_again(masters, log):
    (masters[1].folder / NAME).unlink()
    assert told(log)[1]
    for path in masters[1].folder.glob("*.segment"):
        path.unlink()
    masters[1].returns(1)
    assert told(log)[1], "what it has by then is looked for"
    masters[1].returns(2)
    assert told(log) == (["2"], [])


def test_a_log_that_is_damaged_makes_one_gap(masters, log):
    (masters[1].folder / NAME).write_bytes(b"damaged")
    assert told(log)[1]
    masters[0].returns(1)
    assert told(log) == (["1"], [])


def test_the_position_in_a_log_that_cannot_be_read_yet_is_not_forgotten(tmp_path, masters, log):
    positions = log.positions
    masters[1].returns(1)
    aside = masters[1].folder / "aside"
    (masters[1].folder / NAME).rename(aside)
    (masters[1].folder / NAME).mkdir()
    told(later := LogOfAll(tmp_path, "one", positions))
    assert later.positions["two"] == positions["two"]
    (masters[1].folder / NAME).rmdir()
    aside.rename(masters[1].folder / NAME)
    assert told(LogOfAll(tmp_path, "one", later.positions)) == (["1"], [])


def test_a_reboot_of_another_machine_makes_a_gap(masters, log):
    (masters[1].folder / "boot").write_text("another boot")
    masters[1].returns(1)
    assert told(log) == (["1"], ["of two: the machine that writes it was restarted"])
    assert told(log) == ([], [])


def test_a_reboot_of_another_machine_is_noticed_by_a_reader_that_begins_after_it(tmp_path, masters, log):
    positions = log.positions
    (masters[1].folder / "boot").write_text("another boot")
    gaps = told(LogOfAll(tmp_path, "one", positions))[1]
    assert gaps == ["of two: the machine was restarted since it was read"]


def test_the_log_of_this_machine_makes_no_second_gap_after_a_reboot(masters, log):
    (masters[0].folder / "boot").write_text("another boot")
    masters[0].returns(1)
    assert told(log) == (["1"], [])


def test_a_master_shares_the_cachedir_once_its_log_lies_there(tmp_path, masters):
    assert not shares(tmp_path, "one")
    masters[0].returns(1)
    assert shares(tmp_path, "one")
    assert not any(shares(tmp_path, name) for name in ("two", "", "..", "one/../one"))
