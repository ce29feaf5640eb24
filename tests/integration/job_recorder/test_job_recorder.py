"""The recorder on a real master, with real returners, and what happens when things break."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import time

import psycopg2
import pytest
import salt.cache

from saltext.jobs.core.ledger import outbox
from saltext.jobs.core.recorder.reading import reader_of
from saltext.jobs.core.site import site_of
from tests.integration.conftest import ask_runner, minions, salt_cli
from tests.integration.job_recorder.conftest import make_recorder_master
from tests.missing import missing
from tests.recorder_load import Load
from tests.waiting import SOON, Deadline, wait_for


def raw_lines(file):
    """What is in the file; a line that is being written does not count."""
    text = file.read_text() if file.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def raw_returns(file, jids):
    return sorted((line["jid"], line["id"]) for line in raw_lines(file) if line.get("jid") in jids)


def redis_returns(redis, master, jids):
    cache = salt.cache.Cache({**master.config, **redis.options})
    return sorted((jid, minion) for jid in jids for minion in cache.list(f"jobs/returns/{jid}"))


def pg_returns(postgresql, jids):
    return [row for row in postgresql.returns() if row[0] in jids]


def engine_pid(master):
    """The process that has the engine's lock file open, or None."""
    lock = pathlib.Path(master.config["cachedir"]) / "saltext_jobs" / "job_recorder" / "lock"
    for pid in descendants(master.pid):
        with contextlib.suppress(OSError):
            if any(os.readlink(link) == str(lock) for link in pathlib.Path(f"/proc/{pid}/fd").iterdir()):
                return pid
    return None


def descendants(pid):
    """All processes below ``pid``, the lowest first."""
    with contextlib.suppress(OSError):
        children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [found for child in map(int, children) for found in (*descendants(child), child)]
    return []


def bulk_returns(postgresql, jids):
    """As ``pg_returns``, of the database of pgjsonb_bulk."""
    with contextlib.suppress(psycopg2.errors.UndefinedTable):
        rows = postgresql.execute("SELECT jid, id FROM salt_returns", database="bulk")
        return sorted(row for row in rows if row[0] in jids)
    return []


def bulk_minions(postgresql, tag):
    """The masters whose events with that tag are in the database of pgjsonb_bulk."""
    with contextlib.suppress(psycopg2.errors.UndefinedTable):
        query = "SELECT DISTINCT data->>'id' FROM salt_events WHERE tag = %s"
        return [minion for (minion,) in postgresql.execute(query, tag, database="bulk")]
    return []


def jids_of(load):
    return {jid for jid, _ in load.made}


# -- the whole way ----------------------------------------------------------------------------------------------------


@pytest.mark.story
def test_the_return_of_a_minion_is_in_every_returner_with_its_complete_load(master, run, postgresql, redis, file):
    with minions(master, "rec-1"):
        result = salt_cli(master, "rec-1", "test.arg", "one", "two=2", "--metadata={'ticket': 9}")
        assert result.data["kwargs"]["two"] == 2
        sent = salt_cli(master, "rec-1", "test.ping")
        assert sent.data is True
    (row,) = wait_for(
        lambda: postgresql.execute("SELECT jid, full_ret FROM salt_returns WHERE id = 'rec-1'"), what="a row"
    )
    jid, full = row
    assert full["return"]["args"] == ["one"]
    ((stored,),) = postgresql.execute("SELECT load FROM jids WHERE jid = %s", jid)
    assert {"__kwarg__": True, "two": 2} in stored["arg"]
    assert stored["kwargs"]["metadata"] == {"ticket": 9}
    wait_for(lambda: raw_returns(file, {jid}) == [(jid, "rec-1")], what="a line in the file")
    wait_for(lambda: redis_returns(redis, master, {jid}) == [(jid, "rec-1")], what="a return in Redis")
    assert postgresql.execute("SELECT count(*) FROM jids") == [(1,)]
    wait_for(lambda: bulk_returns(postgresql, {jid}) == [(jid, "rec-1")], what="a row in the other database")
    assert postgresql.execute("SELECT load FROM jids", database="bulk") == [(stored,)]
    wait_for(lambda: bulk_minions(postgresql, "salt/auth") == ["rec-1"], what="an event in the other database")
    figures = run("job_recorder.stats")
    assert set(figures["returners"]) == {"pgjsonb", "rawfile_json", "salt_cache@history", "pgjsonb_bulk"}
    assert figures["returners"]["pgjsonb"]["delivered"] == 2
    assert figures["returners"]["pgjsonb"]["queued"] == 0


