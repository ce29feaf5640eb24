"""The data that the masters of a site share behave alike in files and in PostgreSQL."""

from __future__ import annotations

import time

import pytest

from saltext.jobs.core.ledger import records
from saltext.jobs.core.ledger.batches import Batches, Change, Kind
from saltext.jobs.core.ledger.log import Reader, Writer
from saltext.jobs.core.ledger.requests import Requests
from saltext.jobs.core.ledger.tables import META
from saltext.jobs.core.postgresql.lease import Superseded
from tests.functional.site.conftest import end_lease
from tests.waiting import wait_for

ENGINE = "batch_manager"


@pytest.fixture
def lease(sites):
    taken = sites[0].lease(ENGINE, "1-1.0")
    assert taken.take()
    yield taken
    taken.release()


class TestLead:
    """One process of all masters leads."""

    def test_a_second_master_does_not_get_the_lease(self, sites, lease):
        assert not sites[1].lease(ENGINE).take()
        assert sites[1].lead(ENGINE).process == sites[1].leader(ENGINE) == lease.leader
        assert sites[1].leader(ENGINE).master == "a"

    def test_engines_do_not_share_a_lease(self, sites, lease):
        other = sites[1].lease("job_retry")
        assert other.take()
        other.release()

    def test_the_next_leader_has_a_higher_epoch_and_knows_who_led_before(self, sites, lease):
        lease.release()
        other = sites[1].lease(ENGINE)
        assert other.take()
        assert other.epoch > lease.epoch
        assert other.predecessor == lease.leader
        assert other.is_takeover
        other.release()

    def test_the_same_master_does_not_take_over_from_itself(self, sites, lease):
        lease.release()
        again = sites[0].lease(ENGINE, "1-1.0")
        assert again.take()
        assert not again.is_takeover
        again.release()

    def test_a_leader_says_that_it_is_alive(self, sites, lease):
        time.sleep(0.3)
        assert 0.3 <= sites[1].lead(ENGINE).silent < 60
        lease.beat()
        assert sites[1].lead(ENGINE).silent < 0.3


def test_requests_are_taken_in_the_order_in_which_they_are_made_whatever_the_clocks_of_masters_say(sites):
    one, two = (Requests(site, ENGINE) for site in sites)
    one.add("2", b"first")
    two.add("1", b"second")
    assert [each.body for each in one.open()] == [b"first", b"second"]


class TestValues:
    """Values by name, which engines write."""

    def test_one_master_reads_what_another_has_written_until_it_is_dropped(self, sites):
        ours, theirs = sites
        assert META.get(ours, ENGINE, "paused") is None
        for body in (b"\x00one", b"two"):
            META.keep(ours, ENGINE, "paused", body)
            assert META.get(theirs, ENGINE, "paused") == body
        assert META.get(theirs, "job_retry", "paused") is None
        META.keep(ours, ENGINE, "paused", None)
        assert META.get(theirs, ENGINE, "paused") is None

    def test_a_group_of_values_has_those_below_it_with_their_times(self, sites):
        ours, theirs = sites
        for name in ("masters/b", "masters/a", "others/c", "masters0"):
            META.keep(ours, ENGINE, name, name.encode())
        found = META.below(theirs, ENGINE, "masters")
        assert {name: body for name, (body, _, _) in found.items()} == {"a": b"masters/a", "b": b"masters/b"}
        assert all(abs(at - time.time()) < 60 and 0 <= age < 60 for _, at, age in found.values())

    @pytest.mark.parametrize("form", ["postgresql"])
    def test_a_former_leader_changes_no_value(self, sites, lease, supersede):
        ours, theirs = sites
        META.keep(theirs, ENGINE, "paused", b"1")
        supersede(lease)
        for body in (b"2", None):
            with pytest.raises(Superseded):
                ours.together(lambda body=body: META.keep(ours, ENGINE, "paused", body), lease)
        assert META.get(theirs, ENGINE, "paused") == b"1"


@pytest.fixture
def supersede(sites):
    """A function that has another process take the lead, while the old lease still believes that it holds it."""
    others = []

    def take(lease):
        end_lease(sites[0])
        others.append(sites[1].lease(ENGINE))
        assert others[0].take()

    yield take
    for other in others:
        other.release()


