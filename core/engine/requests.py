"""
How a runner asks an engine for something: by a row in the database (``core/ledger/requests.py``). So no event on the bus
controls an engine, and a request waits while the engine is down. The engine's side is ``service.py``.
"""

from __future__ import annotations

import contextlib
import math
import time
import uuid
from collections.abc import Mapping
from typing import Any

import msgpack
import salt.payload
import salt.utils.event
from salt.exceptions import CommandExecutionError

from saltext.jobs import __version__ as VERSION
from saltext.jobs.core import lines
from saltext.jobs.core.disk.lease import Leader
from saltext.jobs.core.errors import EngineAbsent, NotNow, Refused
from saltext.jobs.core.ledger import stored
from saltext.jobs.core.ledger.requests import Requests
from saltext.jobs.core.ledger.tables import Tables
from saltext.jobs.core.site import site_of

log = lines.logger(__name__)

#: Seconds to wait for an engine: of a master alone, and of several, since another one takes over within that time.
_PATIENCE, _TAKEOVER = 10.0, 45.0
#: Requests that only read: that such a one is withdrawn says nothing to whoever wants to see figures.
_READS = frozenset({"metrics", "history", "stats", "set_aside"})
#: Seconds between two looks for an answer: the shortest, and the longest.
_POLL, _SLOWEST = 0.02, 0.2


def is_running(opts: Mapping[str, Any], engine: str) -> bool:
    """Tell whether a process leads an engine, on this master or on one that shares its site."""
    return site_of(opts).lead(engine) is not None


def silent_for(opts: Mapping[str, Any], engine: str) -> float:
    """Return for how many seconds a running engine has shown no sign of life (``Lead.hangs``)."""
    lead = site_of(opts).lead(engine)
    return 0.0 if lead is None else lead.hangs


def other_version(engine: str, process: Leader | None) -> str:
    """Say that the process of an engine is known to have another version than this one, and what to do; empty if not."""
    if process is None or process.version in (VERSION, ""):
        return ""
    return f"the {engine} engine runs {process.version} of saltext-jobs, and this is {VERSION}: restart the master"


def process_of(opts: Mapping[str, Any], engine: str) -> Leader | None:
    """Return the process of a running engine; None if none runs, or if it is not known which."""
    lead = site_of(opts).lead(engine)
    return lead.process if lead is not None else None


def driver_of(opts: Mapping[str, Any], engine: str) -> str | None:
    """Return the master whose engine works for all masters of a site; None if none does, or for a master alone."""
    process = process_of(opts, engine)
    return process.master if process is not None and opts.get("saltext_jobs_site") else None


def leading(opts: Mapping[str, Any], engine: str) -> dict[str, Any]:
    """Return ``engine`` (whether one runs), ``process`` (and its machine and master), ``since`` (Unix time), or None."""
    lead = site_of(opts).lead(engine)
    process = lead.process if lead is not None else None
    return {"engine": lead is not None, "process": process and str(process), "since": process and process.since}


def content_of(body: bytes) -> dict[str, Any] | None:
    """Return what is packed in a row; None if it is damaged."""
    try:
        found = stored.loads(body)
    except Exception:  # msgpack raises many kinds
        return None
    return found if isinstance(found, dict) else None


def ask(
    opts: Mapping[str, Any], engine: str, request: Mapping[str, Any], patience: float | None = None, keep: bool = False
) -> Any:
    """
    Leave a request for an engine, and return its answer. A Ctrl-C withdraws the request, unless the engine has taken it, or
    ``keep`` is set.

    :param patience: seconds to wait; by default those of the site.
    :param keep: leave the request for an engine that does not answer. If the engine is down, None is returned, and the
        engine takes the request when it starts.
    :raises CommandExecutionError: with the engine's reason, when it refuses, and after a Ctrl-C. (A SaltInvocationError
        would not make ``salt-run`` fail: Salt takes it for a question about usage.)
    :raises NotNow: when the request cannot be written, or the engine refuses it because something fails.
    :raises Refused: for a request that cannot be written so that it can be read.
    :raises EngineAbsent: when the engine is of another version, unless ``keep`` is set; and when no answer comes in time,
        with what becomes of the request.
    """
    other = other_version(engine, process_of(opts, engine))
    # Every version can read a kept request (a stop, a pause, a change of the queue), which must not wait for a restart.
    if other and not keep:
        raise EngineAbsent(f"{other[0].upper()}{other[1:]}")
    try:
        msgpack.unpackb(salt.payload.dumps(dict(request)), strict_map_key=False, raw=True)
    except Exception as exc:  # msgpack raises many kinds
        why = f"{type(exc).__name__}: {exc}"
        raise Refused(f"An argument cannot be handed to the engine, such as a list as a key: {why}") from exc
    site, request_id = site_of(opts), new_id()
    asked, withdrawn = Requests(site, engine), "" if request.get("do") in _READS else "; the request is withdrawn"
    try:
        try:
            asked.add(request_id, salt.payload.dumps(dict(request)))
        except OSError as exc:
            raise NotNow(f"The request to the {engine} engine cannot be written: {exc}") from exc
        if keep and not is_running(opts, engine):
            log.warning("The %s engine is not running; it will carry out the request when it starts", engine)
            return None
        reply = _await_reply(asked, request_id, _patience(site) if patience is None else patience)
        if reply is None:
            reply = _give_up(opts, engine, asked, request_id, keep, withdrawn)
    except (KeyboardInterrupt, SystemExit):  # Salt may turn a Ctrl-C into either
        is_gone = not keep and asked.withdraw(request_id)
        what = withdrawn if is_gone else f"; the {engine} engine carries out the request"
        raise CommandExecutionError(f"Interrupted{what}") from None
    if "error" in reply:
        raise (NotNow if reply["for_now"] else CommandExecutionError)(reply["error"])
    return reply["value"]


