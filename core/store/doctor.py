"""
The state of the job cache: how large it is, and what an operator should know before relying on it, one sentence for each
finding. Nothing is changed here.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from salt.exceptions import SaltCacheError

from saltext.jobs.core.advice import examined
from saltext.jobs.core.banks import LOADS, NOCACHE, PUBLISHED
from saltext.jobs.core.disk.surroundings import READABLE, about_disk, about_files
from saltext.jobs.core.errors import StateError
from saltext.jobs.core.store.drivers import has_date
from saltext.jobs.core.store.listing import loads
from saltext.jobs.core.store.store import Store

#: Most files of a driver that are checked.
_SOME_FILES = 5000
_OURS = "salt_cache"


def examine(store: Store, opts: Mapping[str, Any]) -> dict[str, Any]:
    """
    Return the state of the job cache.

    :param opts: the master's options.
    :return: job_cache (``master_job_cache``), driver, usable (whether the driver answers), jobs (the number of loads; None
        if it is not known), findings (one sentence for each thing that an operator may want to change), and retcode: 1 if a
        finding is more than advice.
    """
    name = str(opts.get("master_job_cache") or "local_cache")
    found = [] if name == _OURS else [f"master_job_cache is {name!r}: the master stores no jobs here"]
    if name == _OURS and opts.get("ext_job_cache"):
        found.append(f"ext_job_cache is {opts['ext_job_cache']!r}, which gets the returns: only loads are stored here")
    jobs: int | None = None
    try:
        if store.file is not None and (damage := store.file.do("check", "", lambda tables: tables.database.damage())):
            found.append(
                f"{store.file.tables.place} is damaged ({damage}): the master sets it aside when it meets the damage, "
                "and begins a new one"
            )
        else:
            store.contains(NOCACHE, "doctor")
            jobs = store.driver.count_loads()
            if name == _OURS and not store.keys(PUBLISHED) and any(_was_published(load) for _, load in loads(store)):
                found.append(
                    "there are published jobs, but no record of a publish (jobs/published): the master uses another "
                    "salt_cache than this extension's, or was not restarted since that was installed"
                )
    except SaltCacheError as exc:
        found.append(f"the driver {store.driver.name} cannot be used: {exc}")
    found += _about_files(store, str(opts.get("user") or "root"))
    standing = {"job_cache": name, "driver": store.driver.name, "usable": jobs is not None, "jobs": jobs}
    return examined(standing, found)


def _was_published(load: Mapping[str, Any]) -> bool:
    """
    Tell whether a master has published a job. Loads of jobs of a runner, of salt-ssh or of a minion on its own have no
    ``cmd``, or a target that is their own ``id``.
    """
    return "cmd" in load and load.get("tgt") != load.get("id")


def _about_files(store: Store, user: str) -> Iterator[str]:
    if store.file is not None:
        try:
            database = store.file.tables.database
        except StateError:  # an option that is not accepted; the driver itself has said so
            return
        yield from about_disk(pathlib.Path(database.path).parent)
        for name in (database.path, f"{database.path}-wal", f"{database.path}-shm"):
            yield from about_files(user, pathlib.Path(name)) if os.path.exists(name) else ()
        for name in database.damaged():
            told = f"{name} was damaged and set aside. Check the disk, then: salt-run job_cache.recover {name}"
            yield f"{told}; then remove the file"
    elif store.driver.folder:
        folder, locks = pathlib.Path(store.cachedir, "jobs"), pathlib.Path(store.cachedir, "salt_cache.locks")
        yield from about_files(user, folder, _SOME_FILES, READABLE)
        yield from about_disk(folder)
        yield from about_files(user, locks, _SOME_FILES) if locks.exists() else ()


def figures_of(store: Store) -> dict[str, Any]:
    """
    Return driver; jobs, published and returns, as counts; oldest and newest, as jids; and with sqlite bytes and free_bytes:
    the size of the file, and how much of it is free.
    """
    keys = sorted(store.keys(LOADS))
    timed = [store.decode(key) for key in keys if has_date(key)]
    found = {
        "driver": store.driver.name,
        "jobs": len(keys),
        "published": len(store.keys(PUBLISHED)),
        "returns": store.driver.count_returns(keys),
        "oldest": timed[0] if timed else None,
        "newest": timed[-1] if timed else None,
    }
    if store.file is not None:
        database = store.file.tables.database
        found |= {"bytes": database.file_bytes(), "free_bytes": database.used_bytes()[1]}
    return found
