"""The search of the job_cache runner, loaded by Salt: each driver finds what a look at every job would find."""

from __future__ import annotations

import fnmatch
import itertools
import random
import time

import pytest
import salt.config
import salt.loader
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from salt.exceptions import SaltException

from saltext.jobs.core.ids import jid_at
from saltext.jobs.core.ledger.jobs import failed as failed_jids
from saltext.jobs.core.ledger.jobs import has_failed
from saltext.jobs.core.ledger.tables import VALUES
from saltext.jobs.core.store import search as searching
from tests.functional.cache_servers import cache_servers, driver_options  # noqa: F401 (a fixture)
from tests.functional.store.banks import banks_of

TAGS = itertools.count(2000)
FUNCTIONS = ["test.ping", "test.echo", "state.apply", "state.highstate", "cmd.run"]
NOW = time.time()


class Jobs:
    """A job cache with jobs of all kinds, and the same as plain dicts."""

    def __init__(self, opts):
        self.opts, self.jobs = opts, {}
        self.run = salt.loader.runner(opts)
        self.returners = salt.loader.returners(opts, {})

    def add(self, jid, fun="test.ping", user="root", tgt="*", minions=("web1",), returns=None, metadata=None):
        load = {"jid": jid, "fun": fun, "arg": ["x"], "tgt": tgt, "tgt_type": "glob", "user": user, "kwargs": {}}
        if metadata is not None:
            load["kwargs"]["metadata"] = metadata
        self.returners["salt_cache.save_load"](jid, load, minions=list(minions))
        for minion, code in (returns or {}).items():
            self.returners["salt_cache.returner"](
                {"jid": jid, "id": minion, "return": 1, "retcode": code, "success": True}
            )
        self.jobs[jid] = {**load, "minions": set(minions), "returns": dict(returns or {}), "metadata": metadata or {}}

    def search(self, kind="all", **query):
        return self.run["job_cache.search"](kind=kind, **query)

    def found(self, **query):
        """The jids of all pages."""
        found, after = [], None
        while True:
            page = self.search(after=after, **query)
            found += [job["JID"] for job in page["jobs"]]
            assert len(page["jobs"]) <= query.get("limit", 20)
            after = page["next"]
            if after is None:
                return found


@pytest.fixture(
    params=["localfs", "sqlite", "postgresql", pytest.param("mysql", marks=pytest.mark.slow)], scope="module"
)
def jobs(request, cache_servers, tmp_path_factory):  # noqa: F811
    folder = tmp_path_factory.mktemp(request.param)
    own = driver_options(request.param, cache_servers, folder, next(TAGS))
    made = Jobs({**salt.config.DEFAULT_MASTER_OPTS, "id": "m_master", "master_job_cache": "salt_cache", **own})
    chance = random.Random(1)
    minions = [f"web{number}" for number in range(6)] + ["db1", "web11"]
    for number in range(150):
        meant = chance.sample(minions, chance.randint(0, 5))
        made.add(
            jid_at(NOW - 60 * number) + ("_77" if number % 50 == 0 else ""),
            chance.choice(FUNCTIONS),
            chance.choice(["root", "sudo_anna", "ANNA", "bert"]),
            chance.choice(["*", "web*", "db1"]),
            meant,
            {minion: chance.choice([0, 0, 2]) for minion in meant if chance.random() < 0.7},
            chance.choice([None, {"ticket": chance.choice(["A", "B"])}, {"ticket": "C", "x": [1]}]),
        )
    return made


GLOBS = ["test.*", "*.ping", "state.apply", "nothing.*", "*", "[ts]*e", "cmd.run,test.echo"]
QUERIES = st.fixed_dictionaries(
    {},
    optional={
        "fun": st.sampled_from(GLOBS),
        "tgt": st.sampled_from(["*", "web*", "db1", "w??[*]"]),
        "user": st.sampled_from(["root", "*anna", "ANNA", "nobody"]),
        "minion": st.sampled_from(["web1", "db1", "web11", "unknown", "web1*", "db?,web5", "*", "x*"]),
        "kind": st.sampled_from(["jobs", "looks", "runners", "all"]),
        "outcome": st.sampled_from(["returned", "failed", "missing"]),
        "metadata": st.sampled_from([{"ticket": "A"}, {"ticket": "B", "x": [1]}, {"none": 1}]),
        "start_time": st.sampled_from(["-10m", "-2h", "-3h"]),
        "end_time": st.sampled_from(["-5m", "-1h"]),
        "limit": st.sampled_from([15, 40, 1000]),
    },
)


