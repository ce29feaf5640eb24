"""A site reports who leads and who stands by. One master hands the lead to another."""

from __future__ import annotations

import threading
import time

import pytest
import salt.payload

from saltext.jobs.core import compat
from saltext.jobs.core.advice import Advice
from saltext.jobs.core.engine import masters
from saltext.jobs.core.engine.findings import about_masters
from saltext.jobs.core.engine.masters import Seat
from saltext.jobs.core.errors import SiteAway
from saltext.jobs.core.site import read_msgpack, write_msgpack
from tests.functional.site.conftest import end_lease, postgresql_sites
from tests.waiting import SOON, stretched, wait_for

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


def figures(seat):
    return {name: value[ENGINE] for name, value in seat.metrics().items()}


def ask(loop, seat, request, settle=None):
    """Ask a seat to hand over, and return its answer; None if the next leader has to give it."""

    async def nothing():
        pass

    answers = []

    async def asked():
        answers.append(await seat.hand_over(loop, settle or nothing)(request))
        loop.stop()

    loop.spawn_callback(asked)
    loop.start()
    if not answers and not seat.is_handing:
        loop.start()  # it was stopped for another one that has handed over
    return answers[0] if answers else None


class TestWhoIsThere:
    def test_no_master_is_known_at_first(self, sites):
        assert masters.masters_of(sites[0], ENGINE) == []

    def test_a_standby_is_shown_at_every_master(self, sites, seat):
        assert seat(0).take()
        assert not seat(1).take()
        for site in sites:
            assert [master.name for master in masters.masters_of(site, ENGINE)] == ["a", "b"]
            assert masters.standing_by(site, ENGINE, "a") == ["b"]

    def test_a_master_that_was_silent_for_long_does_not_count_as_known_and_is_still_listed(self, sites, seat):
        seat(0).take()
        found = masters.masters_of(sites[1], ENGINE)[0]
        assert found.is_known
        assert not found._replace(silent=masters.KNOWN + 1).is_known

    def test_a_clock_that_is_wrong_is_reported(self, sites, seat):
        wall = Wall()
        wall.ahead = 60.0
        seat(0, wall=wall).take()
        assert 55 < masters.masters_of(sites[1], ENGINE)[0].ahead < 65

    @pytest.mark.parametrize("told", [b"\xc1", salt.payload.dumps([]), salt.payload.dumps({"pid": "x"})])
    def test_a_damaged_file_of_one_master_hides_no_other(self, sites, seat, told):
        sites[0].folder(ENGINE).write("masters/x.master", told)
        seat(0).take()
        assert [master.name for master in masters.masters_of(sites[0], ENGINE)] == ["a"]

    def test_a_name_may_be_anything(self, sites):
        for name in ("a/../b", "ü b", "."):
            masters.say({"id": name}, sites[0].folder(ENGINE), 0, time.time)
        assert {master.name for master in masters.masters_of(sites[1], ENGINE)} == {"a/../b", "ü b", "."}


