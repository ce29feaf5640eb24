"""
Copies that an operator asks for: the jobs of another job cache or driver (``core/store/migration.py`` copies one job), a
backup of the file of ``cache: sqlite``, and the readable rest of damaged files.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import salt.loader

from saltext.jobs.core import arguments
from saltext.jobs.core.errors import Refused
from saltext.jobs.core.store import migration
from saltext.jobs.core.store.store import Store

if TYPE_CHECKING:  # Python may have been built without sqlite3
    from saltext.jobs.core.sqlite.banks import SqliteBanks


DRIVERS = ("localfs", "sqlite", "postgresql", "redis", "mysql", "etcd", "consul", "mmap_cache")

#: Gets progress: the jobs looked at so far, and all jobs.
Told = Callable[[int, int], None]


def from_returner(
    opts: Mapping[str, Any], name: str, clean: Callable[[migration.Load], migration.Load], dry_run: bool, told: Told
) -> dict[str, Any]:
    """
    Copy the jobs of a returner into the storage that ``cache`` names.

    :param clean: returns a load without its secrets.
    :param dry_run: write nothing.
    :return: as ``migration.copy_each``, with source, driver and dry_run.
    :raises Refused: if that cannot be done.
    """
    store = Store(opts)
    _refuse_the_folder_of_local_cache(opts, store, dry_run)
    jobs = _source_called(opts, name)
    try:
        names = sorted(jobs.jids())
    except Exception as exc:  # a returner may raise anything
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

    :param name: the driver to read.
    :param to: the driver to write; None for the one of ``cache``.
    :return: as ``from_returner``, and, without ``dry_run``, lacking: how many records the target still lacks.
    :raises Refused: if that cannot be done.
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
            f"master_job_cache is local_cache, whose sweep would remove the jobs copied to cache: {store.driver.name}. "
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


def backup(store: Store, path: Any) -> dict[str, Any]:
    """
    Copy the file as it is at this moment.

    :param path: of the copy; absolute.
    :return: path and bytes.
    :raises Refused: if that cannot be done.
    """
    banks = _file_of(store, "backup")
    if not isinstance(path, str) or not os.path.isabs(path) or "\0" in path:
        raise Refused(f"path is {path!r}; accepted is the absolute path of a file")
    try:
        banks.backup(path)
    except FileExistsError as exc:
        raise Refused(f"{exc.filename2 or exc.filename} is there already; name a file that does not exist") from exc
    except Exception as exc:  # SQLite and the disk raise many kinds
        raise Refused(f"The copy cannot be made: {exc}") from exc
    return {"path": path, "bytes": os.stat(path).st_size}


def recover(store: Store, path: Any = None) -> dict[str, Any]:
    """
    Bring over the readable records of damaged files.

    :param path: one damaged file; None for all that were set aside.
    :return: by the path of each file: read, written and gaps, or error.
    :raises Refused: if there is none.
    """
    banks = _file_of(store, "recover")
    if path is not None and (not isinstance(path, str) or not _is_another_file(path, banks.path)):
        raise Refused(f"path is {path!r}; accepted is the path of a file that was set aside")
    done = {name: _recovered(name, banks) for name in (banks.damaged() if path is None else [path])}
    if not done:
        raise Refused(f"There is no damaged file beside {banks.path}")
    return done


def _is_another_file(path: str, own: str) -> bool:
    try:
        return os.path.isfile(path) and not os.path.samefile(path, own)
    except FileNotFoundError:
        return True
    except (OSError, ValueError):
        return False


def _recovered(path: str, banks: SqliteBanks) -> dict[str, Any]:
    import sqlite3

    from saltext.jobs.core.sqlite.salvage import Salvage, Unreadable

    salvage = Salvage(path, banks)
    try:
        salvage.run()
    except Unreadable as exc:
        return {"error": f"nothing of it can be read: {exc}"}
    except sqlite3.Error as exc:
        return {"error": f"the file in use cannot be written: {exc}"}
    return {"read": salvage.read, "written": salvage.written, "gaps": salvage.gaps}


def _file_of(store: Store, what: str) -> SqliteBanks:
    if store.driver.one_file is None:
        raise Refused(f"job_cache.{what} is for cache: sqlite; the master has cache: {store.driver.name}")
    return store.driver.one_file.banks_file
