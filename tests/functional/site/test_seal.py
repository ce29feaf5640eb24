"""Who can write to the database of a site does not command the fleet: only what its masters have written counts."""

from __future__ import annotations

import logging
import time

import pytest
import salt.config
import salt.loader
import salt.payload

from saltext.jobs.core.batch.store import BatchStore, change_of
from saltext.jobs.core.engine.findings import about_engine
from saltext.jobs.core.engine.requests import Service, ask
from saltext.jobs.core.errors import EngineAbsent, StateError
from saltext.jobs.core.ledger import batches, log, records
from saltext.jobs.core.ledger.log import Reader, Writer
from saltext.jobs.core.ledger.requests import Requests
from saltext.jobs.core.master.job_cache import JobCache
from saltext.jobs.core.retry.store import RetryStore
from saltext.jobs.core.site import site_of
from saltext.jobs.core.store.records import digest
from saltext.jobs.core.store.store import store_of
from tests.functional.cache_servers import masters_key
from tests.functional.retry.records import JID, changes, record_of, snapshot_of
from tests.functional.site.conftest import postgresql_sites
from tests.unit.batch.bench import Bench

ENGINE = "batch_manager"
MINION = "m1"


@pytest.fixture
def opts(tmp_path, cache_servers):
    """Of a master of a site."""
    site, _ = postgresql_sites(tmp_path, cache_servers)
    return {**site.opts, "master_job_cache": "salt_cache", "saltext_jobs_site": "postgresql", "sock_dir": str(tmp_path)}


@pytest.fixture
def stranger(opts, tmp_path):
    """The site's database, as it is used by someone who has its password and not the masters' key."""
    return site_of({**opts, **masters_key(tmp_path / "stranger", b"another key"), "id": "a"})


@pytest.fixture
def sql(opts, cache_servers):
    """A function that carries out a statement as the database's user."""
    server = cache_servers("postgresql").server
    return lambda statement, *values: server.execute(statement, *values, database=opts["postgresql.db"])


@pytest.fixture
def refused(caplog):
    """How many lines have said that a row is not sealed."""
    return lambda: sum(
        "no master of this site has sealed it" in record.message and record.levelno == logging.ERROR
        for record in caplog.records
    )


def start():
    return {"do": "start", "tgt": "*", "fun": "cmd.run", "arg": ["id"]}


def entries(opts):
    return [(entry.minion, entry.jid) for entry, _ in RetryStore(site_of(opts)).entries()]


def owe(site, minion=MINION, jid=JID):
    RetryStore(site).write(changes({jid: snapshot_of()}, {(minion, jid): record_of(minion, jid=jid)}))


@pytest.mark.parametrize("keep", [True, False])
def test_a_master_with_another_key_than_the_leader_is_told_so_at_once(opts, stranger, keep):
    lease = site_of(opts).lease(ENGINE, "1-1.0")
    lease.take()
    try:
        assert [finding.code for finding in about_engine(opts, ENGINE)] == []
        assert [finding.code for finding in about_engine(stranger.opts, ENGINE)] == ["engine-differs"]
        with pytest.raises(EngineAbsent, match="has another key than this master"):
            ask(stranger.opts, ENGINE, {"do": "stop"}, keep=keep)
    finally:
        lease.release()


def test_a_request_of_someone_without_the_masters_key_is_refused_with_one_line(opts, stranger, refused):
    Requests(stranger, ENGINE).add("1", salt.payload.dumps(start()))
    service = Service(opts, ENGINE, None)
    assert list(service.taken()) == []
    assert list(service.taken()) == []
    assert refused() == 1


def test_a_request_of_a_master_is_not_believed_at_the_place_of_another_or_of_another_engine(opts, sql, refused):
    Requests(site_of(opts), ENGINE).add("2", salt.payload.dumps(start()))
    copy = "INSERT INTO saltext_jobs_requests (engine, id, state, body, at) SELECT %s, %s, state, body, at"
    sql(f"{copy} FROM saltext_jobs_requests WHERE id = '2'", ENGINE, "3")
    sql(f"{copy} FROM saltext_jobs_requests WHERE id = '2'", "job_retry", "4")
    assert [request["fun"] for _, request in Service(opts, ENGINE, None).taken()] == ["cmd.run"]
    assert list(Service(opts, "job_retry", None).taken()) == []
    assert refused() == 2


def test_an_answer_is_no_request(opts, sql, refused):
    ours = Requests(site_of(opts), ENGINE)
    ours.add("5", salt.payload.dumps({"do": "stats"}))
    ours.answer("5", salt.payload.dumps(start()))
    sql("UPDATE saltext_jobs_requests SET state = 0")
    assert list(Service(opts, ENGINE, None).taken()) == []
    assert refused() == 1


def test_a_request_in_plain_bytes_is_refused(opts, sql, refused):
    site_of(opts).lead(ENGINE)
    body = salt.payload.dumps(start())
    sql("INSERT INTO saltext_jobs_requests (engine, id, state, body, at) VALUES (%s, '6', 0, %s, 0)", ENGINE, body)
    assert list(Service(opts, ENGINE, None).taken()) == []
    assert refused() == 1


def test_a_batch_of_someone_without_the_masters_key_is_no_batch(opts, stranger, refused):
    batches.Batches(stranger).write([change_of(Bench("a", jid=JID).batch)])
    with pytest.raises(StateError, match="not sealed"):
        BatchStore(opts).read(JID)
    assert refused() == 1


