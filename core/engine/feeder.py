"""
Makes a log for batches on a master whose job cache keeps none, or whose log cannot prove returns.

Returns and kills are heard on the bus, where any accepted minion can forge them. So one is looked up in the job cache, as
``core/master/hearsay.py`` says, together with the others of that time, and gets its record once the job cache has it. If
returns in the job cache are no better evidence than events (``JobCache.why_unauthenticated``), the event of a return
counts as it is, and kills are not believed.

It must never tell of a return that nothing proves, and must tell of a gap when the bus may have lost events.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

from saltext.jobs.core import lines
from saltext.jobs.core.engine.alarm import Clock
from saltext.jobs.core.engine.worker import Worker
from saltext.jobs.core.errors import JobCacheError
from saltext.jobs.core.functions import KILLS
from saltext.jobs.core.ledger.log import News
from saltext.jobs.core.log.records import Published, Record, Returned, publish_of
from saltext.jobs.core.master import events
from saltext.jobs.core.master.bus import Bus
from saltext.jobs.core.master.hearsay import Search
from saltext.jobs.core.master.job_cache import OURS, JobCache
from saltext.jobs.core.quiet import Quiet
from saltext.jobs.core.site import Log, Site

log = lines.logger(__name__)

#: Most jobs whose doubtful returns are remembered, and most kills whose answers are looked for.
_MOST = 1000


class Follower(Protocol):
    """Reads the log."""

    def functions_of(self, jid: str, minion: str) -> str | None:
        """
        Return the functions of a job whose return by ``minion`` would change anything, joined by commas; None if it would
        change nothing. Called for each return on the bus.
        """

    def wake(self) -> None:
        """There is something to read."""


def log_of(
    site: Site, loop: Any, clock: Clock, bus: Bus, cache: JobCache, worker: Worker, follower: Follower
) -> Log | Feeder:
    """Return the log of the masters: the one that they write, if they do and it proves returns."""
    if cache.master_name == OURS and not cache.why_unauthenticated:
        return site.log()
    return Feeder(loop, clock, bus, cache, worker, follower)


class Feeder:
    """
    Behaves as ``core.ledger.log.Reader``, and is a Listener of the bus.

    :param loop: the engine's tornado loop.
    :param clock: by which looks are due.
    :param cache: the job cache; used in ``worker`` only.
    """

    there = True

    def __init__(self, loop: Any, clock: Clock, bus: Bus, cache: JobCache, worker: Worker, follower: Follower) -> None:
        self._loop, self._clock, self._cache, self._worker, self._follower = loop, clock, cache, worker, follower
        self._news: list[Record] = []
        self._gap = ""
        self._returns: dict[str, Search[int]] = {}  # by jid
        self._kills: Search[Published] = self._search(
            "Signals", lambda _: True, self._read_kills, lambda kills: self._tell(*kills.values())
        )
        self._quiet = Quiet(log)
        if why := cache.why_unauthenticated:
            log.warning("Returns and answers on the bus are believed, forged ones too: %s", why)
        bus.tell_too(self)

    # -- the log ------------------------------------------------------------------------------------------------------

    @property
    def position(self) -> None:
        """None: a later reader looks into the job cache for what came before."""

    def read(self) -> News:
        """Return what has been proven since."""
        news, self._news = News(self._news, self._gap, False), []
        self._gap = ""
        return news

    def look(self) -> Callable[[], bool]:
        """Return a function that tells whether all kills that were heard before this call have been looked for."""
        heard = frozenset(self._kills.minions())
        return lambda: heard.isdisjoint(self._kills.minions())

    def close(self) -> None:
        """Look for nothing more."""
        self._kills.close()
        for search in self._returns.values():
            search.close()

    # -- the bus ------------------------------------------------------------------------------------------------------

    def wants(self, tag: str) -> bool:
        """Whether an event is a publish, or a return that would change anything."""
        parts = events.parts_of_job(tag)
        if parts is None:
            return False
        jid, kind, minion = parts
        return kind == "new" or (kind == "ret" and self._follower.functions_of(jid, minion) is not None)

    def handle(self, tag: str, data: Any) -> None:
        """Take an event."""
        fact = events.fact_of(tag, data)
        believed = bool(self._cache.why_unauthenticated)
        if isinstance(fact, events.JobReturned):
            if believed:
                self._tell(Returned(fact.jid, fact.minion, fact.fun, fact.retcode, True, time.time()))
            else:
                self._search_of(fact.jid).heard(fact.minion)
        elif isinstance(fact, events.JobPublished) and fact.fun in KILLS and not believed:
            self._kills.heard(fact.jid)

    def on_gap(self) -> None:
        """Events may have been lost."""
        self._gap = "events may have been lost on the bus"
        self._follower.wake()

    def _tell(self, *records: Record) -> None:
        self._news += records
        self._follower.wake()

    # -- the job cache ------------------------------------------------------------------------------------------------

    def _search_of(self, jid: str) -> Search[int]:
        if jid not in self._returns:
            if len(self._returns) >= _MOST:
                self._returns = {name: search for name, search in self._returns.items() if search.minions()}
            self._returns[jid] = self._search(
                f"Job {jid}",
                lambda minion: self._follower.functions_of(jid, minion) is not None,
                lambda minions: self._worker.call(self._cache.returned, jid, minions),
                functools.partial(self._take_returns, jid),
            )
        return self._returns[jid]

    def _search(self, what: str, wanted: Any, read: Any, found: Any) -> Search[Any]:
        failed, doubted = functools.partial(self._say_failed, what), functools.partial(self._say_doubted, what)
        return Search(self._loop, self._clock.now, wanted, read, found, failed, doubted)

    def _take_returns(self, jid: str, returns: Mapping[str, int]) -> None:
        # Salt's job caches keep the return alone, which counts as one of the job's functions.
        named = {minion: self._follower.functions_of(jid, minion) for minion in returns}
        self._tell(
            *(
                Returned(jid, minion, functions, returns[minion], True, time.time())
                for minion, functions in named.items()
                if functions is not None
            )
        )

    async def _read_kills(self, jids: Collection[str]) -> dict[str, Published]:
        found = {}
        for jid in jids:
            load = await self._worker.call(self._cache.published_load, jid)
            if load.get("Minions"):
                origin = "batch_manager" if _is_own(load) else ""
                found[jid] = publish_of(jid, load, load["Minions"], "", origin, True)
        return found

    def _say_failed(self, what: str, exc: Exception) -> None:
        told = None if isinstance(exc, JobCacheError) else exc
        self._quiet.error(what, "%s: what the bus tells waits for the job cache: %s", what, exc, exc_info=told)

    def _say_doubted(self, what: str, names: list[str]) -> None:
        shown = ", ".join(names[:5]) + (" …" if len(names) > 5 else "")
        self._quiet.warning(what, "%s: what the bus tells is not in the job cache and does not count: %s", what, shown)


def _is_own(load: Mapping[str, Any]) -> bool:
    """Tell whether an engine has made a kill: ``Publisher.kill_job`` marks it as a question."""
    options: Any = load.get("kwargs")
    for name in ("executor_opts", "job_once"):
        options = options.get(name) if isinstance(options, Mapping) else None
    return isinstance(options, Mapping) and bool(options.get("question"))
