"""
What became of a job: which minions have returned, have failed and why, are missing, or are owed it. Blocks (disk, database).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from saltext.jobs.core.display.command import published_words
from saltext.jobs.core.master.job_cache import JobCache
from saltext.jobs.core.reasons import Reasons, text_of
from saltext.jobs.core.returned import function_of, retcode_of

#: The reason for a minion whose return exists, but cannot be read.
UNREADABLE = "its return cannot be read: see the master's log, and job_cache.verify"


def minions_of(load: Mapping[str, Any]) -> list[str]:
    """Return the minions that a job was for, as far as its load tells."""
    found = load.get("Minions")
    return [name for name in found if isinstance(name, str)] if isinstance(found, (list, tuple)) else []


def outcome(cache: JobCache, jid: str, load: Mapping[str, Any], owed: Mapping[str, str] | None) -> dict[str, Any]:
    """
    Return the result of ``job_cache.outcome``. All returns are read, a few at a time.

    :param load: the job's load from the job cache.
    :param owed: the states of the job's entries in the retry queue, by minion; None if it cannot be read.
    :raises JobCacheError: if the cache cannot be read.
    """
    minions = minions_of(load)
    reasons, silent, failed = Reasons(), list[str](), 0
    for minion, ret in cache.each_return(jid, minions):
        if ret is None:
            silent.append(minion)
        elif code := retcode_of(ret):
            failed += 1
            reasons.add(minion, "failed", code, text_of(ret))
    unreadable = cache.have_returned(jid, silent)
    for minion in sorted(unreadable):
        reasons.add(minion, "returned", None, UNREADABLE)
    missing = [minion for minion in silent if minion not in unreadable and minion not in (owed or {})]
    return {
        "jid": jid,
        "fun": function_of(load),
        "arguments": published_words(load.get("arg")),
        "tgt": load.get("tgt"),
        "tgt_type": load.get("tgt_type"),
        "user": load.get("user"),
        "minions": len(minions),
        "returned": len(minions) - len(silent) + len(unreadable),
        "failed": failed,
        "missing": sorted(missing),
        "owed": None if owed is None else _of(owed, silent),
        "groups": reasons.groups(),
    }


def _of(owed: Mapping[str, str], minions: Iterable[str]) -> dict[str, str]:
    return {minion: owed[minion] for minion in sorted(minions) if minion in owed}