@pytest.mark.parametrize(
    "forgery",
    [
        "UPDATE saltext_jobs_parts SET body = (SELECT body FROM saltext_jobs_parts WHERE minion = 'a')",
        "UPDATE saltext_jobs_parts SET body = 'x' WHERE minion = 'b'",
        "UPDATE saltext_jobs_batches SET body = spec",
        "UPDATE saltext_jobs_batches SET spec = body",
    ],
)
def test_a_row_of_a_batch_is_believed_at_its_place_only(opts, sql, forgery):
    store = BatchStore(opts)
    Bench("ab", "2", jid=JID).keep(store)
    assert len(store.read(JID).flights) == 2
    sql(forgery)
    with pytest.raises(StateError, match="not sealed"):
        store.read(JID)


def test_what_someone_without_the_masters_key_owes_a_minion_is_not_owed(opts, stranger, sql, refused):
    owe(stranger)
    assert entries(opts) == []
    assert refused() == 1
    owe(site_of(opts), "m2", "20260102000000000000")
    sql("UPDATE saltext_jobs_queue SET minion = 'm3' WHERE minion = 'm2'")
    assert entries(opts) == []
    sql("UPDATE saltext_jobs_queue SET minion = 'm2' WHERE minion = 'm3'")
    assert entries(opts) == [("m2", "20260102000000000000")]


def test_an_owed_job_whose_load_was_replaced_is_not_replayed(opts, stranger, sql):
    owe(site_of(opts))
    owe(stranger, "m2")  # whose snapshot of the job takes the place of ours
    assert entries(opts) == []


def test_a_publish_that_no_master_has_logged_is_none(opts, stranger, sql, refused):
    ours = site_of(opts)
    reader = Reader(ours)
    reader.read()  # it begins at the end
    genuine = records.Returned(JID, MINION, "test.ping", 0, 1.0)
    assert Writer(stranger).append(records.publish_of(JID, {"fun": "cmd.run", "user": "root"}, [MINION]))
    sql("INSERT INTO saltext_jobs_log SELECT max(place) + 1, '1', '', '', 'plain' FROM saltext_jobs_log")
    assert Writer(ours).append(genuine)
    news = reader.read()
    assert news.records == [genuine]
    assert news.gap == ""
    assert log.publishes(ours, JID) == []
    assert refused() == 2


def test_a_master_without_its_key_writes_and_reads_nothing(opts, tmp_path):
    bare = site_of({**opts, "pki_dir": str(tmp_path / "nowhere"), "id": "c"})
    owe(site_of(opts))
    with pytest.raises(OSError, match=r"key, which seals what is in PostgreSQL, cannot be read: .*nowhere/c\.pem"):
        list(RetryStore(bare).entries())
    with pytest.raises(OSError, match="cannot be read"):
        owe(bare)


@pytest.mark.parametrize(
    ("more", "path"),
    [
        ({"id": "m_master"}, "pki/m.pem"),
        ({"id": "m"}, "pki/m.pem"),
        ({"id": "other"}, "pki/master.pem"),
        ({"id": "m", "cluster_id": "c"}, "keys/cluster.pem"),
    ],
)
def test_the_key_is_the_one_that_all_masters_of_a_site_have(opts, tmp_path, more, path):
    """That of the cluster; else the master's own, which Salt 3008 keeps under its id."""
    owe(site_of(opts))
    for name in ("pki/m.pem", "pki/master.pem", "keys/cluster.pem"):
        file = tmp_path / "others" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"the private key of the masters\n" if name == path else b"another key")
    places = {"pki_dir": str(tmp_path / "others/pki"), "cluster_pki_dir": str(tmp_path / "others/keys")}
    assert entries({**opts, **places, **more}) == [(MINION, JID)]
    (tmp_path / "others" / path).write_bytes(b"a key that has taken its place")
    assert entries({**opts, **places, **more}) == []


@pytest.mark.parametrize("forgery", ["all of it", "its minions", "its time"])
def test_a_publish_that_someone_without_the_masters_key_puts_into_the_job_cache_is_none(opts, forgery, caplog):
    """The engines look there when the log has a gap, which that one can make too."""
    load = {"fun": "cmd.run", "arg": ["id"], "tgt": "*", "tgt_type": "glob", "user": "root", "jid": JID}
    save = salt.loader.returners({**salt.config.DEFAULT_MASTER_OPTS, **opts}, {})["salt_cache.save_load"]
    cache, banks = JobCache(opts), store_of(opts)
    save(JID, load, minions=["m1"])
    assert [record.minions for record in cache.publishes(JID)] == [("m1",)]
    if forgery == "its minions":
        banks.store("jobs/minions", JID, ["m1", "m2"])
    elif forgery == "its time":  # a job whose time to live is over would be owed again
        banks.store("jobs/published", JID, {**banks.fetch("jobs/published", JID), "last": time.time() + 1})
    else:
        record = {**banks.fetch("jobs/published", JID), "load": digest({**load, "arg": ["reboot"]})}
        banks.store("jobs/loads", JID, {**load, "arg": ["reboot"]})
        banks.store("jobs/published", JID, record)
    assert cache.publishes(JID) == []
    assert "no master's of this site" in caplog.text
