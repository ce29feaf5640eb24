"""
Samples once a second, in a process of its own, what a master costs while a scenario runs, and whether its engines answer.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import multiprocessing
import os
import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

import psutil

from demo.fleet import quiet_salt
from saltext.jobs.core.engine import requests
from saltext.jobs.core.engine.names import BATCH_MANAGER, JOB_RETRY
from saltext.jobs.core.errors import StateError
from saltext.jobs.core.site import site_of

ENGINES = (BATCH_MANAGER, JOB_RETRY)
#: What carries events from one process to another.
_CARRIER = "publisher of events"
#: For each kind of process that is reported: the part of a process title by which it is known.
_KINDS = {
    "Salt's own batch manager": "BatchManager",
    "workers": "MWorker-",
    _CARRIER: "EventPublisher",
    "publisher of jobs": "PubServerChannel",
    "router": "MWorkerQueue",
}
_EVERY = 1.0
#: Seconds after which a request is given up.
_PATIENCE = 20.0


@dataclasses.dataclass(frozen=True)
class Answer:
    """
    An engine's answer to a runner's request.

    ``seconds``: until it came, or until the request was given up; ``came`` says which. ``waited``: how many of these seconds
    the engine, or a process that carries the request to it, waited for a core. The engine is not to blame for those.
    """

    seconds: float
    waited: float = 0.0
    came: bool = True

    @property
    def own(self) -> float:
        """Seconds that it would have taken on a machine with a core for every process."""
        return max(0.0, self.seconds - self.waited)


@dataclasses.dataclass(frozen=True)
class Load:
    """Of the processes of one kind: CPU seconds, resident bytes, open files, and bytes written (sockets too)."""

    cpu: float
    resident: int
    files: int
    written: int


@dataclasses.dataclass(frozen=True)
class Sample:
    """
    ``kinds``: the Load of each kind; CPU time and bytes are those since the start, of processes that have ended too.
    ``answered``: for each engine that runs, how it answered a runner's request that was made then.
    ``left``: how many files the engines keep, and bytes of them. ``processes``: the process of each engine that runs.
    """

    at: float
    kinds: Mapping[str, Load]
    answered: Mapping[str, Answer]
    left: tuple[int, int]
    processes: Mapping[str, int] = dataclasses.field(default_factory=dict)


def engine_pid(opts: Mapping[str, Any], engine: str) -> int | None:
    """Return the process of an engine: the one that holds its lock (proc_locks(5)), or its lease in a database."""
    with contextlib.suppress(OSError, StateError):
        site = site_of(opts)
        if site.is_far:
            lead = site.lead(engine)
            return lead.process.pid if lead and lead.process else None
        number = (site.folder(engine) / "lock").stat().st_ino
        for line in pathlib.Path("/proc/locks").read_text().splitlines():
            words = line.split()
            # Those who look who leads share the lock for a moment: theirs is a lock to READ.
            is_lead = (words[1], words[3]) == ("FLOCK", "WRITE") and int(words[5].rsplit(":", 1)[1]) == number
            if is_lead and int(words[4]) > 0:
                return int(words[4])
    return None


def carriers_of(root: pathlib.Path) -> list[psutil.Process]:
    """Return the processes that hand on the events of the master whose files are below a folder."""
    title = _KINDS[_CARRIER]
    return [process for process in processes_of(root) if title in " ".join(process.info["cmdline"] or ())]


def processes_of(root: pathlib.Path) -> list[psutil.Process]:
    """Return the daemons and commands whose files are below a folder, and all that they have started."""
    every = {process.pid: process for process in psutil.process_iter(["cmdline", "ppid"])}

    def belongs(process: psutil.Process | None) -> bool:
        # Some do not name the folder: the title of the process that hands on events is a single word.
        while process is not None:
            if str(root) in " ".join(process.info["cmdline"] or ()):
                return True
            process = every.get(process.info["ppid"])
        return False

    return [process for pid, process in every.items() if pid != os.getpid() and belongs(process)]


def kill_all(root: pathlib.Path) -> None:
    """Kill the processes of a folder, and those that one of them has begun meanwhile, such as an engine that died before."""
    while left := processes_of(root):
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()


class Watch:
    """
    Begins to look at once.

    :param opts: the master's options. :param root: the folder below which all its files are.
    """

    def __init__(self, opts: Mapping[str, Any], root: pathlib.Path) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_look, args=(dict(opts), root, theirs), daemon=True)
        self._process.start()

    def read(self) -> list[Sample]:
        """Return what was seen until now."""
        self._pipe.send("read")
        found: list[Sample] = self._pipe.recv()
        return found

    def end(self) -> None:
        with contextlib.suppress(OSError):  # it may have ended itself
            self._pipe.send("end")
        self._process.join(15)
        if self._process.is_alive():
            self._process.kill()


def _look(opts: dict[str, Any], root: pathlib.Path, pipe: Any) -> None:
    quiet_salt()
    samples: list[Sample] = []
    spent: dict[tuple[int, float], tuple[str, float, int]] = {}
    while True:
        began = time.monotonic()
        samples.append(_sample(opts, root, spent))
        while pipe.poll(max(0.0, began + _EVERY - time.monotonic())):
            if pipe.recv() == "end":
                return
            pipe.send(samples)


def _sample(opts: dict[str, Any], root: pathlib.Path, spent: dict[tuple[int, float], tuple[str, float, int]]) -> Sample:
    begun = time.monotonic()
    engines = {engine_pid(opts, engine): engine for engine in ENGINES}
    now: dict[str, list[int]] = collections.defaultdict(lambda: [0, 0])
    carriers = [os.getpid()]
    for process in processes_of(root):
        with contextlib.suppress(psutil.Error), process.oneshot():
            known = spent.get((process.pid, process.create_time()), ("",))[0]
            # A process that is about to end has no lock any more, but is still of its kind.
            kind = engines.get(process.pid) or (known if known in ENGINES else _kind(process.info["cmdline"] or ()))
            carriers += [process.pid] * (kind == _CARRIER)
            memory, times = process.memory_info().rss, process.cpu_times()
            written = process.io_counters().write_chars
            spent[process.pid, process.create_time()] = (kind, times.user + times.system, written)
            now[kind][0] += memory
            now[kind][1] += process.num_fds()
    total: dict[str, list[float]] = collections.defaultdict(lambda: [0.0, 0])
    for kind, seconds, written in spent.values():
        total[kind][0] += seconds
        total[kind][1] += written
    kinds = {kind: Load(cpu, now[kind][0], now[kind][1], int(bytes_)) for kind, (cpu, bytes_) in total.items()}
    running = [engine for engine in ENGINES if _is_running(opts, engine)]
    answered = {engine: _ask(opts, engine, [*carriers, engine_pid(opts, engine)]) for engine in running}
    processes = {engine: pid for pid, engine in engines.items() if pid is not None}
    return Sample(begun, kinds, answered, files_left(pathlib.Path(opts["cachedir"]) / "saltext_jobs"), processes)


def _is_running(opts: Mapping[str, Any], engine: str) -> bool:
    with contextlib.suppress(OSError):  # the database may be away
        return requests.is_running(opts, engine)
    return False


def _kind(words: Sequence[str]) -> str:
    title = " ".join(words)
    return next((kind for kind, part in _KINDS.items() if part in title), "others")


def _ask(opts: dict[str, Any], engine: str, processes: Sequence[int | None]) -> Answer:
    """Ask an engine for its figures, as ``batch.stats`` does. ``processes``: what a request passes through."""
    begun, before = time.monotonic(), _waited(processes)
    try:
        requests.ask(opts, engine, {"do": "metrics"}, patience=_PATIENCE)
        came = True
    except Exception:
        came = False
    return Answer(time.monotonic() - begun, _waited(processes) - before, came)


def _waited(processes: Sequence[int | None]) -> float:
    """Return for how many seconds the main threads of processes have waited for a core (proc(5): schedstat)."""
    found = 0.0
    for pid in processes:
        with contextlib.suppress(OSError, ValueError, IndexError):
            found += int(pathlib.Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    return found


def files_left(folder: pathlib.Path) -> tuple[int, int]:
    """Count files and their bytes."""
    count = size = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                count, size = count + 1, size + os.stat(os.path.join(place, name)).st_size
    return count, size


def difference(samples: list[Sample], since: float, until: float) -> dict[str, tuple[float, int]]:
    """Return ``{kind: (CPU seconds, bytes written)}`` between two times."""
    before = max((sample for sample in samples if sample.at <= since), key=lambda s: s.at, default=samples[0])
    after = min((sample for sample in samples if sample.at >= until), key=lambda s: s.at, default=samples[-1])
    nothing = Load(0.0, 0, 0, 0)
    return {
        kind: (load.cpu - before.kinds.get(kind, nothing).cpu, load.written - before.kinds.get(kind, nothing).written)
        for kind, load in after.kinds.items()
    }
