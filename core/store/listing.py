"""Jobs as ``jobs.list_jobs`` shows them. A load may contain anything, so one job must never hide the others."""

from __future__ import annotations

import contextlib
import datetime
import functools
import gc
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
    with _without_collector():
        unread = _add_shown(store, jobs)
        for key, load in loads(store, unread):
            jid = store.decode(key)
            jobs[jid] = describe(salt.utils.jid.format_jid_instance, jid, load)
    for key, end in readable(store, ENDTIMES) if with_end else ():
        if end and store.decode(key) in jobs:
            jobs[store.decode(key)]["EndTime"] = end
    return jobs


def _add_shown(store: Store, jobs: dict[str, dict[str, Any]]) -> list[str] | None:
    """Add the jobs that the driver's index describes, and return the keys of the others; None if it describes none."""
    described = store.driver.shown()
    if described is None:
        return None
    unread, day, begun = [], "", ""
    for jids, marks, found in described:
        for jid, (function, user), shown in zip(jids, marks, found, strict=True):
            if jid[:8] != day:  # the jids come in order
                day, begun = jid[:8], _begun(jid[:8])
            if shown is None or not begun:
                unread.append(jid)
                continue
            arguments, target, kind = shown[:3]
            job = {"Function": function, "Arguments": arguments, "Target": target, "Target-type": kind, "User": user}
            job["StartTime"] = f"{begun} {jid[8:10]}:{jid[10:12]}:{jid[12:14]}.{jid[14:20]}"
            if len(shown) > 3:
                job["Metadata"] = shown[3]
            jobs[jid] = job
    return unread


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """Pause the garbage collector, which would walk the growing list of jobs again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            if not gc.get_freeze_count():  # else other code wants its objects to stay frozen
                gc.freeze()
                gc.unfreeze()  # all objects count as old now
            gc.enable()


def readable(store: Store, bank: str, keys: Iterable[str] | None = None) -> Iterator[tuple[str, Any]]:
    """Yield (key, value) of some keys of a bank, or of all. Values that cannot be read are logged and skipped."""
    for key, value in store.driver.fetch_each(bank, keys):
        if isinstance(value, SaltCacheError):
            log.error("Skipped in the job cache: %s", value)
        else:
            yield key, value


def loads(store: Store, keys: Iterable[str] | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
    """As ``readable``, for loads."""
    return ((key, load) for key, load in readable(store, LOADS, keys) if load and isinstance(load, dict))


def newest_jobs(store: Store, count: int, without_find_job: bool) -> list[dict[str, Any]]:
    """Return descriptions of the newest ``count`` jobs, the oldest of them first."""
    found: list[dict[str, Any]] = []
    keys = (key for _, key in store.driver.places())
    while len(found) < count and (some := list(itertools.islice(keys, 2 * count))):
        for key, load in loads(store, some):
            if without_find_job and load.get("fun") == "saltutil.find_job":
                continue
            found.append(describe(salt.utils.jid.format_jid_instance_ext, store.decode(key), load))
    return found[:count][::-1]


@functools.lru_cache(maxsize=64)
def _begun(date: str) -> str:
    """Return a day as Salt shows it; empty if it is not a day."""
    try:
        datetime.datetime.strptime(date, "%Y%m%d")
    except ValueError:
        return ""
    return str(salt.utils.jid.jid_to_time(f"{date}{'0' * 12}"))[:-16]


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
