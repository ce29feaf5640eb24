"""
Which masters have an engine, and which of them leads; and how an engine waits for the lead, and holds it.

Only the lock or the lease says which master leads. Besides, each master's engine says every ten seconds, in its own row,
that it is there. If that is old, the master may be gone, or cut off from the server.
"""

from __future__ import annotations

import contextlib
import hashlib
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import salt.payload
import salt.version

from saltext.jobs import __version__ as VERSION
from saltext.jobs.core import lines
from saltext.jobs.core.compat import minion_keys
from saltext.jobs.core.disk.lease import SILENT, Lease
from saltext.jobs.core.engine.names import ENGINES
from saltext.jobs.core.ledger.tables import META, Tables
from saltext.jobs.core.master import events
from saltext.jobs.core.metrics import Figures
from saltext.jobs.core.site import site_of

log = lines.logger(__name__)

#: Seconds of silence after which a master is forgotten.
_FORGOTTEN = 86400.0
#: How a master that does not lead stands, by whether it is known.
_STANDS = {True: "stands by", False: "not known"}
#: The group (``META.below``) in which each master has a value by its id.
_GROUP = "masters"


class Master(NamedTuple):
    """What the engine of a master has said of itself, until it ended."""

    name: str
    host: str
    version: str
    salt: str
    job_cache: str
    keys: str  # a digest of the accepted minions, in a site of several masters
    refused: int  # how often it was kept from doing something because it did not lead, or could not tell
    silent: float  # seconds since it said this
    ahead: float  # seconds by which its clock was ahead of the site's

    @property
    def is_known(self) -> bool:
        return self.silent <= SILENT


def described(opts: Mapping[str, Any]) -> dict[str, str]:
    """
    Return what all masters of a site should have alike: versions, the job cache in words for people, and a digest of the
    minions whose keys are accepted, which is empty for one master alone.
    """
    keeper = opts.get("ext_job_cache") or opts.get("master_job_cache")
    names = sorted(minion_keys(opts)[0]) if opts.get("saltext_jobs_site") else []
    return {
        "version": VERSION,
        "salt": salt.version.__version__,
        "job_cache": f"{keeper} with cache: {opts.get('cache')}" if keeper == "salt_cache" else str(keeper),
        "keys": hashlib.blake2b("\n".join(names).encode(), digest_size=8).hexdigest() if names else "",
    }


def masters_of(tables: Tables, engine: str) -> list[Master]:
    """Return the masters that have said within a day that their engine is there, sorted. :raises OSError:"""
    found = []
    for name, (body, at, age) in META.below(tables, engine, _GROUP).items():
        with contextlib.suppress(Exception):  # another version has written it
            told = salt.payload.loads(body)
            found.append(Master(name, ahead=told.pop("wall") - at, silent=max(0.0, age), **told))
    return [master for master in found if master.silent < _FORGOTTEN]


# -- for runners --------------------------------------------------------------------------------------------------------


def standing(opts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of ``batch.masters``. :raises OSError, SiteAway: when the site cannot be reached."""
    site = site_of(opts)
    began = time.monotonic()
    site.name()
    answered = time.monotonic() - began
    engines = {engine: _engine(site, engine) for engine in ENGINES}
    return {
        "master": str(opts.get("id") or ""),
        "site": site.place,
        "store": "ok",
        "store_seconds": round(answered, 4),
        "engines": {engine: found for engine, found in engines.items() if found["leader"] or found["masters"]},
    }


def _engine(site: Tables, engine: str) -> dict[str, Any]:
    lead = site.lead(engine)
    leader, silent, left = lead or (None, None, None)
    return {
        "leader": leader and leader.master,
        "process": leader and str(leader),
        "since": leader and leader.since,
        "epoch": leader and leader.epoch,
        "beat_seconds": None if silent is None else round(silent, 1),
        "lease_seconds": None if left is None else round(left, 1),
        "masters": {
            master.name: {
                "state": "leads" if leader and master.name == leader.master else _STANDS[master.is_known],
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


# -- an engine's place among the masters -----------------------------------------------------------------------------------


class Seat:
    """
    An engine's place among those of all masters: it takes the lead, holds it, and leaves it when its process ends. ``fire``
    puts an event (tag, data) on this master's bus.
    """

    def __init__(
        self,
        opts: Mapping[str, Any],
        engine: str,
        site: Tables,
        lease: Lease,
        fire: Callable[[str, dict[str, Any]], None],
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.lease = lease
        self._opts, self._engine, self._tables, self._fire, self._wall = opts, engine, site, fire, wall
        self._is_up = True

    def take(self) -> bool:
        """Take the lead if no process has it, and tell whether this one has it now. :raises OSError, StateError:"""
        if not self.lease.take():
            return False
        self.say()
        before, leader = self.lease.predecessor, self.lease.leader
        if before is not None and leader is not None and before.master != leader.master:
            log.warning("The %s engine takes over from process %s", self._engine, before)
            with contextlib.suppress(OSError):  # it is listed until it has been silent for long
                self._keep(before.master, None)
            data = {"engine": self._engine, "master": leader.master, "former": before.master, "epoch": leader.epoch}
            try:
                self._fire(events.taken_over_tag(self._engine), data)
            except Exception as exc:  # Salt's client raises many kinds
                log.debug("The bus was not told who leads the %s engine: %s", self._engine, exc)
        return True

    def say(self) -> None:
        """Say that the engine is there, leading or standing by, if that is possible; if not, a leader seems to hang."""
        try:
            if self.lease.leader is not None:
                self.lease.beat()
            more = {"host": socket.gethostname(), "refused": self.lease.refused, "wall": self._wall()}
            self._keep(self._opts.get("id"), salt.payload.dumps({**described(self._opts), **more}))
            self._is_up = True
        except OSError as exc:
            self._is_up = False
            log.debug("The %s engine cannot say that it is there: %s", self._engine, exc)

    def _keep(self, master: object, told: bytes | None) -> None:
        META.keep(self._tables, self._engine, f"{_GROUP}/{master or ''}", told)

    def metrics(self) -> Figures:
        """Return the figures of the lead, which the engine of each master has."""
        leads, left = self.lease.leader is not None, self.lease.left
        found: dict[str, float] = {"leader": leads, "fenced_total": self.lease.refused, "site_up": self._is_up}
        if leads and left is not None:
            found["lease_left_seconds"] = left
        return {name: {self._engine: value} for name, value in found.items()}

    def leave(self) -> None:
        """Leave a lease to the next one, since this process ends. A lock is held to the very end."""
        if self.lease.left is not None:
            self.lease.release()
        with contextlib.suppress(OSError):
            self._keep(self._opts.get("id"), None)
