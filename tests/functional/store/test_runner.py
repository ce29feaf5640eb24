"""The job_cache runner, loaded by Salt, on jobs that Salt's own local_cache has stored."""

from __future__ import annotations

import functools
import itertools
import os
import pathlib

import pytest
import salt.cache
import salt.config
import salt.loader
import salt.payload
import salt.utils.jid
from salt.exceptions import CommandExecutionError

from saltext.jobs.core.master import secrets
from saltext.jobs.core.store import records
from saltext.jobs.core.store.local import Local
from saltext.jobs.core.store.migration import LocalCache, copy, copy_between
from saltext.jobs.core.store.store import Store, store_of
from saltext.jobs.core.store.verification import Verification
from tests.functional.cache_servers import cache_servers, driver_options  # noqa: F401 (a fixture)

TAGS = itertools.count(1000)
JIDS = [f"2026051612000000000{number}" for number in range(4)]
OURS = {"master_job_cache": "salt_cache"}
LOAD = {"fun": "test.arg", "arg": ["x"], "tgt": "web*", "tgt_type": "glob", "user": "anna", "ret": "", "kwargs": {}}


class Master:
    def __init__(self, opts):
        self.opts = opts
        self.returners = salt.loader.returners(opts, {})
        self.runners = salt.loader.runner(opts)

    def run(self, function, **kwargs):
        return self.runners[f"job_cache.{function}"](**kwargs)

    def ours(self, function, *args, **kwargs):
        return self.returners[f"salt_cache.{function}"](*args, **kwargs)

    def source(self, function, *args, **kwargs):
        return self.returners[f"local_cache.{function}"](*args, **kwargs)

    def fill_source(self):
        for number, jid in enumerate(JIDS):
            self.source("prep_jid", passed_jid=jid)
            self.source("save_load", jid, {**LOAD, "jid": jid, "token": "s3cret"}, minions=["web1", "web2"])
            self.source("returner", {"jid": jid, "id": "web1", "return": number, "retcode": 0, "success": True})
            self.source("update_endtime", jid, f"end {number}")
        self.source("returner", {"jid": JIDS[0], "id": "web2", "return": {1: "é"}, "retcode": 2, "out": "highstate"})

    def damage_source(self, jid, name, data):
        folder = salt.utils.jid.jid_dir(jid, os.path.join(self.opts["cachedir"], "jobs"), self.opts["hash_type"])
        if data is None:
            os.unlink(os.path.join(folder, name))
            return
        with open(os.path.join(folder, name), "wb") as record:
            record.write(data)

    def break_file(self, bank, key, data=b"\xc1"):
        with open(os.path.join(self.opts["cachedir"], bank, f"{key}.p"), "wb") as record:
            record.write(data)


@pytest.fixture(params=["localfs", "postgresql", pytest.param("mysql", marks=pytest.mark.slow)])
def master(request, cache_servers, tmp_path):  # noqa: F811
    settings = driver_options(request.param, cache_servers, tmp_path, next(TAGS))
    return Master({**salt.config.DEFAULT_MASTER_OPTS, "job_cache_store_endtime": True, **OURS, **settings})


@pytest.fixture
def on_disk(tmp_path):
    return Master({**salt.config.DEFAULT_MASTER_OPTS, **OURS, **driver_options("localfs", None, tmp_path, 0)})


class Dying(Local):
    """A driver that is killed after so many writes."""

    def __init__(self, opts, writes):
        super().__init__(opts)
        self._left = writes

    def store(self, *args, **more):
        if not self._left:
            raise KeyboardInterrupt
        self._left -= 1
        super().store(*args, **more)


