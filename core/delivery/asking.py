"""
Asks minions about a job, for a batch and for the retry queue: whether they run it, whether they have run it and kept its
return, and what their records say. Returns that they have kept are stored.

It must never take what a minion has run under the same jid for another master as the job.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, NamedTuple

from saltext.jobs.core import lines
from saltext.jobs.core.delivery.known import Answers, Evidence, Said
from saltext.jobs.core.engine.process import EnginePorts
from saltext.jobs.core.errors import JobCacheError, NoMinionMatched
from saltext.jobs.core.master import once
from saltext.jobs.core.master.questions import Found

log = lines.logger(__name__)
_quiet = lines.Quiet(log)


class About(NamedTuple):
    """The job that minions are asked about."""

    jid: str
    fun: Any
    options: Any  # beside function and arguments
    published_at: float  # for the first time


async def ask(
    ports: EnginePorts,
    about: About,
    minions: Iterable[str],
    timeout: float,
    told: Callable[[Awaitable[Answers]], object],
    target: str | None = None,
    doubted: Iterable[str] = (),
) -> Answers:
    """
    Ask minions about a job, as ``Questions.find_job``, and return their answers but for those that ``told`` has got: a
    minion that has answered need not wait for the others. Raises as it, but for a target that matches no minion.
    """

    def tell(found: Found) -> None:
        told(_answers(ports, about, found, True))

    try:
        found = await ports.questions.find_job(about.jid, minions, timeout, tell, target, doubted)
    except NoMinionMatched:  # the key of none is accepted now
        return Answers({Evidence.SILENT: frozenset(minions)})
    return await _answers(ports, about, found, False)


async def _answers(ports: EnginePorts, about: About, found: Found, more: bool) -> Answers:
    fun, others = about.fun, found.others(about.jid, about.fun)
    stored = await _stored(ports, about, {minion: kept for minion, kept in found.ran.items() if minion not in others})
    records = dict[str, Said]()
    if once.is_recorded(fun if isinstance(fun, (list, tuple)) else [str(fun)], about.options):
        age = abs(ports.clock.now() - about.published_at)  # the clock may have been set back
        records = {minion: Said.of(record.about(age)) for minion, record in found.records.items()}
    told = {
        # A minion whose return cannot be stored now is asked again.
        Evidence.UNASKED: frozenset(found.ran) - stored - others,
        Evidence.FETCHED: stored,
        Evidence.RUNS: found.running,
        Evidence.IDLE: found.idle | others,
        Evidence.UNPROVEN: found.unproven & found.silent,
        Evidence.SILENT: found.silent - found.unproven,
    }
    said = records | dict.fromkeys(others, Said.INTERRUPTED)
    ran = {minion: record.at for minion, record in found.records.items()}
    return Answers(told, said, ran, found.unmatched, found.applying, found.free, more)


async def _stored(ports: EnginePorts, about: About, returns: Mapping[str, Any]) -> frozenset[str]:
    """Store returns that minions have kept, and tell which of them are stored then."""
    if not returns:
        return frozenset()
    try:
        await ports.cache_worker.call(ports.cache.store_kept, about.jid, about.fun, returns)
        return frozenset(await ports.cache_worker.call(ports.returns.of, about.jid, returns.keys()))
    except JobCacheError as exc:
        told = "Returns that minions have kept of job %s cannot be stored now: %s"
        _quiet.warning(about.jid, told, about.jid, exc)
        return frozenset()
