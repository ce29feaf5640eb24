"""
The master job cache as the engines need it, whatever returner is configured: loads, who returned what, and storing a
job's load.

It blocks (disk, database): call it from a Worker. It must never return the payloads of all returns at once: these can be
megabytes, and the engines need none. A record of the job cache, like an event, may contain anything that a minion has
sent, or be damaged. So its fields are checked here. A damaged record is skipped, and the others count.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import salt.loader
import salt.payload
import salt.utils.args
import salt.utils.jid
from salt.exceptions import SaltCacheError

from saltext.jobs.core import lines
from saltext.jobs.core.banks import NOCACHE, PUBLISHED, RETURNS
from saltext.jobs.core.errors import JobCacheError
from saltext.jobs.core.ids import is_plain
from saltext.jobs.core.master.events import retcode_of
from saltext.jobs.core.quiet import Quiet
from saltext.jobs.core.store import records
from saltext.jobs.core.store.calling import Undecodable
from saltext.jobs.core.store.publication import Publication
from saltext.jobs.core.store.store import Store, store_of

__all__ = ["BATCH_MARK", "OURS", "JobCache", "OwnLoad", "Publication", "load_of"]

log = lines.logger(__name__)

#: Our own job cache, which keeps the first published load and knows what this master has published.
OURS = "salt_cache"
#: Job caches that give a return back as it was stored.
EXACT = frozenset((OURS, "local_cache"))
#: Returns of a job that are read at a time, if their content is wanted.
_RETURNS_AT_ONCE = 5
#: Key in the load of a job that the batch_manager engine publishes: the batch decides who gets it, and when.
BATCH_MARK = "batch"


class OwnLoad(dict[str, Any]):
    """
    A load that one of our engines has made. Its claims are believed, because a load from the network never has this type.
    """


class JobCache:
    """
    :param opts: the master's options. Returns are read where they are stored: in ``ext_job_cache`` if that is set, else
        in ``master_job_cache``.
    """

    def __init__(self, opts: Mapping[str, Any]) -> None:
        self._opts = dict(opts)
        self.master_name: str = opts.get("master_job_cache", "local_cache")
        self.name: str = opts.get("ext_job_cache") or self.master_name
        self._loaded: Any = None
        self._quiet = Quiet(log)

    @property
    def keeps_first_load(self) -> bool:
        """Whether the load stays if another publish has the same jid; local_cache and others overwrite it."""
        return self.master_name == OURS

    @property
    def why_unauthenticated(self) -> str:
        """
        Why stored returns are no better evidence than events; empty if they are.

        They are better evidence if only the master writes them, from returns (``salt.utils.job.store_job``): anyone can
        fire an event, but a return comes from an authenticated minion, or from a syndic. The job cache must also be able
        to read the return of one minion alone; others read all returns of the job each time.
        """
        if self._opts.get("ext_job_cache"):
            return f"ext_job_cache is {self._opts['ext_job_cache']!r}: minions write to it themselves"
        if not self._opts.get("job_cache", True):
            return "job_cache is False: no return is stored"
        if self.master_name not in EXACT:
            return f"master_job_cache is {self.master_name!r}, which cannot give the return of one minion alone"
        if self._opts.get("cluster_id") and not self._opts.get("saltext_jobs_site"):
            return "cluster_id is set, and the masters of a cluster store the returns that each other's events report"
        return ""

    def load(self, jid: str) -> dict[str, Any]:
        """Return the load of a job, or ``{}``. :raises JobCacheError: when it cannot be read."""
        return dict(self._mapping(f"The load of {jid}", self._call(self.name, "get_load", jid)))

    def published_load(self, jid: str) -> dict[str, Any]:
        """
        Return the load of a job from this master's own job cache, or ``{}``. A load that is to be published again is
        never read from an ``ext_job_cache``, because minions may write to it.

        :raises JobCacheError: when it cannot be read.
        """
        return dict(self._mapping(f"The load of {jid}", self._call(self.master_name, "get_load", jid)))

    def returned(self, jid: str, minions: Iterable[str]) -> dict[str, int]:
        """
        Return ``{minion: retcode}`` of those of ``minions`` that have returned ``jid``.

        A minion whose return is damaged is left out, with a line in the log.

        :raises JobCacheError: when the cache cannot be read.
        """
        wanted = list(minions)
        if self.name == OURS and len(wanted) <= 200:
            found: Mapping[str, Any] = self._fetch_each(jid, wanted)
        elif self.name == "local_cache" and len(wanted) <= 200 and is_plain(jid):
            found = self._read_each(jid, wanted)
        else:
            found = self._mapping(f"What has returned {jid}", self._call(self.name, "get_jid", jid))
        # A missing key fetches an empty mapping; a stored return is never empty.
        returns = {minion: self._mapping(f"{minion}'s return of {jid}", found.get(minion)) for minion in wanted}
        return {minion: retcode_of(data) for minion, data in returns.items() if data}

    def have_returned(self, jid: str, minions: Iterable[str]) -> frozenset[str]:
        """
        Return those of ``minions`` that have returned ``jid``, if possible without reading the returns.

        :raises JobCacheError: when the cache cannot be read.
        """
        wanted = list(minions)
        if self.name == "local_cache" and is_plain(jid):
            return frozenset(minion for minion in filter(is_plain, wanted) if self._has_file(jid, minion))
        if self.name != OURS:
            return frozenset(self.returned(jid, wanted))
        store = self._store
        job, ids = store.key_of(jid), {store.key_of(minion): minion for minion in wanted}
        if job is None or not wanted:
            return frozenset()
        keys = [key for key in ids if key is not None]
        bank = f"{RETURNS}/{job}"
        found = self._guard(OURS, f"list {bank}", lambda: store.driver.present(bank, keys))
        return frozenset(ids[key] for key in found)

    def answers(self, jid: str, minions: Iterable[str]) -> dict[str, tuple[Any, int]]:
        """
        Return ``{minion: (return, retcode)}`` of those of ``minions`` that have returned ``jid``. Call this only if the
        job cache proves the sender: see ``why_unauthenticated``.

        :raises JobCacheError: when the cache cannot be read.
        """
        read = self._fetch_each if self.name == OURS else self._read_each
        return {
            minion: (data["return"], retcode_of(data))
            for minion, data in (read(jid, list(minions)) if is_plain(jid) else {}).items()
            if isinstance(data, Mapping) and "return" in data
        }

    def each_return(self, jid: str, minions: Iterable[str]) -> Iterator[tuple[str, Mapping[str, Any] | None]]:
        """
        Yield (minion, its return) for some minions; None in place of a return that is missing or damaged. With our job
        cache and with local_cache only a few are in memory at a time.

        :raises JobCacheError: when the cache cannot be read.
        """
        wanted = list(minions)
        few = self.name == OURS or (self.name == "local_cache" and is_plain(jid))
        at_once = _RETURNS_AT_ONCE if few else max(1, len(wanted))
        for start in range(0, len(wanted), at_once):
            part = wanted[start : start + at_once]
            found: Mapping[str, Any]
            if not few:
                found = self._mapping(f"What has returned {jid}", self._call(self.name, "get_jid", jid))
            else:
                found = self._fetch_each(jid, part) if self.name == OURS else self._read_each(jid, part)
            for minion in part:
                yield minion, self._mapping(f"{minion}'s return of {jid}", found.get(minion)) or None

    def forget(self, jid: str) -> None:
        """
        Remove one of our own jobs entirely, if the cache is ours or local_cache. :raises JobCacheError: when that fails.
        """
        if self.name == "local_cache" and is_plain(jid):
            # Salt's maintenance later removes what is stored meanwhile.
            shutil.rmtree(self._folder(jid), ignore_errors=True)
            return
        key = self._store.key_of(jid)
        if key is not None:
            self._guard(OURS, f"remove {jid}", lambda: records.drop(self._store, key))

    def publication(self, jid: str) -> Publication | None:
        """
        Return how this master, or one of its site, published ``jid``; None if none did. Only our own job cache
        knows.

        :raises JobCacheError: when the cache cannot be read.
        """
        key = self._store.key_of(jid) if self.master_name == OURS else None
        if key is None:
            return None
        record = self._guard(OURS, f"fetch {PUBLISHED} {jid}", lambda: self._damaged_as_text(key))
        try:
            found = Publication.from_record(record) if record else None
        except ValueError as exc:
            self._quiet.error(
                "publication", "The record that this master published job %s cannot be used: %s", jid, exc
            )
            return None
        return found if found and self._is_ours(found.by) else None

    def _is_ours(self, master: str) -> bool:
        return master == self._opts["id"] or self._store.site.shares(master)

    def has_publication(self, jid: str) -> bool:
        """
        Tell whether a publish of ``jid`` by any master is recorded, readable or not. Only our own job cache knows.

        :raises JobCacheError: when the cache cannot be read.
        """
        key = self._store.key_of(jid) if self.master_name == OURS else None
        if key is None:
            return False
        return bool(self._guard(OURS, f"look for {jid}", lambda: records.is_published(self._store, key)))

    def _damaged_as_text(self, key: str) -> Any:
        try:
            return self._store.fetch(PUBLISHED, key)
        except Undecodable as exc:
            return str(exc)

    def published_since(self, since: float) -> dict[str, float]:
        """
        Return ``{jid: Unix time of its newest publish}`` of the jobs that this master, or one of its site,
        published at or after ``since``. A record that cannot be read is passed over. Only our own job cache knows.

        :raises JobCacheError: when the cache cannot be read.
        """
        keys = self._guard(OURS, f"list {PUBLISHED}", lambda: self._store.driver.written_since(PUBLISHED, since))
        found = {jid: self._readable_publication(jid) for jid in map(self._store.decode, keys) if is_plain(jid)}
        return {jid: its.last for jid, its in found.items() if its is not None and its.last >= since}

    def _readable_publication(self, jid: str) -> Publication | None:
        try:
            return self.publication(jid)
        except JobCacheError as exc:
            # If the driver can look for another record, only this one is unreadable.
            self._guard(OURS, "probe", lambda: self._store.contains(NOCACHE, "probe"))
            self._quiet.error(
                "publication", "The record that this master published job %s cannot be read: %s", jid, exc
            )
            return None

    @property
    def _store(self) -> Store:
        return store_of(self._opts)

    def keep_load(self, jid: str, load: Mapping[str, Any], minions: Iterable[str]) -> None:
        """
        Store the load of ``jid``, as publishing it would.

        :param load: as the master gets it from a client: fun, arg, tgt, tgt_type, user, ret, kwargs, jid.
        :raises JobCacheError: when it cannot be stored.
        """
        call = self._function(self.master_name, "save_load")
        self._guard(self.master_name, "save_load", lambda: call(jid, OwnLoad(load), minions=sorted(minions)))

    def store_return(self, load: Mapping[str, Any]) -> None:
        """Store a return that came in another way: ``load`` has jid, id, return, retcode, success, fun."""
        self._call(self.name, "returner", dict(load))

    def store_kept(self, jid: str, fun: Any, returns: Mapping[str, Mapping[str, Any]]) -> frozenset[str]:
        """
        Store returns that minions had kept, and return the minions whose returns are stored now.

        :param returns: ``{minion: return data}`` as the minions gave it; only what belongs to a return is taken.
        :raises JobCacheError: when they cannot be stored.
        """
        for minion, data in returns.items():
            kept = {name: data[name] for name in ("return", "retcode", "success", "out") if name in data}
            self.store_return({"jid": jid, "id": minion, "fun": fun, **kept})
        return self.have_returned(jid, returns)

    def _mapping(self, what: str, value: Any) -> Mapping[str, Any]:
        if value and not isinstance(value, Mapping):
            self._quiet.error("record", "Skipping %.200s in the job cache, which is not a mapping", what)
        return value if isinstance(value, Mapping) else {}

    def _fetch_each(self, jid: str, minions: list[str]) -> dict[str, Any]:
        store = self._store
        job, ids = store.key_of(jid), {store.key_of(minion): minion for minion in minions}
        if job is None:
            return {}
        bank = f"{RETURNS}/{job}"
        keys = [key for key in ids if key is not None]
        found: dict[str, Any] = {}
        for key, value in self._guard(OURS, f"fetch {bank}", lambda: list(store.driver.fetch_each(bank, keys))):
            minion = ids[key]
            if isinstance(value, Undecodable):
                self._quiet.error("record", "Skipping %s's return of %s, which cannot be read: %s", minion, jid, value)
            elif isinstance(value, SaltCacheError):
                raise JobCacheError(f"{minion}'s return of {jid} cannot be read: {value}") from value
            else:
                found[minion] = value
        return found

    def _read_each(self, jid: str, minions: list[str]) -> dict[str, Any]:
        """Read the returns of some minions; local_cache itself would read all returns."""
        folder = self._folder(jid)
        found = {}
        for minion in filter(is_plain, minions):
            try:
                with open(os.path.join(folder, minion, "return.p"), "rb") as stream:
                    value = salt.payload.loads(stream.read(), encoding="utf-8")
            except FileNotFoundError:
                continue
            except OSError as exc:
                raise JobCacheError(f"{minion}'s return of {jid} cannot be read: {exc}") from exc
            except Exception as exc:  # msgpack raises many kinds
                self._quiet.error("record", "Skipping %s's return of %s, which is damaged: %s", minion, jid, exc)
                continue
            # Earlier releases stored only the returned value.
            found[minion] = value if isinstance(value, Mapping) and "return" in value else {"return": value}
        return found

    def _has_file(self, jid: str, minion: str) -> bool:
        try:
            os.stat(os.path.join(self._folder(jid), minion, "return.p"))
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as exc:
            raise JobCacheError(f"{minion}'s return of {jid} cannot be looked for: {exc}") from exc
        return True

    def _folder(self, jid: str) -> str:
        """Return where local_cache keeps a job."""
        jobs = os.path.join(self._opts["cachedir"], "jobs")
        return str(salt.utils.jid.jid_dir(jid, jobs, self._opts.get("hash_type", "sha256")))

    def _call(self, name: str, function: str, *args: Any) -> Any:
        call = self._function(name, function)
        return self._guard(name, function, lambda: call(*args))

    def _function(self, name: str, function: str) -> Any:
        if self._loaded is None:
            utils = salt.loader.utils(self._opts)
            self._loaded = salt.loader.returners(self._opts, salt.loader.minion_mods(self._opts, utils=utils))
        try:
            return self._loaded[f"{name}.{function}"]
        except KeyError:
            raise JobCacheError(f"The job cache {name!r} has no {function}: is master_job_cache right?") from None

    @staticmethod
    def _guard(name: str, what: str, call: Any) -> Any:
        try:
            return call()
        except Exception as exc:  # A driver raises anything that its client library raises.
            raise JobCacheError(f"The job cache {name!r} failed at {what}: {type(exc).__name__}: {exc}") from exc


def load_of(
    jid: str,
    fun: str,
    arg: Iterable[Any],
    kwarg: Mapping[str, Any],
    tgt: Any,
    tgt_type: str,
    user: str,
    ret: str,
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the load of a job for the job cache, in the form in which a client would publish it."""
    return {
        "cmd": "publish",
        "jid": jid,
        "fun": fun,
        "arg": salt.utils.args.condition_input(list(arg), dict(kwarg)),
        "tgt": tgt,
        "tgt_type": tgt_type,
        "ret": ret,
        "user": user,
        "kwargs": {name: value for name, value in options.items() if value is not None},
    }