# -- faults -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_engine_that_is_killed_under_load_loses_nothing_and_doubles_nothing(load, master, postgresql, redis, file):
    killed, seen = [], {}

    def disturb(_elapsed):
        # Salt starts an engine that has died within ten seconds.
        pid, now = engine_pid(master), time.monotonic()
        if pid and len(killed) < 2 and now - seen.setdefault(pid, now) > 2 and pid not in killed:
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)

    deadline = Deadline(SOON)
    while len(killed) < 2 and not deadline.is_over():
        # Many while there is an engine to kill, some while there is none.
        load.run(rate=100 if engine_pid(master) else 20, seconds=2, while_running=disturb)
    load.run(rate=100, seconds=2)
    assert len(killed) == 2
    wait_for(lambda: len(pg_returns(postgresql, jids_of(load))) >= len(load.made), what="all rows")
    wait_for(lambda: len(bulk_returns(postgresql, jids_of(load))) >= len(load.made), what="all rows, in bulk")
    assert bulk_returns(postgresql, jids_of(load)) == sorted(load.made)
    wait_for(lambda: len(redis_returns(redis, master, jids_of(load))) >= len(load.made), what="all in Redis")
    wait_for(lambda: len(raw_returns(file, jids_of(load))) >= len(load.made), what="all lines")
    assert pg_returns(postgresql, jids_of(load)) == sorted(load.made)
    assert redis_returns(redis, master, jids_of(load)) == sorted(load.made)
    # A file cannot be asked what it has: what was being written in the moment of a kill may be there twice.
    lines = raw_returns(file, jids_of(load))
    assert sorted(set(lines)) == sorted(load.made)
    assert len(lines) <= len(load.made) + len(killed)


def test_a_poison_return_is_set_aside_and_delivered_once_its_reason_is_gone(load, run, look, postgresql, file):
    jid, bad = load.publish(["m1", "m3"]), load.publish(["m2"], fun="x" * 60)
    load.give_back(jid, "m1")
    load.give_back(bad, "m2", fun="x" * 60)
    load.give_back(jid, "m3")
    wait_for(lambda: pg_returns(postgresql, {jid, bad}) == [(jid, "m1"), (jid, "m3")], what="the others")
    lines = sorted([(jid, "m1"), (bad, "m2"), (jid, "m3")])
    wait_for(lambda: raw_returns(file, {jid, bad}) == lines, what="all lines")
    (entry,) = wait_for(lambda: look("job_recorder.set_aside")["pgjsonb"], what="an entry that is set aside")
    assert (entry["jid"], entry["minion"], entry["tries"]) == (bad, "m2", 5)
    assert "too long" in entry["reason"]
    postgresql.execute("ALTER TABLE salt_returns ALTER COLUMN fun TYPE varchar(100)")
    assert run("job_recorder.redeliver", "pgjsonb")["pgjsonb"] == 1
    wait_for(lambda: (bad, "m2") in pg_returns(postgresql, {bad}), what="the row")
    assert run("job_recorder.set_aside")["pgjsonb"] == []
    assert raw_returns(file, {jid, bad}) == lines


