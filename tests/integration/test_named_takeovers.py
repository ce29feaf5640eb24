"""
Two masters whose leading engine dies at named points, one death in each phase of batches, while a request is under way; the
other one's engine goes on each time. The minions themselves record what has run.
"""

from __future__ import annotations

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from saltext.jobs.core.batch.store import BatchStore
from saltext.jobs.core.engine.names import BATCH_MANAGER, JOB_RETRY
from tests.functional.cache_servers import cache_servers as cache_servers
from tests.integration.conftest import ask_runner
from tests.integration.faults import EngineProcess, outlived
from tests.integration.job_retry.desk import Desk, kill, lines
from tests.integration.several import ADDRESSES, ended, has_begun, hot_hot, leads, there
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

MINIONS = ["relay0", "relay1", "relay2"]
#: The points at which each leader dies in turn, what it has done by then, and what the next one has to repair.
DEATHS = [
    "before request removal 1",  # a batch is recorded, its start not answered
    "before request removal 2",  # a pause is durable, not answered; the start was answered
    "after request removal 2",  # a resume is answered, and nothing came of it yet
    "before request removal 1",  # an approval is durable, not answered
    "before queueing 1",  # a minion is about to be handed over to the retry queue
    "after queueing 1",  # the retry queue has it, the batch does not know
    "before kill 1",  # a stop is durable, nothing is killed
    "after kill 1",  # killed, and not known whether that was heard
]


@pytest.fixture
def masters(salt_factories, cache_servers):
    """Two masters that run no engines themselves."""
    site = {**cache_servers("postgresql").make_database("takeovers"), "saltext_jobs_site": "postgresql"}
    with hot_hot(salt_factories, "relay", site, engines=[]) as daemons:
        yield daemons


@pytest.fixture
def desk(masters):
    with contextlib.closing(Desk(masters[0], alone=False)) as made:
        yield made


class Relay:
    """
    One engine for each death: the first leads, and the next one stands by at the other master. The last one lives.

    :param run: starts the engine of a master: (its number, its name, where it dies).
    """

    def __init__(self, masters, run):
        self._masters, self._run, self._traps = masters, run, iter((*DEATHS, ""))
        self._place, self._standing_by = 0, None
        self.leading = self._next()
        self._standing_by = self._next()

    def _next(self):
        trap = next(self._traps, None)
        if trap is None:
            return None
        process = self._run(self._place, BATCH_MANAGER, trap)
        self._place = 1 - self._place
        return process

    def pass_on(self):
        """Wait until the leader has died, and the other one leads."""
        self.leading.wait_for_death()
        self.leading = self._standing_by
        wait_for(
            lambda: any(leads(master, BATCH_MANAGER, self.leading.pid) for master in self._masters),
            what=lambda: f"the next one leads: {self.leading.output()}",
        )
        self._standing_by = self._next()


@pytest.fixture
def run(masters, tmp_path):
    with contextlib.ExitStack() as stack:

        def begin(place, name, trap=""):
            process = EngineProcess(masters[place], tmp_path / f"{name}-{time.monotonic_ns()}.log", name)
            stack.callback(process.kill)
            return process.start(trap)

        yield begin


def test_in_whatever_phase_the_leader_dies_the_other_master_goes_on_and_requests_are_answered(
    masters, desk, run, tmp_path
):
    *present, away = MINIONS
    trace, queued, stopped = (tmp_path / name for name in ("trace", "queued", "stopped"))
    store = BatchStore(masters[0].config)
    run(0, JOB_RETRY)
    relay = Relay(masters, run)

    def begin(file, seconds, names, *words):
        command = f"echo x >> {file}; sleep {seconds}"
        return "batch.start", ",".join(names), "cmd.run", command, "tgt_type=list", *words

    def batch_of(file):
        batches = (store.read(jid) for jid in (*store.open_jids(), *store.ended_jids()))
        return next(
            (batch.spec.jid for batch in batches if batch is not None and str(file) in str(batch.spec.arg)), None
        )

    with (
        there(MINIONS, masters[1], desk, master=list(ADDRESSES), cache_jobs=True) as minions,
        ThreadPoolExecutor(1) as pool,
    ):

        def outlive(*words):
            """Make a request during which the leader dies. Returns the answer; None if the runner gave up waiting."""
            asked = pool.submit(ask_runner, masters[1], *words)
            relay.pass_on()
            return outlived(asked)

        kill(minions[away])
        said = outlive(*begin(trace, 1, present, "batch=1,1", "check=approve", "presence=none"))
        jid = batch_of(trace)
        assert said is None or said["jid"] == jid
        assert outlive("batch.pause", jid) in (True, None)
        wait_for(lambda: desk.run("batch.status", jid)["paused_by"] == "operator", what="it is paused")
        assert outlive("batch.resume", jid) in (True, None)
        wait_for(lambda: desk.run("batch.status", jid)["approve"] == 0, what="it waits for an approval")
        assert lines(trace) == 1
        assert outlive("batch.approve", jid, "stage=0") in (True, None)
        assert ended(masters[0], jid) == dict.fromkeys(present, "completed")
        assert lines(trace) == len(present)

        outlive(*begin(queued, 1, [present[0], away], "batch=2", "offline=queue"))
        relay.pass_on()
        jid = batch_of(queued)
        assert ended(masters[0], jid) == {present[0]: "completed", away: "offline"}
        minions[away].get_check_events = list  # it would wait for those on the bus of one master
        minions[away].start()
        desk.await_return(away, jid)
        wait_for(lambda: not desk.queue(), what="the queue is empty")
        assert lines(queued) == 2

        jid = ask_runner(masters[1], *begin(stopped, 60, present, "batch=1", "presence=none"))["jid"]
        has_begun(stopped, 1)
        assert outlive("batch.stop", jid, "kill=True") in (True, None)
        relay.pass_on()
        assert list(ended(masters[0], jid).values()) == ["killed"]
        assert lines(stopped) == 1
