"""
Which masters have an engine, and which of them leads; and how an engine waits for the lead, holds it, and hands it over.

Only the lock or the lease says which master leads. Besides, each master's engine says every ten seconds that it is there:
it writes a file of its own in the engine's folder. If that file is old, the master may be gone, or cut off from the disk or
the server.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import socket
import time
import urllib.parse
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

import salt.version
from salt.exceptions import CommandExecutionError

from saltext.jobs.core import compat, lines
from saltext.jobs.core.compat import minion_keys
from saltext.jobs.core.disk.lease import Lease
from saltext.jobs.core.engine import requests
from saltext.jobs.core.engine.names import BATCH_MANAGER, JOB_NOTICES, JOB_RECORDER, JOB_RETRY
from saltext.jobs.core.engine.service import Verb
from saltext.jobs.core.errors import Refused, StateError
from saltext.jobs.core.master import events
from saltext.jobs.core.metrics import Figures
from saltext.jobs.core.site import Folder, Site, read_msgpack, site_of, write_msgpack
from saltext.jobs.core.version import VERSION

log = lines.logger(__name__)

#: The engines that one master leads for all, in the order in which they are handed over.
LED = (JOB_NOTICES, JOB_RECORDER, JOB_RETRY, BATCH_MANAGER)
#: Longest silence in seconds of a master that counts as there.
KNOWN = requests.SILENT
#: Seconds of silence after which a master is forgotten.
_FORGOTTEN = 86400.0
#: In an engine's folder: where masters say that they are there, and where the leader counts changes of the lead.
_BELOW, _CHANGES = "masters", "lead"


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


class Changes(NamedTuple):
    """
    How often the lead has changed from one master to another: ``takeovers`` without a request, ``hand_overs`` on request.
    ``handed``: the epoch that was last handed over.
    """

    takeovers: int = 0
    hand_overs: int = 0
    handed: int = 0


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


def standing_by(site: Site, engine: str, leader: str) -> list[str]:
    """Return the other masters that are known to be there, and could lead. :raises OSError:"""
    return [master.name for master in masters_of(site, engine) if master.is_known and master.name != leader]


def changes_of(folder: Folder) -> Changes:
    """Return how often the lead went to another master. :raises OSError:"""
    try:
        found = read_msgpack(folder, _CHANGES)
        return Changes(*(int(found[name]) for name in Changes._fields)) if isinstance(found, dict) else Changes()
    except (StateError, KeyError, TypeError, ValueError):
        return Changes()


def count(folder: Folder, changes: Changes) -> None:
    """Keep how often the lead went to another master. :raises OSError:"""
    write_msgpack(folder, _CHANGES, changes._asdict(), durable=True)


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
    alive, left, changes = site.alive_at(engine), site.lease_left(engine), changes_of(site.folder(engine))
    return {
        "leader": leader and leader.master,
        "process": leader and str(leader),
        "since": leader.epoch / 1e6 if leader else None,
        "epoch": leader.epoch if leader else None,
        "beat_seconds": round(max(0.0, now - alive), 1) if leader and alive is not None else None,
        "lease_seconds": round(left, 1) if leader and left is not None else None,
        "takeovers": changes.takeovers,
        "hand_overs": changes.hand_overs,
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


def driver_of(opts: Mapping[str, Any], engine: str) -> str | None:
    """Return the master whose engine works for all; None if none does, or if only one master is known to have the engine."""
    site = site_of(opts)
    if not site.is_led(engine):
        return None
    with contextlib.suppress(OSError):
        leader = site.leader(engine)
        if leader is not None and any(master.name != leader.master for master in masters_of(site, engine)):
            return leader.master
    return None


def hand_over(opts: Mapping[str, Any], master: str, engines: Sequence[str], user: str) -> dict[str, Any]:
    """
    Have a master give up the lead of engines to another one that stands by.

    :return: ``{engine: {"from", "to", "epoch", "seconds"}}`` of those that it led.
    :raises Refused: if it leads none of them, if no other master stands by, or if none has taken over.
    """
    site, done = site_of(opts), dict[str, Any]()
    led = {engine: leader for engine in LED if site.is_led(engine) and (leader := site.leader(engine)) is not None}
    ours = [engine for engine in engines if engine in led and led[engine].master == master]
    if not ours:
        others = ", ".join(f"{engine} is led by {led[engine].master}" for engine in engines if engine in led)
        raise Refused(f"{master} leads none of {', '.join(engines)}; {others or 'no engine runs'}")
    for engine in ours:
        began = time.monotonic()
        request = {"do": "hand_over", "epoch": led[engine].epoch, "user": user}
        try:
            answer = requests.ask(opts, engine, request)
        except CommandExecutionError as exc:
            raise Refused(f"{engine} is not handed over: {exc}{_so_far(done)}") from exc
        if answer["master"] == master:
            raise Refused(f"No other master has taken over {engine}: {master} leads it again{_so_far(done)}")
        done[engine] = {
            "from": master,
            "to": answer["master"],
            "epoch": answer["epoch"],
            "seconds": round(time.monotonic() - began, 2),
        }
    return done


def _so_far(done: Mapping[str, Any]) -> str:
    return f"; {', '.join(done)} went over" if done else ""


# -- an engine's place among the masters -----------------------------------------------------------------------------------

#: Seconds for which a hand-over waits for what is under way. If something takes longer, the next leader finds it.
SETTLE = 1.0
#: Seconds for which a process that has handed over leaves the lead to others.
STEP_BACK = 5.0


class Seat:
    """
    An engine's place among those of all masters: it waits for the lead, holds it, and hands it over.

    To hand over, the leader publishes nothing more, waits a moment for what is under way, makes durable what it knows,
    and gives up the lead. The next leader takes over as after a death, with the same checks. The request for the
    hand-over stays where it is, and the next leader answers it. So the answer means that another process leads.

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
        self._opts, self._engine, self._site, self._fire = opts, engine, site, fire
        self._steady, self._wall = steady, wall
        self._master = str(opts.get("id") or "")
        self._folder = site.folder(engine)  # without the lease, since masters that do not lead write there too
        self._changes = Changes()
        self._said_at = -math.inf
        self._is_up = True
        #: Whether this process is handing over, or has.
        self.is_handing = False

    def take(self) -> bool:
        """
        Take the lead if no process has it, and tell whether this process has it now; if not, say that it stands by.

        :raises OSError, StateError: as the lease does.
        """
        if not self.lease.take():
            self.say()
            return False
        with contextlib.suppress(OSError):
            self._after_taking()
        self.say(at_once=True)
        return True

    def _after_taking(self) -> None:
        before, leader = self.lease.predecessor, self.lease.leader
        changes = changes_of(self._folder)
        self._changes = changes
        if before is None or leader is None or before.master == leader.master:
            return
        is_handed = changes.handed == before.epoch
        kind = "handed_over" if is_handed else "taken_over"
        if is_handed:
            log.info("The %s engine takes the lead that process %s hands over", self._engine, before)
        else:
            log.warning("The %s engine takes over from process %s", self._engine, before)
        self._changes = Changes(changes.takeovers + (not is_handed), changes.hand_overs + is_handed)
        count(self._site.folder(self._engine, self.lease), self._changes)
        data = {"engine": self._engine, "master": leader.master, "former": before.master, "epoch": leader.epoch}
        try:
            self._fire(events.lead_tag(self._engine, kind), data)
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
            if self.lease.leader is None:
                self._changes = changes_of(self._folder)
        except OSError as exc:
            self._is_up = False
            log.debug("The %s engine cannot say that it is there: %s", self._engine, exc)

    def metrics(self) -> Figures:
        """Return the figures of the lead, which the engine of each master has."""
        leads, left = self.lease.leader is not None, self.lease.left
        found: dict[str, float] = {
            "leader": leads,
            "takeovers_total": self._changes.takeovers,
            "hand_overs_total": self._changes.hand_overs,
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

    # -- handing over -------------------------------------------------------------------------------------------------

    def hand_over(self, loop: Any, settle: Callable[[], Awaitable[None]]) -> Verb:
        """
        Return the verb with which an operator asks for a hand-over.

        :param loop: the engine's tornado loop, which is stopped.
        :param settle: begins nothing more, and returns when what was under way is durable.
        """

        async def verb(request: Mapping[str, Any]) -> dict[str, Any]:
            if request.get("epoch") != self.lease.epoch:  # meant for a former leader
                return {"master": self._master, "epoch": self.lease.epoch}
            if not self.is_handing:
                self._begin(str(request.get("user")))
                loop.call_later(SETTLE, loop.stop)
                await settle()
                loop.stop()
            never: dict[str, Any] = await compat.Future()  # the next leader answers
            return never

        return verb

    def _begin(self, user: str) -> None:
        """:raises ValueError: if no other master could take over. :raises OSError: if that cannot be told."""
        self.lease.check()
        others = standing_by(self._site, self._engine, self._master)
        if not others:
            raise ValueError("no other master stands by")
        led = self._site.folder(self._engine, self.lease)
        count(led, self._changes._replace(handed=self.lease.epoch))
        self.is_handing = True
        log.info("The %s engine hands over to %s, as %s has asked", self._engine, " or ".join(others), user)

    def step_back(self, seconds: float = STEP_BACK, pause: float = 0.1) -> bool:
        """After a release, wait until another process leads. Returns whether one does."""
        self.say(at_once=True, ends=True)  # this process cannot lead again
        until = self._steady() + seconds
        while self._steady() < until:
            with contextlib.suppress(OSError):
                leader = self._site.leader(self._engine)
                if leader is not None and leader.epoch != self.lease.epoch:
                    return True
            time.sleep(pause)
        return False
