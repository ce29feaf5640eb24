"""
Which masters have an engine, and which of them leads; and how an engine waits for the lead, and holds it.

Only the lock or the lease says which master leads. Besides, each master's engine says every ten seconds that it is there:
it writes a file of its own in the engine's folder. If that file is old, the master may be gone, or cut off from the disk or
the server.
"""

from __future__ import annotations

import hashlib
import math
import os
import socket
import time
import urllib.parse
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import salt.version

from saltext.jobs.core import lines
from saltext.jobs.core.compat import minion_keys
from saltext.jobs.core.disk.lease import Lease
from saltext.jobs.core.engine import requests
from saltext.jobs.core.engine.names import BATCH_MANAGER, JOB_NOTICES, JOB_RECORDER, JOB_RETRY
from saltext.jobs.core.errors import StateError
from saltext.jobs.core.master import events
from saltext.jobs.core.metrics import Figures
from saltext.jobs.core.site import Folder, Site, read_msgpack, site_of, write_msgpack
from saltext.jobs.core.version import VERSION

log = lines.logger(__name__)

#: The engines that one master leads for all.
LED = (JOB_NOTICES, JOB_RECORDER, JOB_RETRY, BATCH_MANAGER)
#: Longest silence in seconds of a master that counts as there.
KNOWN = requests.SILENT
#: Seconds of silence after which a master is forgotten.
_FORGOTTEN = 86400.0
#: In an engine's folder: where masters say that they are there.
_BELOW = "masters"


class Master(NamedTuple):
    """
    What the engine of a master has said of itself.

    ``ends``: whether its process was about to end, or has lost the lead since; Salt then starts another. ``keys``: a digest
    of the accepted minions, in a site of several masters. ``silent``: seconds since it wrote this.
    ``ahead``: seconds by which its clock was ahead of the site's. ``refused``: how often it was kept from doing something
    because it did not lead, or could not tell whether it did.
    """

    name: str
    host: str = ""
    pid: int = 0
    version: str = ""
    salt: str = ""
    job_cache: str = ""
    keys: str = ""
    refused: int = 0
    ends: bool = False
    silent: float = 0.0
    ahead: float = 0.0

    @property
    def is_known(self) -> bool:
        """Whether it is known to be there."""
        return self.silent <= KNOWN and not self.ends


def job_cache_of(opts: Mapping[str, Any]) -> str:
    """Return which job cache a master has, in words for people."""
    keeper = opts.get("ext_job_cache") or opts.get("master_job_cache")
    return f"{keeper} with cache: {opts.get('cache')}" if keeper == "salt_cache" else str(keeper)


def keys_of(opts: Mapping[str, Any]) -> str:
    """Return a digest of the minions whose keys a master of a site has accepted; empty for one master alone."""
    names = sorted(minion_keys(opts)[0]) if opts.get("saltext_jobs_site") else []
    return hashlib.blake2b("\n".join(names).encode(), digest_size=8).hexdigest() if names else ""


def say(
    opts: Mapping[str, Any], folder: Folder, refused: int, wall: Callable[[], float], epoch: int = 0, ends: bool = False
) -> None:
    """Say that this master's engine is there, leading in this epoch or (0) standing by; or that it ends. :raises OSError:"""
    told = {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "version": VERSION,
        "salt": salt.version.__version__,
        "job_cache": job_cache_of(opts),
        "keys": keys_of(opts),
        "refused": refused,
        "epoch": epoch,
        "ends": ends,
        "wall": wall(),
    }
    write_msgpack(folder, _name_of(str(opts.get("id") or "")), told)


def masters_of(site: Site, engine: str) -> list[Master]:
    """Return the masters that have said within a day that their engine is there, sorted. :raises OSError:"""
    folder, now, leader = site.folder(engine), site.now(), site.leader(engine) if site.is_led(engine) else None
    epochs = (0, leader.epoch if leader is not None else 0)
    found = [_master(folder, name, now, epochs) for name in folder.names(_BELOW)]
    return [master for master in found if master is not None and master.silent < _FORGOTTEN]


def _master(folder: Folder, name: str, now: float, epochs: tuple[int, int]) -> Master | None:
    try:
        told, at = read_msgpack(folder, name), folder.modified(name)
        texts = {key: str(told[key]) for key in ("host", "version", "salt", "job_cache", "keys")}
        numbers = {"pid": int(told["pid"]), "refused": int(told["refused"])}
        spoken = {"silent": max(0.0, now - at), "ahead": float(told["wall"]) - at}
        ends = bool(told["ends"]) or told["epoch"] not in epochs
    except (FileNotFoundError, StateError, KeyError, TypeError, ValueError):
        return None  # another version wrote it, or something that is not ours
    master = urllib.parse.unquote(name.removeprefix(f"{_BELOW}/").removesuffix(".master"))
    return Master(name=master, ends=ends, **texts, **numbers, **spoken)  # type: ignore[arg-type]


