"""A replica that lacks the last transactions is promoted, or the database is restored to an earlier state."""

from __future__ import annotations

import time

import pytest

from saltext.jobs.core.ledger.batches import Batches, Change, Kind
from saltext.jobs.core.postgresql.lease import LEASES, Superseded
from saltext.jobs.core.site import site_of
from tests.functional.cache_servers import masters_key
from tests.functional.site.conftest import SHARED
from tests.postgresql import PostgreSQL
from tests.waiting import wait_for

ENGINE = "batch_manager"


@pytest.fixture(scope="module")
def primary():
    server = PostgreSQL()
    yield server
    server.remove()


@pytest.fixture
def replica(primary):
    server = PostgreSQL(of=primary)
    yield server
    server.remove()
    primary.stop()
    primary.start()


@pytest.fixture
def masters(primary, tmp_path):
    """Two masters of a site."""
    primary.execute("DROP DATABASE IF EXISTS failover WITH (FORCE)")
    primary.execute("CREATE DATABASE failover")
    place = {"host": "127.0.0.1", "port": primary.port, "user": "salt", "db": "failover"}
    options = {f"postgresql.{name}": value for name, value in place.items()}
    return [
        site_of({**options, **SHARED, **masters_key(tmp_path), "cachedir": str(tmp_path / name), "id": name})
        for name in "ab"
    ]


def leading(site):
    lease = site.lease(ENGINE)
    assert lease.take()
    return lease


def cut_off(primary, replica):
    """From now on the replica gets nothing more."""
    wait_for(lambda: replica.has_all_of(primary), what="the replica has all")
    replica.stop()


def fail_over(primary, replica):
    primary.stop()
    replica.promote(primary)


def test_a_leader_writes_nothing_after_a_failover_even_if_the_replica_has_its_lease(primary, replica, masters):
    lease = leading(masters[0])

    def write(**parts):
        Batches(masters[0], lease).write([Change("1", Kind.OPEN, lambda: b"spec", b"body", parts)])

    write()
    cut_off(primary, replica)
    write(a=b"lost")
    fail_over(primary, replica)
    with pytest.raises(Superseded):
        write(a=b"too late")
    with pytest.raises(Superseded):
        lease.check()
    assert Batches(masters[1]).rows("1") == (b"spec", b"body", {})
    lease.release()


def test_a_leader_after_a_failover_has_a_higher_epoch_and_is_not_disturbed_by_the_one_before(primary, replica, masters):
    leading(masters[0]).release()
    cut_off(primary, replica)
    lost = leading(masters[1])
    fail_over(primary, replica)
    third = leading(masters[0])
    assert lost.epoch < third.epoch
    lost.release()  # its own lease, and not that of the third
    third.check()
    third.release()


def test_no_epoch_is_given_twice_though_a_failover_forgets_it_and_the_clock_of_the_server_is_behind(primary, masters):
    leading(masters[0]).release()
    primary.execute(f"UPDATE {LEASES} SET epoch = epoch + 3600000000", database="failover")
    before = primary.execute(f"SELECT session, epoch, until FROM {LEASES}", database="failover")[0]
    given = []
    for number in range(6):
        lease = leading(masters[number % 2])
        given.append(lease.epoch)
        lease.release()
        query = f"UPDATE {LEASES} SET session = %s, epoch = %s, until = %s"
        primary.execute(query, *before, database="failover")
    assert len(set(given)) == len(given)
    assert min(given) > before[1]


@pytest.mark.parametrize("ahead", [3600.0, -3600.0])
def test_a_master_whose_clock_is_wrong_leads_in_an_epoch_of_the_clock_of_the_server(masters, monkeypatch, ahead):
    true = time.time
    first = leading(masters[0])
    first.release()
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: true() + ahead)
        patch.setattr(time, "time_ns", lambda: int((true() + ahead) * 1e9))
        second = leading(masters[1])
        second.check()
        second.release()
    third = leading(masters[0])
    third.release()
    assert first.epoch < second.epoch < third.epoch
    assert abs(second.epoch / 1e6 - time.time()) < 600
