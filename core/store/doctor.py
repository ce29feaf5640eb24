"""The state of the job cache: how large it is, and what an operator should know before relying on it. It changes nothing."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from salt.exceptions import SaltCacheError

from saltext.jobs.core.banks import LOADS, NOCACHE, PUBLISHED
from saltext.jobs.core.disk.surroundings import READABLE, about_disk, about_files
from saltext.jobs.core.errors import StateError
from saltext.jobs.core.findings import Finding, advice, examined, fault
from saltext.jobs.core.store.store import Store

#: Most files of a driver that are checked.
_SOME_FILES = 5000
_OURS = "salt_cache"


def examine(store: Store, opts: Mapping[str, Any]) -> dict[str, Any]:
    """
    Return job_cache (``master_job_cache``), driver, usable (whether the driver answers), jobs (the number of loads; None if
    it is not known), and what ``examined`` adds.
    """
    name = str(opts.get("master_job_cache") or "local_cache")
    found = list[Finding]()
    if name != _OURS:
        found.append(advice("other-job-cache", f"master_job_cache is {name!r}: the master stores no jobs here"))
    if name == _OURS and opts.get("ext_job_cache"):
        told = f"ext_job_cache is {opts['ext_job_cache']!r}, which gets the returns: only loads are stored here"
        found.append(fault("returns-elsewhere", told))
    if store.ignored:
        found.append(fault("options-ignored", f"the option salt_cache is ignored: {store.ignored}", "correct it"))
    if store.limits.max_bytes is not None and store.file is None:
        found.append(fault("max-bytes", "max_bytes does nothing with this cache", "set max_jobs, or `cache: sqlite`"))
    jobs: int | None = None
    try:
        if store.file is not None and (damage := store.file.do("check", "", lambda tables: tables.database.damage())):
            told = f"{store.file.tables.place} is damaged ({damage})"
            why = "the master sets it aside when it meets the damage, unless nothing shows that it was its database"
            found.append(fault("database-damaged", f"{told}: {why}"))
        else:
            store.contains(NOCACHE, "doctor")
            jobs = store.driver.count_loads()
            # Salt stores others with a return whose load it does not find.
            published = (load.get("cmd") == "publish" for _, load in store.loads())
            if name == _OURS and not store.keys(PUBLISHED) and any(published):
                told = "there are published jobs, but no record of a publish (jobs/published)"
                why = "the master uses another salt_cache than this extension's, or was not restarted since"
                found.append(fault("publishes-unrecorded", f"{told}: {why}"))
    except SaltCacheError as exc:
        found.append(fault("driver", f"the driver {store.driver.name} cannot be used: {exc}"))
    found += _about_files(store, str(opts.get("user") or "root"))
    standing = {"job_cache": name, "driver": store.driver.name, "usable": jobs is not None, "jobs": jobs}
    return examined(standing, found, "job_cache")


def _about_files(store: Store, user: str) -> Iterator[Finding]:
    if store.file is not None:
        try:
            database = store.file.tables.database
        except StateError:  # an option that is not accepted; the driver itself has said so
            return
        yield from about_disk(pathlib.Path(database.path).parent)
        for name in (database.path, f"{database.path}-wal", f"{database.path}-shm"):
            yield from about_files(user, pathlib.Path(name)) if os.path.exists(name) else ()
        for name in database.damaged():
            do = f"check the disk, and remove the file after salt-run job_cache.recover {name}"
            yield fault("database-set-aside", f"{name} was damaged and set aside", do)
    elif store.driver.folder:
        folder, locks = pathlib.Path(store.cachedir, "jobs"), pathlib.Path(store.cachedir, "salt_cache.locks")
        yield from about_files(user, folder, _SOME_FILES, READABLE)
        yield from about_disk(folder)
        yield from about_files(user, locks, _SOME_FILES) if locks.exists() else ()


def figures_of(store: Store) -> dict[str, Any]:
    """Return driver; the counts jobs, published, returns; the jids oldest and newest; of SQLite also bytes, free_bytes."""
    keys = sorted(store.keys(LOADS))
    found = {
        "driver": store.driver.name,
        "jobs": len(keys),
        "published": len(store.keys(PUBLISHED)),
        "returns": store.driver.count_returns(keys),
        "oldest": store.decode(keys[0]) if keys else None,
        "newest": store.decode(keys[-1]) if keys else None,
    }
    if store.file is not None:
        database = store.file.tables.database
        found |= {"bytes": database.file_bytes(), "free_bytes": database.used_bytes()[1]}
    return found
