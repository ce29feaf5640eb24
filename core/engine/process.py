"""
What every engine process does around its work: take the lead, run a loop until the process ends, and write its figures into
a file for the textfile collector of Prometheus' node_exporter. Salt's master restarts an engine as soon as its start()
returns, so an engine that has nothing to do must wait.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import pathlib
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import salt.utils.event

from saltext.jobs.core import compat, lines
from saltext.jobs.core.boot import boot, since_boot
from saltext.jobs.core.disk import files
from saltext.jobs.core.disk.lease import Lead, Lease
from saltext.jobs.core.engine.loop import Clock, Worker
from saltext.jobs.core.engine.masters import Seat
from saltext.jobs.core.engine.proof import Returns
from saltext.jobs.core.engine.requests import Service
from saltext.jobs.core.errors import SettingsError, StateError
from saltext.jobs.core.ledger.tables import Tables
from saltext.jobs.core.lines import Quiet
from saltext.jobs.core.master.bus import Bus
from saltext.jobs.core.master.job_cache import JobCache
from saltext.jobs.core.master.publisher import Publisher
from saltext.jobs.core.master.questions import Questions
from saltext.jobs.core.metrics import Figures, History, figures_of, text_of
from saltext.jobs.core.options import require_seconds
from saltext.jobs.core.options.engines import EngineSettings
from saltext.jobs.core.site import site_of

log = lines.logger(__name__)

#: Seconds between two signs of life, and between two looks at a lock that another process holds.
_BEAT, _RETRY = 10.0, 1.0
#: Seconds between two writes of the file with the figures.
INTERVAL = 15.0

S = TypeVar("S", bound=EngineSettings)


@dataclass(frozen=True, kw_only=True)
class EnginePorts:
    """
    Through what an engine reaches the world; each wing adds its own. ``cache`` and ``returns`` are used in ``cache_worker``
    only, the engine's store in ``disk_worker``.
    """

    loop: Any  # the engine's tornado loop
    clock: Clock  # of deadlines
    wall: Callable[[], float] = time.time  # returns Unix time, as files have it
    bus: Bus
    publisher: Publisher
    questions: Questions
    cache: JobCache
    returns: Returns
    service: Service
    cache_worker: Worker
    disk_worker: Worker
    acks: bool = compat.HAS_START_EVENT  # minions say when they begin a job

    def close(self) -> None:
        for port in (self.service, self.bus, self.publisher, self.cache_worker, self.disk_worker):
            port.close()


class App(Protocol):
    """An engine's work on a loop."""

    #: Carries out the requests of runners. The verbs that every engine has are added to it.
    service: Service

    def start(self) -> None:
        """Begin; called once, on the loop."""

    def metrics(self) -> Figures:
        """Return the engine's figures."""

    def close(self) -> None:
        """Release everything; called once, when the loop has stopped, but not if the process is killed."""


def wait_for_the_end() -> None:
    """Do nothing until the master stops this process."""
    while True:
        signal.pause()


def master_age() -> float:
    """Return for how many seconds the master, the parent of an engine's process, has been running."""
    begun = _master_begun()
    # None: the master has just ended, and this process is about to.
    return math.inf if begun is None else max(0.0, since_boot() - begun / os.sysconf("SC_CLK_TCK"))


def run_of_master() -> str:
    """Return an id of this run of the master, the parent of an engine's process. It changes with each restart."""
    begun = _master_begun()
    return "" if begun is None else f"{os.getppid()}-{begun}-{boot()}"


def _master_begun() -> int | None:
    """Return the master's start in ticks since the boot, which does not change if a clock is set; None if it has ended."""
    try:
        status = pathlib.Path(f"/proc/{os.getppid()}/stat").read_bytes()
    except OSError:
        return None
    return int(status.rpartition(b")")[2].split()[19])  # starttime of proc(5), counted from the program's name


def run(opts: Mapping[str, Any], name: str, read: Callable[[], S], build: Callable[[S, Any, Lease], App]) -> None:
    """
    Run an engine until its process is stopped, or another one has taken over. ``read`` returns the engine's options, or
    raises SettingsError. ``build`` makes its App from these, the loop and the Lease that this process holds.
    """
    try:
        require_seconds(opts)
        _run(opts, name, read(), build)
    except (SettingsError, StateError) as exc:
        log.critical("The %s engine does not start: %s", name, exc)
        wait_for_the_end()
    except OSError as exc:  # Salt would log its traceback, and start another engine at once, each time
        log.critical("The %s engine does not start yet, and tries again: %s", name, exc)
        time.sleep(_BEAT)


