"""
Copies jobs of another job cache, or of another driver, into the store: loads, minions, returns and end times.

It replaces no record, except an unpublished load by a better one. So it can be interrupted, and run while the master
stores jobs. It must never mark a job as published: it only copies the mark of a publish between drivers of this master.
It also copies the file of ``cache: sqlite`` as a backup, and the readable records of damaged files.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import salt.loader
import salt.payload
import salt.utils.jid
from salt.exceptions import SaltCacheError, SaltDeserializationError

from saltext.jobs.core import arguments, lines
from saltext.jobs.core.banks import ENDTIMES, LOADS, MINIONS, NOCACHE, PUBLISHED, RETURNS
from saltext.jobs.core.errors import Refused
from saltext.jobs.core.store import publication, records
from saltext.jobs.core.store.calling import Outage
from saltext.jobs.core.store.drivers import ABSENT
from saltext.jobs.core.store.store import Store

if TYPE_CHECKING:  # Python may have been built without sqlite3
    from saltext.jobs.core.sqlite.banks import SqliteBanks

log = lines.logger(__name__)

Load = dict[str, Any]
DRIVERS = ("localfs", "sqlite", "postgresql", "redis", "mysql", "etcd", "consul", "mmap_cache")

#: Called with the number of jobs looked at so far, and the number of all jobs.
Told = Callable[[int, int], None]


class Source:
    """
    A job cache to read from.

    :param functions: functions of a returner, by their short names: ``get_jids``, ``get_load``, ``get_jid``, and
        ``get_endtime`` if the returner has it.
    """

    def __init__(self, functions: Mapping[str, Callable[..., Any]]) -> None:
        self._functions = functions

    def jids(self) -> Iterable[str]:
        """Return the jids of all jobs. Raises anything that the returner does."""
        found: Iterable[str] = self._functions["get_jids"]()
        return found

    def load(self, jid: str) -> Any:
        """Return the load of a job, with ``Minions``."""
        return self._functions["get_load"](jid)

    def returns(self, jid: str) -> Any:
        """Return ``{minion: return}`` of a job."""
        return self._functions["get_jid"](jid)

    def end_time(self, jid: str) -> Any:
        """Return when a job ended, or None."""
        return self._functions["get_endtime"](jid) if "get_endtime" in self._functions else None


class LocalCache(Source):
    """
    The files of ``local_cache``, read more robustly than that returner does: its ``get_jids`` ends at the first damaged
    load, and its ``get_jid`` tries for ever to read a damaged return.

    :param functions: as above; used for the end time only.
    :param opts: the master's options.
    """

    def __init__(self, functions: Mapping[str, Callable[..., Any]], opts: Mapping[str, Any]) -> None:
        super().__init__(functions)
        self._root, self._hash = os.path.join(opts["cachedir"], "jobs"), opts["hash_type"]

    def jids(self) -> Iterator[str]:
        """Yield the jids that have a load."""
        for top in _names_in(self._root):
            for name in _names_in(os.path.join(self._root, top)) if len(top) == 2 else ():
                folder = os.path.join(self._root, top, name)
                if os.path.isfile(os.path.join(folder, ".load.p")) and os.path.isfile(os.path.join(folder, "jid")):
                    with open(os.path.join(folder, "jid"), encoding="utf-8", errors="replace") as handle:
                        yield handle.read()

    def load(self, jid: str) -> Any:
        """As ``get_load``, also for a job without a list of minions."""
        folder = self._folder(jid)
        load = _read(os.path.join(folder, ".load.p"))
        minions: set[str] = set()
        for name in os.listdir(folder):
            if name == ".minions.p" or (name.startswith(".minions.") and name.endswith(".p")):
                minions |= publication.ids_in(_readable(os.path.join(folder, name)))
        return {**load, "Minions": sorted(minions)} if isinstance(load, dict) and minions else load

    def returns(self, jid: str) -> dict[str, Any]:
        """As ``get_jid``, without returns that cannot be read."""
        folder = self._folder(jid)
        found: dict[str, Any] = {}
        for minion in os.listdir(folder) if os.path.isdir(folder) else ():
            path = os.path.join(folder, minion, "return.p")
            if minion.startswith(".") or not os.path.isfile(path):
                continue
            record = _readable(path)
            if record is ABSENT:
                continue
            found[minion] = record if isinstance(record, dict) and "return" in record else {"return": record}
            path = os.path.join(folder, minion, "out.p")
            out = _readable(path) if os.path.isfile(path) else ABSENT
            if out is not ABSENT:
                found[minion]["out"] = out
        return found

    def _folder(self, jid: str) -> str:
        return str(salt.utils.jid.jid_dir(jid, self._root, self._hash))


def _names_in(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):  # something else is in its place, or it was removed meanwhile
        return []


def _read(path: str) -> Any:
    with open(path, "rb") as handle:
        return salt.payload.load(handle)


def _readable(path: str) -> Any:
    """Return what is in a file; ABSENT if it cannot be read, which is logged."""
    try:
        return _read(path)
    except (OSError, ValueError, SaltDeserializationError) as exc:
        log.error("Left out, since %s cannot be read: %s", path, exc)
        return ABSENT


def from_returner(
    opts: Mapping[str, Any], name: str, clean: Callable[[Load], Load], dry_run: bool, told: Told
) -> dict[str, Any]:
    """
    Copy the jobs of a returner into the storage that ``cache`` names.

    :param clean: returns a load without its secrets.
    :param dry_run: write nothing.
    :return: source, driver and dry_run; jobs (how many there are), copied (how many of them lacked something), loads,
        returns and endtimes (how many were written), and failed: ``{jid: reason}``.
    :raises Refused: if that cannot be done.
    """
    store = Store(opts)
    _refuse_the_folder_of_local_cache(opts, store, dry_run)
    jobs = _source_called(opts, name)
    try:
        names = sorted(jobs.jids())
    except Exception as exc:  # a returner may raise anything
        raise Refused(f"The jobs of {name} cannot be listed: {exc}") from exc
    return _copied(name, store, names, dry_run, lambda jid: copy(store, jobs, jid, clean, dry_run), told)


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
    names = jobs_in(source)
    done = _copied(name, store, names, dry_run, lambda key: copy_between(source, store, key, dry_run), told)
    if not dry_run:
        done["lacking"] = sum(lacking(source, store, key) for key in names)
    return done


def _refuse_the_folder_of_local_cache(opts: Mapping[str, Any], store: Store, dry_run: bool) -> None:
    if not dry_run and opts.get("master_job_cache") == "local_cache" and store.driver.in_jobs_folder:
        raise Refused(
            f"master_job_cache is local_cache, whose sweep would remove the jobs copied to cache: {store.driver.name}. "
            "Set master_job_cache: salt_cache, restart the master, and run this again"
        )


def _source_called(opts: Mapping[str, Any], name: str) -> Source:
    if name == "salt_cache":
        raise Refused("source must be another job cache than salt_cache, such as local_cache")
    loaded = salt.loader.returners(opts, {})
    needed = ("get_jids", "get_load", "get_jid")
    missing = [function for function in needed if f"{name}.{function}" not in loaded]
    if missing:
        raise Refused(f"The returner {name!r} is not loaded or has no {', '.join(missing)}")
    there = [function for function in (*needed, "get_endtime") if f"{name}.{function}" in loaded]
    functions = {function: loaded[f"{name}.{function}"] for function in there}
    return LocalCache(functions, opts) if name == "local_cache" else Source(functions)


def _copied(
    source: str,
    store: Store,
    names: Sequence[str],
    dry_run: bool,
    copy_one: Callable[[str], Mapping[str, int]],
    told: Told,
) -> dict[str, Any]:
    """
    Copy job by job.

    :param source: its name.
    :param copy_one: copies a job and returns how many records of each kind it wrote.
    :raises Refused: if the source or the target is away.
    """
    done: dict[str, Any] = {"source": source, "driver": store.driver.name, "dry_run": dry_run}
    done.update({"jobs": 0, "copied": 0, "loads": 0, "returns": 0, "endtimes": 0, "failed": {}})
    for jid in names:
        done["jobs"] += 1
        try:
            written = copy_one(jid)
        except Outage as exc:
            raise Refused(f"Stopped at job {jid}; run the same command again to go on: {exc}") from exc
        except Exception as exc:
            log.warning("Job %s of %s cannot be copied: %s", jid, source, exc)
            done["failed"][jid] = str(exc)
            continue
        done["copied"] += any(written.values())
        for kind, count in written.items():
            done[kind] += count
        told(done["jobs"], len(names))
    return done


def copy(store: Store, source: Source, jid: str, clean: Callable[[Load], Load], dry_run: bool) -> dict[str, int]:
    """
    Copy the missing records of one job, and return how many ``loads``, ``returns`` and ``endtimes`` were missing.

    :param clean: returns a load without its secrets.
    :param dry_run: write nothing.
    :raises ValueError: if the job cannot be copied, with the reason.
    :raises SaltCacheError: if the store cannot be used.
    """
    key = store.key(jid, "jid")
    if key is None:
        raise ValueError(f"the driver {store.driver.name} cannot take this jid")
    load, returns = source.load(jid) or {}, source.returns(jid) or {}
    if not isinstance(load, dict) or not isinstance(returns, dict):
        raise ValueError(f"its load is a {type(load).__name__}, its returns are a {type(returns).__name__}")
    end = source.end_time(jid)
    bank = f"{RETURNS}/{key}"
    minions = store.plain_minions(key, load.get("Minions"))
    with store.lock(key):
        here = set(store.keys(bank))
        wanted = {store.key(minion, "minion id"): record for minion, record in returns.items()}
        new = {minion: record for minion, record in wanted.items() if minion is not None and minion not in here}
        new_load = bool(load) and _is_better(store, key, load)
        new_end = bool(end) and not store.contains(ENDTIMES, key)
        if not dry_run:
            if new_end:
                store.store(ENDTIMES, key, end)
            if minions and (new_load or not records.minions_of(store, key)):
                records.add_minions(store, key, minions)
    # Under the locks that the returner takes: the master may be storing the same return.
    for minion, record in () if dry_run else new.items():
        with store.lock(key, minion):
            store.driver.store_new(bank, minion, record)
    # last, so that a copy that was interrupted does not look complete
    if new_load and not dry_run:
        with store.lock(key):
            if _is_better(store, key, load):
                stored = clean(load)
                stored.pop("Minions", None)
                store.store(LOADS, key, stored)
    return {"loads": int(new_load), "returns": len(new), "endtimes": int(new_end)}


def copy_between(source: Store, store: Store, key: str, dry_run: bool) -> dict[str, int]:
    """
    Copy the missing records of one job from one driver to another of the same master, and return how many ``loads``,
    ``returns`` and ``endtimes`` were missing.

    The record that vouches for a load is copied too: it is the same job of the same master.

    :param key: the job's key in ``source``.
    :param dry_run: write nothing.
    :raises ValueError: if a part of the job cannot be copied, with the reason; all other parts are.
    :raises SaltCacheError: if one of the two drivers cannot be used.
    """
    jid = source.decode(key)
    there = store.key(jid, "jid")
    if there is None:
        raise ValueError(f"the driver {store.driver.name} cannot take this jid")
    banks = (LOADS, PUBLISHED, MINIONS, ENDTIMES, NOCACHE)
    load, mark, minions, end, nocache = source.driver.read_all([(bank, key) for bank in banks])
    broken = [str(value) for value in (load, mark, minions, end, nocache) if isinstance(value, SaltCacheError)]
    bank, count = f"{RETURNS}/{there}", 0
    here = set(store.keys(bank))
    for name, value in source.driver.fetch_each(f"{RETURNS}/{key}", source.keys(f"{RETURNS}/{key}")):
        minion = store.key(source.decode(name), "minion id")
        if minion is None or isinstance(value, SaltCacheError):
            broken.append(
                f"the return of {source.decode(name)} ({value if minion else 'the driver cannot take the id'})"
            )
        elif minion not in here:
            count += 1
            if not dry_run:
                with store.lock(there, minion):
                    store.driver.store_new(bank, minion, value)
    done = {"loads": 0, "returns": count, "endtimes": 0}
    with store.lock(there):
        writes: list[tuple[str, str, Any]] = []
        for place, value in ((ENDTIMES, end), (NOCACHE, nocache)):
            if _is_whole(value) and not store.contains(place, there):
                writes.append((place, there, value))
                done["endtimes"] += place == ENDTIMES
        # if a publish has stored the job, it knows better which minions the job is for
        if not records.is_published(store, there):
            ids = publication.ids_in(minions)
            if ids - records.minions_of(store, there) and not dry_run:
                records.add_minions(store, there, ids)
            if _is_whole(load) and (_is_whole(mark) or not records.load_of(store, there)):
                done["loads"] = 1
                writes.append((LOADS, there, load))
                if _is_whole(mark):  # last, so that a copy that was interrupted does not look published
                    writes.append((PUBLISHED, there, mark))
        if writes and not dry_run:
            store.driver.store_all(writes)
    if broken:
        raise ValueError("; ".join(broken))
    return done


def _is_whole(value: Any) -> bool:
    return value is not ABSENT and not isinstance(value, SaltCacheError)


def lacking(source: Store, store: Store, key: str) -> int:
    """Return how many records of a job are in ``source`` and not in ``store``."""
    jid = source.decode(key)
    there = store.key_of(jid)
    names = {source.decode(name) for name in source.keys(f"{RETURNS}/{key}")}
    loads = int(source.contains(LOADS, key))
    if there is None:
        return len(names) + loads
    found = {store.decode(name) for name in store.keys(f"{RETURNS}/{there}")}
    return len(names - found) + int(loads and not store.contains(LOADS, there))


def jobs_in(store: Store) -> list[str]:
    """Return the keys of all jobs that have a load, a return or any other record."""
    found = {key for bank in records.BANKS for key in store.keys(bank)}
    return sorted(found.union(store.driver.banks(RETURNS)))


def _is_better(store: Store, key: str, load: Load) -> bool:
    """Tell whether to store ``load``: the job was not published here, and has no load, or one that lacks a target."""
    if records.is_published(store, key):
        return False
    there = records.load_of(store, key)
    return not there or ("tgt" in load and "tgt" not in there)


# -- the file of sqlite ---------------------------------------------------------------------------------------------------


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
    Copy the readable records of damaged files into the file in use.

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

    from saltext.jobs.core.sqlite.salvage import Unreadable
    from saltext.jobs.core.store.salvage import JobSalvage

    salvage = JobSalvage(path, banks)
    try:
        salvage.require_known_format()
        salvage.run()
    except Unreadable as exc:
        return {"error": f"nothing of it can be read: {exc}"}
    except sqlite3.Error as exc:
        return {"error": f"the file in use cannot be written: {exc}"}
    except OSError as exc:
        return {"error": f"it cannot be read now: {exc}"}
    return {"read": salvage.read, "written": salvage.written, "gaps": salvage.gaps}


def _file_of(store: Store, what: str) -> SqliteBanks:
    if store.driver.one_file is None:
        raise Refused(f"job_cache.{what} is for cache: sqlite; the master has cache: {store.driver.name}")
    return store.driver.one_file.banks_file
