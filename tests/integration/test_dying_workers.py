"""
A master's worker dies between what it writes into the log and what it writes into the job cache. Salt starts another one.
What has run, the minions write down.
"""

from __future__ import annotations

import contextlib
import pathlib

import pytest
from saltfactories.utils import random_string

from saltext.jobs.core.batch.store import BatchStore
from saltext.jobs.core.engine.names import BATCH_MANAGER, JOB_RETRY
from tests.integration.batch.conftest import timeouts
from tests.integration.faults import CountedJob
from tests.integration.job_retry.desk import Desk, make_retry_master, retry_minion
from tests.waiting import SOON, wait_for

pytestmark = pytest.mark.slow

MINIONS = ("d1", "d2", "d3")
OWN = pathlib.Path(__file__).resolve().parents[2] / "returners" / "salt_cache.py"
#: Put behind this extension's returner. A publish is in the log first, a return in the job cache.
TRAP = """


class _Deadly:
    def __init__(self, module):
        self._module = module

    def __getattr__(self, name):
        return getattr(self._module, name)

    def publish(self, store, key, load, *more):
        _spring("publish", load)
        return self._module.publish(store, key, load, *more)

    def add_return(self, store, jid, minion, load):
        is_first = self._module.add_return(store, jid, minion, load)
        _spring("return", load)
        return is_first


def _spring(name, load):
    import os, pathlib, signal

    trap = pathlib.Path({folder!r}, name)
    if load.get("fun") == "cmd.run" and trap.exists():
        trap.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


records = _Deadly(records)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("traps")


@pytest.fixture(scope="module")
def master(salt_factories, folder):
    (folder / "modules" / "returners").mkdir(parents=True)
    code = OWN.read_text() + TRAP.format(folder=str(folder))
    (folder / "modules" / "returners" / "salt_cache.py").write_text(code)
    engines = [{JOB_RETRY: {}}, {BATCH_MANAGER: {}}]
    daemon = make_retry_master(salt_factories, module_dirs=[str(folder / "modules")], engines=engines)
    with daemon.started():
        yield daemon


@pytest.fixture(scope="module")
def minions(master):
    with contextlib.ExitStack() as stack:
        yield {name: stack.enter_context(retry_minion(master, name)) for name in MINIONS}


@pytest.fixture(scope="module")
def desk(master, minions):
    with contextlib.closing(Desk(master)) as made:
        yield made


@pytest.fixture
def trap(folder):
    """``trap(name)`` kills the next worker that reaches that point; returns a function that tells whether one has."""

    def arm(name):
        (folder / name).touch()
        return lambda: not (folder / name).exists()

    return arm


@pytest.mark.parametrize("point", ["publish", "return"])
def test_a_batch_whose_worker_dies_runs_once_on_each_minion_and_is_recorded_as_it_ran(
    master, desk, trap, tmp_path, point
):
    store, work = BatchStore(master.config), CountedJob(tmp_path, random_string("work-"), seconds=0.5)
    sprung = trap(point)
    times = dict(each.split("=") for each in timeouts(3))
    whom = {"tgt_type": "list", "presence": "none", "batch": 2}
    jid = desk.run("batch.start", ",".join(MINIONS), "cmd.run", work.command, **whom, **times)["jid"]
    batch = wait_for(
        lambda: (found := store.read(jid)) and found.finished and found,
        seconds=3 * SOON,
        what=lambda: f"it has ended: {desk.run('batch.minions', jid)}",
    )
    assert sprung()
    outcomes = {minion: outcome.value for minion, (outcome, *_) in batch.outcomes.items()}
    assert outcomes == dict.fromkeys(MINIONS, "completed")
    assert work.begun() == len(MINIONS)
    assert work.most_at_once() <= 2
