"""
The records of the log: publishes of this master, and returns that it has stored. This module makes them from a publish's
load and from a minion's message.

A publish has what its replay needs. A return has no more than is needed to know what was done, unless it answers a question.
Everything from outside is checked here. A load must never keep its record from being made: that prevents the publish.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgpack
import salt.payload

from saltext.jobs.core.functions import HARMLESS, KILLS, NEVER_OWED, function_of, retcode_of
from saltext.jobs.core.ids import is_plain

#: Most characters of a user's name.
_LONGEST_USER = 256
#: The origin of a publish that was found in the job cache: it was published before the log begins.
JOB_CACHE = "job_cache"
#: Stands for all jobs, in place of a jid.
EVERY_JOB = "*"
#: Stands for functions that have no names, or too many.
_UNNAMED = ","


class Published(NamedTuple):
    """This master was about to publish a job. It is in the log before the job cache has anything of it."""

    jid: str
    functions: str  # joined by commas; ``,`` if they have no names, or too many
    user: str
    limited: bool  # the user may not publish everything
    origin: str  # which engine of ours has published it; empty for all other publishers
    minions: tuple[str, ...]  # those that it is for; of a job that is never owed only if it ``ends`` others
    ends: tuple[str, ...]  # the jobs that it ends by a signal, ``EVERY_JOB`` for all that a minion runs
    work: str  # the digest of its functions and arguments
    sent: bool  # False if the load was only stored, and nothing was published
    fresh: bool  # nothing can have been published under the jid before
    stored: bool  # the job cache stores its returns
    asked: bool  # the log has what minions return
    at: float  # Unix time
    load: bytes  # as Salt packs it; a job that is never owed has none

    @property
    def minion(self) -> str:
        """Empty: it is no return."""
        return ""

    @property
    def listed(self) -> bool:
        """Whether the job cache gets it: it is no question of an engine."""
        return self.stored or bool(self.ends) or not self.origin

    def loaded(self) -> dict[str, Any]:
        """Return the load. :raises Exception: of many kinds, if it is damaged."""
        return dict(salt.payload.loads(self.load))


class Returned(NamedTuple):
    """The first return of a job by a minion that this master has taken."""

    jid: str
    minion: str
    functions: str  # as the minion named them
    retcode: int  # checked; 0 for success
    at: float
    listed: bool = True  # the job cache gets it
    value: bytes = b""  # what the minion returned, as Salt packs it, if it was asked; else empty

    def answer(self) -> Any:
        """Return what the minion returned. :raises Exception: of many kinds, if it is damaged."""
        return salt.payload.loads(self.value)


Record = Published | Returned


def packed(record: Record) -> bytes:
    """Return a record as it is written, but for its jid and minion."""
    fields = record[2:] if isinstance(record, Returned) else record[1:]
    body: bytes = msgpack.packb(fields, unicode_errors="surrogatepass")
    return body


def read(jid: str, minion: str, body: bytes) -> Record:
    """Return a record. :raises Exception: of many kinds, if it is not one."""
    fields: Any = msgpack.unpackb(body, strict_map_key=False, unicode_errors="surrogatepass")
    if minion:
        functions, retcode, at, listed, value = fields
        return Returned(jid, minion, functions, int(retcode), at, listed, value)
    record = Published(jid, *fields)
    return record._replace(minions=tuple(record.minions), ends=tuple(record.ends))


def publish_of(
    jid: str,
    load: Mapping[str, Any],
    minions: Sequence[str],
    origin: str = "",
    sent: bool = True,
    fresh: bool = True,
    limited: bool = False,
) -> Published:
    """Return the record of a publish (``Published``): of a load without secrets, and the usable ids of its minions."""
    user, functions, ends = load.get("user"), function_of(load) or _UNNAMED, tuple(ended_by(load))
    stored, asked = not _option(load, "nocache"), bool(origin) and is_question(load)
    may_be_owed = not (origin and sent) and (bool(ends) or not NEVER_OWED.issuperset(functions.split(",")))
    return Published(
        jid,
        functions,
        user[:_LONGEST_USER] if isinstance(user, str) else "",
        limited,
        origin,
        tuple(minions) if ends or may_be_owed else (),
        ends,
        work_of(load),
        sent,
        fresh,
        stored
        and (not asked or bool(ends) or _option(load, "metadata") is not None),  # ``Questions.call``: it is listed
        stored and asked,
        time.time(),
        _packed(load) if may_be_owed else b"",
    )


def work_of(load: Mapping[str, Any]) -> str:
    """
    Return the digest of what a load or a return runs: its functions and arguments. It is the same once the load was stored
    and read back: Salt packs a value and what becomes of it alike, tuples and lists, bytes and text, dates and times.
    """
    work = {"arg": load.get("arg") or load.get("fun_args") or [], "fun": load.get("fun")}
    return hashlib.blake2b(_packed(work), digest_size=16).hexdigest()


def _packed(load: Mapping[str, Any]) -> bytes:
    """Return a load as Salt packs it; empty if that is not possible: then the job cache may have it."""
    try:
        found: bytes = salt.payload.dumps(dict(load))
    except Exception:  # it may hold anything
        return b""
    return found


def _option(load: Mapping[str, Any], name: str) -> Any:
    options = load.get("kwargs")
    return options.get(name) if isinstance(options, Mapping) else None


def is_question(load: Mapping[str, Any]) -> bool:
    """Tell whether an engine asks: ``Publisher.publish`` marks a question for the executor ``job_once``."""
    wishes = _option(load, "executor_opts")
    wishes = wishes.get("job_once") if isinstance(wishes, Mapping) else None
    return isinstance(wishes, Mapping) and bool(wishes.get("question"))


def return_of(jid: str, minion: str, load: Mapping[str, Any], asked: bool = False, listed: bool = True) -> Returned:
    """Return the record of a return. ``asked``: whether it has what the minion returned."""
    value: bytes = salt.payload.dumps(load.get("return")) if asked else b""
    return Returned(jid, minion, function_of(load), retcode_of(load), time.time(), listed, value)


def ended_by(load: Mapping[str, Any]) -> list[str]:
    """
    Return the jobs that a load ends by a signal; ``EVERY_JOB`` for all jobs of a minion. A signal among several functions
    ends none: Salt checks the right to one of them only.
    """
    function, arg = load.get("fun"), load.get("arg")
    if not isinstance(function, str) or function not in KILLS:
        return []
    if function == "saltutil.signal_job" and any(sig in HARMLESS for sig in _arguments(arg, "sig", 1)):
        return []
    jid = EVERY_JOB if function.endswith("_all_jobs") else _jid_in(arg)
    return [jid] if jid else []


def _jid_in(arg: Any) -> str:
    """Return the jid among the arguments of one call: the first one, or the one named ``jid``."""
    return next((jid for jid in _arguments(arg, "jid", 0) if is_plain(jid) and jid != EVERY_JOB), "")


def _arguments(arg: Any, name: str, place: int) -> list[str]:
    """Return the values of a signal's argument: those given by name, in each of Salt's forms, then the one by position."""
    values = list(arg) if isinstance(arg, (list, tuple)) else [arg]
    named = [value[name] for value in values if isinstance(value, Mapping) and name in value]
    named += [value.partition("=")[2] for value in values if isinstance(value, str) and value.startswith(f"{name}=")]
    placed = [
        value for value in values if not isinstance(value, Mapping) and not str(value).startswith(("jid=", "sig="))
    ]
    return [str(value) for value in (*named, *placed[place : place + 1])]
