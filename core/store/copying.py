"""
Copies all jobs of another job cache, or of another driver, for an operator. ``core/store/migration.py`` copies one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import salt.loader

from saltext.jobs.core import arguments
from saltext.jobs.core.errors import Refused
from saltext.jobs.core.store import migration
from saltext.jobs.core.store.store import Store

DRIVERS = ("localfs", "sqlite", "redis", "mysql", "etcd", "consul", "mmap_cache")

#: Gets how many jobs have been looked at, and how many there are.
Told = Callable[[int, int], None]


def from_returner(
    opts: Mapping[str, Any], name: str, clean: Callable[[migration.Load], migration.Load], dry_run: bool, told: Told
) -> dict[str, Any]:
    """
    Copy the jobs of a returner into the storage that ``cache`` names.

    :param clean: returns a load without its secrets.
    :param dry_run: write nothing.
    :return: what ``migration.copy_each`` does, with source, driver and dry_run.
    :raises Refused: where that cannot be done.
    """
    store = Store(opts)
    _refuse_the_folder_of_local_cache(opts, store, dry_run)
    jobs = _source_called(opts, name)
    try:
        names = sorted(jobs.jids())
    except Exception as exc:  # a returner raises whatever it raises
        raise Refused(f"The jobs of {name} cannot be listed: {exc}") from exc
    return _copied(
        name,
        store,
        names,
        dry_run,
        lambda jid: migration.copy(store, jobs, jid, clean, dry_run),
        told,
    )


def between(opts: Mapping[str, Any], name: Any, to: Any, dry_run: bool, told: Told) -> dict[str, Any]:
    """
    Copy the jobs of one driver to another.

    :param name: of the driver to read.
    :param to: of the other one; that of ``cache`` where it is None.
    :return: as ``from_returner``, and lacking: how many records the target still lacks; not with ``dry_run``.
    :raises Refused: where that cannot be done.
    """
    target = opts.get("cache") or "localfs" if to is None else to
    for option, driver in (("from", name), ("to", target)):
        arguments.choice(option, driver, DRIVERS)
    if name == target:
        raise Refused(f"from and to are both {name!r}; name two drivers")
    source, store = (Store({**opts, "cache": driver}) for driver in (name, target))
    _refuse_the_folder_of_local_cache(opts, store, dry_run)
    names = migration.jobs_in(source)
    done = _copied(name, store, names, dry_run, lambda key: migration.copy_between(source, store, key, dry_run), told)
    if not dry_run:
        done["lacking"] = sum(migration.lacking(source, store, key) for key in names)
    return done


def _refuse_the_folder_of_local_cache(opts: Mapping[str, Any], store: Store, dry_run: bool) -> None:
    if not dry_run and opts.get("master_job_cache") == "local_cache" and store.driver.in_jobs_folder:
        raise Refused(
            f"master_job_cache is local_cache, whose sweep would remove what is copied to cache: {store.driver.name}. "
            "Set master_job_cache: salt_cache, restart the master, and run this again"
        )


def _copied(
    source: str, store: Store, names: Sequence[str], dry_run: bool, copy: Callable[[str], Mapping[str, int]], told: Told
) -> dict[str, Any]:
    done = migration.copy_each(source, names, copy, told)
    return {"source": source, "driver": store.driver.name, "dry_run": dry_run, **done}


def _source_called(opts: Mapping[str, Any], name: str) -> migration.Source:
    if name == "salt_cache":
        raise Refused("source must be another job cache than salt_cache, such as local_cache")
    loaded = salt.loader.returners(opts, {})
    needed = ("get_jids", "get_load", "get_jid")
    missing = [function for function in needed if f"{name}.{function}" not in loaded]
    if missing:
        raise Refused(f"The returner {name!r} is not loaded or has no {', '.join(missing)}")
    there = [function for function in (*needed, "get_endtime") if f"{name}.{function}" in loaded]
    functions = {function: loaded[f"{name}.{function}"] for function in there}
    return migration.LocalCache(functions, opts) if name == "local_cache" else migration.Source(functions)
