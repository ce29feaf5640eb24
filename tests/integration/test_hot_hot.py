"""
Two hot-hot masters that share a site on PostgreSQL, and no disk. The leader is killed or frozen, or the server is away. The
leader's work goes on, and nothing runs twice.
"""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import time

import pytest
from salt.exceptions import SaltClientError

from saltext.jobs.core.batch.store import BatchStore
from saltext.jobs.core.engine import requests
from saltext.jobs.core.engine.names import BATCH_MANAGER
from saltext.jobs.core.ledger.log import Writer
from saltext.jobs.core.ledger.records import publish_of
from saltext.jobs.core.retry.entry import Key, Kind
from saltext.jobs.core.retry.store import RetryStore
from saltext.jobs.core.site import site_of
from tests.faults import freeze, thaw
from tests.functional.cache_servers import cache_servers as cache_servers
from tests.functional.cache_servers import masters_key
from tests.integration.conftest import log_of
from tests.integration.job_retry.desk import Desk, kill, lines
from tests.integration.several import (
    ADDRESSES,
    ENGINES,
    await_leader,
    ended,
    engine_of,
    has_begun,
    hot_hot,
    leader,
    standing_by,
    start,
    takes_over,
    there,
)
from tests.waiting import stretched, wait_for

pytestmark = pytest.mark.slow

MINIONS = [f"hot{number}" for number in range(3)]


@pytest.fixture
def site(cache_servers):
    return {**cache_servers("postgresql").make_database("hothot"), "saltext_jobs_site": "postgresql"}


@pytest.fixture
def masters(salt_factories, site):
    """Two masters with one key; the engines of the first one lead."""
    with hot_hot(salt_factories, "hot", site, engines=[{name: {}} for name in ENGINES]) as made:
        yield made


@pytest.fixture
def desks(masters):
    made = [Desk(master, alone=False) for master in masters]
    yield made
    for desk in made:
        desk.close()


@pytest.mark.story
def test_the_other_master_goes_on_when_the_leading_one_dies(masters, desks, tmp_path):
    one, two = masters
    with there(MINIONS, masters[0], *desks, master=list(ADDRESSES), cache_jobs=True) as minions:
        kill(minions["hot2"])
        assert desks[1].run("job_retry.coverage")["silent"] == ["hot2"]
        killed = time.time()
        takes_over(masters, desks, minions, "hot2", tmp_path)
        for engine in ("batch", "job_retry"):
            for told in (desks[1].run(f"{engine}.stats"), desks[1].run(f"{engine}.doctor")):
                assert told["process"].endswith(f", master {two.config['id']}")
                assert killed < told["since"] < time.time()
        one.start()
        assert leader(one) == two.config["id"]


def test_a_leader_that_wakes_publishes_nothing_and_nor_does_one_whose_server_is_away(
    masters, desks, cache_servers, tmp_path
):
    one, two = masters
    with there(MINIONS, masters[0], *desks, master=list(ADDRESSES), cache_jobs=True) as minions:
        trace = tmp_path / "frozen"
        jid = start(desks[1], trace, MINIONS)
        has_begun(trace, 1)
        frozen = engine_of(one, BATCH_MANAGER)
        freeze(frozen.pid)
        wait_for(lambda: leader(two) == two.config["id"], what="the other one leads")
        has_begun(trace, 2)
        before = errors_of(one)
        thaw(frozen.pid)
        wait_for(lambda: not frozen.is_running(), what="the former engine ends")
        (line,) = errors_of(one)[len(before) :]
        assert "The batch_manager engine ends: while it was frozen" in line
        assert ended(two, jid) == dict.fromkeys(MINIONS, "completed")
        assert lines(trace) == len(MINIONS)
        assert leader(one) == two.config["id"]

        trace = tmp_path / "away"
        kill(minions["hot2"])
        owed = desks[1].publish("cmd.run", f"echo x >> {tmp_path / 'owed'}", tgt="hot2")
        desks[1].await_state("hot2", owed, "pending")
        jid = start(desks[1], trace, MINIONS[:2])
        has_begun(trace, 1)
        server = cache_servers("postgresql")
        server.stop()
        began = lines(trace)
        with pytest.raises(SaltClientError, match="could not be recorded"):
            desks[0].publish("test.ping")
        time.sleep(30)  # twice as long as the lease lasts
        assert lines(trace) <= began + 1  # one that was on its way
        server.start()
        for engine in ENGINES:
            wait_for(lambda e=engine: states_of(desks[1], e) == ["leads", "stands by"], what="both are known again")
        assert ended(two, jid) == dict.fromkeys(MINIONS[:2], "completed")
        minions["hot2"].start()
        desks[1].await_return("hot2", owed)
        assert (lines(trace), lines(tmp_path / "owed")) == (2, 1)
        wait_for(lambda: not desks[1].queue(), what="the queue is empty")