class TestMigrate:
    def test_jobs_come_over_whole(self, master):
        master.fill_source()
        done = master.run("migrate")
        assert done["failed"] == {}
        assert {name: done[name] for name in ("jobs", "copied", "loads", "returns", "endtimes")} == {
            "jobs": 4,
            "copied": 4,
            "loads": 4,
            "returns": 5,
            "endtimes": 4,
        }
        for jid in JIDS:
            wanted = master.source("get_load", jid)
            del wanted["token"]
            assert master.ours("get_load", jid) == wanted
            assert wanted["Minions"] == ["web1", "web2"]
            assert master.ours("get_jid", jid) == master.source("get_jid", jid)
            assert master.ours("get_endtime", jid) == master.source("get_endtime", jid)
        assert master.ours("get_jids") == master.source("get_jids")

    def test_a_copied_job_does_not_pass_for_published(self, master):
        master.fill_source()
        master.run("migrate")
        assert salt.cache.Cache(master.opts).list("jobs/published") == []

    def test_a_dry_run_counts_and_writes_nothing(self, master):
        master.fill_source()
        done = master.run("migrate", dry_run=True)
        assert (done["copied"], done["returns"], done["dry_run"]) == (4, 5, True)
        assert master.ours("get_jids") == {}

    def test_a_second_run_copies_what_is_missing_and_no_more(self, master):
        master.fill_source()
        master.run("migrate")
        again = master.run("migrate")
        assert (again["copied"], again["loads"], again["returns"], again["endtimes"]) == (0, 0, 0, 0)
        master.source("returner", {"jid": JIDS[3], "id": "web2", "return": "late", "retcode": 0})
        once_more = master.run("migrate")
        assert (once_more["copied"], once_more["loads"], once_more["returns"]) == (1, 0, 1)
        assert master.ours("get_jid", JIDS[3])["web2"]["return"] == "late"

    def test_a_job_that_a_late_return_made_known_gets_its_load(self, master):
        master.fill_source()
        master.ours("save_load", JIDS[0], {"jid": JIDS[0], "id": "web2", "fun": "test.arg", "return": "late"})
        master.ours("returner", {"jid": JIDS[0], "id": "web2", "return": "late", "retcode": 0})
        master.run("migrate")
        assert master.ours("get_load", JIDS[0])["tgt"] == "web*"
        assert master.ours("get_jid", JIDS[0])["web2"]["return"] == "late", "the first return here is kept"
        assert master.ours("get_jid", JIDS[0])["web1"]["return"] == 0

    def test_a_published_load_is_not_replaced(self, master):
        master.fill_source()
        master.ours("save_load", JIDS[0], {**LOAD, "user": "publish"}, minions=["web1"])
        master.run("migrate")
        assert master.ours("get_load", JIDS[0])["user"] == "publish"

    def test_an_unreadable_record_does_not_stop_the_rest(self, on_disk, caplog):
        on_disk.fill_source()
        on_disk.damage_source(JIDS[0], "web2/return.p", b"\xc1")
        on_disk.damage_source(JIDS[1], "endtime", b"\xc1")
        done = on_disk.run("migrate")
        assert done["jobs"] == 4
        assert set(on_disk.ours("get_jids")) >= set(JIDS) - {JIDS[1]}
        assert list(on_disk.ours("get_jid", JIDS[0])) == ["web1"]
        assert "web2/return.p cannot be read" in caplog.text
        assert list(done["failed"]) == [JIDS[1]]

    def test_a_damaged_outputter_costs_no_return(self, on_disk, caplog):
        on_disk.fill_source()
        on_disk.damage_source(JIDS[0], "web1/out.p", b"\xc1")
        assert on_disk.run("migrate")["failed"] == {}
        assert set(on_disk.ours("get_jid", JIDS[0])) == {"web1", "web2"}
        assert "out" not in on_disk.ours("get_jid", JIDS[0])["web1"] and "web1/out.p cannot be read" in caplog.text

    def test_what_is_no_folder_of_jobs_stops_nothing(self, on_disk):
        on_disk.fill_source()
        jobs = pathlib.Path(on_disk.opts["cachedir"], "jobs")
        (jobs / "zy").write_text("")
        (jobs / "zz").symlink_to("nowhere")
        assert on_disk.run("migrate")["copied"] == 4

    def test_a_malformed_load_stops_nothing_but_its_job(self, on_disk):
        on_disk.fill_source()
        on_disk.damage_source(JIDS[0], ".load.p", salt.payload.dumps(["no", "dict"]))
        on_disk.damage_source(JIDS[1], ".load.p", b"\xc1")
        done = on_disk.run("migrate")
        assert (set(done["failed"]), done["copied"]) == ({JIDS[0], JIDS[1]}, 2)
        assert set(on_disk.ours("get_jids")) == {JIDS[2], JIDS[3]}

    @pytest.mark.parametrize("minions", [None, b"\xc1", salt.payload.dumps({"web1": 1}), salt.payload.dumps("web1")])
    def test_a_job_without_a_usable_list_of_minions_comes_over(self, on_disk, minions):
        on_disk.fill_source()
        on_disk.damage_source(JIDS[0], ".minions.p", minions)
        assert on_disk.run("migrate")["failed"] == {}
        assert on_disk.ours("get_load", JIDS[0])["fun"] == "test.arg"
        assert on_disk.ours("get_load", JIDS[0])["Minions"] == ["web1", "web2"], "those that have returned"

    def test_minions_of_syndics_come_over(self, on_disk):
        on_disk.fill_source()
        on_disk.source("save_minions", JIDS[0], ["leaf1"], syndic_id="syndic1")
        on_disk.run("migrate")
        assert on_disk.ours("get_load", JIDS[0])["Minions"] == ["leaf1", "web1", "web2"]

    @pytest.mark.parametrize("writes", range(6))
    def test_a_run_that_dies_anywhere_is_made_whole_by_the_next(self, on_disk, writes):
        on_disk.fill_source()
        store = Store(on_disk.opts, Dying(on_disk.opts, writes))
        functions = {name: functools.partial(on_disk.source, name) for name in ("get_jids", "get_load", "get_jid")}
        source = LocalCache(functions, on_disk.opts)
        with pytest.raises(KeyboardInterrupt):
            for jid in JIDS:
                copy(store, source, jid, secrets.without_secrets, dry_run=False)
        assert on_disk.run("migrate")["failed"] == {}
        for jid in JIDS:
            wanted = on_disk.source("get_load", jid)
            del wanted["token"]
            assert on_disk.ours("get_load", jid) == wanted
            assert on_disk.ours("get_jid", jid) == on_disk.source("get_jid", jid)

    def test_nothing_is_copied_to_where_the_sweep_of_local_cache_would_remove_it(self, on_disk):
        on_disk.fill_source()
        early = Master({**on_disk.opts, "master_job_cache": "local_cache"})
        with pytest.raises(CommandExecutionError, match="master_job_cache: salt_cache"):
            early.run("migrate")
        assert early.run("migrate", dry_run=True)["copied"] == 4
        assert on_disk.ours("get_jids") == {}

    @pytest.mark.parametrize("source", ["salt_cache", "nonesuch"])
    def test_an_invalid_source_is_refused(self, on_disk, source):
        with pytest.raises(CommandExecutionError, match=source):
            on_disk.run("migrate", source=source)