class TestBatches:
    """Rows of batches, which the leader writes and each runner reads."""

    JID, OTHER = "20260101000000000000", "20260102000000000000"

    @staticmethod
    def change(jid=JID, kind=Kind.OPEN, spec=b"spec", body=b"body", **parts):
        return Change(jid, kind, lambda: spec, body, parts)

    @pytest.fixture
    def tables(self, sites):
        return sites

    def test_what_changes_is_written_and_the_rest_stays(self, tables, lease):
        batches = Batches(tables[0], lease)
        batches.write([self.change(a=b"1", b=b"2"), self.change(self.OTHER)])
        batches.write([self.change(spec=b"another", body=b"later", b=b"3", c=b"4")], durable=False)
        assert Batches(tables[1]).rows(self.JID) == (b"spec", b"later", {"a": b"1", "b": b"3", "c": b"4"})
        assert Batches(tables[1]).rows(self.OTHER) == (b"spec", b"body", {})
        assert Batches(tables[1]).jids(Kind.OPEN) == [self.JID, self.OTHER]

    def test_a_batch_that_was_set_aside_is_not_read_again(self, tables, lease):
        Batches(tables[0], lease).write([self.change(a=b"1"), self.change(self.OTHER, Kind.ENDED)])
        Batches(tables[0], lease).set_aside(self.JID)
        assert Batches(tables[1]).rows(self.JID) is None
        assert [Batches(tables[1]).kind_of(jid) for jid in (self.JID, self.OTHER)] == [Kind.ASIDE, Kind.ENDED]
        assert [Batches(tables[1]).jids(kind) for kind in Kind] == [[], [self.OTHER], [self.JID]]

    def test_old_batches_of_a_kind_are_forgotten_with_their_minions(self, tables, sites, lease):
        Batches(tables[0], lease).write([self.change(a=b"1"), self.change(self.OTHER, Kind.ENDED, a=b"1")])
        now = time.time()
        assert Batches(tables[0], lease).forget(Kind.ENDED, now - 1000) == []
        assert Batches(tables[0], lease).forget(Kind.ENDED, now + 1000) == [self.OTHER]
        assert Batches(tables[1]).rows(self.OTHER) is None
        assert Batches(tables[1]).rows(self.JID) == (b"spec", b"body", {"a": b"1"})

    @pytest.mark.parametrize("form", ["postgresql"])
    def test_a_former_leader_changes_no_batch(self, tables, lease, supersede):
        Batches(tables[0], lease).write([self.change(a=b"1")])
        supersede(lease)
        for change in (
            lambda: Batches(tables[0], lease).write([self.change(a=b"2")]),
            lambda: Batches(tables[0], lease).set_aside(self.JID),
            lambda: Batches(tables[0], lease).forget(Kind.OPEN, 9e9),
        ):
            with pytest.raises(Superseded):
                change()
        assert Batches(tables[1]).rows(self.JID) == (b"spec", b"body", {"a": b"1"})


class TestLog:
    """What one master writes is read by all, in order."""

    @staticmethod
    def returned(number):
        return records.Returned(f"2026{number:016d}", "m1", "test.ping", 0, float(number))

    def read(self, reader, count):
        found, gaps = [], []

        def is_all():
            news = reader.read()
            found.extend(news.records)
            gaps.extend([news.gap] if news.gap else [])
            return len(found) >= count

        wait_for(is_all)
        return found, gaps

    def test_records_come_in_order_and_once(self, sites):
        writer = Writer(sites[0])
        assert writer.append(self.returned(0))
        reader = Reader(sites[0])
        reader.read()
        for number in range(1, 50):
            assert writer.append(self.returned(number))
        found, gaps = self.read(reader, 49)
        assert found == [self.returned(number) for number in range(1, 50)]
        assert not gaps
        assert not reader.read().records

    def test_reading_goes_on_from_a_position(self, sites):
        writer = Writer(sites[0])
        for number in range(3):
            writer.append(self.returned(number))
        first = Reader(sites[0])
        first.read()
        writer.append(self.returned(3))
        assert self.read(first, 1)[0] == [self.returned(3)]
        position = first.position
        writer.append(self.returned(4))
        found, gaps = self.read(Reader(sites[0], position), 1)
        assert found == [self.returned(4)]
        assert not gaps

    def test_without_a_position_there_is_a_gap(self, sites):
        Writer(sites[0]).append(self.returned(0))
        assert Reader(sites[0]).read().gap
