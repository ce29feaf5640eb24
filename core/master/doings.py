"""
Makes records of the log: a publish from its load, a return from a minion's message.

All fields are checked here. It must never fail because of a load's content: that would prevent the publish.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from saltext.jobs.core.functions import KILLS
from saltext.jobs.core.ids import is_plain
from saltext.jobs.core.log.records import EVERY_JOB, Published, Returned, published
from saltext.jobs.core.master.events import function_of, retcode_of


def publish_of(
    jid: str, load: Mapping[str, Any], minions: Sequence[str], work: str, origin: str, sent: bool
) -> Published:
    """
    Return the record of a publish.

    :param minions: the usable ids of the minions that it is for, in order.
    :param digest: that of the load, as ``jobs/published`` has it.
    :param work: the digest of its functions and arguments.
    :param origin: the engine that publishes it; empty for all other publishers.
    :param sent: False if the load is only stored.
    """
    user = load.get("user")
    return published(
        jid,
        function_of(load),
        user if isinstance(user, str) else "",
        origin,
        minions,
        ended_by(load),
        work,
        sent,
        time.time(),
    )


def return_of(jid: str, minion: str, load: Mapping[str, Any], first: bool) -> Returned:
    """Return the record of a stored return; ``first`` says whether it is the one that is kept."""
    return Returned(jid, minion, function_of(load), retcode_of(load), first, time.time())


def ended_by(load: Mapping[str, Any]) -> list[str]:
    """
    Return the jobs that a load ends by a signal, ``EVERY_JOB`` for all of a minion's jobs; none if it is not a signal.
    """
    functions, arguments = load.get("fun"), load.get("arg")
    if not isinstance(functions, (list, tuple)):
        functions, arguments = [functions], [arguments]
    if KILLS.isdisjoint(name for name in functions if isinstance(name, str)):
        return []
    pairs = zip(functions, arguments if isinstance(arguments, (list, tuple)) else (), strict=False)
    found: dict[str, None] = {}
    for function, arg in pairs:
        if function not in KILLS:
            continue
        jid = EVERY_JOB if str(function).endswith("_all_jobs") else _jid_in(arg)
        if jid:
            found[jid] = None
    return list(found)


def _jid_in(arg: Any) -> str:
    """Return the jid among the arguments of one call: the first one, or the one named so, in each of Salt's forms."""
    values = list(arg) if isinstance(arg, (list, tuple)) else [arg]
    named = [value["jid"] for value in values if isinstance(value, Mapping) and "jid" in value]
    named += [value.partition("=")[2] for value in values if isinstance(value, str) and value.startswith("jid=")]
    placed = [
        value for value in values if not isinstance(value, Mapping) and not str(value).startswith(("jid=", "sig="))
    ]
    for value in (*named, *placed[:1]):
        if is_plain(str(value)):
            return str(value)
    return ""