class TestStats:
    def test_stats_count_the_records(self, on_disk):
        on_disk.fill_source()
        on_disk.run("migrate")
        on_disk.ours("save_load", "20260517120000000000", LOAD, minions=["web1"])
        on_disk.ours("save_load", "special", LOAD, minions=["web1"])
        found = on_disk.run("stats")
        size = found.pop("bytes")
        assert found == {
            "driver": "localfs",
            "jobs": 6,
            "published": 2,
            "returns": 5,
            "oldest": JIDS[0],
            "newest": "20260517120000000000",
        }
        assert 0 < size < 1_000_000

    def test_an_empty_job_cache_has_nothing(self, master):
        found = master.run("stats")
        assert (found["jobs"], found["returns"], found["oldest"], found["newest"]) == (0, 0, None, None)
        assert found["bytes"] == (0 if found["driver"] == "localfs" else None)


class TestVerify:
    def problems(self, master, **kwargs):
        return {
            (entry["problem"], entry["jid"], entry["minion"], entry["repaired"])
            for entry in master.run("verify", **kwargs)["problems"]
        }

    def test_a_sound_job_cache_has_no_problem(self, master):
        master.fill_source()
        master.run("migrate")
        assert master.run("verify") == {"jobs": 4, "returns": 5, "problems": []}

    def test_verify_finds_and_repairs_problems(self, on_disk):
        for jid in JIDS:
            on_disk.ours("save_load", jid, LOAD, minions=["web1", "web2"])
            for minion in ("web1", "web2"):
                on_disk.ours("returner", {"jid": jid, "id": minion, "return": True, "retcode": 0})
        cache = salt.cache.Cache(on_disk.opts)
        on_disk.break_file("jobs/loads", JIDS[0])
        on_disk.break_file("jobs/minions", JIDS[1])
        on_disk.break_file(f"jobs/returns/{JIDS[2]}", "web2")
        cache.store("jobs/loads", JIDS[3], {**LOAD, "token": "s3cret", "kwargs": {"password": "s3cret"}})
        on_disk.ours("returner", {"jid": JIDS[3], "id": "stranger", "return": True, "retcode": 0})
        cache.store("jobs/endtimes", "20200101000000000000", "end")
        cache.store("jobs/nocache", "20200101000000000001", True)
        os.utime(os.path.join(on_disk.opts["cachedir"], "jobs", "endtimes", "20200101000000000000.p"), (1, 1))
        expected = [
            ("unreadable-load", JIDS[0], None),
            ("unreadable-minions", JIDS[1], None),
            ("unreadable-return", JIDS[2], "web2"),
            ("secrets-in-load", JIDS[3], None),
            ("unpublished-load", JIDS[3], None),
            ("unexpected-return", JIDS[3], "stranger"),
            ("no-load", "20200101000000000000", None),
        ]
        assert self.problems(on_disk) == {(*entry, False) for entry in expected}
        assert self.problems(on_disk) == {(*entry, False) for entry in expected}, "nothing was changed"
        kept = {"unexpected-return", "unpublished-load"}
        repaired = {(*entry, entry[0] not in kept) for entry in expected}
        assert self.problems(on_disk, repair=True) == repaired
        left = {entry for entry in self.problems(on_disk) if entry[0] not in kept}
        assert left == set()
        assert "s3cret" not in repr(cache.fetch("jobs/loads", JIDS[3]))
        assert on_disk.ours("get_load", JIDS[1])["Minions"] == ["web1", "web2"]
        assert list(on_disk.ours("get_jid", JIDS[2])) == ["web1"]
        assert cache.fetch("jobs/nocache", "20200101000000000001") is True, "it may belong to a job just beginning"

    def test_damaged_records_are_set_aside_and_not_lost(self, on_disk):
        for bank, key in (("jobs/loads", JIDS[0]), (f"jobs/returns/{JIDS[0]}", "web1")):
            on_disk.ours("save_load", JIDS[0], LOAD, minions=["web1"])
            on_disk.ours("returner", {"jid": JIDS[0], "id": "web1", "return": True})
            on_disk.break_file(bank, key, b"\xc1 what is left")
            on_disk.run("verify", repair=True)
            with open(
                os.path.join(on_disk.opts["cachedir"], "salt_cache.corrupt", f"{bank.replace('/', '.')}.{key}"), "rb"
            ) as kept:
                assert kept.read() == b"\xc1 what is left"

    def verified(self, on_disk, driver):
        """The problems that are found, and repaired, with another driver."""
        found = Verification(Store(on_disk.opts, driver(on_disk.opts)), dict, True).run(lambda *_: None)
        return found["problems"]

    def test_a_sound_record_that_cannot_be_read_is_left_alone(self, on_disk):
        class Refusing(Local):
            def _read(self, bank, key):
                raise self.error("fetch", bank, key, PermissionError(13, "Permission denied"))

            fetch = _read

        on_disk.ours("save_load", JIDS[0], LOAD, minions=["web1", "web2"])
        on_disk.ours("returner", {"jid": JIDS[0], "id": "web1", "return": True})
        found = self.verified(on_disk, Refusing)
        kinds = {entry["problem"] for entry in found}
        assert kinds == {"unreadable-load", "unreadable-minions", "unreadable-return"}
        assert not any(entry["repaired"] for entry in found)
        assert on_disk.ours("get_load", JIDS[0]) == {**LOAD, "Minions": ["web1", "web2"]}
        assert list(on_disk.ours("get_jid", JIDS[0])) == ["web1"]

    def test_a_record_that_is_sound_when_read_again_is_left_alone(self, on_disk):
        once = set()

        class DamagedOnce(Local):
            def fetch(self, bank, key):
                if (bank, key) in once or bank == "jobs/published":
                    return super().fetch(bank, key)
                once.add((bank, key))
                raise self.error("fetch", bank, key, ValueError("for a moment"))

        on_disk.ours("save_load", JIDS[0], LOAD, minions=["web1"])
        on_disk.ours("returner", {"jid": JIDS[0], "id": "web1", "return": True})
        assert len(self.verified(on_disk, DamagedOnce)) == len(once) > 1
        assert on_disk.ours("get_load", JIDS[0]) == {**LOAD, "Minions": ["web1"]}
        assert list(on_disk.ours("get_jid", JIDS[0])) == ["web1"]

    def test_a_published_load_without_its_secret_is_still_the_published_one(self, on_disk):
        on_disk.ours("save_load", JIDS[0], LOAD, minions=["web1"])
        store = store_of(on_disk.opts)
        records.replace_load(store, JIDS[0], lambda load: {**load, "token": "s3cret"})
        assert self.problems(on_disk, repair=True) == {("secrets-in-load", JIDS[0], None, True)}
        assert on_disk.ours("get_load", JIDS[0]) == {**LOAD, "Minions": ["web1"]}

    def test_a_server_that_is_gone_is_an_error_of_the_command(self, tmp_path):
        opts = {**salt.config.DEFAULT_MASTER_OPTS, **driver_options("localfs", None, tmp_path, 0), "cache": "nonesuch"}
        for function in ("stats", "verify"):
            with pytest.raises(CommandExecutionError, match="nonesuch"):
                Master(opts).run(function)