def wanted(jobs, query, now):
    """What a look at every job finds."""

    def fits(jid, job):
        def like(name, value):
            return name not in query or any(fnmatch.fnmatchcase(value, glob) for glob in query[name].split(","))

        named = {minion for minion in (*job["minions"], *job["returns"]) if like("minion", minion)}
        kind = {"test.ping": "looks"}.get(job["fun"], "jobs")
        groups = {
            "returned": set(job["returns"]),
            "failed": {minion for minion, code in job["returns"].items() if code},
            "missing": job["minions"] - set(job["returns"]),
        }
        asked = (groups[query["outcome"]] if "outcome" in query else job["minions"]) & named
        metadata = query.get("metadata", {})
        start, end = (
            now - {"m": 60, "h": 3600}[query[name][-1]] * int(query[name][1:-1]) if name in query else None
            for name in ("start_time", "end_time")
        )
        return (
            like("fun", job["fun"])
            and like("tgt", job["tgt"])
            and like("user", job["user"])
            and (bool(asked) or not {"minion", "outcome"} & query.keys())
            and query.get("kind", "all") in ("all", kind)
            and (not metadata or any(job["metadata"].get(name) == value for name, value in metadata.items()))
            and (start is None or jid[:20] >= jid_at(start))
            and (end is None or jid[:20] <= jid_at(end))
        )

    return [jid for jid in sorted(jobs, reverse=True) if fits(jid, jobs[jid])]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(query=QUERIES)
def test_a_search_finds_what_a_look_at_every_job_finds(jobs, query):
    now = NOW + 30
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", lambda: now)  # the clock stands still while pages are asked for
        found = jobs.found(**query)
    assert found == wanted(jobs.jobs, query, now)


