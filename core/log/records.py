"""
The records of the log: publishes of this master, and returns that it has stored. This module makes them from a publish's
load and from a minion's message.

They must never hold more than is needed to know what was done: neither arguments nor what a minion returned. Everything
from outside is checked here. A load's content must never keep its record from being made: that would prevent the publish.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgpack

from saltext.jobs.core.functions import HARMLESS, KILLS
from saltext.jobs.core.ids import is_plain
from saltext.jobs.core.returned import function_of, retcode_of

_PUBLISHED, _RETURNED = "p", "r"
#: The record of a publish names the minions if their ids have at most ``_MOST`` characters in all, or if they are at most
#: ``_FEW``. Otherwise it refers to the bank ``jobs/minions``.
_MOST, _FEW = 64 << 10, 256
#: Most characters of a user's name.
_LONGEST_USER = 256
#: Stands for all jobs, in place of a jid.
EVERY_JOB = "*"
#: Stands for functions that have no names, or too many. It counts as several functions: the log does not prove a
#: kill among several, so the engine looks the job up in the job cache.
_UNNAMED = ","


class Published(NamedTuple):
    """
    This master was about to publish a job. It is in the log before the job cache has anything of it.

    * ``functions``: joined by commas; ``,`` if they have no names, or too many.
    * ``origin``: which engine of ours has published it; empty for all other publishers.
    * ``minions``: the ``total`` minions that it is for; None if they are too many: then the bank ``jobs/minions`` has
      them, perhaps with others.
    * ``ends``: the jobs that it ends by a signal, ``EVERY_JOB`` for all that a minion runs.
    * ``work``: the digest of its functions and arguments.
    * ``sent``: False if the load was only stored, and nothing was published.
    * ``at``: Unix time.
    """

    jid: str
    functions: str
    user: str
    origin: str
    minions: tuple[str, ...] | None
    total: int
    ends: tuple[str, ...]
    work: str
    sent: bool
    at: float

    def fields(self) -> list[Any]:
        """Return what is written."""
        return [_PUBLISHED, *self]


class Returned(NamedTuple):
    """
    This master has stored a return. ``functions``: as the minion named them. ``retcode``: checked; 0 for success.
    ``first``: whether it was the minion's first return of this job, which is the one that is kept.
    """

    jid: str
    minion: str
    functions: str
    retcode: int
    first: bool
    at: float

    def fields(self) -> list[Any]:
        """Return what is written."""
        return [_RETURNED, self.jid, self.minion, self.functions, str(self.retcode), self.first, self.at]


Record = Published | Returned


def packed(record: Record) -> bytes:
    """Return a record as it is written."""
    body: bytes = msgpack.packb(record.fields(), unicode_errors="surrogatepass")
    return body


def read(body: bytes) -> Record:
    """Return a record. :raises Exception: of many kinds, if it is not one."""
    fields: Any = msgpack.unpackb(body, strict_map_key=False, unicode_errors="surrogatepass")
    if fields[0] == _RETURNED:
        jid, minion, functions, retcode, first, at = fields[1:]
        return Returned(jid, minion, functions, int(retcode), first, at)
    record = Published(*fields[1:])
    minions = None if record.minions is None else tuple(record.minions)
    return record._replace(minions=minions, ends=tuple(record.ends))


def publish_of(
    jid: str, load: Mapping[str, Any], minions: Sequence[str], work: str, origin: str, sent: bool
) -> Published:
    """
    Return the record of a publish.

    :param minions: the usable ids of the minions that it is for, in order.
    :param work: the digest of its functions and arguments.
    :param origin: the engine that publishes it; empty for all other publishers.
    :param sent: False if the load is only stored.
    """
    user = load.get("user")
    return Published(
        jid,
        function_of(load) or _UNNAMED,
        user[:_LONGEST_USER] if isinstance(user, str) else "",
        origin,
        tuple(minions) if len(minions) <= _FEW or sum(map(len, minions)) <= _MOST else None,
        len(minions),
        tuple(ended_by(load)),
        work,
        sent,
        time.time(),
    )


def return_of(jid: str, minion: str, load: Mapping[str, Any], first: bool) -> Returned:
    """Return the record of a stored return; ``first`` says whether it is the one that is kept."""
    return Returned(jid, minion, function_of(load), retcode_of(load), first, time.time())


def ended_by(load: Mapping[str, Any]) -> list[str]:
    """
    Return the jobs that a load ends by a signal, ``EVERY_JOB`` for all of a minion's jobs; none if it sends no such signal.
    """
    functions, arguments = load.get("fun"), load.get("arg")
    if isinstance(functions, str):
        if functions not in KILLS:
            return []
        functions, arguments = [functions], [arguments]
    if not isinstance(functions, (list, tuple)) or not isinstance(arguments, (list, tuple)):
        return []
    found = dict[str, None]()
    for function, arg in zip(functions, arguments, strict=False):
        if isinstance(function, str) and function in KILLS:  # the list may hold anything
            if function == "saltutil.signal_job" and any(sig in HARMLESS for sig in _arguments(arg, "sig", 1)):
                continue
            found[EVERY_JOB if function.endswith("_all_jobs") else _jid_in(arg)] = None
    return [jid for jid in found if jid]


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
