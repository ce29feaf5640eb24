"""
Look after the ``salt_cache`` job cache: copy jobs into it, see how large it is, find what is broken in it.

It works on the storage that ``cache:`` names, whether or not ``master_job_cache`` is ``salt_cache`` already, so a
master's jobs can be copied before it is switched over. It must never mark a job as published: only this master's
publish does that, and job retry relies on it.
"""

from __future__ import annotations

import logging
import os
import time
from typing import Any

import salt.loader
import salt.payload
import salt.utils.jid
from salt.exceptions import SaltCacheError, SaltDeserializationError

from saltext.jobs.core import arguments, runner
from saltext.jobs.core.errors import Refused
from saltext.jobs.core.master import secrets
from saltext.jobs.core.store import drivers, publication
from saltext.jobs.core.store import records as jobs
from saltext.jobs.core.store import store as stores

log = logging.getLogger(__name__)

__virtualname__ = "job_cache"

PROGRESS_SECONDS = 2.0
# What is younger may be a job that is being published, or a return that is just being stored.
SETTLED_SECONDS = 300


def __virtual__():
    return __virtualname__


# ---------------------------------------------------------------------------------------------------------
# migrate
# ---------------------------------------------------------------------------------------------------------


@runner.verb
def migrate(source="local_cache", dry_run=False):
    """
    Copy the jobs of another job cache into ``salt_cache``: loads, minions, returns and end times.

    What is there already is not copied again, so an interrupted run is taken up by running it once more, and a run
    while the master stores jobs in either cache does no harm. Nothing is removed from the source. The copies count
    as written now: they are kept for another ``keep_jobs_seconds``.

    Set ``master_job_cache: salt_cache`` and restart the master first, where ``cache`` is localfs or mmap_cache: the
    sweep of ``local_cache`` walks the same directory and would remove what is copied there.

    source
        The returner to read: local_cache, or any returner with get_jids, get_load and get_jid.

    dry_run
        Tell what would be copied and write nothing.

    Returns the number of jobs seen, of those that were not whole before (copied), and of loads, returns and end
    times written; ``failed`` names the jobs that could not be copied, with the reason.

    CLI Example:

    .. code-block:: bash

        salt-run job_cache.migrate
        salt-run job_cache.migrate source=local_cache dry_run=True
    """
    source, dry_run = arguments.plain("source", source), arguments.flag("dry_run", dry_run)
    read = _reader(source)
    store = stores.Store(__opts__)
    if not dry_run and __opts__.get("master_job_cache") == "local_cache" and store.driver.in_jobs_folder:
        raise Refused(
            f"master_job_cache is local_cache, whose sweep would remove what is copied to cache: {store.driver.name}. "
            "Set master_job_cache: salt_cache, restart the master, and run this again"
        )
    done: dict[str, Any] = {
        "source": source,
        "driver": store.driver.name,
        "dry_run": dry_run,
        "jobs": 0,
        "copied": 0,
    }
    done.update({"loads": 0, "returns": 0, "endtimes": 0, "failed": {}})
    try:
        names = sorted(read["get_jids"]())
    except Exception as exc:
        raise Refused(f"The jobs of {source} cannot be listed: {exc}") from exc
    progress = _Progress(f"copying the jobs of {source}", len(names))
    for jid in names:
        done["jobs"] += 1
        try:
            written = _copy(store, read, jid, dry_run)
        except drivers.Outage as exc:
            raise Refused(f"Stopped at job {jid}; run it again to go on: {exc}") from exc
        except Exception as exc:
            log.warning("Job %s of %s cannot be copied: %s", jid, source, exc)
            done["failed"][jid] = str(exc)
            continue
        done["copied"] += any(written.values())
        for kind, count in written.items():
            done[kind] += count
        progress.at(done["jobs"])
    return done


def _reader(source):
    """The functions of the returner ``source``."""
    if source == "salt_cache":
        raise Refused("source must be another job cache than salt_cache, such as local_cache")
    loaded = salt.loader.returners(__opts__, {})
    needed = ("get_jids", "get_load", "get_jid")
    missing = [name for name in needed if f"{source}.{name}" not in loaded]
    if missing:
        raise Refused(f"The returner {source!r} is not loaded or has no {', '.join(missing)}")
    optional = [name for name in ("get_endtime",) if f"{source}.{name}" in loaded]
    read = {name: loaded[f"{source}.{name}"] for name in (*needed, *optional)}
    if source == "local_cache":
        read.update(get_jids=_local_cache_jids, get_load=_local_cache_load, get_jid=_local_cache_returns)
    return read