def full_disk(folder):
    """Mount a small file system on ``folder``; returns what undoes that. Skips the test if it is not allowed."""
    become_root = [] if os.geteuid() == 0 else ["sudo", "-n"]
    options = f"size=8m,mode=700,uid={os.geteuid()}"
    command = [*become_root, "mount", "-t", "tmpfs", "-o", options, "none", str(folder)]
    made = subprocess.run(command, capture_output=True)
    if made.returncode:
        missing(f"a small file system cannot be mounted: {made.stderr.decode().strip()}")
    return lambda: subprocess.run([*become_root, "umount", "-l", str(folder)], check=True)


def test_two_recorders_share_one_database(salt_factories, load, postgresql, run, tmp_path):
    """Two masters; some of the returns come to both, as in a cluster, and the others to one of them."""
    options = {**postgresql.options, "returner.pgjsonb_bulk.db": "bulk"}
    other = make_recorder_master(salt_factories, ["pgjsonb_bulk"], **options)
    other.slow_stop = False
    with other.started(), contextlib.closing(Load(other.config)) as there:
        for number in range(20):
            jid = load.publish(["both", "here"])
            there.publish(["both", "there"], jid=jid)
            for minion, loads in {"both": (load, there), "here": (load,), "there": (there,)}.items():
                for one in loads:
                    one.give_back(jid, minion, value=number)
        wanted = sorted({*load.made, *there.made})
        assert len(wanted) == 60
        wait_for(lambda: bulk_returns(postgresql, jids_of(load)) == wanted, what="each is there once")
        query = "SELECT count(*) FROM jids WHERE jid = ANY(%s)"
        assert postgresql.execute(query, sorted(jids_of(load)), database="bulk") == [(20,)]
        for figures in (run("job_recorder.stats"), ask_runner(other, "job_recorder.stats")):
            assert figures["returners"]["pgjsonb_bulk"]["trouble"] is None
            assert figures["returners"]["pgjsonb_bulk"]["dropped"] == 0


def test_a_full_disk_below_the_log_loses_nothing_that_the_job_cache_has(salt_factories, postgresql, tmp_path):
    daemon = make_recorder_master(salt_factories, ["pgjsonb"], **postgresql.options)
    folder = pathlib.Path(daemon.config["cachedir"]) / "saltext_jobs"
    folder.mkdir(parents=True)
    undo, tables = full_disk(folder), site_of(daemon.config).tables
    try:
        with daemon.started(), contextlib.closing(Load(daemon.config)) as load:
            wait_for(lambda: outbox.place_of(tables, reader_of("pgjsonb")), what="the engine")
            filler = folder / "filler"
            with contextlib.suppress(OSError), filler.open("wb") as stream:
                stream.write(bytes(9 << 20))
            assert shutil.disk_usage(folder).free == 0
            load.run(rate=100, seconds=5)
            filler.unlink()
            load.run(rate=100, seconds=2)
            wait_for(lambda: len(pg_returns(postgresql, jids_of(load))) >= len(load.made), what="all rows")
            assert pg_returns(postgresql, jids_of(load)) == sorted(load.made)
    finally:
        undo()


def test_a_master_that_is_killed_loses_nothing_that_its_job_cache_has(load, master, postgresql, file):
    load.run(rate=100, seconds=3)
    # Everything of the master at once; its returns of this moment are on the bus, in memory, on disk, half way.
    load.run(rate=100, seconds=1)
    for process in [*descendants(master.pid), master.pid]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    # What returns while the recorder is down is only in the job cache.
    jid = load.publish(["late-1", "late-2"], fires=False)
    load.give_back(jid, "late-1", fires=False)
    load.give_back(jid, "late-2", fires=False)
    with contextlib.suppress(Exception):
        master.terminate()
    with master.started():
        wait_for(lambda: len(pg_returns(postgresql, jids_of(load))) >= len(load.made), what="all rows")
        assert pg_returns(postgresql, jids_of(load)) == sorted(load.made)
        assert set(raw_returns(file, jids_of(load))) == set(load.made)
        ((stored,),) = postgresql.execute("SELECT load FROM jids WHERE jid = %s", jid)
        assert stored["kwargs"]["metadata"] == {"ticket": 7}