def history(opts: Mapping[str, Any], engine: str) -> Any:
    """Return the figures that an engine has kept (``core.metrics.History``). :raises EngineAbsent: if none runs."""
    if not is_running(opts, engine):
        raise EngineAbsent(f"No {engine} engine runs on this master")
    return ask(opts, engine, {"do": "history"})


def waiting(opts: Mapping[str, Any], engine: str) -> list[dict[str, Any]]:
    """Return the requests that an engine has not answered yet, oldest first, without unreadable ones."""
    found = []
    with contextlib.suppress(OSError):
        found = [content_of(each.body) for each in Requests(site_of(opts), engine).open()]
    return [request for request in found if request is not None]


def leave(opts: Mapping[str, Any], engine: str, request: Mapping[str, Any]) -> None:
    """Leave a request for an engine, without waiting for its answer. :raises OSError: if it cannot be written."""
    Requests(site_of(opts), engine).add(new_id(), salt.payload.dumps(dict(request)))


def new_id() -> str:
    """Return the id of a request, which says when it is made."""
    return f"{time.time_ns():020d}-{uuid.uuid4().hex}"


def asked_at(request_id: str) -> float:
    """Return when a request was made, in Unix time by the clock of the runner's machine; infinity if its id does not say."""
    number = request_id.partition("-")[0]
    return int(number) / 1e9 if number.isascii() and number.isdigit() else math.inf


def fire(opts: Mapping[str, Any], tag: str, data: dict[str, Any]) -> None:
    with salt.utils.event.get_master_event(dict(opts), opts["sock_dir"], listen=False) as bus:
        bus.fire_event(data, tag)


def _patience(site: Tables) -> float:
    return _TAKEOVER if site.is_far else _PATIENCE


def _await_reply(asked: Requests, request_id: str, patience: float) -> dict[str, Any] | None:
    deadline, pause = time.monotonic() + patience, _POLL
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):  # the fault may pass
            if (reply := asked.reply(request_id)) is not None:
                with contextlib.suppress(OSError):
                    asked.forget(request_id)
                return content_of(reply)
        time.sleep(pause)
        pause = min(1.2 * pause, _SLOWEST)
    return None


def _give_up(
    opts: Mapping[str, Any], engine: str, asked: Requests, request_id: str, keep: bool, withdrawn: str
) -> dict[str, Any]:
    where = f"The {engine} engine {_absence(opts, engine)}"
    if keep:
        raise EngineAbsent(f"{where}; the request stays and will be carried out.")
    if asked.withdraw(request_id):
        raise EngineAbsent(f"{where}{withdrawn}")
    # The engine has just taken it, and owes an answer.
    reply = _await_reply(asked, request_id, _patience(site_of(opts)))
    if reply is None:
        raise EngineAbsent(f"{where}; it has taken the request and may carry it out later.")
    return reply


def _absence(opts: Mapping[str, Any], engine: str) -> str:
    """Return why an engine has not answered, and where to look for the cause."""
    lead = site_of(opts).lead(engine)
    if lead is None:
        return "is not running (is it under `engines:` in the master's configuration?)"
    if not lead.hangs:
        return "did not answer in time: it is busy, or it failed: look in the master's log"
    which = f" (process {lead.process})" if lead.process else ""
    told = f"has not answered for {lead.hangs:.0f} s{which}: it hangs or is stopped"
    return f"{told}; if you end it, the master starts it anew"