def _local_cache_jids():
    """The jids that have a load. local_cache.get_jids ends at the first load that is none."""
    root = os.path.join(__opts__["cachedir"], "jobs")
    for top in os.listdir(root) if os.path.isdir(root) else ():
        for name in os.listdir(os.path.join(root, top)) if len(top) == 2 else ():
            folder = os.path.join(root, top, name)
            if os.path.isfile(os.path.join(folder, ".load.p")) and os.path.isfile(os.path.join(folder, "jid")):
                with open(os.path.join(folder, "jid"), encoding="utf-8", errors="replace") as handle:
                    yield handle.read()


def _local_cache_load(jid):
    """What local_cache.get_load returns, also of a job without a list of minions."""
    folder = salt.utils.jid.jid_dir(jid, os.path.join(__opts__["cachedir"], "jobs"), __opts__["hash_type"])
    load = _load_file(os.path.join(folder, ".load.p"))
    minions = set()
    for name in os.listdir(folder):
        if name == ".minions.p" or (name.startswith(".minions.") and name.endswith(".p")):
            path = os.path.join(folder, name)
            try:
                minions |= publication.ids_in(_load_file(path))
            except (OSError, ValueError, SaltDeserializationError) as exc:
                log.error("Left out, since %s cannot be read: %s", path, exc)
    return {**load, "Minions": sorted(minions)} if isinstance(load, dict) and minions else load


def _local_cache_returns(jid):
    """What local_cache.get_jid returns. It tries for ever to read a return that is broken; here that is left out."""
    root = os.path.join(__opts__["cachedir"], "jobs")
    folder = salt.utils.jid.jid_dir(jid, root, __opts__["hash_type"])
    returns = {}
    for minion in os.listdir(folder) if os.path.isdir(folder) else ():
        path = os.path.join(folder, minion, "return.p")
        if minion.startswith(".") or not os.path.isfile(path):
            continue
        try:
            record = _load_file(path)
            returns[minion] = record if isinstance(record, dict) and "return" in record else {"return": record}
            if os.path.isfile(os.path.join(folder, minion, "out.p")):
                returns[minion]["out"] = _load_file(os.path.join(folder, minion, "out.p"))
        except (OSError, ValueError, SaltDeserializationError) as exc:
            log.error("Left out, since %s cannot be read: %s", path, exc)
            returns.pop(minion, None)
    return returns


def _load_file(path):
    with open(path, "rb") as handle:
        return salt.payload.load(handle)


def _copy(store, read, jid, dry_run):
    """Copy what of one job is not there; how many loads, returns and end times that were."""
    key = store.key(jid, "jid")
    if key is None:
        raise Refused(f"the driver {store.driver.name} cannot take this jid")
    load, returns = read["get_load"](jid) or {}, read["get_jid"](jid) or {}
    if not isinstance(load, dict) or not isinstance(returns, dict):
        raise Refused(f"its load is a {type(load).__name__}, its returns are a {type(returns).__name__}")
    end = read["get_endtime"](jid) if "get_endtime" in read else None
    bank = f"{jobs.RETURNS}/{key}"
    minions = stores.plain_minions(key, load.get("Minions"))
    with store.lock(key):
        here = set(store.keys(bank))
        wanted = {store.key(minion, "minion id"): record for minion, record in returns.items()}
        new = {minion: record for minion, record in wanted.items() if minion is not None and minion not in here}
        new_load = bool(load) and _is_better(store, key, load)
        new_end = bool(end) and not store.contains(jobs.ENDTIMES, key)
        if not dry_run:
            if new_end:
                store.store(jobs.ENDTIMES, key, end)
            if minions and (new_load or not jobs.minions_of(store, key)):
                jobs.add_minions(store, key, minions)
    # Under the locks that the returner takes: the master may be storing the same return.
    for minion, record in () if dry_run else new.items():
        with store.lock(key, minion):
            store.driver.store_new(bank, minion, record)
    # Last, so that a run that was interrupted is not taken for a whole copy.
    if new_load and not dry_run:
        with store.lock(key):
            if _is_better(store, key, load):
                stored = secrets.without_secrets(load)
                stored.pop("Minions", None)
                store.store(jobs.LOADS, key, stored)
    return {"loads": int(new_load), "returns": len(new), "endtimes": int(new_end)}


