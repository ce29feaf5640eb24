"""A file of ``cache: sqlite`` that is damaged: what can be read of it is in the new one, the queue from the beginning."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import sqlite3
import subprocess

import pytest
import salt.cache
import salt.config
import salt.loader

from saltext.jobs.core.sqlite.banks import banks_of
from saltext.jobs.core.sqlite.salvage import Part, Remains
from saltext.jobs.core.store import records
from saltext.jobs.core.store.publication import Publication
from saltext.jobs.core.store.salvage import JobSalvage
from saltext.jobs.core.store.search import Query, search
from saltext.jobs.core.store.store import Store
from tests.functional.store.test_contract import FORK, LOAD, Returner, in_processes
from tests.functional.store.test_job_index import dying
from tests.waiting import SOON, stretched

JOBS = [f"20260516{number:012}" for number in range(600)]
OWED = JOBS[300]
FLEET = [f"web{number:03}" for number in range(20)]


def options(folder):
    own = {"cachedir": str(folder), "pki_dir": str(folder), "extension_modules": f"{folder}/ext", "cache": "sqlite"}
    return {**salt.config.DEFAULT_MASTER_OPTS, **own, "keep_jobs_seconds": 0}


@pytest.fixture
def opts(tmp_path):
    return options(tmp_path / "cache")


@pytest.fixture
def path(opts):
    return os.path.join(opts["cachedir"], "cache.sqlite")


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A folder with jobs with returns, one of which is owed; grains. No process has its file open."""
    opts = options(tmp_path_factory.mktemp("kept"))

    def fill(_):
        job_cache, cache = Returner(opts), salt.cache.Cache(opts)
        with banks_of(opts).transaction():
            for number in range(300):
                cache.store("grains", f"web{number:03}", {"os": "Debian", "more": "x" * 300})
            for jid in JOBS:
                job_cache.save_load(jid, {**LOAD, "jid": jid}, minions=FLEET)
                job_cache.returner({"jid": jid, "id": FLEET[0], "return": "x" * 300, "retcode": 0})
            cache.store("job_retry/jobs", OWED, {"load": {}})
            cache.store("job_retry/queue/web001", OWED, {"state": "pending"})

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


def look(opts):
    with contextlib.suppress(sqlite3.DatabaseError):
        banks_of(opts).is_sound()
    banks_of(opts).keys("grains")  # the next process to open it begins the new one


def meet(opts):
    """Have a process look whether the file is sound. It is damaged."""
    assert in_processes(1, lambda _: look(opts)) == [None]
    assert len(banks_of(opts).damaged()) == 1


