"""A damaged file of ``cache: sqlite`` is set aside, a new one is begun, and an operator brings back what can be read."""

from __future__ import annotations

import contextlib
import os
import pathlib
import random
import shutil
import sqlite3

import pytest
import salt.cache
import salt.config
import salt.loader
import salt.payload
from salt.exceptions import SaltCacheError

from saltext.jobs.core.ledger.tables import FORMAT, QUEUE, VALUES
from saltext.jobs.core.store.search import Query, search
from saltext.jobs.core.store.store import Store
from tests.functional.options import options_in
from tests.functional.store.banks import banks_of
from tests.functional.store.test_contract import LOAD, Returner, in_processes

JOBS = [f"20260516{number:012}" for number in range(600)]
FLEET = [f"web{number:03}" for number in range(20)]


@pytest.fixture
def opts(tmp_path):
    return options_in(tmp_path, cache="sqlite", keep_jobs_seconds=0)


@pytest.fixture
def path(opts):
    return os.path.join(opts["cachedir"], "cache.sqlite")


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A folder with jobs with returns, and grains. No process has its file open."""
    opts = options_in(tmp_path_factory.mktemp("kept"), cache="sqlite", keep_jobs_seconds=0)

    def fill(_):
        job_cache, cache = Returner(opts), salt.cache.Cache(opts)
        with banks_of(opts).transaction():
            for number in range(300):
                cache.store("grains", f"web{number:03}", {"os": "Debian", "more": "x" * 300})
            for jid in JOBS:
                job_cache.save_load(jid, {**LOAD, "jid": jid}, minions=FLEET)
                job_cache.returner({"jid": jid, "id": FLEET[0], "return": "x" * 300, "retcode": 0})

    assert in_processes(1, fill) == [None]
    return opts["cachedir"]


@pytest.fixture
def filled(opts, kept):
    shutil.copytree(kept, opts["cachedir"])
    return opts


def damage(path, places):
    """Overwrite pages of the file while no process has it open. ``places`` gets the number of pages."""
    with contextlib.closing(sqlite3.connect(path)) as sql:
        sql.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        pages, size = (sql.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
    with open(path, "r+b") as stream:
        for page in places(pages):
            stream.seek(page * size)
            stream.write(random.Random(page).randbytes(size))


def root_of(path, table):
    """Return the first page of a table or of an index, counted from 0."""
    with contextlib.closing(sqlite3.connect(path)) as sql:
        ((page,),) = sql.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,))
    return page - 1


def meet(opts):
    """Have a process read the file, which is damaged. Return the name that it has got."""
    in_processes(1, lambda _: banks_of(opts).read_everything())
    (aside,) = banks_of(opts).damaged()
    return aside


def recover(opts, path):
    return salt.loader.runner(opts)["job_cache.recover"](path)


def test_a_damaged_file_is_set_aside_and_a_line_names_it_and_the_command(filled, path, caplog):
    damage(path, lambda pages: [pages * 4 // 5])
    banks = banks_of(filled)
    banks.read_everything()
    (aside,) = banks.damaged()
    assert banks.keys("grains") == [] and banks.is_sound()
    (line,) = [record for record in caplog.records if "damaged" in record.getMessage()]
    assert line.levelname == "CRITICAL" and line.getMessage().endswith(f"salt-run job_cache.recover {aside}")


@pytest.mark.parametrize("size", [0, 4096])
def test_a_file_that_has_lost_its_beginning_or_all_of_it_is_set_aside(filled, path, size):
    damage(path, lambda pages: [])  # all of the log is in the file
    with open(path, "r+b") as stream:
        stream.write(b"\0" * size)
        if not size:
            stream.truncate()
    cache = salt.cache.Cache(filled)
    cache.store("bank", "key", 1)
    assert cache.list("bank") == ["key"] and len(banks_of(filled).damaged()) == 1


@pytest.mark.parametrize("table", [f"sqlite_autoindex_{VALUES}_1", f"{VALUES}_marks"])
def test_a_publish_and_a_return_that_meet_the_damage_go_into_the_new_file(filled, path, table):
    """Reads under the lock of a job turn the damage into an error of their own."""

    def publish(_):
        job_cache = Returner(filled)
        jid = job_cache.prep_jid()
        job_cache.save_load(jid, {**LOAD, "jid": jid}, minions=FLEET)
        return jid, job_cache.get_load(jid)["Minions"]

    def answer(_):
        job_cache = Returner(filled)
        job_cache.returner({"jid": jid, "id": "web001", "fun": LOAD["fun"], "return": 1, "retcode": 0})
        return sorted(job_cache.get_jid(jid))

    page = root_of(path, table)
    damage(path, lambda pages: [page])
    ((jid, named),) = in_processes(1, publish)
    assert named == FLEET
    assert len(banks_of(filled).damaged()) == 1
    page = root_of(path, f"sqlite_autoindex_{VALUES}_1")  # a return needs no other one
    damage(path, lambda pages: [page])
    assert in_processes(1, answer) == [["web001"]]
    assert len(banks_of(filled).damaged()) == 2


def test_what_fails_in_the_new_file_for_another_reason_is_no_damage_of_it(filled, path):
    damage(path, lambda pages: range(3, pages, 2))
    banks = banks_of(filled)

    def work():
        banks.read_everything()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        banks.tables.together(work)
    assert len(banks.damaged()) == 1


def test_processes_that_meet_the_damage_together_set_it_aside_once(filled, path):
    damage(path, lambda pages: range(3, pages, 2))

    def work(number):
        cache = salt.cache.Cache(filled)
        for turn in range(100):
            with contextlib.suppress(SaltCacheError):
                cache.fetch("jobs/loads", JOBS[turn * 5])
        cache.store("bank", str(number), number)

    assert in_processes(6, work) == [None] * 6
    assert banks_of(filled).keys("bank") == [str(number) for number in range(6)]
    assert len(banks_of(filled).damaged()) == 1 and banks_of(filled).is_sound()


def test_processes_that_open_a_damaged_file_together_begin_one_new_file(opts, path):
    for turn in range(1, 41):
        in_processes(1, lambda _: banks_of(opts).store("bank", "key", 1))
        for end in ("-wal", "-shm"):
            pathlib.Path(path + end).unlink(missing_ok=True)
        with open(path, "r+b") as stream:
            stream.write(bytes(4096))
        assert in_processes(8, lambda _: banks_of(opts).keys("bank")) == [[]] * 8
        assert len(banks_of(opts).damaged()) == turn


def test_what_is_only_in_its_log_is_set_aside_with_it(filled, path):
    damage(path, lambda pages: [pages * 2 // 5])

    def work(_):
        banks_of(filled).store("bank", "key", "only in the log")
        with contextlib.suppress(OSError):
            banks_of(filled).read_everything()

    assert in_processes(1, work) == [None]
    (aside,) = banks_of(filled).damaged()
    assert banks_of(filled).keys("bank") == []
    recover(filled, aside)
    assert banks_of(filled).fetch("bank", "key") == "only in the log"


@pytest.mark.parametrize("job", ["", JOBS[-1]])
def test_what_can_be_read_is_brought_back(filled, path, job):
    def places(pages):  # two in the middle, or those with what was written last
        size, data = os.path.getsize(path) // pages, pathlib.Path(path).read_bytes()
        newest = [page for page in range(pages) if job.encode() in data[page * size : (page + 1) * size]]
        return newest if job else [pages * 2 // 5, pages * 4 // 5]

    damage(path, places)
    aside = meet(filled)
    banks, job_cache = banks_of(filled), Returner(filled)
    banks.store("grains", "web001", "newer")
    done = recover(filled, aside)
    assert done["read"] > 2000 and done["written"] == done["read"] - 1
    assert banks.fetch("grains", "web001") == "newer" and len(banks.keys("grains")) > 200
    loads = banks.keys("jobs/loads")
    assert len(loads) > 500 and {job_cache.get_load(jid)["fun"] for jid in loads} == {LOAD["fun"]}
    found = search(Store(filled), Query(minion=FLEET[0], limit=1000))["jobs"]
    assert {row["JID"] for row in found} >= set(loads) - {None} and banks.is_sound()
    assert recover(filled, aside)["written"] == 0


def test_rows_of_which_a_column_is_damaged_are_left_out(filled, tmp_path):
    path, value = str(tmp_path / "damaged"), salt.payload.dumps(1)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as sql:
        sql.execute(f"PRAGMA user_version={FORMAT}")
        sql.execute(f"CREATE TABLE {VALUES} (bank, key, updated, expires, mark, value)")
        for key, updated in (("a", 1.0), (b"b", 1.0), ("c", None), ("d", 1.0)):
            sql.execute(f"INSERT INTO {VALUES} VALUES ('bank', ?, ?, NULL, NULL, ?)", (key, updated, value))
        sql.execute(f"CREATE TABLE {QUEUE} (kind, jid, minion, body)")
        sql.execute(f"INSERT INTO {QUEUE} VALUES (2, 'jid', NULL, ?)", (value,))
    assert recover(filled, path) == {"read": 2, "written": 2}
    assert banks_of(filled).keys("bank") == ["a", "d"]