def _is_better(store, key, load):
    """Whether ``load`` is what the job was published with, and the load that is there, if any, is not."""
    if jobs.is_published(store, key):
        return False
    there = jobs.load_of(store, key)
    return not there or ("tgt" in load and "tgt" not in there)


class _Progress:
    """A line for whoever waits at the terminal, now and then."""

    def __init__(self, what, total):
        self.what, self.total, self.last = what, total, time.monotonic()

    def at(self, count):
        if time.monotonic() - self.last < PROGRESS_SECONDS and count != self.total:
            return
        self.last = time.monotonic()
        log.info("job_cache: %s: %d of %d", self.what, count, self.total)
        runner.progress(globals(), f"{self.what}: {count} of {self.total}")


# ---------------------------------------------------------------------------------------------------------
# stats
# ---------------------------------------------------------------------------------------------------------


@runner.verb
def stats():
    """
    How many jobs and returns there are, the oldest and the newest job, and the bytes on disk.

    ``bytes`` is None where the driver keeps its data elsewhere. With mmap_cache, ``bank_bytes`` is the size that the
    index of every job has by ``mmap_cache_size`` and ``mmap_cache_slot_size``; as it is written with holes, it takes
    a few pages only, which ``bytes`` shows. Tools that copy it must be told to keep the holes.

    CLI Example:

    .. code-block:: bash

        salt-run job_cache.stats
    """
    store = stores.Store(__opts__)
    keys = sorted(store.keys(jobs.LOADS))
    returns = sum(len(store.keys(f"{jobs.RETURNS}/{key}")) for key in keys)
    published = len(store.keys(jobs.PUBLISHED))
    timed = [key for key in keys if key[:8].isdigit() and key.isascii()]
    found = {"driver": store.driver.name, "jobs": len(keys), "published": published, "returns": returns}
    found["oldest"] = store.decode(timed[0]) if timed else None
    found["newest"] = store.decode(timed[-1]) if timed else None
    found["bytes"] = _bytes(store)
    if store.driver.bank_bytes:
        found["bank_bytes"] = store.driver.bank_bytes
    return found


def _bytes(store):
    """What the banks really take on disk, holes left out; None for a driver that has a server."""
    if store.driver.name not in ("localfs", "mmap_cache"):
        return None
    taken = 0
    for bank in (*jobs.BANKS, jobs.RETURNS):
        for folder, _, files in os.walk(os.path.join(store.cachedir, bank)):
            for name in files:
                try:
                    taken += os.lstat(os.path.join(folder, name)).st_blocks * 512
                except FileNotFoundError:
                    continue  # removed meanwhile
    return taken


# ---------------------------------------------------------------------------------------------------------
# verify
# ---------------------------------------------------------------------------------------------------------


@runner.verb
def verify(repair=False):
    """
    List what in the job cache is unreadable or does not fit together.

    ======================  ==================================================  ==================================
    problem                 meaning                                             what ``repair=True`` does
    ======================  ==================================================  ==================================
    unreadable-load         the load cannot be read or is no dictionary         sets it aside if it is damaged
    unreadable-minions      the list of minions cannot be read or is none       writes it anew from the returns
    unreadable-return       a return cannot be read                             sets it aside if it is damaged
    secrets-in-load         a token, password or key is stored in the load      removes the secret
    no-load                 returns or markers of a job without a load          removes them
    unexpected-return       a minion returned that the job was not sent to      nothing: find out why
    ======================  ==================================================  ==================================

    A record that cannot be read for another reason than its content, such as its permissions, is left alone. What is
    set aside goes to ``salt_cache.corrupt`` in the cache directory (localfs) or to the bank ``jobs/corrupt``; what
    cannot be decoded stays where it is with drivers other than localfs, until its job is old.

    repair
        Repair what can be. Without it nothing is written.

    Returns ``{"jobs", "returns", "problems": [{"jid", "problem", "minion", "detail", "repaired"}]}``.

    CLI Example:

    .. code-block:: bash

        salt-run job_cache.verify
        salt-run job_cache.verify repair=True
    """
    return _Verification(stores.Store(__opts__), arguments.flag("repair", repair)).run()


