"""Jobs as ``jobs.list_jobs`` shows them. A load may contain anything, so one job must never hide the others."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import salt.utils.jid
from salt.exceptions import SaltCacheError

from saltext.jobs.core import lines
from saltext.jobs.core.banks import ENDTIMES, LOADS
from saltext.jobs.core.store.store import Store

log = lines.logger(__name__)


def all_jobs(store: Store, with_end: bool) -> dict[str, dict[str, Any]]:
    """Return ``{jid: description}`` of every job, with its ``EndTime`` if that is wanted and known."""
    jobs: dict[str, dict[str, Any]] = {}
    for key, load in loads(store):
        jid = store.decode(key)
        jobs[jid] = describe(salt.utils.jid.format_jid_instance, jid, load)
    for key, end in readable(store, ENDTIMES) if with_end else ():
        if end and store.decode(key) in jobs:
            jobs[store.decode(key)]["EndTime"] = end
    return jobs


def readable(store: Store, bank: str, keys: Iterable[str] | None = None) -> Iterator[tuple[str, Any]]:
    """Yield (key, value) of some keys of a bank, or of all. Values that cannot be read are logged and skipped."""
    for key, value in store.driver.fetch_each(bank, keys):
        if isinstance(value, SaltCacheError):
            store.quiet.error((bank, key), "Skipped in the job cache: %s", value)
        else:
            yield key, value


def loads(store: Store, keys: Iterable[str] | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
    """As ``readable``, for loads."""
    return ((key, load) for key, load in readable(store, LOADS, keys) if load and isinstance(load, dict))


def newest_jobs(store: Store, count: int, without_find_job: bool) -> list[dict[str, Any]]:
    """Return descriptions of the newest ``count`` jobs, the oldest of them first."""
    found: list[dict[str, Any]] = []
    keys = store.driver.find()
    while len(found) < count and (some := list(itertools.islice(keys, 2 * count))):
        for key, load in loads(store, some):
            if without_find_job and load.get("fun") == "saltutil.find_job":
                continue
            found.append(describe(salt.utils.jid.format_jid_instance_ext, store.decode(key), load))
    return found[:count][::-1]


def describe(form: Callable[[str, Any], dict[str, Any]], jid: str, load: dict[str, Any]) -> dict[str, Any]:
    """Return what Salt shows of a job. Not every jid of 20 characters is a time, and a load may hold anything."""
    try:
        return form(jid, load)
    except Exception as exc:
        log.debug("Job %s has no regular description: %s", jid, exc)
        shown = {"Function": str(load.get("fun", "unknown-function")), "Arguments": [], "Target": "unknown-target"}
        shown.update({"Target-type": "list", "User": str(load.get("user", "root")), "StartTime": "", "JID": jid})
        with contextlib.suppress(Exception):
            shown.update(salt.utils.jid.format_job_instance(load))
        if form is salt.utils.jid.format_jid_instance:
            del shown["JID"]
        return shown
