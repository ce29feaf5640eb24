"""A site reports who leads and who stands by. One master hands the lead to another."""

from __future__ import annotations

import time

import pytest
import salt.payload

from saltext.jobs.core.disk.lease import SILENT
from saltext.jobs.core.engine import masters
from saltext.jobs.core.engine.findings import about_masters
from saltext.jobs.core.engine.masters import Seat
from saltext.jobs.core.findings import ADVICE
from saltext.jobs.core.ledger.tables import META
from tests import found
from tests.functional.site.conftest import end_lease, postgresql_sites
from tests.waiting import wait_for

pytestmark = pytest.mark.usefixtures("only_files_that_the_reference_names")

ENGINE = "batch_manager"


class Bus:
    def __init__(self):
        self.fired = []

    def fire(self, tag, data):
        self.fired.append((tag, data))


class Wall:
    """Unix time on a machine whose clock is wrong."""

    ahead = 0.0

    def __call__(self):
        return time.time() + self.ahead


@pytest.fixture
def form():
    return "postgresql"


@pytest.fixture
def bus():
    return Bus()


@pytest.fixture
def seat(sites, bus):
    """A function that makes the place of a master: 0 or 1."""
    made = []

    def of(number, run="1-1.0", wall=time.time):
        site, opts = sites[number], {"id": "ab"[number], "master_job_cache": "salt_cache", "cache": "localfs"}
        made.append(Seat(opts, ENGINE, site, site.lease(ENGINE, run), bus.fire, wall=wall))
        return made[-1]

    yield of
    for each in made:
        each.lease.release()


def say(opts, site, wall=time.time):
    """The engine of a master says that it is there."""
    Seat(opts, ENGINE, site, site.lease(ENGINE), None, wall).say()


def figures(seat):
    return {name: value[ENGINE] for name, value in seat.metrics().items()}


def standing_by(site, leader):
    """The other masters that are known to be there."""
    return [master.name for master in masters.masters_of(site, ENGINE) if master.is_known and master.name != leader]


class TestWhoIsThere:
    def test_a_standby_is_shown_at_every_master(self, sites, seat):
        assert seat(0).take()
        two = seat(1)
        assert not two.take()
        two.say()
        for site in sites:
            assert [master.name for master in masters.masters_of(site, ENGINE)] == ["a", "b"]
            assert standing_by(site, "a") == ["b"]

    def test_a_master_that_was_silent_for_long_does_not_count_as_known_and_is_still_listed(self, sites, seat):
        seat(0).take()
        found = masters.masters_of(sites[1], ENGINE)[0]
        assert found.is_known
        assert not found._replace(silent=SILENT + 1).is_known

    def test_a_clock_that_is_wrong_is_reported(self, sites, seat):
        wall = Wall()
        wall.ahead = 60.0
        seat(0, wall=wall).take()
        assert 55 < masters.masters_of(sites[1], ENGINE)[0].ahead < 65

    @pytest.mark.parametrize("told", [b"\xc1", salt.payload.dumps([]), salt.payload.dumps({"pid": "x"})])
    def test_a_damaged_row_of_one_master_hides_no_other(self, sites, seat, told):
        META.keep(sites[0], ENGINE, "masters/x", told)
        seat(0).take()
        assert [master.name for master in masters.masters_of(sites[0], ENGINE)] == ["a"]

    def test_a_name_may_be_anything(self, sites):
        for name in ("a/../b", "ü b", "."):
            say({"id": name}, sites[0])
        assert {master.name for master in masters.masters_of(sites[1], ENGINE)} == {"a/../b", "ü b", "."}


class TestFigures:
    def test_both_masters_report_who_leads(self, seat):
        one, two = seat(0), seat(1)
        one.take()
        two.take()
        assert (figures(one)["leader"], figures(two)["leader"]) == (1, 0)
        assert figures(two)["site_up"] == 1

    def test_a_restart_of_the_same_master_is_no_takeover(self, seat, bus):
        one = seat(0)
        one.take()
        one.lease.release()
        assert seat(0, "2-2.0").take()
        assert not bus.fired

    def test_refused_writes_are_counted(self, seat):
        one = seat(0)
        one.take()
        one.lease.release()
        seat(1).take()
        with pytest.raises(OSError):
            one.lease.check()
        assert figures(one)["fenced_total"] == 1

    def test_a_takeover_is_announced_on_the_bus(self, seat, bus):
        one, two = seat(0), seat(1)
        one.take()
        one.lease.release()
        two.take()
        told = {"engine": ENGINE, "master": "b", "former": "a", "epoch": two.lease.epoch}
        assert bus.fired == [(f"salt/jobs_engine/{ENGINE}/taken_over", told)]

    def test_a_former_leader_stands_by_no_more_and_does_so_again_once_its_next_process_says_so(self, sites, seat):
        one = seat(0)
        one.take()
        end_lease(sites[0])
        assert seat(1).take()
        assert standing_by(sites[1], "b") == []
        seat(0, "1-1.0").say()
        assert standing_by(sites[1], "b") == ["a"]

    def test_a_process_that_salt_ends_leaves_the_lead_to_the_next(self, sites, seat):
        one = seat(0)
        one.take()
        one.leave()
        assert standing_by(sites[1], "b") == []
        assert seat(1).take()


