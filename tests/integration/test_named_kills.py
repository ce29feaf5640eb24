"""
A fleet of six whose engines die at named points, while a batch of three at a time runs and two minions are owed a job.
The minions themselves record what has run.
"""

from __future__ import annotations

import collections
import contextlib
from concurrent.futures import ThreadPoolExecutor

import pytest
from saltfactories.utils import random_string

from saltext.jobs.core.batch.store import BatchStore
from saltext.jobs.core.engine.names import BATCH_MANAGER, JOB_RETRY
from saltext.jobs.core.site import FileSite
from tests.integration.conftest import make_master, make_minion, salt_run
from tests.integration.faults import EngineProcess
from tests.integration.job_retry.desk import OPTIONS, Desk, kill
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

NAMES = [f"n{number:02}" for number in range(6)]
SIZE = 3
#: Seconds for what an engine still does when the batch is closed, or the queue is empty.
LAST_WORK = 10
#: Where each engine is killed in turn: the next one is where the next life of the engine ends. It comes to each of them,
#: whatever its earlier lives have done: the batch needs two publishes, and an engine announces the end at least; each minion
#: that was away gets two jobs, after the batch has run everywhere else.
DEATHS = {
    BATCH_MANAGER: (
        *("before state file 1", "after snapshot 1", "after request removal 1", "after ping 1", "before publish 1"),
        *("after publish 1", "after append 4", "before end 1"),
    ),
    JOB_RETRY: (
        *("after snapshot 1", "before question 1", "after entry 1", "after claim 1"),
        *("before publish 1", "before announcement 1", "after entry removal 1"),
    ),
}


class Fleet:
    """A master that runs no engine itself, its minions, and what they have written down."""

    def __init__(self, master, minions, desk, folder):
        self.master, self.minions, self.desk, self.folder = master, minions, desk, folder

    def job(self, name, seconds):
        """A command, and the file in which each minion says when it begins and ends it."""
        trace = self.folder / name
        line = "echo {{ grains.id }} %s >> " + str(trace)
        return f"{line % 'begin'}; sleep {seconds}; {line % 'end'}", trace


@pytest.fixture(scope="module")
def fleet(salt_factories, tmp_path_factory):
    with contextlib.ExitStack() as stack:
        options = {"engines": [], "job_retry": dict(OPTIONS), "timeout": 3, "gather_job_timeout": 3}
        master = stack.enter_context(make_master(salt_factories, **options).started())
        minions = {name: make_minion(master, name) for name in NAMES}
        for daemon in minions.values():
            daemon.start()
            stack.callback(kill, daemon)
        desk = stack.enter_context(contextlib.closing(Desk(master)))
        yield Fleet(master, minions, desk, tmp_path_factory.mktemp("traces"))


@pytest.fixture
def engines(fleet, tmp_path):
    found = {name: EngineProcess(fleet.master, tmp_path / f"{name}.log", name) for name in DEATHS}
    with contextlib.ExitStack() as stack:
        for engine in found.values():
            engine.start()
            stack.callback(engine.kill)
        wait_for(
            lambda: FileSite(fleet.master.config).folder(JOB_RETRY).exists("checkpoint"), what="the first checkpoint"
        )
        yield found


def runs(trace):
    lines = [line.split() for line in trace.read_text().splitlines()] if trace.exists() else []
    return collections.Counter(name for name, what in lines if what == "begin"), lines


def most_at_once(lines, names):
    busy = most = 0
    for name, what in lines:
        if name in names:
            busy += 1 if what == "begin" else -1
            most = max(most, busy)
    return most


def die(engine, traps, is_over):
    """
    Kill an engine at these points, one life after the other. Returns those to which it came. An engine that has not come to
    a point when all is over never will.
    """
    sprung = []
    engine.kill()
    for trap in traps:
        engine.start(trap)
        wait_for(
            lambda: engine.has_died() or is_over(), seconds=240, what=lambda trap=trap: f"{trap}: {engine.output()}"
        )
        with contextlib.suppress(AssertionError):
            wait_for(engine.has_died, seconds=LAST_WORK)
        if not engine.has_died():
            engine.kill()
            break
        engine.wait_for_death()
        sprung.append(trap)
    engine.start()
    return tuple(sprung)


def test_wherever_engines_are_killed_each_minion_runs_each_job_once_and_no_more_than_the_batch_size_at_a_time(
    fleet, engines
):
    away = [NAMES[0], NAMES[3]]
    there = [each for each in NAMES if each not in away]
    for each in away:
        kill(fleet.minions[each])
    owed, owed_trace = fleet.job(random_string("owed-"), 0.5)
    work, trace = fleet.job(random_string("work-"), 0.7)
    everybody = set(NAMES)

    def all_have_run():
        return runs(trace)[0].keys() == runs(owed_trace)[0].keys() == everybody

    fleet.desk.publish("cmd.run", owed, tgt="*", kwarg={"template": "jinja"})
    words = ("cmd.run", work, "template=jinja", f"batch={SIZE}", "offline=queue", "timeout=6", "gather_job_timeout=6")
    store = BatchStore(fleet.master.config)

    def found():
        batches = (store.read(jid) for jid in (*store.open_jids(), *store.ended_jids()))
        return next((batch for batch in batches if batch is not None and work in batch.spec.arg), None)

    def batch_is_over():
        batch = found()
        return batch is not None and batch.closed

    def queue_is_over():
        return all_have_run() and batch_is_over() and not fleet.desk.queue()

    with ThreadPoolExecutor(3) as pool:
        asked = pool.submit(salt_run, fleet.master, "batch.start", "*", *words)
        dying = {BATCH_MANAGER: pool.submit(die, engines[BATCH_MANAGER], DEATHS[BATCH_MANAGER], batch_is_over)}
        wait_for(found, what="the batch is recorded, which is refused while the retry queue does not run")
        dying[JOB_RETRY] = pool.submit(die, engines[JOB_RETRY], DEATHS[JOB_RETRY], queue_is_over)
        wait_for(
            lambda: runs(trace)[0].keys() >= set(there), seconds=400, what=lambda: f"all have run it: {runs(trace)}"
        )
        for each in away:
            fleet.minions[each].start()
        sprung = {name: each.result() for name, each in dying.items()}
        said = asked.result()
    wait_for(
        queue_is_over,
        seconds=240,
        what=lambda: f"all is over: {runs(trace)[0]} {runs(owed_trace)[0]} {fleet.desk.run('job_retry.list')} {said}",
    )
    outcomes = {minion: outcome.value for minion, (outcome, *_) in found().outcomes.items()}
    assert runs(trace)[0] == runs(owed_trace)[0] == dict.fromkeys(NAMES, 1)
    assert most_at_once(runs(trace)[1], there) <= SIZE
    assert {each: outcomes[each] for each in there} == dict.fromkeys(there, "completed")
    assert sprung == DEATHS
