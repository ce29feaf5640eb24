"""
Which masters have an engine, and which of them leads.

The lock or the lease alone says who leads. In addition, the engine of each master says every ten seconds that it is there,
in a file of its own in the engine's folder. An old file means that nothing is known of that master: it may be gone, or cut
off from the disk or the server.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import salt.version
from salt.exceptions import CommandExecutionError

from saltext.jobs.core.engine import requests
from saltext.jobs.core.engine.names import BATCH_MANAGER, JOB_NOTICES, JOB_RETRY
from saltext.jobs.core.errors import Refused, StateError
from saltext.jobs.core.site import Folder, Site, read_msgpack, site_of, write_msgpack
from saltext.jobs.core.version import VERSION

#: The engines that one master leads for all, in the order in which they are handed over.
LED = (JOB_NOTICES, JOB_RETRY, BATCH_MANAGER)
#: Seconds of silence after which it is not known whether a master is still there.
KNOWN = requests.SILENT
#: Seconds of silence after which a master is forgotten.
_FORGOTTEN = 86400.0
#: In an engine's folder: where masters say that they are there, and where the leader counts changes of the lead.
_BELOW, _CHANGES = "masters", "lead"


class Master(NamedTuple):
    """
    What the engine of a master has said of itself.

    ``ends``: whether its process was about to end, and another one follows. ``silent``: seconds since it said so.
    ``ahead``: seconds by which its clock was ahead of the site's. ``refused``: how often it was kept from doing something
    because it did not lead, or could not tell.
    """

    name: str
    host: str = ""
    pid: int = 0
    version: str = ""
    salt: str = ""
    job_cache: str = ""
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
    How often the lead went from one master to another: ``takeovers`` unasked, ``hand_overs`` on request. ``handed``: the
    epoch that was last handed over.
    """

    takeovers: int = 0
    hand_overs: int = 0
    handed: int = 0


def job_cache_of(opts: Mapping[str, Any]) -> str:
    """Return which job cache a master has, in words for people."""
    keeper = opts.get("ext_job_cache") or opts.get("master_job_cache")
    return f"{keeper} with cache: {opts.get('cache')}" if keeper == "salt_cache" else str(keeper)


def say(opts: Mapping[str, Any], folder: Folder, refused: int, wall: Callable[[], float], ends: bool = False) -> None:
    """Say that this master's engine is there, or that its process ends. :raises OSError:"""
    told = {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "version": VERSION,
        "salt": salt.version.__version__,
        "job_cache": job_cache_of(opts),
        "refused": refused,
        "ends": ends,
        "wall": wall(),
    }
    write_msgpack(folder, _name_of(str(opts.get("id") or "")), told)


def masters_of(site: Site, engine: str) -> list[Master]:
    """Return the masters that have said within a day that their engine is there, sorted. :raises OSError:"""
    folder, now = site.folder(engine), site.now()
    found = [_master(folder, name, now) for name in folder.names(_BELOW)]
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


def _master(folder: Folder, name: str, now: float) -> Master | None:
    try:
        told, at = read_msgpack(folder, name), folder.modified(name)
        texts = {key: str(told[key]) for key in ("host", "version", "salt", "job_cache")}
        numbers = {"pid": int(told["pid"]), "refused": int(told["refused"])}
        spoken = {"silent": max(0.0, now - at), "ahead": float(told["wall"]) - at}
    except (FileNotFoundError, StateError, KeyError, TypeError, ValueError):
        return None  # another version wrote it, or something that is not ours
    master = urllib.parse.unquote(name.removeprefix(f"{_BELOW}/").removesuffix(".master"))
    return Master(name=master, ends=bool(told["ends"]), **texts, **numbers, **spoken)  # type: ignore[arg-type]


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
