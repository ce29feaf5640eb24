"""
Three real masters with a site on PostgreSQL, and a crowd of featherweight minions that are connected to all of them.

The masters listen on 127.0.0.1 to 127.0.0.3. They share their ports, their keys and the database, and nothing else. This
must never touch a process that it has not started.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import psutil
import salt.client
import salt.config
import salt.crypt
import salt.loader

from benchmarks.fleet import wire
from benchmarks.fleet.crowd import Handle
from benchmarks.fleet.site import ALL, JOB, Site
from benchmarks.fleet.takeover import Lead
from benchmarks.fleet.watch import ENGINES, Watch, engine_pid, kill_all, processes_of
from demo.fleet import Fleet
from saltext.jobs.core.engine import requests
from saltext.jobs.core.ledger.requests import Requests
from saltext.jobs.core.site import site_of
from tests.faults import freeze, thaw
from tests.postgresql import PostgreSQL

NAMES = ("hot1", "hot2", "hot3")
#: Seconds between two looks at who leads.
_LOOK = 0.25
_SETTLED = re.compile(rb"The (\w+) engine (?:runs|waits for its turn)")


class Database:
    """A PostgreSQL server on a free port; it syncs each commit. Use it as a context manager."""

    def __enter__(self) -> Database:
        self._server = PostgreSQL("shared_buffers=64MB", "max_connections=300")
        place = {"host": "127.0.0.1", "port": self._server.port, "user": "salt", "db": "postgres"}
        self.options: dict[str, object] = {f"postgresql.{name}": value for name, value in place.items()}
        self.options |= {"cache": "postgresql", "saltext_jobs_site": "postgresql"}
        return self

    def __exit__(self, *_: object) -> None:
        thaw(*self._processes())
        self._server.remove()

    def start(self) -> None:
        """Start it, and wait until it takes connections."""
        self._server.start()

    def stop(self) -> None:
        """Stop it as a crash does."""
        self._server.stop()

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Freeze the server and its sessions until the block is left."""
        freeze(self._server.process.pid)  # first, so that it starts no more sessions
        processes = self._processes()
        freeze(*processes)
        try:
            yield
        finally:
            thaw(*processes)

    def cpu(self) -> float:
        """Return the CPU seconds of the server and its sessions, with those that have ended."""
        with contextlib.suppress(psutil.Error):
            server = psutil.Process(self._server.process.pid)
            own = sum(server.cpu_times()[:4])
            return float(own + sum(sum(each.cpu_times()[:2]) for each in server.children()))
        return 0.0

    def _processes(self) -> list[int]:
        """Return the ids of the server and its sessions; none if it is stopped."""
        if self._server.process is None:
            return []
        server = psutil.Process(self._server.process.pid)
        return [server.pid, *(session.pid for session in server.children())]


def _share_key(folder: pathlib.Path) -> None:
    """Make one key for all masters. Each master looks for it under its own id."""
    salt.crypt.write_keys(str(folder), NAMES[0], 2048)
    for name in NAMES[1:]:
        for suffix in (".pem", ".pub"):
            shutil.copy(folder / f"{NAMES[0]}{suffix}", folder / f"{name}{suffix}")