class TestFigures:
    def test_both_masters_report_who_leads_and_how_often_that_changed(self, seat):
        one, two = seat(0), seat(1)
        one.take()
        two.take()
        assert (figures(one)["leader"], figures(two)["leader"]) == (1, 0)
        assert figures(two)["site_up"] == 1
        one.lease.release()
        three = seat(1, "2-2.0")
        assert three.take()
        assert figures(three)["takeovers_total"] == 1
        two.say(at_once=True)
        assert figures(two)["takeovers_total"] == 1

    def test_a_restart_of_the_same_master_is_no_takeover(self, seat, bus):
        one = seat(0)
        one.take()
        one.lease.release()
        again = seat(0, "2-2.0")
        assert again.take()
        assert figures(again)["takeovers_total"] == 0
        assert not bus.fired

    def test_refused_writes_are_counted(self, seat):
        one = seat(0)
        one.take()
        one.lease.release()
        seat(1).take()
        with pytest.raises(OSError):
            one.lease.check()
        assert figures(one)["fenced_total"] == 1

    def test_the_rest_of_a_lease_is_reported(self, seat):
        one = seat(0)
        one.take()
        assert 0 < figures(one)["lease_left_seconds"] <= 12

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
        one.say(at_once=True)
        end_lease(sites[0])
        assert masters.standing_by(sites[1], ENGINE, "b") == [], "its lease is over"
        assert seat(1).take()
        assert masters.standing_by(sites[1], ENGINE, "b") == []
        assert not seat(0, "1-1.0").take()
        assert masters.standing_by(sites[1], ENGINE, "b") == ["a"]

    def test_a_process_that_salt_ends_leaves_the_lead_to_the_next(self, sites, seat):
        one = seat(0)
        one.take()
        one.leave()
        assert masters.standing_by(sites[1], ENGINE, "b") == []
        assert seat(1).take()

    def test_a_master_that_stands_by_says_so_at_once_when_the_server_is_back(self, seat, sites, cache_servers):
        seat(0).take()
        two = seat(1)
        server = cache_servers("postgresql")
        server.stop()
        try:
            two.say()
        finally:
            server.start()
        two.say()
        assert masters.standing_by(sites[0], ENGINE, "a") == ["b"]


class TestHandOver:
    def test_the_next_master_leads_and_answers(self, loop, sites, seat, bus):
        one, two = seat(0), seat(1)
        one.take()
        two.take()
        request = {"epoch": one.lease.epoch}
        assert ask(loop, one, request) is None
        assert one.is_handing
        one.lease.release()
        assert two.take()
        assert one.step_back()
        assert masters.standing_by(sites[1], ENGINE, "b") == []  # the process of the other ends
        assert ask(loop, two, request) == {"master": "b", "epoch": two.lease.epoch}
        assert (figures(two)["takeovers_total"], figures(two)["hand_overs_total"]) == (0, 1)
        assert bus.fired[0][0] == f"salt/jobs_engine/{ENGINE}/handed_over"
        assert two.lease.is_takeover  # the next leader doubts what was under way all the same

    def test_a_hand_over_is_refused_without_a_standby(self, loop, seat):
        one = seat(0)
        one.take()

        async def refused():
            with pytest.raises(ValueError, match=r"^no other master stands by$"):
                await one.hand_over(loop, None)({"epoch": one.lease.epoch})

        loop.run_sync(refused)
        assert not one.is_handing
        one.lease.check()

    def test_two_hand_overs_at_once_are_one(self, loop, seat):
        one, two = seat(0), seat(1)
        one.take()
        two.take()
        verb, settled = None, []

        async def settle():
            settled.append(1)
            await compat.sleep(0.05)

        verb = one.hand_over(loop, settle)
        for _ in range(2):
            loop.spawn_callback(verb, {"epoch": one.lease.epoch})
        loop.start()
        assert settled == [1]
        one.lease.release()
        assert two.take()
        for _ in range(2):
            assert ask(loop, two, {"epoch": one.lease.epoch})["master"] == "b"
        assert not two.is_handing

    def test_an_unsettled_action_delays_a_hand_over_by_a_second(self, loop, seat):
        one, two = seat(0), seat(1)
        one.take()
        two.take()
        began = time.monotonic()

        async def never():
            await compat.Future()

        assert ask(loop, one, {"epoch": one.lease.epoch}, never) is None
        assert time.monotonic() - began >= 0.9
        assert one.is_handing

    def test_the_same_master_leads_again_if_the_standby_has_just_died(self, loop, seat):
        one, two = seat(0), seat(1)
        one.take()
        two.take()
        request = {"epoch": one.lease.epoch}
        ask(loop, one, request)
        one.lease.release()
        assert not one.step_back(0.3)
        again = seat(0, "1-1.0")
        assert again.take()
        assert ask(loop, again, request) == {"master": "a", "epoch": again.lease.epoch}
        # A takeover after that is one.
        again.lease.release()
        third = seat(1, "3-3.0")
        third.take()
        assert (figures(third)["takeovers_total"], figures(third)["hand_overs_total"]) == (1, 0)

    def test_the_master_that_hands_over_leaves_the_lead_to_the_other(self, loop, seat):
        one, two = seat(0), seat(1)
        one.take()
        two.take()
        ask(loop, one, {"epoch": one.lease.epoch})
        one.lease.release()

        def soon():
            time.sleep(0.2)
            two.take()

        thread = threading.Thread(target=soon)
        thread.start()
        assert one.step_back(stretched(SOON))
        thread.join()
        assert not seat(0, "1-1.0").take()

    def test_a_leader_that_was_superseded_hands_nothing_over(self, loop, sites, seat):
        one, two = seat(0), seat(1)
        one.take()
        two.take()
        one.lease.release()
        assert two.take()

        async def refused():
            with pytest.raises(OSError):
                await one.hand_over(loop, None)({"epoch": one.lease.epoch})

        loop.run_sync(refused)
        two.lease.check()