class TestBetweenDrivers:
    """
    Jobs that salt_cache has stored with one driver go to another.

    The source is written without a loader, because Salt gives two loaders of one process the same module.
    """

    @staticmethod
    def fill(store, jids):
        for number, jid in enumerate(jids):
            key = store.key(jid, "jid")
            job = {**LOAD, "jid": jid}
            records.publish(store, key, job, ["WEB1", "web1"], "m_master", bool)
            load = {"jid": jid, "id": "WEB1", "return": number, "retcode": 0, "success": True}
            assert records.add_return(store, key, store.key("WEB1", "minion id"), load)
            store.store(records.ENDTIMES, key, f"end {number}")

    @staticmethod
    def returns(store, jid, minion, value):
        load = {"jid": jid, "id": minion, "return": value, "retcode": 0}
        assert records.add_return(store, store.key(jid, "jid"), store.key(minion, "minion id"), load)

    @pytest.fixture(
        params=[
            ("localfs", "sqlite"),
            *(pytest.param(pair, marks=pytest.mark.slow) for pair in [("sqlite", "mysql"), ("mysql", "localfs")]),
            *[("localfs", "postgresql"), ("postgresql", "localfs")],
            *[("sqlite", "postgresql"), ("postgresql", "sqlite")],
        ],
        ids="-".join,
    )
    def masters(self, request, cache_servers, tmp_path):  # noqa: F811
        settings = {"cache": request.param[1]}
        for driver in request.param:
            (tmp_path / driver).mkdir()
            settings = {**driver_options(driver, cache_servers, tmp_path / driver, next(TAGS)), **settings}
        settings["cachedir"] = str(tmp_path)
        opts = {
            **salt.config.DEFAULT_MASTER_OPTS,
            "id": "m_master",
            "job_cache_store_endtime": True,
            **OURS,
            **settings,
        }
        first = Store({**opts, "cache": request.param[0]})
        self.fill(first, (*JIDS, "Ends.p"))
        records.report_minions(first, JIDS[0], ["added"])
        self.returns(first, "lonely", "web1", 1)
        return first, Master(opts)

    def move(self, masters, **more):
        first, second = masters
        return second.run("migrate", **{"from": first.driver.name, "to": second.opts["cache"], **more})

    def test_jobs_come_over_whole_with_their_records_of_publishes(self, masters):
        first, second = masters
        assert self.move(masters, dry_run=True)["loads"] == 5 and second.ours("get_jids") == {}
        done = self.move(masters)
        assert (done["jobs"], done["copied"], done["loads"], done["returns"], done["endtimes"]) == (6, 6, 5, 6, 5)
        assert (done["failed"], done["lacking"]) == ({}, 0)
        for jid in (*JIDS, "Ends.p", "lonely"):
            key = first.key_of(jid)
            assert second.ours("get_load", jid) == records.load_of(first, key)
            assert second.ours("get_jid", jid) == records.returns_of(first, key) != {}
            store = store_of(second.opts)
            for bank in ("jobs/published", "jobs/endtimes"):
                assert store.fetch(bank, store.key_of(jid)) == first.fetch(bank, key)
        second.ours("save_load", JIDS[1], {**LOAD, "fun": "forged"})
        assert second.ours("get_load", JIDS[1])["fun"] == "test.arg"

    @pytest.mark.parametrize("writes", range(9))
    def test_a_run_that_dies_anywhere_is_made_whole_by_the_next(self, tmp_path, writes):
        def opts_in(name):
            (tmp_path / name).mkdir()
            return {**salt.config.DEFAULT_MASTER_OPTS, **OURS, **driver_options("localfs", None, tmp_path / name, 0)}

        target = opts_in("second")
        first, second = Store(opts_in("first")), Store(target, Dying(target, writes))
        self.fill(first, JIDS[:2])
        with pytest.raises(KeyboardInterrupt):
            for jid in JIDS[:2]:
                copy_between(first, second, jid, dry_run=False)
        again = Store(target)
        for jid in JIDS[:2]:
            copy_between(first, again, jid, dry_run=False)
        for jid in JIDS[:2]:
            assert records.load_of(again, jid) == records.load_of(first, jid) != {}
            for bank in (*records.BANKS, f"{records.RETURNS}/{jid}"):
                for key in first.keys(bank):
                    assert again.fetch(bank, key) == first.fetch(bank, key), (bank, key)

    def test_a_second_run_copies_what_is_missing_and_takes_nothing_back(self, masters):
        first, second = masters
        second.ours("save_load", JIDS[0], {**LOAD, "fun": "test.newer", "jid": JIDS[0]}, minions=["web7"])
        self.move(masters)
        assert second.ours("get_load", JIDS[0])["fun"] == "test.newer"
        assert second.ours("get_load", JIDS[0])["Minions"] == ["web7"]
        again = self.move(masters)
        assert (again["copied"], again["loads"], again["returns"], again["endtimes"]) == (0, 0, 0, 0)
        self.returns(first, JIDS[3], "web1", "late")
        once_more = self.move(masters)
        assert (once_more["copied"], once_more["returns"], once_more["lacking"]) == (1, 1, 0)

    @pytest.mark.parametrize(
        ("options", "why"),
        [
            ({"from": "nonesuch"}, "from is 'nonesuch'; accepted is one of localfs"),
            ({"from": "localfs", "to": "floppy"}, "to is 'floppy'; accepted is one of"),
            ({"from": "localfs", "to": "localfs"}, "both 'localfs'"),
            ({"to": "sqlite"}, "to needs from, the driver to copy from"),
            ({"form": "localfs"}, "has no option form"),
        ],
    )
    def test_an_invalid_value_is_named(self, on_disk, options, why):
        with pytest.raises(CommandExecutionError, match=why):
            on_disk.run("migrate", **options)

    def test_an_unreadable_record_is_reported_and_delays_no_other(self, tmp_path):
        opts = {**salt.config.DEFAULT_MASTER_OPTS, **OURS, **driver_options("localfs", None, tmp_path, 0)}
        second = Master({**opts, "cache": "sqlite"})
        self.fill(Store(opts), JIDS)
        second.break_file("jobs/loads", JIDS[0])
        second.break_file(f"jobs/returns/{JIDS[1]}", "WEB1")
        done = second.run("migrate", **{"from": "localfs"})
        assert set(done["failed"]) == set(JIDS[:2]) and done["lacking"] == 2
        assert list(second.ours("get_jid", JIDS[0])) == ["WEB1"]
        assert second.ours("get_load", JIDS[1])["fun"] == "test.arg"
        assert set(second.ours("get_jids")) == set(JIDS[1:])
