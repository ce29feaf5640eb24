"""The data that the masters of a site share behave alike in files and in PostgreSQL."""

from __future__ import annotations

import pytest

from saltext.jobs.core.errors import StateError
from saltext.jobs.core.log import records
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

    def test_no_master_leads_at_first(self, sites):
        assert not sites[0].is_led(ENGINE)
        assert sites[0].leader(ENGINE) is None
        assert sites[0].alive_at(ENGINE) is None

    def test_a_second_master_does_not_get_the_lease(self, sites, lease):
        assert not sites[1].lease(ENGINE).take()
        assert sites[1].is_led(ENGINE)
        assert sites[1].leader(ENGINE) == lease.leader
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
        lease.beat()
        at = sites[1].alive_at(ENGINE)
        lease.check()
        wait_for(lambda: (lease.beat(), sites[1].alive_at(ENGINE) > at)[1])


class TestFolder:
    """Files by name, which the leader writes, and each runner."""

    @pytest.fixture
    def folders(self, sites, lease):
        return sites[0].folder(ENGINE, lease), sites[1].folder(ENGINE)

    def test_one_master_reads_what_another_has_written(self, folders):
        ours, theirs = folders
        theirs.write("requests/1.request", b"\x00one")
        assert ours.read("requests/1.request") == b"\x00one"
        ours.write("requests/1.request", b"two", durable=True)
        assert theirs.read("requests/1.request") == b"two"

    def test_a_missing_file_reads_as_none(self, folders):
        ours, _ = folders
        assert not ours.exists("paused")
        assert ours.names("requests") == []
        assert not ours.remove("paused")
        for call in (ours.read, ours.modified):
            with pytest.raises(FileNotFoundError):
                call("paused")
        with pytest.raises(FileNotFoundError):
            ours.rename("paused", "other")

    def test_names_are_sorted_and_of_one_folder(self, folders):
        ours, theirs = folders
        for name in ("requests/b.request", "requests/a.reply", "batches/c.journal", "requests0"):
            theirs.write(name, b"")
        assert ours.names("requests") == ["requests/a.reply", "requests/b.request"]

    def test_a_new_name_replaces_what_has_it(self, folders):
        ours, theirs = folders
        theirs.write("requests/1.request", b"new")
        theirs.write("requests/1.taken", b"old")
        ours.rename("requests/1.request", "requests/1.taken")
        assert theirs.names("requests") == ["requests/1.taken"]
        assert theirs.read("requests/1.taken") == b"new"

    def test_a_rename_to_its_own_name_keeps_it(self, folders):
        ours, theirs = folders
        theirs.write("requests/1.taken", b"asked")
        ours.rename("requests/1.taken", "requests/1.taken")
        assert ours.read("requests/1.taken") == b"asked"

    def test_a_rename_of_nothing_leaves_what_has_the_name(self, folders):
        ours, _ = folders
        ours.write("requests/1.taken", b"old")
        with pytest.raises(FileNotFoundError):
            ours.rename("requests/1.request", "requests/1.taken")
        assert ours.read("requests/1.taken") == b"old"

    def test_an_unusable_file_is_set_aside(self, folders):
        ours, _ = folders
        ours.write("batches/1.journal", b"odd")
        before = ours.modified("batches/1.journal")
        ours.set_aside("batches/1.journal")
        assert ours.names("batches") == ["batches/1.journal.corrupt"]
        assert ours.modified("batches/1.journal.corrupt") >= before
        ours.set_aside("batches/2.journal")  # which is not there
        assert ours.names("batches") == ["batches/1.journal.corrupt"]

    @pytest.mark.parametrize("form", ["postgresql"])
    def test_a_former_leader_changes_no_file(self, sites, folders, lease, supersede):
        ours, theirs = folders
        theirs.write("paused", b"1")
        supersede(lease)
        changes = (
            lambda: ours.write("paused", b"2"),
            lambda: ours.rename("paused", "x"),
            lambda: ours.set_aside("paused"),
            lambda: ours.remove("paused"),
        )
        for change in changes:
            with pytest.raises(Superseded):
                change()
        assert theirs.read("paused") == b"1"


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