class TestOneAtATime:
    @pytest.fixture(params=["localfs", "sqlite"])
    def jobs(self, request, tmp_path):
        own = driver_options(request.param, None, tmp_path, 0)
        return Jobs({**salt.config.DEFAULT_MASTER_OPTS, "id": "m_master", "master_job_cache": "salt_cache", **own})

    def test_a_row_says_what_the_list_of_jobs_says_and_counts(self, jobs):
        jid = "20260516120000000000"
        jobs.add(jid, minions=["a", "b", "c", "d"], returns={"a": 0, "b": 1, "c": 0}, metadata={"ticket": 1})
        (row,) = jobs.search()["jobs"]
        assert row == {
            "JID": jid,
            "Function": "test.ping",
            "Arguments": ["x"],
            "Target": "*",
            "Target-type": "glob",
            "User": "root",
            "StartTime": "2026, May 16 12:00:00.000000",
            "Metadata": {"ticket": 1},
            "Minions": 4,
            "Returned": 3,
            "Failed": 1,
            "Missing": 1,
        }

    def test_a_return_is_a_failure_where_the_outcome_of_its_job_says_so(self, jobs):
        jid = "20260516120000000000"
        codes = dict(zip("abcdefgh", ("0", "1", {"x": "0"}, {"x": "0", "y": 2}, 0.5, None, [0, 2], False), strict=True))
        jobs.add(jid, minions=codes, returns=codes)
        (row,) = jobs.search(outcome="failed")["jobs"]
        assert row["Failed"] == jobs.run["job_cache.outcome"](jid)["failed"] == 4

    def test_what_a_minion_returns_of_a_job_that_was_not_for_it_is_no_part_of_its_outcome(self, jobs):
        jobs.add("20260516120000000000", minions=["a", "b"], returns={"a": 0, "stranger": 1})
        (row,) = jobs.search()["jobs"]
        assert (row["Minions"], row["Returned"], row["Failed"], row["Missing"]) == (2, 1, 0, 1)
        assert jobs.found(outcome="failed") == []
        for minion in ("stranger", "strang*"):
            assert jobs.found(minion=minion, outcome="failed") == ["20260516120000000000"]

    def test_pages_do_not_shift_while_jobs_come_and_go(self, jobs):
        jids = [jid_at(NOW - number) for number in range(10)]
        for jid in jids:
            jobs.add(jid)
        first = jobs.search(limit=4)
        jobs.add(jid_at(NOW + 5))
        jobs.returners["salt_cache.clean_old_jobs"]()
        assert [job["JID"] for job in first["jobs"] + jobs.search(limit=4, after=first["next"])["jobs"]] == jids[:8]
        assert [job["JID"] for job in jobs.search(limit=4, after=jids[7])["jobs"]] == jids[8:]

    @pytest.mark.parametrize("limit", [1, 4, 8, 9])
    def test_more_pages_are_announced_only_if_there_are_more(self, jobs, limit):
        for number in range(9):
            jobs.add(jid_at(NOW - number), fun="a.b" if number % 2 else "c.d", returns={"web1": number % 2})
        for query, count in (({}, 9), ({"fun": "a.*"}, 4), ({"outcome": "failed"}, 4), ({"minion": "web1"}, 9)):
            assert (jobs.search(limit=limit, **query)["next"] is None) is (limit >= count), query

    def test_a_job_without_a_time_in_its_jid_is_placed_by_its_jid(self, jobs):
        jids = sorted([jid_at(NOW), "deploy", "7-of-9", "٢٠٢٦٠٥١٦-x"], reverse=True)
        for jid in jids:
            jobs.add(jid)
        assert jobs.found(limit=1) == jobs.found(fun="test.*") == jids
        assert jobs.found(start_time="30s") == jobs.found(start_time="-30s") != []

    def test_a_job_of_several_functions_is_found_by_each(self, jobs):
        jobs.add("20260516120000000000", fun=["test.ping", "cmd.run"])
        assert jobs.found(fun="cmd.*") == jobs.found(fun="test.ping") == ["20260516120000000000"]
        assert jobs.found(fun="state.*") == []

    def test_more_functions_than_are_looked_for_one_by_one_are_all_found(self, jobs):
        jids = [jid_at(NOW - number) for number in range(60)]
        for number, jid in enumerate(jids):
            jobs.add(jid, fun=f"mod{number}.run")
        assert jobs.found(fun="mod*") == jids
        assert jobs.found(fun="mod1*.run") == [jids[number] for number in (1, *range(10, 20))]

    def test_jobs_of_the_master_and_jobs_that_only_look_are_left_out_unless_they_are_asked_for(self, jobs):
        funs = ("state.apply", "runner.batch.list", "wheel.key.list", "test.ping", "saltutil.find_job", "a.b,test.ping")
        run = {fun: jid_at(NOW - number) for number, fun in enumerate(funs)}
        for fun, jid in run.items():
            jobs.add(jid, fun=fun)
        of_minions, on_master, looks = ([run[funs[number]] for number in some] for some in ((0, 5), (1, 2), (3, 4)))
        assert jobs.found(kind=None) == jobs.found(kind="jobs") == of_minions
        assert (jobs.found(kind="runners"), jobs.found(kind="looks")) == (on_master, looks)
        assert jobs.found(kind="all") == jobs.found(kind=None, fun="*") == list(run.values())
        assert jobs.found(kind=None, fun="test.ping") == [run["test.ping"], run["a.b,test.ping"]]
        assert jobs.found(kind="jobs", fun="test.ping") == [run["a.b,test.ping"]]

    @pytest.mark.parametrize(
        ("query", "why"),
        [
            ({"start_time": "yesterday"}, "start_time is 'yesterday'; accepted is a time ago such as"),
            ({"start_time": "-99999999d"}, "start_time is '-99999999d'; accepted is a time ago such as"),
            ({"end_time": "9999-12-31T23:59:59-12:00"}, "end_time is '9999-12-31T23:59:59-12:00'; accepted is"),
            ({"outcome": "lost"}, "outcome is 'lost'; accepted is one of returned, failed, missing"),
            ({"limit": 0}, "limit is 0; accepted is a whole number of at least 1"),
            ({"minion": "../x"}, "minion is"),
            ({"kind": "noise"}, "kind is 'noise'; accepted is one of jobs, runners, looks, all"),
            ({"metadata": "x"}, "metadata is 'x'; accepted is a mapping"),
            ({"function": "x"}, "has no option function"),
        ],
    )
    def test_an_invalid_value_is_named(self, jobs, query, why):
        with pytest.raises(SaltException, match=why):
            jobs.search(**query)


