"""The log of a master: whatever happens, each record is read once, or a gap is reported once."""

from __future__ import annotations

import os
import pathlib
import signal
import time

import pytest

from saltext.jobs.core.ledger import log
from saltext.jobs.core.ledger.log import Reader, Writer
from saltext.jobs.core.ledger.records import Returned, publish_of
from saltext.jobs.core.site import site_of
from tests.database import begin_another_log, database_of
from tests.faults import full_disk
from tests.interrupted import FORK


@pytest.fixture(params=["localfs", "sqlite"])
def opts(tmp_path, request):
    return {"cachedir": str(tmp_path), "id": "m", "cache": request.param}


def returned(number, writer=0):
    return Returned(f"{writer}-{number}", "minion", "test.ping", 0, float(number))


def append(opts, *numbers, writer=0):
    made = Writer(site_of(opts))
    return [made.append(returned(number, writer)) for number in numbers]


def read(reader):
    """All that there is to read, and the gaps."""
    found, gaps, more = [], [], True
    while more:
        news = reader.read()
        found += [record.jid for record in news.records]
        gaps += [news.gap] if news.gap else []
        more = news.more
    return found, gaps


@pytest.fixture
def reader(opts):
    """A reader that has read all there was."""
    append(opts, 0)
    made = Reader(site_of(opts))
    read(made)
    return made


def write_on(opts, writer, count):
    made = Writer(site_of(opts))
    for number in range(count):
        assert made.append(returned(number, writer))


def test_five_processes_append_at_once_and_a_reader_beside_them_sees_each_record_once(opts, reader):
    processes = [FORK.Process(target=write_on, args=(opts, writer, 300)) for writer in range(1, 6)]
    for process in processes:
        process.start()
    found = []
    while any(process.is_alive() for process in processes):
        records, gaps = read(reader)
        found += records
        assert not gaps
    found += read(reader)[0]
    assert [process.exitcode for process in processes] == [0] * 5
    for writer in range(1, 6):
        assert [jid for jid in found if jid.startswith(f"{writer}-")] == [f"{writer}-{number}" for number in range(300)]
    assert len(found) == 1500


def write_for_ever(opts, told, writer):
    made, number = Writer(site_of(opts)), 0
    while True:
        made.append(returned(number, writer))
        os.write(told, b"%d\n" % number)  # only now is it known to be appended
        number += 1


def test_a_worker_that_is_killed_loses_nothing_that_it_has_appended_and_makes_no_gap(opts, reader):
    for writer in range(1, 16):
        known, told = os.pipe()
        process = FORK.Process(target=write_for_ever, args=(opts, told, writer))
        process.start()
        os.close(told)
        os.read(known, 1)
        time.sleep(0.02)
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        with open(known, "rb") as stream:
            count = stream.read().count(b"\n")
        found, gaps = read(reader)
        assert len(found) in (count, count + 1)
        assert found == [f"{writer}-{number}" for number in range(len(found))]
        assert not gaps


def test_a_database_that_cannot_be_written_refuses_nothing_and_the_reader_learns_of_it_once(opts, reader):
    writer = Writer(site_of(opts))
    assert writer.append(returned(1))
    with full_disk():
        assert not writer.append(returned(2))
    assert writer.append(returned(3))
    assert read(reader) == (["0-1", "0-3"], ["a record could not be written"])
    assert read(reader) == ([], [])


def test_another_log_is_read_from_its_beginning(opts, reader):
    position = reader.position
    begin_another_log(opts)
    append(opts, 1)
    assert read(reader) == (["0-1"], ["it is another log than before"])
    assert read(Reader(site_of(opts), position)) == (["0-1"], ["it is another log than before"])


def test_after_a_restart_of_the_machine_there_is_a_gap_and_what_is_new_is_read(opts, reader):
    position = reader.position._replace(boot="another one")
    append(opts, 1)
    assert read(Reader(site_of(opts), position)) == (["0-1"], ["the machine was restarted since it was read"])


def test_a_power_cut_takes_no_publish_and_nothing_that_was_written_before_it(opts, tmp_path, monkeypatch):
    """The disk has what the last sync has seen: the file as it was then."""
    site, kept = site_of(opts), {}
    true = os.fsync

    def sync(handle):
        true(handle)
        for name in ("", "-wal"):
            path = pathlib.Path(site.place + name)
            kept[path] = path.read_bytes()

    monkeypatch.setattr(os, "fsync", sync)
    writer = Writer(site)
    writer.append(returned(1))
    writer.append(returned(2), durable=True)
    writer.append(returned(3))
    (tmp_path / "copy").mkdir()
    for path, content in kept.items():
        (tmp_path / "copy" / path.name).write_bytes(content)
    copy = {**opts, "sqlite_cache_path": str(tmp_path / "copy" / pathlib.Path(site.place).name)}
    with database_of(copy) as sql:
        assert sql.execute("SELECT count(*) FROM saltext_jobs_log").fetchone() == (2,)


