"""
What a storage knows of jobs beside loads and returns, to find, count and list them without reading these. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any, NamedTuple

import msgpack
import salt.payload
import salt.utils.jid

from saltext.jobs.core.disk import stored
from saltext.jobs.core.functions import retcode_of

#: Matches jids whose time Salt shows. With ``unique_jid`` the number of a process follows.
_is_regular = re.compile("[0-9]{8}(?:[01][0-9]|2[0-3])[0-5][0-9][0-5][0-9][0-9]{6}(?:_.+)?", re.DOTALL).fullmatch
#: What Salt shows of a job besides its time; the last one only if the job has any.
_SHOWN = ["Function", "Arguments", "Target", "Target-type", "User", "Metadata"]
#: Lengths of the list that ``shown_of`` packs: without metadata, and with it.
_LENGTHS = {3, 4}


class JobTally(NamedTuple):
    """Counts of minions: those that a job was for (0 if not known), and those that returned, failed and are missing."""

    minions: int
    returned: int
    failed: int
    missing: int
    #: Which of ``returned``, ``failed`` and ``missing`` the minions are that were asked for.
    of_named: frozenset[str] = frozenset()


#: A minion, or what tells whether one is meant.
Named = str | Callable[[str], bool]


def tally_of(minions: Set[str], returned: Set[str], failed: Set[str], named: Named | None) -> JobTally:
    """
    Return the tally of a job.

    :param minions: those that the job was for; empty if that is not known.
    :param returned: all that have returned, and ``failed`` those of them that have failed.
    :param named: the minions of ``of_named``.
    """
    missing = minions - returned
    groups = {"returned": returned, "failed": failed, "missing": missing}
    of_named: Iterable[str] = ()
    if isinstance(named, str):
        of_named = (name for name, group in groups.items() if named in group)
    elif named is not None:
        of_named = (name for name, group in groups.items() if any(map(named, group)))
    of_named = frozenset(of_named)
    if minions:  # returns of minions that the job was not for do not count
        returned, failed = returned & minions, failed & minions
    return JobTally(len(minions), len(returned), len(failed), len(missing), of_named)


def has_failed(record: Any) -> bool:
    """Tell whether a return reports a failure."""
    return isinstance(record, Mapping) and retcode_of(record) != 0


def job_marks(load: Any) -> tuple[str, str]:
    """Return the function and the user of a load; several functions are joined by commas."""
    if not isinstance(load, Mapping):
        return "", ""
    fun, user = load.get("fun"), load.get("user")
    if isinstance(fun, (list, tuple)):
        fun = ",".join(name for name in fun if isinstance(name, str))
    return fun if isinstance(fun, str) else "", user if isinstance(user, str) else ""


def shown_mark(fun: str, user: str) -> tuple[str, str]:
    """Return what Salt shows as function and user of a load with this mark."""
    return fun, user or "root"


def shown_of(jid: str, mark: tuple[str, str], load: Any) -> bytes | None:
    """
    Return what is shown of a load beside its mark and its jid: a list of the arguments, the target, its type and any
    metadata. None if that can be read only from the load itself.
    """
    if not isinstance(load, dict) or not load or not _is_regular(jid):
        return None
    try:
        found = salt.utils.jid.format_job_instance(load)
        function, *middle, user = [found.pop(name) for name in _SHOWN[:5]]
        if (function, user) != shown_mark(*mark) or found.keys() - _SHOWN[5:]:
            return None
        data: bytes = salt.payload.dumps([*middle, *found.values()], use_bin_type=True)
    except Exception:  # a load may hold anything
        return None
    return data


def decoded(values: Sequence[bytes | None]) -> list[Any]:
    """Decode what is shown of jobs; None for a damaged one. One call for all: a call costs more than most values."""
    some = [value for value in values if value is not None]
    try:
        found = stored.loads(msgpack.Packer().pack_array_header(len(some)) + b"".join(some))
        if not set(map(type, found)) <= {list} or not set(map(len, found)) <= _LENGTHS:
            raise ValueError("one of them is nothing that is shown of a job")
    except Exception:  # msgpack raises many kinds for a broken value
        return [decoded([value])[0] if value and len(values) > 1 else None for value in values]
    each = iter(found)
    return [None if value is None else next(each) for value in values] if len(some) < len(values) else found