def states_of(desk, engine):
    """What is known of the masters, sorted."""
    return sorted(told["state"] for told in desk.run("batch.masters")["engines"][engine]["masters"].values())


def test_who_has_only_the_password_of_the_database_has_nothing_published(masters, desks, cache_servers, site, tmp_path):
    """Requests, batches, owed jobs and publishes in the log count only if a master has written them."""
    one, two = masters
    stranger = {**two.config, **masters_key(tmp_path / "stranger", b"another key")}
    forged, trace = tmp_path / "forged", tmp_path / "trace"
    command = f"echo x >> {forged}"
    with there(MINIONS[:2], one, *desks, master=list(ADDRESSES), cache_jobs=True) as minions:
        jid = start(desks[0], trace, MINIONS[:1], seconds=0)
        assert ended(one, jid) == {MINIONS[0]: "completed"}
        spec = BatchStore(one.config).read(jid).spec
        kill(minions[MINIONS[1]])
        owed = desks[0].publish("cmd.run", command, tgt=MINIONS[1])
        desks[0].await_state(MINIONS[1], owed, "pending")
        ((entry, job),) = RetryStore(site_of(one.config)).entries()

        other = dataclasses.replace(spec, jid=f"{int(jid) + 1}", fun="cmd.run", arg=(command,))
        requests.leave(stranger, BATCH_MANAGER, {"do": "start", "spec": other.as_dict()})
        copied = "SELECT %s, 0, at, spec, body FROM saltext_jobs_batches WHERE jid = %s"
        copied = f"INSERT INTO saltext_jobs_batches (jid, kind, at, spec, body) {copied}"
        copy = f"{int(jid) + 2}"
        cache_servers("postgresql").server.execute(copied, copy, jid, database=site["postgresql.db"])
        entry.minion, entry.jid = MINIONS[0], owed
        more = {
            Key(Kind.JOB, f"{int(owed) + 1}"): job.as_record(),
            Key(Kind.ENTRY, owed, MINIONS[0]): entry.as_record(),
        }
        RetryStore(site_of(stranger)).write(more)
        assert Writer(site_of(stranger)).append(publish_of(owed, job.load, MINIONS[:1]))

        kill(one)
        await_leader(two, two)
        jid = start(desks[1], trace, MINIONS[:1], seconds=0)
        assert ended(two, jid) == {MINIONS[0]: "completed"}
        minions[MINIONS[1]].get_check_events = list  # it would wait for those on the bus of the dead one
        minions[MINIONS[1]].start()
        desks[1].await_return(MINIONS[1], owed)
        wait_for(lambda: not desks[1].queue(), what="the queue is empty")
    assert (lines(forged), lines(trace)) == (1, 2)
    told = [line for master in masters for line in errors_of(master) if "no master of this site has sealed it" in line]
    for what in ("saltext_jobs_requests", f"saltext_jobs_batches {copy}", MINIONS[0], "saltext_jobs_log"):
        assert any(what in line for line in told), (what, told)


def errors_of(master):
    """The errors that our engines have logged."""
    return [
        line
        for line in log_of(master).splitlines()
        if "saltext.jobs" in line and re.search(r"\[(ERROR|CRITICAL) *\]", line)
    ]


def test_a_master_that_is_stopped_gives_up_the_lead_at_once_and_one_that_died_stands_by_no_more(masters, desks):
    one, two = masters
    os.kill(one.pid, signal.SIGTERM)
    began = time.monotonic()
    await_leader(two, two)
    assert time.monotonic() - began < min(stretched(4), 9)
    assert [standing_by(desks[1], engine) for engine in ENGINES] == [[], []]
    one.terminate()
    one.start()
    for engine in ENGINES:
        wait_for(
            lambda e=engine: standing_by(desks[1], e) == [one.config["id"]],
            what=f"the other one stands by for {engine}",
        )
    kill(two)
    await_leader(one, one)
    assert [standing_by(desks[0], engine) for engine in ENGINES] == [[], []]