class TestJournal:
    """A snapshot, and records that are appended."""

    NAME = "batches/20260101000000000000.journal"

    @pytest.fixture
    def journal(self, sites, lease):
        made = sites[0].folder(ENGINE, lease).journal(self.NAME)
        made.rewrite(["snapshot"])
        yield made
        made.close()

    @pytest.fixture
    def theirs(self, sites):
        return sites[1].folder(ENGINE)

    def content(self, theirs):
        found = theirs.journal(self.NAME).read()
        return [found.snapshot, *found.records]

    def test_there_is_no_journal_at_first(self, theirs):
        with pytest.raises(FileNotFoundError):
            theirs.journal(self.NAME).read()

    def test_synced_records_are_there(self, journal, theirs):
        journal.append(["one"])
        journal.sync()
        journal.append(["two"])
        journal.append(["three"])
        journal.sync()
        journal.sync()
        assert self.content(theirs) == [["snapshot"], ["one"], ["two"], ["three"]]
        assert theirs.names("batches") == [self.NAME]

    def test_a_rewrite_keeps_the_records_that_came_meanwhile(self, journal, theirs):
        journal.append(["old"])
        journal.begin_rewrite(["next"])
        journal.append(["meanwhile"])
        journal.finish_rewrite()
        journal.append(["after"])
        journal.sync()
        assert self.content(theirs) == [["next"], ["meanwhile"], ["after"]]
        assert journal.whole

    def test_another_process_goes_on_with_the_journal(self, journal, theirs, sites, lease):
        journal.append(["one"])
        journal.sync()
        journal.close()
        again = sites[0].folder(ENGINE, lease).journal(self.NAME)
        again.open(again.read())
        again.append(["two"])
        again.sync()
        again.close()
        assert self.content(theirs) == [["snapshot"], ["one"], ["two"]]

    def test_a_journal_must_be_opened_first(self, sites, lease):
        journal = sites[0].folder(ENGINE, lease).journal(self.NAME)
        for call in (lambda: journal.append([1]), journal.sync, journal.finish_rewrite):
            with pytest.raises(OSError):
                call()

    def test_damage_is_reported(self, journal, theirs, sites):
        journal.close()
        theirs.write(self.NAME, b"nothing of the kind")
        with pytest.raises(StateError, match=self.NAME):
            theirs.journal(self.NAME).read()

    def test_a_journal_outgrows_its_snapshot(self, journal):
        assert not journal.overgrown
        journal.append(["x" * (300 << 10)])
        journal.sync()
        assert journal.overgrown
        assert journal.size > 300 << 10

    @pytest.mark.parametrize("form", ["postgresql"])
    def test_a_former_leader_adds_no_record(self, journal, theirs, lease, supersede):
        journal.append(["one"])
        journal.sync()
        supersede(lease)
        after = theirs.journal(self.NAME).read()
        other = theirs.journal(self.NAME)
        other.open(after)
        other.close()
        journal.append(["two"])
        with pytest.raises(Superseded):
            journal.sync()
        journal.begin_rewrite(["mine"])
        with pytest.raises(Superseded):
            journal.finish_rewrite()
        assert self.content(theirs) == [["snapshot"], ["one"]]


class TestLog:
    """What one master writes is read by all, in order."""

    @staticmethod
    def returned(number):
        return records.Returned(f"2026{number:016d}", "m1", "test.ping", 0, True, float(number))

    @pytest.fixture
    def readers(self, sites):
        opened = []

        def of(number, position=None):
            opened.append(sites[number].log(position))
            return opened[-1]

        yield of
        for reader in opened:
            reader.close()

    def read(self, reader, count):
        found, gaps = [], []

        def is_all():
            news = reader.read()
            found.extend(news.records)
            gaps.extend([news.gap] if news.gap else [])
            return len(found) >= count

        wait_for(is_all)
        return found, gaps

    def test_records_come_in_order_and_once(self, sites, readers):
        writer = sites[0].log_writer()
        assert writer.append(self.returned(0))
        reader = readers(0)
        reader.read()
        for number in range(1, 50):
            assert writer.append(self.returned(number))
        found, gaps = self.read(reader, 49)
        assert found == [self.returned(number) for number in range(1, 50)]
        assert not gaps
        assert not reader.read().records

    def test_after_a_look_all_is_read_that_was_appended_before_it(self, sites, readers):
        writer, reader = sites[0].log_writer(), readers(0)
        writer.append(self.returned(0))
        wait_for(lambda: (reader.read(), reader.there)[1])
        for begin in range(1, 3000, 1000):  # a server tells of a thousand at once
            given = [self.returned(number) for number in range(begin, begin + 10 + begin)]
            for record in given:
                assert writer.append(record)
            wait_for(reader.look())
            found, news = [], reader.read()
            found += news.records
            while news.more:
                news = reader.read()
                found += news.records
            assert found[-len(given) :] == given

    def test_reading_goes_on_from_a_position(self, sites, readers):
        writer = sites[0].log_writer()
        for number in range(3):
            writer.append(self.returned(number))
        first = readers(0)
        first.read()
        writer.append(self.returned(3))
        assert self.read(first, 1)[0] == [self.returned(3)]
        position = first.position
        writer.append(self.returned(4))
        found, gaps = self.read(readers(0, position), 1)
        assert found == [self.returned(4)]
        assert not gaps

    def test_without_a_position_there_is_a_gap(self, sites, readers):
        sites[0].log_writer().append(self.returned(0))
        assert readers(0).read().gap