def said(opts):
    """What the doctors say of the masters, except that the tests' server may lose data in a power cut."""
    return [finding for finding in about_masters(opts, ENGINE) if not finding.startswith("fsync is off")]


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

        def say(wall=time.time, **more):
            masters.say({**opts, "id": "b", **more}, sites[1].folder(ENGINE), 0, wall)

        return say

    def test_nothing_is_said_of_masters_that_are_alike(self, opts, sites, seat, other):
        seat(0).take()
        masters.say(opts, sites[0].folder(ENGINE), 0, time.time)
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

    def test_a_key_that_only_one_master_has_accepted_is_reported(self, opts, other, tmp_path):
        other()
        assert said(opts) == []
        (tmp_path / "pki" / "minions" / "m1").touch()
        (finding,) = said(opts)
        assert finding.startswith("the masters b and a have not accepted the keys of the same minions")

    def test_another_version_of_salt_is_reported(self, sites, opts, other):
        other()
        folder = sites[0].folder(ENGINE)
        told = read_msgpack(folder, "masters/b.master")
        write_msgpack(folder, "masters/b.master", {**told, "salt": "3000.1"})
        (finding,) = said(opts)
        assert finding.startswith("Salt is 3000.1 on the master b, and ")

    def test_it_is_advice_that_no_master_stands_by_where_several_are_configured(self, opts, sites):
        lease = sites[0].lease(ENGINE, "1-1.0")
        assert lease.take()
        masters.say(opts, sites[0].folder(ENGINE), 0, time.time)
        (finding,) = said(opts)
        assert isinstance(finding, Advice)
        assert finding.startswith("no master is known to stand by for batch_manager: if a dies")
        lease.release()


def test_a_server_that_can_lose_what_it_has_confirmed_is_reported(cache_servers, tmp_path):
    one, _ = postgresql_sites(tmp_path, cache_servers)
    (finding,) = one.doubts()
    assert finding.startswith("fsync is off at PostgreSQL: ")


class TestServerAway:
    def test_a_hand_over_is_refused_and_the_leader_keeps_the_lead(self, loop, sites, seat, cache_servers):
        one, two = seat(0), seat(1)
        one.take()
        two.take()
        server = cache_servers("postgresql")
        server.stop()
        try:

            async def refused():
                with pytest.raises(SiteAway):
                    await one.hand_over(loop, None)({"epoch": one.lease.epoch})

            loop.run_sync(refused)
            assert not one.is_handing
            one.say(at_once=True)
            assert figures(one)["site_up"] == 0
        finally:
            server.start()
        wait_for(lambda: one.say(at_once=True) or figures(one)["site_up"] == 1)

    def test_an_agreed_hand_over_goes_through_when_the_server_is_back(self, loop, sites, seat, cache_servers):
        one, two = seat(0), seat(1)
        one.take()
        two.take()
        request = {"epoch": one.lease.epoch}
        server = cache_servers("postgresql")

        async def cut():
            server.stop()

        assert ask(loop, one, request, cut) is None
        one.lease.release()
        server.start()

        def taken():
            try:
                return two.take()
            except OSError:
                return False

        wait_for(taken, what="the other one leads")
        assert ask(loop, two, request)["master"] == "b"