def _name_of(master: str) -> str:
    quoted = urllib.parse.quote(master, safe="")
    # A name that begins with a dot is that of an unfinished file.
    return f"{_BELOW}/{'%2E' + quoted[1:] if quoted.startswith('.') else quoted}.master"


# -- for runners --------------------------------------------------------------------------------------------------------


def standing(opts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of ``batch.masters``. :raises OSError, SiteAway: when the site cannot be reached."""
    site = site_of(opts)
    began = time.monotonic()
    site.now()
    answered = time.monotonic() - began
    engines = {engine: _engine(site, engine) for engine in reversed(LED)}
    return {
        "master": str(opts.get("id") or ""),
        "site": site.place,
        "store": "ok",
        "store_seconds": round(answered, 4),
        "engines": {engine: found for engine, found in engines.items() if found["leader"] or found["masters"]},
    }


def _engine(site: Site, engine: str) -> dict[str, Any]:
    leader, now = site.leader(engine) if site.is_led(engine) else None, site.now()
    alive, left = site.alive_at(engine), site.lease_left(engine)
    return {
        "leader": leader and leader.master,
        "process": leader and str(leader),
        "since": leader.epoch / 1e6 if leader else None,
        "epoch": leader.epoch if leader else None,
        "beat_seconds": round(max(0.0, now - alive), 1) if leader and alive is not None else None,
        "lease_seconds": round(left, 1) if leader and left is not None else None,
        "masters": {
            master.name: {
                "state": _state(master, leader.master if leader else ""),
                "silent_seconds": round(master.silent, 1),
                "host": master.host,
                "version": master.version,
                "salt": master.salt,
                "ahead_seconds": round(master.ahead, 1),
                "refused": master.refused,
            }
            for master in masters_of(site, engine)
        },
    }


def _state(master: Master, leader: str) -> str:
    if master.name == leader:
        return "leads"
    return "stands by" if master.is_known else "not known"


# -- an engine's place among the masters -----------------------------------------------------------------------------------


class Seat:
    """
    An engine's place among those of all masters: it waits for the lead, holds it, and leaves it when its process ends.

    :param opts: the master's options.
    :param engine: the engine's name.
    :param site: what the masters have in common.
    :param lease: the lead, for this process.
    :param fire: puts an event on this master's bus: (tag, data).
    :param steady: returns seconds that only rise; ``wall``: Unix time.
    """

    def __init__(
        self,
        opts: Mapping[str, Any],
        engine: str,
        site: Site,
        lease: Lease,
        fire: Callable[[str, dict[str, Any]], None],
        steady: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.lease = lease
        self._opts, self._engine, self._fire = opts, engine, fire
        self._steady, self._wall = steady, wall
        self._folder = site.folder(engine)  # without the lease, since masters that do not lead write there too
        self._said_at = -math.inf
        self._is_up = True

    def take(self) -> bool:
        """
        Take the lead if no process has it, and tell whether this process has it now; if not, say that it stands by.

        :raises OSError, StateError: as the lease does.
        """
        if not self.lease.take():
            self.say()
            return False
        self._after_taking()
        self.say(at_once=True)
        return True

    def _after_taking(self) -> None:
        before, leader = self.lease.predecessor, self.lease.leader
        if before is None or leader is None or before.master == leader.master:
            return
        log.warning("The %s engine takes over from process %s", self._engine, before)
        data = {"engine": self._engine, "master": leader.master, "former": before.master, "epoch": leader.epoch}
        try:
            self._fire(events.taken_over_tag(self._engine), data)
        except Exception as exc:  # Salt's client raises many kinds
            log.debug("The bus was not told who leads the %s engine: %s", self._engine, exc)

    def beat(self) -> None:
        """Say that this process, which leads, is alive. :raises OSError: as the lease does."""
        try:
            self.lease.beat()
        except OSError:
            self._is_up = False
            raise
        self._is_up = True
        self.say(at_once=True)

    def say(self, at_once: bool = False, ends: bool = False) -> None:
        """Say that the engine is there, or that its process ends; unless ``at_once``, only every ``BEAT`` seconds."""
        began = self._steady()
        if not at_once and began - self._said_at < requests.BEAT:
            return
        try:
            say(self._opts, self._folder, self.lease.refused, self._wall, 0 if ends else self.lease.epoch, ends)
            self._said_at, self._is_up = began, True
        except OSError as exc:
            self._is_up = False
            log.debug("The %s engine cannot say that it is there: %s", self._engine, exc)

    def metrics(self) -> Figures:
        """Return the figures of the lead, which the engine of each master has."""
        leads, left = self.lease.leader is not None, self.lease.left
        found: dict[str, float] = {
            "leader": leads,
            "fenced_total": self.lease.refused,
            "site_up": self._is_up,
        }
        if leads and left is not None:
            found["lease_left_seconds"] = left
        return {name: {self._engine: value} for name, value in found.items()}

    def leave(self) -> None:
        """Leave a lease to the next one and say so, since Salt ends this process. A lock is held to the very end."""
        if self.lease.left is not None:
            self.lease.release()
        self.say(at_once=True, ends=True)
