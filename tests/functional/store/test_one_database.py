"""One database has the job cache and the log: of each publish and return it has both, or neither."""

from __future__ import annotations

import contextlib
import functools
import itertools
import multiprocessing.connection
import os
import signal
import sqlite3
import time

import pytest
import salt.config
from salt.exceptions import SaltCacheError

from saltext.jobs.core.ledger.records import Published, Returned, read
from saltext.jobs.core.ledger.tables import LOG, VALUES
from tests.functional.cache_servers import cache_servers, driver_options  # noqa: F401 (a fixture)
from tests.functional.store.test_contract import FORK, JID, LOAD, Returner, a_return
from tests.waiting import SOON, stretched

TAGS = itertools.count(8000)


@pytest.fixture(params=["sqlite", "postgresql"])
def opts(request, cache_servers, tmp_path):  # noqa: F811
    own = driver_options(request.param, cache_servers, tmp_path, next(TAGS))
    if request.param == "postgresql":
        own["saltext_jobs_site"] = "postgresql"
    return {**salt.config.DEFAULT_MASTER_OPTS, "id": "m_master", "master_job_cache": "salt_cache", **own}


@pytest.fixture
def job_cache(opts):
    return Returner(opts)


def in_log(opts, kind):
    """What the log has: the jids of publishes, or the minions of returns."""
    rows = Returner(opts).store.site.read(f"SELECT jid, minion, body FROM {LOG} ORDER BY place")
    seal = Returner(opts).store.site.seal
    found = [read(*of, seal.take(bytes(body), LOG, *of)) for *of, body in rows if body is not None]
    return [each.jid if kind is Published else each.minion for each in found if isinstance(each, kind)]


@contextlib.contextmanager
def without(job_cache, table):
    """The table cannot be used."""
    tables = job_cache.store.site
    tables.run(f"ALTER TABLE {table} RENAME TO gone")
    try:
        yield
    finally:
        tables.run(f"ALTER TABLE gone RENAME TO {table}")


@pytest.mark.parametrize("table", [LOG, VALUES])
def test_the_job_cache_has_no_return_that_the_log_lacks(opts, job_cache, table):
    job_cache.save_load(JID, LOAD, minions=["web1", "web2"])
    job_cache.returner(a_return("web1"))
    with without(job_cache, table), pytest.raises(SaltCacheError):
        job_cache.returner(a_return("web2"))
    assert list(job_cache.get_jid(JID)) == ["web1"]
    assert in_log(opts, Returned) == (["web1"] if table == LOG else ["web1", "web2"])
    job_cache.returner(a_return("web2"))
    assert list(job_cache.get_jid(JID)) == in_log(opts, Returned) == ["web1", "web2"]


def test_a_publish_is_in_the_log_also_where_the_job_cache_fails(opts, job_cache):
    job_cache.save_load(JID, LOAD, minions=["web1"])
    with without(job_cache, VALUES), pytest.raises(SaltCacheError):
        job_cache.save_load("20260516120000000001", LOAD, minions=["web1"])
    assert list(job_cache.get_jids()) == [JID]
    assert in_log(opts, Published) == [JID, "20260516120000000001"]


@pytest.mark.parametrize("opts", ["postgresql"], indirect=True)
def test_what_was_confirmed_before_the_server_was_killed_is_in_both(opts, job_cache, cache_servers):  # noqa: F811
    reading, writing = os.pipe()

    def write():
        for number in itertools.count():
            jid = f"2026051612{number:010}"
            job_cache.save_load(jid, LOAD, minions=["web1"])
            job_cache.returner(a_return("web1", jid))
            os.write(writing, f"{jid}\n".encode())

    process, server = FORK.Process(target=write), cache_servers("postgresql")
    process.start()
    os.close(writing)
    assert multiprocessing.connection.wait([reading], stretched(SOON)), "it has begun"
    time.sleep(0.3)
    server.kill()
    process.kill()
    process.join(stretched(SOON))
    server.start()
    with os.fdopen(reading) as stream:
        told = set(stream.read().split("\n")[:-1])
    published = in_log(opts, Published)
    assert told <= set(published) and set(published) >= set(job_cache.get_jids()) >= told
    returned = [jid for jid in published if job_cache.get_jid(jid)]
    assert set(returned) >= told and len(returned) == len(in_log(opts, Returned))


class Mortal(sqlite3.Connection):
    """Kills its process in front of a statement: the one that takes ``left`` to zero."""

    left = 0

    def execute(self, *statement):
        Mortal.left -= 1
        if Mortal.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().execute(*statement)


@pytest.mark.slow
@pytest.mark.parametrize("opts", ["sqlite"], indirect=True)
def test_a_worker_that_is_killed_in_front_of_any_statement_leaves_all_or_nothing_of_what_it_stores(opts, monkeypatch):
    monkeypatch.setattr(sqlite3, "connect", functools.partial(sqlite3.connect, factory=Mortal))
    for left in itertools.count(1):
        own, confirmed = {**opts, "cachedir": f"{opts['cachedir']}/{left}"}, FORK.Value("i", 0)

        def work(own=own, confirmed=confirmed, left=left):
            Mortal.left, job_cache = left, Returner(own)
            for minion in ("", "web1", "web2"):
                job_cache.returner(a_return(minion)) if minion else job_cache.save_load(JID, LOAD, minions=["web1"])
                confirmed.value += 1

        process = FORK.Process(target=work)
        process.start()
        process.join(stretched(SOON))
        stored = [*in_log(own, Published), *in_log(own, Returned)]
        assert stored == [JID, "web1", "web2"][: len(stored)] and len(stored) >= confirmed.value
        assert stored == [*Returner(own).get_jids(), *Returner(own).get_jid(JID)]
        if process.exitcode == 0:
            break
    assert left > 20 and len(stored) == 3
