"""
The last result of each minion: when it last ran a function, and how that ended. Each return is read once, and not kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from saltext.jobs.core.banks import MINIONS, RETURNS
from saltext.jobs.core.display.command import published_words
from saltext.jobs.core.ids import jid_time
from saltext.jobs.core.returned import function_of, retcode_of
from saltext.jobs.core.store.publication import ids_in
from saltext.jobs.core.store.search import Query, loads
from saltext.jobs.core.store.store import Store

#: Returns read at a time.
_AT_ONCE = 20
#: How a run ended; UNREADABLE if its return exists and cannot be read.
SUCCEEDED, FAILED, UNREADABLE = ("succeeded", "failed", "unreadable")
_NOTHING = dict.fromkeys(("jid", "at", "fun", "arguments", "outcome", "retcode", "missed"))


def last_results(
    store: Store, query: Query, minions: Iterable[str], told: Callable[[int], None] = lambda count: None
) -> dict[str, dict[str, Any]]:
    """
    Return the last result of each of some minions; see ``job_cache.minions``.

    :param query: which jobs count: by function, target, user and time.
    :param told: gets how many jobs have been looked at.
    :raises SaltCacheError: if the store cannot be read.
    """
    found: dict[str, dict[str, Any]] = {minion: dict(_NOTHING) for minion in minions}
    left = set(found)
    for count, (key, load) in enumerate(loads(store, query), 1):
        if not left:
            break
        told(count)
        jid, bank = store.decode(key), f"{RETURNS}/{key}"
        keys = {minion: name for name in store.keys(bank) if (minion := store.decode(name)) in left}
        about = {
            "jid": jid,
            "at": jid_time(jid),
            "fun": function_of(load),
            "arguments": published_words(load.get("arg")),
        }
        for minion, result in _results(store, bank, keys).items():
            found[minion].update(about, **result)
        left.difference_update(keys)
        (listed,) = store.driver.read_all([(MINIONS, key)])
        for minion in left.intersection(ids_in(listed)):
            found[minion]["missed"] = found[minion]["missed"] or jid
    return {minion: found[minion] for minion in sorted(found)}


def _results(store: Store, bank: str, keys: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {minion: {"outcome": UNREADABLE, "retcode": None} for minion in keys}
    names = {name: minion for minion, name in keys.items()}
    wanted = list(names)
    for start in range(0, len(wanted), _AT_ONCE):
        for name, record in store.driver.fetch_each(bank, wanted[start : start + _AT_ONCE]):
            if isinstance(record, Mapping):
                code = retcode_of(record)
                found[names[name]] = {"outcome": FAILED if code else SUCCEEDED, "retcode": code}
    return found