def _run(opts: Mapping[str, Any], name: str, settings: S, build: Callable[[S, Any, Lease], App]) -> None:
    with contextlib.ExitStack() as stack:
        report = Report(settings.metrics_dir, name)
        site = site_of(opts)
        seat = Seat(opts, name, site, site.lease(name, run_of_master()), lambda *event: _fire(opts, *event))
        compat.at_signal(seat.leave)
        lease = _lead(site, name, seat, report)
        stack.callback(lease.release)
        site.open()
        loop = compat.new_loop()
        lease.on_lost = lambda: _end(name, loop)
        app = build(settings, loop, lease)
        stack.callback(app.close)
        loop.add_callback(app.start)

        def metrics() -> Figures:
            return {**app.metrics(), **seat.metrics()}

        history = History()
        app.service.verbs |= {"metrics": lambda _: figures_of(metrics()), "history": lambda _: history.told()}
        if settings.metrics_dir:
            loop.add_callback(_every, loop, INTERVAL, lambda: report.write(metrics()))
        loop.add_callback(_every, loop, History.INTERVAL, lambda: history.take(time.time(), metrics()))
        loop.add_callback(_every, loop, _BEAT, seat.say)
        log.info("The %s engine runs", name)
        loop.start()
    # The loop ends only when the lead is lost. Salt restarts the engine, which then waits for its turn.
    seat.leave()


def _fire(opts: Mapping[str, Any], tag: str, data: dict[str, Any]) -> None:
    with salt.utils.event.get_master_event(dict(opts), opts["sock_dir"], listen=False) as bus:
        bus.fire_event(data, tag)


def _end(name: str, loop: Any) -> None:
    log.error("The %s engine ends: while it was frozen or cut off, another one has taken over", name)
    lines.logger("saltext.jobs").setLevel(logging.CRITICAL)  # that all it has begun fails now is no news
    loop.add_callback(loop.stop)


def _every(loop: Any, seconds: float, call: Callable[[], object]) -> None:
    """Call now, and again and again, as long as the loop runs."""
    loop.call_later(seconds, _every, loop, seconds, call)
    call()


def _lead(site: Tables, name: str, seat: Seat, report: Report) -> Lease:
    """Wait until no other process works as this engine, saying that this one stands by, and return the lead."""
    told, said_at = "", -math.inf
    while True:
        try:
            if seat.take():
                return seat.lease
            why = _why_it_waits(site.lead(name))
        except OSError as exc:
            why = f"it cannot take the lead: {exc}"
        if why != told:
            log.warning("The %s engine waits for its turn: %s", name, why)
            told = why
        if time.monotonic() - said_at >= _BEAT:
            said_at = time.monotonic()
            seat.say()
            report.write(seat.metrics())
        time.sleep(_RETRY)


def _why_it_waits(lead: Lead | None) -> str:
    why = f"process {lead.process} has the lead" if lead and lead.process else "another process has the lead"
    return f"{why} and shows no sign of life: see whether it hangs; if so, end it" if lead and lead.hangs else why


# -- the figures ----------------------------------------------------------------------------------------------------------


class Report:
    """Writes an engine's figures into a file in ``folder``, which the collector reads; nothing if that is empty."""

    def __init__(self, folder: str, engine: str, wall: Callable[[], float] = time.time) -> None:
        self._folder, self._path = folder, pathlib.Path(folder, f"saltext_jobs_{engine}.prom")
        self._engine, self._wall, self._quiet = engine, wall, Quiet(log)

    def write(self, figures: Figures) -> None:
        """Write the figures, with the time; that this fails is logged."""
        if not self._folder:
            return
        text = text_of({**figures, "written_timestamp_seconds": {self._engine: self._wall()}})
        try:
            # The directory is not made here: the collector might have no right to enter it.
            if not self._path.parent.is_dir():
                raise FileNotFoundError(f"there is no directory {self._path.parent}; make it, or correct metrics_dir")
            files.write_atomic(self._path, text.encode(), mode=0o644)  # the collector runs as another user
        except OSError as exc:
            self._quiet.error("metrics", "The metrics cannot be written to %s: %s", self._path, exc)
