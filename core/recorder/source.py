"""
The job cache as the recorder reads it: what the records of the log are about.

It blocks: use it in one Worker. All that it reads is what the master's workers have stored; what a return says about its job
never counts.
"""

from __future__ import annotations

import collections
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from salt.exceptions import SaltCacheError

from saltext.jobs.core import lines
from saltext.jobs.core.banks import RETURNS
from saltext.jobs.core.ids import is_plain, jid_at
from saltext.jobs.core.ledger.outbox import Key
from saltext.jobs.core.master import secrets
from saltext.jobs.core.options.engines import RecorderSettings
from saltext.jobs.core.quiet import Quiet
from saltext.jobs.core.recorder.choice import is_wanted
from saltext.jobs.core.store import records
from saltext.jobs.core.store.calling import Undecodable
from saltext.jobs.core.store.store import store_of

log = lines.logger(__name__)

#: Jobs that are remembered.
_JOBS = 1000


class Job(NamedTuple):
    """
    What a job runs; whether it is recorded; and whether a master published it: then the log has its publish. Other jobs are
    those of runners, of salt-ssh, and of minions on their own.
    """

    fun: Any
    arguments: Any
    is_wanted: bool
    is_published: bool


class Source:
    """
    All methods raise SaltCacheError when the job cache cannot be read now.

    :param opts: the master's options.
    """

    def __init__(self, opts: Mapping[str, Any], settings: RecorderSettings) -> None:
        self._store, self._settings = store_of(opts), settings
        self._jobs: collections.OrderedDict[str, Job] = collections.OrderedDict()
        self._quiet = Quiet(log)

    @property
    def writes_together(self) -> bool:
        """Whether the job cache has at once what the log has."""
        return self._store.writes_together

    def job(self, jid: str) -> Job:
        """Return what is known of a job. A job without a load is recorded."""
        if jid in self._jobs:
            return self._jobs[jid]
        load, key = self.load(jid), self._store.key_of(jid)
        if not load or key is None:
            return Job("", [], True, True)
        wanted = is_wanted(load.get("fun"), self._settings.include, self._settings.exclude)
        arguments = load.get("arg", []) if wanted else []
        found = Job(load.get("fun", ""), arguments, wanted, records.is_published(self._store, key))
        self._jobs[jid] = found
        if len(self._jobs) > _JOBS:
            self._jobs.popitem(last=False)
        return found

    def load(self, jid: str) -> dict[str, Any]:
        """Return the load of a job as it is recorded; empty if there is none."""
        key = self._store.key_of(jid)
        load = {} if key is None else records.load_of(self._store, key)
        load.pop("Minions", None)
        return secrets.load_for_history(load)

    def returns(self, wanted: Iterable[Key]) -> dict[Key, tuple[Mapping[str, Any], int]]:
        """Return some returns, each with about its size in bytes. Those that are not there, or damaged, are left out."""
        by_job: dict[str, list[Key]] = {}
        for key in wanted:
            by_job.setdefault(key.jid, []).append(key)
        found: dict[Key, tuple[Mapping[str, Any], int]] = {}
        for jid, keys in by_job.items():
            ids, bank = {self._store.key_of(key.minion): key for key in keys}, f"{RETURNS}/{self._store.key_of(jid)}"
            for name, data in self._store.driver.fetch_each(bank, [name for name in ids if name is not None]):
                if isinstance(data, SaltCacheError) and not isinstance(data, Undecodable):
                    raise data
                try:
                    found[ids[name]] = secrets.return_for_history(data), len(repr(data))
                except Exception as exc:  # whatever is no mapping
                    why = data if isinstance(data, Undecodable) else exc
                    self._quiet.error("return", "The return of job %s by %s cannot be recorded: %s", jid, name, why)
        return found

    def young(self, seconds: float) -> Iterator[str]:
        """Yield the jobs that were published within the last seconds, the newest first."""
        low, high = jid_at(time.time() - seconds), "9" * 20
        yield from filter(
            is_plain, map(self._store.decode, self._store.driver.jids(low, high, {"fun": None, "user": None}))
        )

    def minions(self, jid: str) -> list[str]:
        """Return the minions that have returned a job."""
        names = map(self._store.decode, self._store.keys(f"{RETURNS}/{self._store.key_of(jid)}"))
        return sorted(filter(is_plain, names))