class TestCountsBesideTheRecords:
    """No return is read for the counts. They equal those of a look at every return."""

    @pytest.fixture(params=["sqlite", "postgresql"])
    def jobs(self, request, cache_servers, tmp_path):  # noqa: F811
        own = driver_options(request.param, cache_servers, tmp_path, next(TAGS))
        return Jobs({**salt.config.DEFAULT_MASTER_OPTS, "id": "m_master", "master_job_cache": "salt_cache", **own})

    @pytest.mark.parametrize("seed", range(2))
    def test_the_index_matches_the_records_whatever_was_done(self, jobs, seed):
        chance, store = random.Random(seed), _store(jobs)
        banks, minions = banks_of(jobs.opts), [f"web{number}" for number in range(70)]
        jids = [jid_at(NOW - number) for number in range(12)]

        def record():
            odd = chance.choice(
                [{"retcode": 0}, {"retcode": 1}, {"success": False, "retcode": 0}, {}, {"retcode": {"a": 0, "b": 2}}]
            )
            return {"return": {"retcode": 1}, "success": True, **odd}

        for _ in range(400):
            jid, minion, what = chance.choice(jids), chance.choice(minions), chance.random()
            if what < 0.1:
                jobs.returners["salt_cache.save_load"](
                    jid, {"fun": "a.b", "jid": jid}, minions=chance.sample(minions, chance.choice((1, 60)))
                )
            elif what < 0.15:
                jobs.returners["salt_cache.save_minions"](jid, chance.sample(minions, 3))
            elif what < 0.5:
                banks.store_new(f"jobs/returns/{jid}", minion, record())
            elif what < 0.7:
                banks.store(f"jobs/returns/{jid}", minion, record())
            elif what < 0.8:
                banks.flush(f"jobs/returns/{jid}", minion)
            elif what < 0.83:
                banks.flush(f"jobs/returns/{jid}")
            elif what < 0.88:
                store.driver.remove([jid], time.time() + 60)
        for minion in (None, *minions[:8]):
            for jid, tally in store.driver.tallies(jids, minion).items():
                if store.contains("jobs/loads", jid):
                    read = searching.count_all(store, jid, minion)
                    assert tally == read
        returns = {jid: store.driver.fetch_each(f"jobs/returns/{jid}", minions) for jid in jids}
        failed = {jid for jid in jids if any(has_failed(record) for _, record in returns[jid])}
        assert set(failed_jids(banks.tables, "", "~")) == failed

    def test_a_search_reads_no_returns(self, jobs):
        for number in range(5):
            returns = {f"web{minion}": minion % 3 for minion in range(6)}
            jobs.add(jid_at(NOW - number), minions=[*returns, "away"], returns=returns)
        # All returns are made unreadable.
        where = "bank > 'jobs/returns/' AND bank < 'jobs/returns0'"
        _store(jobs).driver.tables.run(f"UPDATE {VALUES} SET value = ? WHERE {where}", (b"\xc1",))
        for query in ({}, {"outcome": "failed"}, {"outcome": "missing", "minion": "away"}, {"minion": "web3"}):
            for row in jobs.search(**query)["jobs"]:
                assert (row["Minions"], row["Returned"], row["Failed"], row["Missing"]) == (7, 6, 4, 1)
            assert len(jobs.found(**query)) == 5
        assert jobs.found(minion="web3", outcome="failed") == jobs.found(minion="web3", outcome="missing") == []


def _store(jobs):
    from saltext.jobs.core.store.store import store_of

    return store_of(jobs.opts)