class _Verification:
    def __init__(self, store, repair):
        self.store, self.repair = store, repair
        self.problems = []
        self.returns = 0

    def run(self):
        loads = sorted(self.store.keys(jobs.LOADS))
        progress = _Progress("verifying jobs", len(loads))
        for count, key in enumerate(loads, 1):
            self.load(key)
            expected = self.minions(key)
            self.returns_of(key, expected)
            progress.at(count)
        self.without_load(set(loads))
        return {"jobs": len(loads), "returns": self.returns, "problems": self.problems}

    def found(self, problem, key, fix=None, minion=None, detail=None):
        """Note a problem; ``fix()``, which tells whether it did, is called if repairing was asked for."""
        repaired = bool(self.repair and fix is not None and fix())
        jid, minion = self.store.decode(key), minion and self.store.decode(minion)
        detail = None if detail is None else str(detail)
        entry = {"jid": jid, "problem": problem, "minion": minion, "detail": detail, "repaired": repaired}
        self.problems.append(entry)

    def read(self, bank, key):
        """The value, and why it cannot be read."""
        try:
            return self.store.fetch(bank, key), None
        except drivers.Outage:
            raise
        except SaltCacheError as exc:
            return None, exc

    def set_aside(self, bank, key, kind, *lock):
        with self.store.lock(*lock):
            return jobs.set_aside(self.store, bank, key, kind)

    def load(self, key):
        load, error = self.read(jobs.LOADS, key)
        if error or not isinstance(load, dict):
            fix = None if error and not isinstance(error, drivers.Undecodable) else self.set_aside
            self.found(
                "unreadable-load",
                key,
                fix and (lambda: fix(jobs.LOADS, key, dict, key)),
                detail=error or f"it is a {type(load).__name__}",
            )
        elif secrets.without_secrets(load) != load:
            self.found("secrets-in-load", key, lambda: jobs.replace_load(self.store, key, secrets.without_secrets))

    def minions(self, key):
        """The minions that the job was published to; None where that is not known."""
        minions, error = self.read(jobs.MINIONS, key)
        if not minions and not error:
            return None
        if error or not (isinstance(minions, list) and all(isinstance(name, str) for name in minions)):
            fix = None if error and not isinstance(error, drivers.Undecodable) else (lambda: self.write_minions(key))
            self.found("unreadable-minions", key, fix, detail=error)
            return None
        return set(minions) if self.store.contains(jobs.PUBLISHED, key) else None

    def write_minions(self, key):
        answered = {self.store.decode(name) for name in self.store.keys(f"{jobs.RETURNS}/{key}")}
        with self.store.lock(key):
            jobs.set_aside(self.store, jobs.MINIONS, key, list)
            jobs.add_minions(self.store, key, answered, always=True)
        return True

    def returns_of(self, key, expected):
        bank = f"{jobs.RETURNS}/{key}"
        for minion in sorted(self.store.keys(bank)):
            self.returns += 1
            _, error = self.read(bank, minion)
            if error:
                fix = None if not isinstance(error, drivers.Undecodable) else self.set_aside
                self.found(
                    "unreadable-return",
                    key,
                    fix and (lambda m=minion, fix=fix: fix(bank, m, object, key, m)),
                    minion=minion,
                    detail=error,
                )
            elif expected is not None and self.store.decode(minion) not in expected:
                self.found("unexpected-return", key, minion=minion)

    def without_load(self, loads):
        left = {key for bank in jobs.BANKS[1:] for key in self.store.keys(bank)}
        left = left.union(self.store.driver.banks(jobs.RETURNS)) - loads
        for key in sorted(left):
            if self.store.contains(jobs.LOADS, key):
                continue  # published meanwhile
            if self.is_settled(key):
                self.found("no-load", key, lambda k=key: self.drop(k))

    def is_settled(self, key):
        written = jobs.last_written(self.store, key)
        return written is None or time.time() - written > SETTLED_SECONDS

    def drop(self, key):
        with self.store.lock(key):
            if self.store.contains(jobs.LOADS, key) or not self.is_settled(key):
                return False
            jobs.drop(self.store, key)
            return True
