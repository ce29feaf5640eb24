"""
A real master with this extension, and a crowd of featherweight minions: what a scenario works with, and the faults that
it causes.

Everything is below one folder and on loopback, and is removed with it. It must never touch a process that it has not
started.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import resource
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import psutil
import salt.config

from benchmarks.fleet import wire
from benchmarks.fleet.causes import Evidence
from benchmarks.fleet.crowd import Handle
from benchmarks.fleet.minion import RUN
from benchmarks.fleet.script import Script
from benchmarks.fleet.truth import Truth
from benchmarks.fleet.verdict import ANSWER, AT_REST
from benchmarks.fleet.watch import ENGINES, Watch, carriers_of, engine_pid, kill_all, processes_of
from demo.fleet import Fleet, StepFailed
from demo.processes import wait_for
from saltext.jobs.core.engine import requests
from saltext.jobs.core.master.job_cache import JobCache
from saltext.jobs.core.retry.store import RetryStore
from saltext.jobs.core.site import site_of
from tests.faults import freeze, thaw

#: The fields of a batch's status that change while it runs.
_CHANGES = ("state", "active", "pending", "completed", "failed")
#: Bytes of a semaphore: it is in memory, and without it a worker of Salt 3008 that is loading answers nothing for good.
_SEMAPHORE = 32
#: The published job, which is not run, and the target of all minions except the one that listens.
JOB, ALL = ("state.apply", "featherweight"), "[abc]*"


class Site:
    """
    Use it as a context manager. When entered, the master runs and no minion is there.

    :param count: how many minions; their ids begin with a, b and c in turn.
    :param executor: the share of them that has ``job_once``.
    :param beside: an additional server of the scenario.
    :param options: further options of the master.
    """

    def __init__(self, count: int, executor: float = 0.0, beside: Any = None, **options: Any) -> None:
        self.names = [f"{'abc'[number % 3]}{number:05d}" for number in range(count)]
        #: Seconds in which an engine must answer a runner, and seconds without progress after which a wait is given up.
        self.answer, self.limit = ANSWER, 900.0
        #: (time, action) for the timeline; and times in which no engine can be expected to answer.
        self.marks: list[tuple[float, str]] = []
        self.spared: list[tuple[float, float]] = []
        #: Times when the master could store nothing, and why.
        self.unstorable: list[tuple[float, float, str]] = []
        self.beside = beside
        self._executor, self._options = executor, options
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Site:
        with contextlib.ExitStack() as stack:
            self._fleet = stack.enter_context(Fleet())
            self.root = self._fleet.root
            home = self._fleet.config("master")
            self._config = {"pki_dir": str(home / "pki"), "cachedir": str(home / "cache"), **self._options}
            self._config.setdefault("worker_threads", 5)
            # On a full disk Python cuts a compiled module to the size of a semaphore, and no other process can import it.
            os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
            own = wire.accept(self._config, self.names)
            self._fleet.start_master(**self._config)
            self.opts = salt.config.master_config(str(home / "master"))
            self.crowd = Handle([self.opts], own, self.names, self._executor)
            stack.callback(self.crowd.end)
            self.watch = Watch(self.opts, self.root)
            stack.callback(self.watch.end)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def save_log(self, path: pathlib.Path) -> None:
        """Save a copy of the master's log, which is removed with everything else."""
        shutil.copy(self._fleet.config("master") / "log", path)

    # -- the fleet -------------------------------------------------------------------------------------------------------

    def mark(self, what: str) -> float:
        """Note an action of this moment, and return the time."""
        now = time.monotonic()
        self.marks.append((now, what))
        return now

    def start(self, names: Iterable[str] | None = None, within: float = 0.0) -> None:
        """Start minions and wait until they are there. By default all, as fast as a hundred a second."""
        wanted = set(self.names if names is None else names)
        self.crowd.start(sorted(wanted), within or len(wanted) / 100)
        self.need(lambda: wanted <= self.crowd.there(), self.limit, f"{len(wanted):,} minions are there")

    def truth(self) -> Truth:
        """Return the minions' notes until now, and which of their returns the job cache has."""
        truth, cache = self.crowd.report()[0], JobCache(self.opts)
        answers = {jid: cache.each_return(jid, self.names) for jid in {run.jid for run in truth.runs}}
        # The executor's answer about an interrupted job is not the return of a run.
        truth.look_up(
            {
                (minion, jid): data["return"].get(RUN, 0) if isinstance(data["return"], dict) else 0
                for jid, found in answers.items()
                for minion, data in found
                if data
            }
        )
        return truth

    def evidence(self) -> Evidence:
        """Return the evidence that can excuse a second run, or a missing return."""
        samples, looked, answers = self.watch.read(), {}, {}
        for engine in ENGINES:
            looked[engine] = [(sample.at, sample.processes.get(engine)) for sample in samples]
            asked = [(sample.at, sample.answered[engine]) for sample in samples if engine in sample.answered]
            answers[engine] = [(at, at + answer.seconds) for at, answer in asked if answer.came]
        return Evidence(self.unstorable, looked, answers, self.crowd.report()[0].lag)

    def script(self, **what: Any) -> None:
        self.crowd.script(Script(**what))

    # -- the operator ----------------------------------------------------------------------------------------------------

    def batch(self, size: Any, tgt: str = ALL, **options: Any) -> str:
        """Start a batch and return its jid."""
        words = [f"{name}={value}" for name, value in options.items()]
        return str(self._fleet.ask("batch.start", tgt, *JOB, f"batch={size}", *words)["jid"])

    def native_batch(self, size: int, tgt: str = ALL) -> str:
        """Start a batch of Salt 3008's own, and return its jid."""
        return self._fleet.publish(tgt, "-t", "5", "-b", str(size), *JOB)

    def publish(self, tgt: str = ALL) -> str:
        """Publish a job, as ``salt --async`` does, and return its jid."""
        return self._fleet.publish(tgt, *JOB)

    def ask(self, function: str, *args: Any) -> Any:
        """Call a function of a runner."""
        return self._fleet.ask(function, *args)

    def wait(self, jids: Iterable[str]) -> None:
        """Wait until batches have ended. Give up when nothing changes any more, which the verdict will show."""
        jids, counted, changed = list(jids), None, time.monotonic()
        while not self.are_over(jids):
            with contextlib.suppress(Exception):
                counts = [{name: self.ask("batch.status", jid)[name] for name in _CHANGES} for jid in jids]
                if counts != counted:
                    counted, changed = counts, time.monotonic()
            if time.monotonic() > changed + self.limit:
                return
            time.sleep(0.5)

    def are_over(self, jids: Iterable[str]) -> bool:
        """
        Tell whether batches have ended, and no minion runs them any more: after a halt some still do for a while.
        Batches that cannot be read now count as running.
        """
        with contextlib.suppress(Exception):
            return all(_is_over(self.ask("batch.status", jid)) for jid in jids)
        return False

    def queued(self) -> int:
        """Count the entries of the retry queue, without a request."""
        return sum(1 for _ in RetryStore(site_of(self.opts)).entries())

    def is_drained(self) -> bool:
        """
        Tell whether everything owed is settled, needs an operator, or has run and the master cannot learn of it any more.
        """
        if not self.queued():
            return True
        waiting = [entry for entry in self.ask("job_retry.list") if entry["state"] not in AT_REST]
        silent = self.crowd.report()[0].silent(time.monotonic() - wire.TRIES * wire.TIMEOUT)
        return all((entry["minion"], entry["jid"]) in silent for entry in waiting)

    def need(self, condition: Callable[[], Any], limit: float, what: str) -> None:
        """Wait for a condition that the scenario needs. :raises SystemExit: if it does not come true."""
        if not _wait(condition, limit, 0.5):
            tail = "\n".join(self._fleet.log_tail("master", 8))
            raise SystemExit(f"Not within {limit:g} s: {what}. The master's log ends with\n{tail}")

    # -- what goes wrong -------------------------------------------------------------------------------------------------

    def kill_engine(self, engine: str) -> bool:
        """Kill an engine; the master starts it again. Returns whether there was one."""
        pid = engine_pid(self.opts, engine)
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                at = self.mark(f"{engine} killed")
                self.spared.append((at, at))
        return pid is not None

    def freeze_bus(self, seconds: float) -> None:
        """Stop the process that forwards events for a while."""
        carriers = [process.pid for process in carriers_of(self.root)]
        self.mark("bus frozen")
        try:
            freeze(*carriers)
            time.sleep(seconds)
        finally:
            thaw(*carriers)

    def kill_bus(self) -> float:
        """
        Kill the process that forwards events, and return the time. Salt 3008 starts it again, in vain ("This event loop is
        already running").
        """
        for process in carriers_of(self.root):
            with contextlib.suppress(psutil.Error):
                process.kill()
        return self.mark("bus killed")

    def kill_master(self) -> None:
        """Kill all processes of the master at once."""
        begun = self.mark("master killed")
        kill_all(self.root)
        self.spared.append((begun, begun + 1e9))

    def start_master(self) -> None:
        """Start the master again, and wait until its engines run."""
        with contextlib.suppress(StepFailed):  # a busy machine takes longer
            self._fleet.start_master(**self._config)
        self.need(
            lambda: all(requests.is_running(self.opts, engine) for engine in ENGINES),
            self.limit,
            "the engines run again",
        )
        self.spared[-1] = (self.spared[-1][0], self.mark("master back"))

    @contextlib.contextmanager
    def full_disk(self) -> Iterator[None]:
        """No file of the master's can grow: each write of its processes fails, until the block is left."""
        begun = self.mark("disk full")
        self._limit(_SEMAPHORE)
        try:
            yield
        finally:
            self._limit(resource.RLIM_INFINITY)
            self.spared.append((begun, self.mark("disk free")))
            self.unstorable.append((begun, time.monotonic(), "the disk was full"))

    def _limit(self, most: int) -> None:
        limits, left = (most, resource.RLIM_INFINITY), True
        while left:  # again for processes that were started meanwhile by one that still had the old limit
            left = False
            for process in processes_of(self.root):
                with contextlib.suppress(psutil.Error, ProcessLookupError):
                    if process.rlimit(psutil.RLIMIT_FSIZE) != limits:
                        process.rlimit(psutil.RLIMIT_FSIZE, limits)
                        left = True


def _is_over(status: Mapping[str, Any]) -> bool:
    return status["state"] in ("complete", "halted") and not status["active"]


def _wait(condition: Callable[[], Any], limit: float, pause: float) -> bool:
    def then() -> Any:
        found = condition()
        if not found:
            time.sleep(pause)
        return found

    return bool(wait_for(then, limit))