class Masters(Site):
    """
    As ``Site``. When entered, all three masters run, one of them leads, and no minion is there. The operator's commands run
    with the options of the first master. They work while that master is dead too: all that matters is in the database.
    """

    def __enter__(self) -> Masters:
        with contextlib.ExitStack() as stack:
            self._fleet = stack.enter_context(Fleet())
            self.root = self._fleet.root
            keys = self.root / "pki"
            own = wire.accept({"pki_dir": str(keys)}, self.names)
            _share_key(keys)
            self._configs = []
            for number, name in enumerate(NAMES, 1):
                home = self._fleet.config(name)
                home.mkdir()
                (home / "pki").symlink_to(keys)  # Salt accepts no folder outside a master's root_dir
                own_places = {"pki_dir": str(home / "pki"), "cachedir": str(home / "cache")}
                self._configs.append({**self._options, "id": name, "interface": f"127.0.0.{number}", **own_places})
            for number, name in enumerate(NAMES):
                self._start(number)
                self.need(lambda number=number: self.is_ready(number), 120, f"{name} runs")
            self.every = [salt.config.master_config(str(self.root / name / "master")) for name in NAMES]
            self.opts = self.every[0]
            self._runners = salt.loader.runner(self.opts)
            self._site = site_of(self.opts)
            self.crowd = Handle(self.every, own, self.names, self._executor, keeps=True)
            stack.callback(self.crowd.end)
            self.watch = Watch(self.opts, self.root)
            stack.callback(self.watch.end)
            #: The leaders, and since when each led.
            self.leads: list[Lead] = []
            self._is_over = threading.Event()
            looks = threading.Thread(target=self._look, daemon=True)
            looks.start()
            stack.callback(looks.join)
            stack.callback(self._is_over.set)
            self._stack = stack.pop_all()
        return self

    # -- who leads -----------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        known: dict[str, int] = {}
        while not self._is_over.wait(_LOOK):
            for engine in ENGINES:
                with contextlib.suppress(OSError):
                    leader = self._site.leader(engine)
                    if leader is not None and leader.epoch != known.get(engine):
                        known[engine] = leader.epoch
                        # An epoch is the Unix time at which it began, in microseconds.
                        at = time.monotonic() - (time.time() - leader.epoch / 1e6)
                        self.leads.append(Lead(at, engine, leader.master, leader.epoch))

    def leader(self, engine: str) -> int | None:
        """Return the number of the master that leads an engine; None if none does, or if that is not known."""
        with contextlib.suppress(OSError):
            process = requests.process_of(self.opts, engine)
            if process is not None and process.master in NAMES:
                return NAMES.index(process.master)
        return None

    def led_by(self, number: int) -> frozenset[str]:
        """Return the engines that a master leads."""
        return frozenset(engine for engine in ENGINES if self.leader(engine) == number)

    def are_led(self) -> bool:
        """Tell whether each engine has a leader."""
        return all(self.leader(engine) is not None for engine in ENGINES)

    # -- the operator ----------------------------------------------------------------------------------------------------

    def ask(self, function: str, *args: Any, **options: Any) -> Any:
        """Call a function of a runner. Raises what it raises."""
        return self._runners[function](*args, **options)

    def batch(self, size: Any, tgt: str = ALL, **options: Any) -> str:
        """Start a batch and return its jid."""
        return str(self.ask("batch.start", tgt, *JOB, batch=size, **options)["jid"])

    def publish(self, tgt: str = ALL, number: int = 0) -> str:
        """Publish a job at a master, and return its jid."""
        with salt.client.LocalClient(mopts=dict(self.every[number])) as client:
            return str(client.run_job(tgt, JOB[0], [JOB[1]], listen=False)["jid"])

    def unanswered(self) -> list[str]:
        """Return the names of the requests that no engine has answered."""
        return [request.id for engine in ENGINES for request in Requests(self._site, engine).open()]

    # -- what goes wrong -------------------------------------------------------------------------------------------------

    def kill(self, number: int) -> float:
        """Kill all processes of a master at once, and return when."""
        at = self.mark(f"{NAMES[number]} killed")
        kill_all(self.root / NAMES[number])
        return at

    def start_again(self, number: int) -> None:
        """Start a master again, and wait until its engines lead or wait for their turn."""
        self._start(number)
        self.need(lambda: self.is_ready(number), self.limit, f"{NAMES[number]} runs again")
        self.mark(f"{NAMES[number]} back")

    @contextlib.contextmanager
    def frozen(self, number: int) -> Iterator[None]:
        """Freeze all processes of a master until the block is left."""
        processes = [process.pid for process in processes_of(self.root / NAMES[number])]
        self.mark(f"{NAMES[number]} frozen")
        try:
            freeze(*processes)
            yield
        finally:
            thaw(*processes)
            self.mark(f"{NAMES[number]} wakes")

    def kill_engine(self, engine: str) -> bool:
        """Kill the process of an engine that leads. Returns whether there was one."""
        pid = engine_pid(self.opts, engine)
        if pid is not None:
            self.mark(f"{engine} killed")
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return pid is not None

    def is_ready(self, number: int) -> bool:
        """Tell whether the engines of a master lead or wait for their turn, since its last start."""
        with contextlib.suppress(FileNotFoundError), self._log(number).open("rb") as log:
            log.seek(self._read[number])
            return {found.decode() for found in _SETTLED.findall(log.read())} >= set(ENGINES)
        return False

    def _start(self, number: int) -> None:
        log = self._log(number)
        self._read = {**getattr(self, "_read", {}), number: log.stat().st_size if log.exists() else 0}
        self._fleet.start_master(NAMES[number], leads=False, **self._configs[number])

    def _log(self, number: int) -> pathlib.Path:
        return self._fleet.config(NAMES[number]) / "log"

    def save_log(self, path: pathlib.Path) -> None:
        """Save the logs of the masters, one after the other."""
        path.write_bytes(
            b"".join(b"== %s\n" % name.encode() + self._log(n).read_bytes() for n, name in enumerate(NAMES))
        )
