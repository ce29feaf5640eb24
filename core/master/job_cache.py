"""
The master job cache, whatever returner is configured: loads, returns, and storing what an engine has made or found.

It blocks (disk, database): call it from a Worker. It must never return the payloads of all returns at once: these can be
megabytes. A record may contain anything that a minion has sent, or be damaged: its fields are checked here, a damaged one is
skipped, and the others count.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import salt.loader
import salt.payload
import salt.utils.jid

from saltext.jobs.core import lines
from saltext.jobs.core.banks import NOCACHE, PUBLISHED
from saltext.jobs.core.errors import JobCacheError
from saltext.jobs.core.functions import retcode_of
from saltext.jobs.core.ids import is_plain, jid_time
from saltext.jobs.core.ledger.records import Published
from saltext.jobs.core.lines import Quiet
from saltext.jobs.core.store import records
from saltext.jobs.core.store.drivers import Undecodable
from saltext.jobs.core.store.store import Store, store_of

log = lines.logger(__name__)

#: Our own job cache, which keeps the first published load and knows what this master has published.
OURS = "salt_cache"
#: Returns of a job that are read at a time, if their content is wanted.
_RETURNS_AT_ONCE = 5
#: A job may be published again under its jid within this many seconds.
_AGAIN_WITHIN = 2 * 86400.0
#: Key in the load of a job that the batch_manager engine publishes: the batch decides who gets it, and when.
BATCH_MARK = "batch"


class OwnLoad(dict[str, Any]):
    """
    A load that one of our engines has made, and that was not published before. Its claims are believed: one from the network
    never has this type.
    """


class JobCache:
    """Returns are read where they are stored: in ``ext_job_cache`` if that is set, else in ``master_job_cache``."""

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

    def load(self, jid: str, to_publish: bool = False) -> dict[str, Any]:
        """
        Return the load of a job, or ``{}``. :raises JobCacheError: when it cannot be read. ``to_publish``: it is never read
        from an ``ext_job_cache``, because minions may write to it.
        """
        name = self.master_name if to_publish else self.name
        return dict(self._mapping(f"The load of {jid}", self._call(name, "get_load", jid)))

    def returned(self, jid: str, minions: Iterable[str]) -> dict[str, int]:
        """Return ``{minion: retcode}`` of those that have returned, without damaged returns. :raises JobCacheError:"""
        return {minion: retcode_of(data) for minion, data in self.each_return(jid, minions) if data}

    def each_return(self, jid: str, minions: Iterable[str]) -> Iterator[tuple[str, Mapping[str, Any] | None]]:
        """
        Yield (minion, its return): None if it is missing, an empty mapping if it cannot be read. With our job cache and
        with local_cache only a few are in memory at a time. :raises JobCacheError: when the cache cannot be read.
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
                value = found.get(minion)
                yield minion, None if value is None else self._mapping(f"{minion}'s return of {jid}", value)

    def publishes(self, jid: str) -> list[Published]:
        """Return a job's publish, as ``records.published_before``, if our own job cache can tell. :raises JobCacheError:"""
        store = self._store
        key = store.key_of(jid) if self.master_name == OURS else None
        if key is None:
            return []
        try:
            return records.published_before(store, key)
        except Exception as exc:  # a driver may raise anything
            # If the driver can look for another record, only this one is unreadable.
            self._guard(OURS, f"fetch {PUBLISHED} {jid}", lambda: store.contains(NOCACHE, "probe"))
            self._quiet.error(
                "publication", "The record that this master published job %s cannot be read: %s", jid, exc
            )
            return []

    def published_since(self, since: float) -> list[str]:
        """Return the jobs that the site published since a Unix time. Only for our own job cache. :raises JobCacheError:"""
        keys = self._guard(OURS, f"list {PUBLISHED}", lambda: self._store.keys(PUBLISHED))
        jids = [jid for jid in map(self._store.decode, keys) if (jid_time(jid) or since) >= since - _AGAIN_WITHIN]
        return [jid for jid in filter(is_plain, jids) if any(record.at >= since for record in self.publishes(jid))]

    @property
    def _store(self) -> Store:
        return store_of(self._opts)

    def keep_load(self, jid: str, load: Mapping[str, Any], minions: Iterable[str]) -> None:
        """
        Store the load of a job as its first publish would, and as the master gets it from a client. :raises JobCacheError:
        when it cannot be stored.
        """
        self._call(self.master_name, "save_load", jid, OwnLoad(load), minions=sorted(minions))

    def store_return(self, load: Mapping[str, Any]) -> None:
        """Store a return that came in another way: ``load`` has jid, id, return, retcode, success, fun."""
        self._call(self.name, "returner", dict(load))

    def store_kept(self, jid: str, fun: Any, returns: Mapping[str, Mapping[str, Any]]) -> None:
        """Store returns that minions had kept: of what each gave, only what belongs to a return. :raises JobCacheError:"""
        for minion, data in returns.items():
            kept = {name: data[name] for name in ("return", "retcode", "success", "out") if name in data}
            self.store_return({"jid": jid, "id": minion, "fun": fun, **kept})

    def forget(self, jid: str) -> None:
        """Remove one of our own jobs entirely from local_cache. Salt's maintenance removes what is stored meanwhile."""
        if is_plain(jid):
            shutil.rmtree(self._folder(jid), ignore_errors=True)

    def _mapping(self, what: str, value: Any) -> Mapping[str, Any]:
        if value and not isinstance(value, Mapping):
            self._quiet.error("record", "Skipping %.200s in the job cache, which is not a mapping", what)
        return value if isinstance(value, Mapping) else {}

    def _fetch_each(self, jid: str, minions: list[str]) -> dict[str, Any]:
        found = dict(self._guard(OURS, f"fetch {jid}", lambda: list(records.some_returns(self._store, jid, minions))))
        for minion, value in found.items():
            if isinstance(value, Undecodable):
                self._quiet.error("record", "Skipping %s's return of %s, which cannot be read: %s", minion, jid, value)
                found[minion] = {}
        return found

    def _read_each(self, jid: str, minions: list[str]) -> dict[str, Any]:
        """Read the returns of some minions; local_cache itself would read all returns."""
        folder = self._folder(jid)
        found: dict[str, Any] = {}
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
                found[minion] = {}
                continue
            # Earlier releases stored only the returned value.
            found[minion] = value if isinstance(value, Mapping) and "return" in value else {"return": value}
        return found

    def _folder(self, jid: str) -> str:
        jobs = os.path.join(self._opts["cachedir"], "jobs")
        return str(salt.utils.jid.jid_dir(jid, jobs, self._opts.get("hash_type", "sha256")))

    def _call(self, name: str, function: str, *args: Any, **kwargs: Any) -> Any:
        if self._loaded is None:
            utils = salt.loader.utils(self._opts)
            self._loaded = salt.loader.returners(self._opts, salt.loader.minion_mods(self._opts, utils=utils))
        try:
            call = self._loaded[f"{name}.{function}"]
        except KeyError:
            raise JobCacheError(f"The job cache {name!r} has no {function}: is master_job_cache right?") from None
        return self._guard(name, function, lambda: call(*args, **kwargs))

    @staticmethod
    def _guard(name: str, what: str, call: Any) -> Any:
        try:
            return call()
        except Exception as exc:  # A driver raises anything that its client library raises.
            raise JobCacheError(f"The job cache {name!r} failed at {what}: {type(exc).__name__}: {exc}") from exc
