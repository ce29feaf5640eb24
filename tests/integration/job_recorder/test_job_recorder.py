"""The recorder on a real master, with real returners, and what happens when things break."""

from __future__ import annotations

import contextlib
import json

import psycopg2
import pytest
import salt.cache

from tests.integration.conftest import ask_runner, minions, salt_cli
from tests.integration.job_recorder.conftest import Load, make_recorder_master
from tests.integration.job_retry.desk import kill
from tests.waiting import wait_for


def raw_returns(file, jids):
    """What is in the file; a line that is being written does not count."""
    text = file.read_text() if file.exists() else ""
    lines = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
    return sorted((line["jid"], line["id"]) for line in lines if line.get("jid") in jids)


def redis_returns(redis, master, jids):
    cache = salt.cache.Cache({**master.config, **redis.options})
    return sorted((jid, minion) for jid in jids for minion in cache.list(f"jobs/returns/{jid}"))


def pg_returns(postgresql, jids):
    return [row for row in postgresql.returns() if row[0] in jids]


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
        assert salt_cli(master, "rec-1", "test.ping").data is True
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
    wait_for(lambda: run("job_recorder.stats")["returners"]["pgjsonb"]["queued"] == 0, what="nothing waits")


# -- faults -----------------------------------------------------------------------------------------------------------


def test_two_recorders_share_one_database(salt_factories, load, postgresql, run, tmp_path):
    """Two masters; some of the returns come to both, as in a cluster, and the others to one of them."""
    options = {**postgresql.options, "returner.pgjsonb_bulk.db": "bulk"}
    other = make_recorder_master(salt_factories, ["pgjsonb_bulk"], **options)
    other.slow_stop = False
    with other.started():
        there = Load(other.config)
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


def test_a_master_that_is_killed_loses_nothing_that_its_job_cache_has(load, master, postgresql, redis, file):
    load.run(rate=100, seconds=4)
    kill(master)  # everything of it at once; returns of this moment are on disk, and half way
    # what returns while the recorder is down
    jid = load.publish(["late-1", "late-2"])
    load.give_back(jid, "late-1")
    load.give_back(jid, "late-2")
    with master.started():
        wait_for(lambda: len(pg_returns(postgresql, jids_of(load))) >= len(load.made), what="all rows")
        wait_for(lambda: len(redis_returns(redis, master, jids_of(load))) >= len(load.made), what="all in Redis")
        wait_for(lambda: set(raw_returns(file, jids_of(load))) == set(load.made), what="all lines")
        wait_for(lambda: len(bulk_returns(postgresql, jids_of(load))) >= len(load.made), what="all rows, in bulk")
        for returns in (pg_returns, bulk_returns):
            assert returns(postgresql, jids_of(load)) == sorted(load.made)
        # a file cannot be asked what it has: what was being written in the moment of the kill may be there twice
        assert len(raw_returns(file, jids_of(load))) <= len(load.made) + 1
        ((stored,),) = postgresql.execute("SELECT load FROM jids WHERE jid = %s", jid)
        assert stored["kwargs"]["metadata"] == {"ticket": 7}