def said(opts):
    """What the doctors say of the masters, except that the tests' server may lose data in a power cut."""
    return found.said(one for one in about_masters(opts, ENGINE) if not one.text.startswith("fsync is off"))


class TestDoctor:
    """What the doctors say of the masters of a site."""

    @pytest.fixture
    def opts(self, sites, tmp_path):
        (tmp_path / "pki" / "minions").mkdir(parents=True)
        more = {"pki_dir": str(tmp_path / "pki"), "saltext_jobs_site": "postgresql", "master_job_cache": "salt_cache"}
        return {**sites[0].opts, **more}

    @pytest.fixture
    def other(self, sites, opts):
        """A function that has master b say what it is."""

        return lambda wall=time.time, **more: say({**opts, "id": "b", **more}, sites[1], wall)

    def test_nothing_is_said_of_masters_that_are_alike(self, opts, sites, seat, other):
        seat(0).take()
        say(opts, sites[0])
        other()
        assert said(opts) == []

    def test_a_clock_that_is_wrong_is_reported(self, opts, other):
        wall = Wall()
        wall.ahead = -60.0
        other(wall)
        (finding,) = said(opts)
        assert finding.startswith("the clock of the master b differs from that of ")

    def test_another_job_cache_is_reported(self, opts, other):
        other(master_job_cache="local_cache")
        (finding,) = said(opts)
        assert finding.startswith("the job cache is local_cache on the master b, and salt_cache with cache: ")

    def test_a_job_cache_that_a_master_has_not_read_yet_is_reported(self, opts, sites):
        say({**opts, "master_job_cache": "local_cache"}, sites[0])
        (finding,) = said(opts)
        assert finding.startswith("the job cache is local_cache on the master a, and salt_cache with cache: ")

    def test_a_key_that_only_one_master_has_accepted_is_reported(self, opts, other, tmp_path):
        other()
        assert said(opts) == []
        (tmp_path / "pki" / "minions" / "m1").touch()
        (finding,) = said(opts)
        assert finding.startswith("the masters b and a have not accepted the keys of the same minions")

    def test_another_version_of_salt_is_reported(self, sites, opts, other):
        other()
        tables = sites[0]
        told = salt.payload.loads(META.get(tables, ENGINE, "masters/b"))
        META.keep(tables, ENGINE, "masters/b", salt.payload.dumps({**told, "salt": "3000.1"}))
        (finding,) = said(opts)
        assert finding.startswith("Salt is 3000.1 on the master b, and ")

    def test_it_is_advice_that_no_master_stands_by_where_several_are_configured(self, opts, sites):
        lease = sites[0].lease(ENGINE, "1-1.0")
        assert lease.take()
        say(opts, sites[0])
        (finding,) = said(opts)
        assert ADVICE in {one.severity for one in about_masters(opts, ENGINE)}
        assert finding.startswith("no master is known to stand by for batch_manager: if a dies")
        assert finding.endswith(
            "after the death of all masters of a cluster Salt 3008 publishes nothing until each is back"
        )
        lease.release()


def test_a_server_that_can_lose_what_it_has_confirmed_is_reported(cache_servers, tmp_path):
    one, _ = postgresql_sites(tmp_path, cache_servers)
    (finding,) = found.said(one.doubts())
    assert finding.startswith("fsync is off at PostgreSQL: ")


def test_a_master_reports_whether_it_reaches_the_server(seat, cache_servers):
    one = seat(0)
    one.take()
    server = cache_servers("postgresql")
    server.stop()
    try:
        one.say()
        assert figures(one)["site_up"] == 0
    finally:
        server.start()
    wait_for(lambda: one.say() or figures(one)["site_up"])