def test_the_new_file_has_everything_but_jobs_from_the_beginning_and_jobs_that_are_owed(filled, path, caplog):
    damage(path, lambda pages: [pages * 4 // 5])
    meet(filled)
    banks = banks_of(filled)
    assert banks.keys("job_retry/queue/web001") == banks.keys("job_retry/jobs") == [OWED]
    assert banks.keys("grains") == [f"web{number:03}" for number in range(300)]
    assert banks.keys("jobs/loads") == banks.keys("jobs/published") == [OWED]
    assert banks.keys(f"jobs/returns/{OWED}") == [FLEET[0]]
    assert banks.is_sound()


def pages_of(path):
    """Return the bytes of each page, after all of -wal was moved into the file."""
    with contextlib.closing(sqlite3.connect(path)) as sql:
        sql.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        ((size,),) = sql.execute("PRAGMA page_size")
    with open(path, "rb") as stream:
        return list(iter(lambda: stream.read(size), b""))


def leaves_of_grains(pages):
    """Return the numbers of the pages that hold rows of the bank ``grains`` only, in the order of their rows."""
    first_id = {}
    for number, page in enumerate(pages):
        if page[0] == 13 and b"Debian" in page and b"Minions" not in page:
            first_id[number] = min(re.findall(rb"web\d{3}", page))
    return sorted(first_id, key=first_id.get)


def read_of(pages, path, part=Part.ALL):
    """Return the keys of the grains that can be read of a file with these pages. Each row must come once."""
    with open(path, "wb") as stream:
        stream.write(b"".join(pages))
    rows = list(itertools.islice(Remains(path).rows(part), 100_000))
    assert len({row[:2] for row in rows}) == len(rows)
    return {key for bank, key, *_ in rows if bank == "grains"}


GRAINS = {f"web{number:03}" for number in range(300)}


@pytest.mark.parametrize("part", [Part.ALL, Part.FIRST])
def test_a_sound_page_between_damaged_ones_is_read(filled, path, part):
    pages = pages_of(path)
    leaves = leaves_of_grains(pages)
    sound = leaves[10]
    lost = set()
    for number in leaves[1:30]:
        if number != sound:
            lost |= {key.decode() for key in re.findall(rb"web\d{3}", pages[number])}
            pages[number] = os.urandom(len(pages[number]))
    assert read_of(pages, f"{path}-copy", part) == GRAINS - lost


def test_a_page_in_the_place_of_another_one_leads_to_no_circle_and_takes_no_more_with_it(filled, path):
    pages = pages_of(path)
    leaves = leaves_of_grains(pages)
    for before, after in ((leaves[5], leaves[20]), (leaves[20], leaves[5])):
        damaged = list(pages)
        damaged[after] = damaged[before]
        lost = {key.decode() for key in re.findall(rb"web\d{3}", pages[after])}
        assert read_of(damaged, f"{path}-copy") == GRAINS - lost
    pages[leaves[5]], pages[leaves[20]] = pages[leaves[20]], pages[leaves[5]]
    assert read_of(pages, f"{path}-copy") == GRAINS


def test_what_is_left_of_a_file_that_was_cut_off_is_read(filled, path):
    pages = pages_of(path)
    assert max(leaves_of_grains(pages)) < len(pages) - 10
    assert read_of(pages[:-10], f"{path}-copy") == GRAINS


def test_the_sweep_brings_over_the_jobs_once(filled, path):
    damage(path, lambda pages: [pages * 4 // 5])
    meet(filled)
    job_cache, banks = Returner(filled), banks_of(filled)
    banks.flush("grains", "web007")
    banks.flush("job_retry/queue/web001", OWED)
    job_cache.store.driver.tidy()
    found = set(job_cache.get_jids())
    assert found <= set(JOBS) and len(found) > len(JOBS) - 100
    assert {job["JID"] for job in search(Store(filled), Query(minion="web005", limit=1000))["jobs"]} == found
    assert "web007" not in banks.keys("grains"), "it was removed since"
    banks.flush("jobs/loads", JOBS[5])
    job_cache.store.driver.tidy()
    assert JOBS[5] not in banks.keys("jobs/loads")
    ((done),) = salt.loader.runner(filled)["job_cache.recover"]().values()
    assert done["written"] == 1 and JOBS[5] in banks.keys("jobs/loads")
    assert banks.keys("job_retry/queue/web001") == [], "it was delivered since"


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_death_at_any_commit_loses_nothing_of_it(filled, path, monkeypatch, number):
    damage(path, lambda pages: [pages * 4 // 5])
    run = FORK.Process(target=lambda: (look(filled), Store(filled).driver.tidy()))
    monkeypatch.setattr(sqlite3, "connect", dying("COMMIT", number))
    run.start()
    run.join(stretched(SOON))
    monkeypatch.undo()
    assert run.exitcode == -signal.SIGKILL
    assert banks_of(filled).keys("job_retry/queue/web001") == [OWED]
    Store(filled).driver.tidy()
    assert len(Returner(filled).get_jids()) > len(JOBS) - 100


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_death_while_the_file_is_set_aside_loses_nothing_of_its_log(filled, path, monkeypatch, number):
    def fill(_):
        with contextlib.closing(sqlite3.connect(path)) as sql:
            sql.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        banks_of(filled).store("job_retry/queue/late", OWED, {"state": "pending"})
        os.kill(os.getpid(), signal.SIGKILL)

    run = FORK.Process(target=fill, args=(None,))
    run.start()
    run.join(stretched(SOON))
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as sql:
        ((pages,),) = sql.execute("PRAGMA page_count")
    with open(path, "r+b") as stream:
        stream.seek(pages * 4 // 5 * 2048)
        stream.write(os.urandom(2048))

    calls = itertools.count()

    def die():
        for name in ("link", "rename", "unlink"):
            monkeypatch.setattr(os, name, functools.partial(dying_at, getattr(os, name)))
        look(filled)

    def dying_at(call, *names, **more):
        if os.fspath(names[0]).startswith(path) and next(calls) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*names, **more)

    run = FORK.Process(target=die)
    run.start()
    run.join(stretched(SOON))
    assert run.exitcode == -signal.SIGKILL
    look(filled)
    assert banks_of(filled).keys("job_retry/queue/late") == [OWED]


def test_processes_that_meet_the_damage_together_begin_one_file_with_it(filled, path):
    damage(path, lambda pages: [pages * 4 // 5])

    def read(_):
        look(filled)
        return banks_of(filled).keys("job_retry/queue/web001")

    assert in_processes(4, read) == [[OWED]] * 4
    assert len(banks_of(filled).damaged()) == 1


@pytest.mark.parametrize("is_noted", [True, False], ids=["", "also if the second file does not say so"])
def test_what_was_removed_since_an_earlier_damage_does_not_come_back(filled, path, is_noted):
    damage(path, lambda pages: [pages * 4 // 5])
    meet(filled)
    (first,) = banks_of(filled).damaged()
    in_processes(1, lambda _: Store(filled).driver.tidy())
    in_processes(1, lambda _: banks_of(filled).flush("job_retry/queue/web001", OWED))  # it was delivered
    if not is_noted:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as sql:
            sql.execute("DELETE FROM banks WHERE name = '/begun_with'")
    damage(path, lambda pages: [pages * 4 // 5])
    assert in_processes(1, lambda _: look(filled)) == [None]
    assert len(banks_of(filled).damaged()) == 2
    done = salt.loader.runner(filled)["job_cache.recover"]()
    assert first in done and banks_of(filled).keys("job_retry/queue/web001") == []


def test_a_load_that_was_stored_with_a_return_gives_way_to_the_published_one(filled, path):
    """The job ran when the damage was met. Salt stores a load with each return of a job that has none."""
    damage(path, lambda pages: [pages * 4 // 5])
    meet(filled)
    job_cache, jid = Returner(filled), JOBS[5]
    assert banks_of(filled).keys("jobs/loads") == [OWED]
    job_cache.save_load(jid, {"cmd": "_return", "id": FLEET[1], "fun": LOAD["fun"], "arg": LOAD["arg"], "jid": jid})
    job_cache.returner({"jid": jid, "id": FLEET[1], "return": 1, "retcode": 0})
    job_cache.store.driver.tidy()
    assert job_cache.get_load(jid) == {**LOAD, "jid": jid, "Minions": FLEET}
    assert set(job_cache.get_jid(jid)) == set(FLEET[:2])


def test_a_job_that_was_published_again_meanwhile_keeps_its_first_load_and_all_its_minions(filled, path):
    """As of a batch, each part of which is a publish with a target of its own."""
    damage(path, lambda pages: [pages * 4 // 5])
    first = Returner(filled).get_load(JOBS[5])
    at = Returner(filled).store.fetch("jobs/published", JOBS[5])["at"]
    meet(filled)
    job_cache, jid = Returner(filled), JOBS[5]
    reported = {"cmd": "_return", "id": "syndic", "fun": LOAD["fun"], "arg": LOAD["arg"], "Minions": [FLEET[1]]}
    job_cache.save_load(jid, {**reported, "jid": jid})
    job_cache.save_load(jid, {**LOAD, "jid": jid, "tgt": ["db1", "db2"], "tgt_type": "list"}, minions=["db1", "db2"])
    assert job_cache.get_load(jid)["Minions"] == ["db1", "db2", FLEET[1]]
    job_cache.store.driver.tidy()
    assert job_cache.get_load(jid) == {**first, "Minions": sorted([*FLEET, "db1", "db2"])}
    record = job_cache.store.fetch("jobs/published", jid)
    assert record["at"] == at < record["last"] and "added" not in record
    assert search(Store(filled), Query(minion=FLEET[7], limit=1000, targets=("*",)))["jobs"]
    salt.loader.runner(filled)["job_cache.recover"]()
    assert job_cache.store.fetch("jobs/published", jid) == record


def test_another_job_that_was_published_meanwhile_under_the_jid_counts_as_one_that_borrowed_it(filled, path):
    damage(path, lambda pages: [pages * 4 // 5])
    first = Returner(filled).get_load(JOBS[5])
    meet(filled)
    job_cache, jid = Returner(filled), JOBS[5]
    job_cache.save_load(jid, {**LOAD, "jid": jid, "fun": "cmd.run", "arg": ["reboot"]}, minions=[FLEET[0], "db1"])
    job_cache.store.driver.tidy()
    assert job_cache.get_load(jid) == {**first, "Minions": sorted([*FLEET, "db1"])}
    record = Publication.from_record(job_cache.store.fetch("jobs/published", jid))
    assert [each.fun for each in record.borrowed] == ["cmd.run"]
    assert record.added == {"db1"}, "the first job was not for it"


def test_minions_that_were_only_reported_meanwhile_do_not_become_minions_of_the_job(filled, path):
    """Any accepted minion can report some for any jid."""
    damage(path, lambda pages: [pages * 4 // 5])
    meet(filled)
    job_cache, jid = Returner(filled), JOBS[5]
    records.report_minions(job_cache.store, jid, ["victim"])
    job_cache.store.driver.tidy()
    assert job_cache.get_load(jid)["Minions"] == sorted([*FLEET, "victim"])
    assert Publication.from_record(job_cache.store.fetch("jobs/published", jid)).added == {"victim"}


def test_a_job_that_was_removed_meanwhile_does_not_come_back(filled, path):
    damage(path, lambda pages: [pages * 4 // 5])
    meet(filled)
    job_cache, jid = Returner(filled), JOBS[5]
    job_cache.save_load(jid, {**LOAD, "jid": jid}, minions=["db1"])

    class Late(JobSalvage):
        def conclude(self):
            records.drop(job_cache.store, jid)
            super().conclude()

    banks = banks_of(filled)
    Late(*banks.damaged(), banks).run()
    assert job_cache.get_load(jid) == {} and not job_cache.store.contains("jobs/minions", jid)


def test_a_file_that_was_taken_away_is_made_again_and_empty_whatever_lies_beside_it(filled, path):
    damage(path, lambda pages: [pages * 4 // 5])
    meet(filled)
    assert banks_of(filled).keys("grains")
    for end in ("", "-wal", "-shm"):
        os.unlink(path + end)
    assert banks_of(filled).keys("grains") == []


def all_of(pages, path):
    """Return bank and key of each record that can be read of a file with these pages, and the number of gaps."""
    with open(path, "wb") as stream:
        stream.write(b"".join(pages))
    remains = Remains(path)
    return {row[:2] for row in remains.rows(Part.ALL)}, remains.gaps


def test_names_of_banks_behind_a_gap_of_their_index_are_read(filled, path):
    """The rows of some lie on a damaged page of the table."""
    pages = pages_of(path)
    whole, _ = all_of(pages, f"{path}-copy")

    def names_on(kind):
        found = {
            number: re.findall(rb"jobs/returns/(\d{20})", page) for number, page in enumerate(pages) if page[0] == kind
        }
        return {number: names for number, names in found.items() if len(names) > 10}

    table, index = names_on(13), names_on(10)
    of_rows = max(table, key=lambda number: max(table[number]))
    of_index = min(index, key=lambda number: min(index[number]))
    assert not set(table[of_rows]) & set(index[of_index])
    for number in (of_rows, of_index):
        pages[number] = os.urandom(len(pages[number]))
    assert all_of(pages, f"{path}-copy")[0] == whole


def test_a_row_whose_number_is_damaged_takes_no_other_one_with_it(filled, path):
    pages = pages_of(path)
    whole, _ = all_of(pages, f"{path}-copy")
    leaf = leaves_of_grains(pages)[20]
    at = int.from_bytes(
        pages[leaf][8:10], "big"
    )  # the first row: its length, in two bytes, and its number, in one or two
    assert pages[leaf][at] > 127
    for bit in (0, 1, 2, 5):
        damaged = [bytearray(page) for page in pages]
        damaged[leaf][at + 2 + (pages[leaf][at + 2] > 127)] ^= 1 << bit
        found, gaps = all_of(damaged, f"{path}-copy")
        assert found == whole and gaps


def test_a_record_that_cannot_be_decoded_counts_as_a_gap(filled, path):
    pages = pages_of(path)
    leaf = leaves_of_grains(pages)[20]
    pages[leaf] = pages[leaf].replace(b"\xa2os\xa6Debian", b"\xa2os\xc1Debian", 1)
    found, gaps = all_of(pages, f"{path}-copy")
    assert (len({key for bank, key in found if bank == "grains"}), gaps) == (len(GRAINS) - 1, 1)


@pytest.mark.parametrize("at", [20, 30, 31])
def test_a_bit_of_the_size_of_the_file_or_of_its_pages_takes_nothing_with_it(filled, path, at):
    large = random.Random(1).randbytes(3000).hex()
    in_processes(1, lambda _: banks_of(filled).store("grains", "large", {"more": large}))
    pages = pages_of(path)
    whole, _ = all_of(pages, f"{path}-copy")
    pages[0] = pages[0][:at] + bytes([pages[0][at] ^ (0x20 if at == 20 else pages[0][at])]) + pages[0][at + 1 :]
    assert all_of(pages, f"{path}-copy") == (whole, 0)


def without_first_page(path, size=4096):
    damage(path, lambda pages: [])
    with open(path, "r+b") as stream:
        stream.write(b"\0" * size)


@pytest.mark.parametrize("size", [8, 16, 100, 4096])
def test_a_file_without_its_first_page_is_read(filled, path, size):
    """That page says where the tables begin."""
    without_first_page(path, size)
    assert banks_of(filled).keys("grains") == sorted(GRAINS)
    assert banks_of(filled).keys("job_retry/queue/web001") == [OWED]
    Store(filled).driver.tidy()
    assert Returner(filled).get_jids().keys() == set(JOBS)
    (aside,) = banks_of(filled).damaged()
    assert [name for name in os.listdir(os.path.dirname(path)) if name.startswith(f"{os.path.basename(aside)}.")] == []


@pytest.mark.parametrize(
    "text", [b"INTEGER PRIMARY KEY, bank", b"updated INTEGER", b"CREATE TABLE banks", b"NULL UNIQUE"]
)
def test_a_bit_of_the_description_of_the_tables_takes_nothing_with_it(filled, path, text):
    pages = pages_of(path)
    assert text in pages[0]
    pages[0] = pages[0].replace(text, bytes([text[0] ^ 0x40]) + text[1:], 1)
    assert read_of(pages, f"{path}-copy") == GRAINS


def test_an_unreadable_file_is_reported_and_delays_no_user(filled, path, caplog):
    damage(path, lambda pages: [])
    with open(path, "r+b") as stream:
        stream.write(bytes(os.stat(path).st_size))
    assert banks_of(filled).keys("grains") == []
    assert "can be read, and the new file is begun empty" in caplog.text
    Store(filled).driver.tidy()


def test_a_file_of_a_later_version_is_left_alone(filled, path):
    aside = f"{path}.damaged-20260516120000"
    shutil.copy(path, aside)
    with contextlib.closing(sqlite3.connect(aside)) as sql:
        sql.execute("PRAGMA user_version=1000")
    os.unlink(path)
    ((name, done),) = salt.loader.runner(filled)["job_cache.recover"]().items()
    assert name == aside and "1000" in done["error"]
    assert banks_of(filled).keys("grains") == []


def test_the_damaged_file_and_its_log_stay_as_they_are(opts, path):
    def fill(_):
        banks_of(opts).store("grains", "web001", {"os": "Debian"})
        os.kill(os.getpid(), signal.SIGKILL)

    run = FORK.Process(target=fill, args=(None,))
    run.start()
    run.join(stretched(SOON))
    aside = f"{path}.damaged-20260516120000"
    for end in ("-wal", "-shm", ""):
        os.rename(path + end, aside + end)
    before = [pathlib.Path(aside + end).read_bytes() for end in ("-wal", "")]
    link = f"{path}-link"
    os.symlink(aside, link)
    assert [bank for bank, *_ in Remains(link).rows(Part.ALL)] == ["grains"]
    assert salt.loader.runner(opts)["job_cache.recover"]()[aside]["written"] == 1
    assert [pathlib.Path(aside + end).read_bytes() for end in ("-wal", "")] == before
    assert banks_of(opts).keys("grains") == ["web001"]


def test_no_repair_begins_while_the_disk_is_too_small(filled, path):
    """Until then the error says so. The next process after there is room finds everything."""
    damage(path, lambda pages: [pages * 4 // 5])

    def read(_):
        resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, resource.RLIM_INFINITY))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        try:
            look(filled)
        except Exception as exc:
            return str(exc)

    (said,) = in_processes(1, read)
    assert any(word in said for word in ("full", "I/O")), said
    assert banks_of(filled).keys("job_retry/queue/web001") == [OWED]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small disk")
@pytest.mark.parametrize("room", [100, 200, 400, 800])
def test_a_file_without_its_first_page_waits_for_room_for_its_copy(filled, path, room):
    """The copy takes as much space as the file."""
    without_first_page(path)
    size, folder = os.stat(path).st_size // 1024, os.path.dirname(path)
    aside = f"{folder}-aside"
    os.rename(folder, aside)
    os.mkdir(folder)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size + room}k", "tmpfs", folder], check=True)
    try:
        shutil.copy(f"{aside}/cache.sqlite", path)

        def read(_):
            try:
                banks_of(filled).keys("grains")
            except Exception as exc:
                return str(exc)

        (said,) = in_processes(1, read)
        assert any(word in said for word in ("No space left", "full", "no copy can be made")), said
        subprocess.run(["mount", "-o", "remount,size=100m", folder], check=True)
        assert in_processes(1, lambda _: banks_of(filled).keys("job_retry/queue/web001")) == [[OWED]]
        assert [name for name in os.listdir(folder) if name.endswith(".copy")] == []
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def test_the_copy_of_a_process_that_was_killed_is_removed(filled, path, monkeypatch):
    without_first_page(path)
    run = FORK.Process(target=look, args=(filled,))
    monkeypatch.setattr(sqlite3, "connect", dying("SELECT id, name FROM banks", 0))
    run.start()
    run.join(stretched(SOON))
    monkeypatch.undo()
    assert run.exitcode == -signal.SIGKILL
    folder = os.path.dirname(path)
    assert any(os.path.isdir(os.path.join(folder, name)) for name in os.listdir(folder) if "damaged" in name)
    look(filled)
    assert len(banks_of(filled).damaged()) == 1
    assert not any(os.path.isdir(os.path.join(folder, name)) for name in os.listdir(folder) if "damaged" in name)


@pytest.mark.parametrize("table", ["sqlite_autoindex_records_1", "jobs", "sqlite_autoindex_banks_1"])
def test_a_publish_and_a_return_that_meet_the_damage_go_into_the_new_file(filled, path, table):
    """Reads under the lock of a job turn the damage into an error of their own."""
    with contextlib.closing(sqlite3.connect(path)) as sql:
        ((page,),) = sql.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,))
    damage(path, lambda pages: [page - 1])
    jid = "20260517000000000000"

    def publish(_):
        job_cache = Returner(filled)
        job_cache.save_load(jid, {**LOAD, "jid": jid}, minions=FLEET)
        return job_cache.get_load(jid)["Minions"]

    def answer(_):
        job_cache = Returner(filled)
        first = job_cache.returner({"jid": OWED, "id": "web001", "return": 1, "retcode": 0})
        return first, sorted(job_cache.get_jid(OWED))

    assert in_processes(1, publish) == [FLEET]
    assert len(banks_of(filled).damaged()) == 1
    damage(path, lambda pages: [page - 1])
    assert in_processes(1, answer) == [(None, ["web000", "web001"])]
    assert len(banks_of(filled).damaged()) == 2
    assert banks_of(filled).keys("job_retry/queue/web001") == [OWED]
