"""The lead in PostgreSQL: what a frozen process, and a server that is away, can and cannot do."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import threading

import pytest

from saltext.jobs.core.ledger.log import Writer
from saltext.jobs.core.ledger.records import Returned
from saltext.jobs.core.ledger.tables import FORMAT, META
from saltext.jobs.core.postgresql.lease import TTL, Superseded, TableLease
from saltext.jobs.core.retry.store import RetryStore
from saltext.jobs.core.site import site_of
from tests.functional.cache_servers import masters_key
from tests.functional.retry.records import JID, changes, record_of, snapshot_of
from tests.functional.site.conftest import SHARED, end_lease
from tests.waiting import SOON, stretched, wait_for

ENGINE = "batch_manager"


class Clock:
    """Seconds by a clock that a test sets."""

    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def options(cache_servers, tmp_path):
    made = cache_servers("postgresql").make_database(f"lease{os.path.basename(tmp_path).replace('-', '')}"[:50].lower())
    return {**made, **masters_key(tmp_path), **SHARED, "cachedir": str(tmp_path / "a"), "id": "a"}


@pytest.fixture
def site(options):
    return site_of(options)


def lease_of(site, master, **more):
    return TableLease(site, ENGINE, master, **more)


def test_a_leader_publishes_until_some_seconds_before_its_lease_ends(site):
    clock = Clock()
    lease = lease_of(site, "a", clock=clock)
    began = clock.now
    assert lease.take()
    try:
        lease.check()
        clock.now = began + TTL * 2 / 3 - 0.01
        lease.check()
        clock.now = began + TTL * 2 / 3
        with pytest.raises(OSError, match="could not be renewed") as told:
            lease.check()
        assert not isinstance(told.value, Superseded)  # that is not known
    finally:
        lease.release()


def test_a_lease_is_renewed_by_itself(site):
    clock = Clock()
    lease = lease_of(site, "a", clock=clock)
    assert lease.take()
    try:
        clock.now += TTL * 2 / 3

        def is_renewed():
            try:
                lease.check()
            except OSError:
                return False
            return True

        wait_for(is_renewed)
    finally:
        lease.release()


def test_a_leader_whose_lease_has_ended_is_told(site):
    told = threading.Event()
    lease = lease_of(site, "a")
    lease.on_lost = told.set
    assert lease.take()
    end_lease(site)
    assert told.wait(stretched(SOON))
    with pytest.raises(Superseded):
        lease.check()
    other = lease_of(site, "b")
    assert other.take()
    lease.release()  # which is not the other's
    other.check()
    assert not lease_of(site, "c").take()
    other.release()


def test_a_transaction_of_the_leader_delays_a_takeover(site):
    lease, other, order = lease_of(site, "a"), lease_of(site, "b"), []
    assert lease.take()
    taker = threading.Thread(target=lambda: (other.take(), order.append("taken")))

    def work():
        taker.start()
        taker.join(1)
        order.append("written")

    site.together(work, lease)
    taker.join(stretched(SOON))
    assert order == ["written", "taken"]
    assert other.epoch == 0  # since the lease was renewed by then
    lease.release()


def test_a_takeover_succeeds_even_if_the_leader_is_frozen_within_a_transaction(options, site):
    impatient = site_of({**options, "postgresql.timeout": 1})
    lease, other = lease_of(impatient, "a", ttl=1.0), lease_of(impatient, "b")

    def taken():
        with contextlib.suppress(OSError):  # it waits no longer for the other one's transaction
            return other.take()

    def work():
        # the server hears nothing meanwhile, as from a frozen process
        wait_for(lambda: pool.submit(taken).result(), what="the other one leads")

    assert not site.lead(ENGINE) and lease.take()
    with (
        concurrent.futures.ThreadPoolExecutor() as pool,
        pytest.raises(OSError, match="the lease of the batch_manager engine is over"),
    ):
        impatient.together(work, lease)
    other.check()
    with pytest.raises(OSError, match="the lease of the batch_manager engine"):
        lease.check()
    for each in (lease, other):
        each.release()


def test_no_master_leads_while_the_server_is_away(cache_servers, options, site):
    lease = site.lease(ENGINE)
    assert lease.take()
    process = cache_servers("postgresql")
    process.stop()
    try:
        for call in (
            lambda: site.lease(ENGINE).take(),
            lambda: site.together(lambda: META.keep(site, ENGINE, "x", b""), lease),
            lease.beat,
        ):
            with pytest.raises(OSError, match="PostgreSQL"):
                call()
        with pytest.raises(OSError, match="PostgreSQL"):
            site.lead(ENGINE)
        assert not Writer(site).append(Returned("20260101000000000000", "m1", "test.ping", 0, 0.0))
    finally:
        process.start()
        lease.release()


def test_a_database_of_another_site_is_refused(cache_servers, options, site):
    site.lead(ENGINE)
    other = cache_servers("postgresql").make_database("othersite")
    with pytest.raises(OSError, match=r"another site's, or new; .*remove .*/saltext_jobs/site"):
        site_of({**options, **other}).lead(ENGINE)


def test_tables_of_another_format_are_refused(site):
    assert not site.lead(ENGINE)  # which makes the tables
    site.run("UPDATE saltext_jobs_site SET number = 99")
    with pytest.raises(OSError, match=rf"is of format 99, .* knows {FORMAT}: install the version"):
        site_of({**site.opts, "cachedir": f"{site.opts['cachedir']}2"}).lease(ENGINE).take()


def test_only_the_leader_writes_the_records_of_the_queue(site):
    lease = site.lease(ENGINE)
    assert lease.take()
    queue = RetryStore(site, lease)
    queue.write(changes({JID: snapshot_of()}, {("a", JID): record_of("a")}))
    end_lease(site)
    with pytest.raises(Superseded):
        queue.write(changes({JID: None}, {("a", JID): None}))
    assert [entry.minion for entry, _ in queue.entries()] == ["a"]
    lease.release()