def test_a_record_that_this_version_cannot_read_costs_a_gap_and_no_other_record(opts, reader):
    append(opts, 1)
    with database_of(opts) as sql:
        sql.execute("INSERT INTO saltext_jobs_log (jid, minion, mark, body) VALUES ('1', 'm', '', ?)", (b"\xc1",))
    append(opts, 2)
    found, gaps = read(reader)
    assert found == ["0-1", "0-2"] and len(gaps) == 1


def many(opts, count):
    """Have the log hold so many records more."""
    with database_of(opts) as sql:
        ((body,),) = sql.execute("SELECT body FROM saltext_jobs_log LIMIT 1").fetchall()
        row = "INSERT INTO saltext_jobs_log (jid, minion, mark, body) VALUES (?, 'm', '', ?)"
        sql.executemany(row, [(f"many-{number}", body) for number in range(count)])


def kept_of(opts):
    with database_of(opts) as sql:
        return sql.execute("SELECT count(*), min(place) FROM saltext_jobs_log").fetchone()


@pytest.fixture
def swept(opts):
    """Has a worker append so many that old ones are looked for, with this size of the log."""

    def sweep(**size):
        writer = Writer(site_of(opts), **size)
        for number in range(1, 2001):
            writer.append(returned(number))

    return sweep


def test_as_long_as_the_log_is_small_every_record_stays(opts, reader, swept):
    many(opts, 25_000)
    swept()
    assert kept_of(opts)[0] == 27_001


def test_a_reader_that_is_too_slow_for_the_size_is_overtaken_and_learns_it(opts, reader, swept):
    many(opts, 25_000)
    swept(size=1000)
    assert 19_000 < kept_of(opts)[0] < 23_000
    found, gaps = read(reader)
    assert gaps == ["it was not read for so long that older records are gone"]
    assert found[-1] == "0-2000"


# -- what became of a job -----------------------------------------------------------------------------------------------


def publish(opts, jid, minions=("a", "b"), **more):
    Writer(site_of(opts)).append(publish_of(jid, {"fun": "test.ping", "user": "root"}, minions, **more))


def test_the_first_return_of_a_minion_is_the_only_one(opts):
    writer, tables = Writer(site_of(opts)), site_of(opts)
    for retcode in (3, 0):
        assert writer.append(Returned("1", "a", "test.ping", retcode, 1.0))
    writer.append(Returned("1", "b", "test.ping", 0, 1.0))
    assert {minion: record.retcode for minion, record in log.returns(tables, "1", ["a", "c"]).items()} == {"a": 3}
    assert set(log.returns(tables, "1", [*"abc", *map(str, range(300))])) == {"a", "b"}


def test_the_log_has_all_of_a_job_whose_first_publish_it_has(opts):
    publish(opts, "1")
    publish(opts, "1", minions=("c",), fresh=False)
    tables = site_of(opts)
    assert log.is_whole(tables, "1") and not log.is_whole(tables, "2")
    assert [record.minions for record in log.publishes(tables, "1")] == [("a", "b"), ("c",)]
    assert log.publishes(tables, "1")[0].loaded() == {"fun": "test.ping", "user": "root"}
    publish(opts, "2", fresh=False)
    assert not log.is_whole(tables, "2"), "there may have been another one before"


def test_of_a_job_since_which_a_record_may_be_missing_the_log_does_not_have_all(opts):
    publish(opts, "1")
    Writer(site_of(opts)).leave_gap()
    publish(opts, "2")
    tables = site_of(opts)
    assert [log.is_whole(tables, jid) for jid in "12"] == [False, True]
    tables.note_gap()
    publish(opts, "3")
    assert [log.is_whole(tables, jid) for jid in "123"] == [False, False, True]


def test_only_its_owner_may_read_it(opts, reader):
    path = pathlib.Path(site_of(opts).place)
    assert {found.stat().st_mode & 0o077 for found in path.parent.glob(f"{path.name}*")} == {0}


def test_a_disk_that_is_really_full_loses_no_record_without_a_gap(small_disk):
    opts = {"cachedir": str(small_disk), "id": "m"}
    append(opts, 0)
    site = site_of(opts)
    reader, writer = Reader(site), Writer(site)
    read(reader)
    written = [number for number in range(1, 20_000) if writer.append(returned(number))]
    assert written[-1] < 19_999
    found, gaps = read(reader)
    assert found == [f"0-{number}" for number in written]
    assert gaps == ["a record could not be written"]
