"""
Asks minions about a job, for a batch and for the retry queue: whether they run it, whether they have run it and kept its
return, and what their records say. Returns that they have kept are stored.

It must never take what a minion has run under the same jid for another master as the job, nor an error text for an answer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

from saltext.jobs.core import lines
from saltext.jobs.core.delivery.known import Answers, Evidence, Said
from saltext.jobs.core.engine.process import EnginePorts
from saltext.jobs.core.errors import JobCacheError, NoMinionMatched
from saltext.jobs.core.functions import runs_states
from saltext.jobs.core.master import once

log = lines.logger(__name__)
_quiet = lines.Quiet(log)

#: What minions are asked. Those with the executor ``job_once`` add their record of the job to the second answer.
_RUNS, _KEPT = "saltutil.find_job", "saltutil.find_cached_job"
_RUNNING, _MATCHES = "saltutil.running", "match.compound"
#: Seconds by which the recorded time of a publish may be wrong.
_SKEW = 5.0


class About(NamedTuple):
    """The job that minions are asked about."""

    jid: str
    fun: Any
    options: Any  # beside function and arguments
    published_at: float  # for the first time


async def ask(
    ports: EnginePorts,
    about: About,
    minions: Collection[str],
    timeout: float,
    told: Callable[[Awaitable[Answers]], object],
    target: str | None = None,
    doubted: Iterable[str] = (),
) -> Answers:
    """
    Ask minions in one publish whether they run a job, or have run it. Raises as ``Questions.ask``, but for a target that
    matches no minion.

    :param told: gets answers as soon as they count; only those of the other minions are returned.
    :param target: a compound target; they are asked whether it matches them, too.
    :param doubted: those that are asked again, for records alone, if they run nothing and show none: a proxy runs a job of
        several functions, as this question is, without its executors (Salt's ``metaproxy``).
    """
    jid, heard, in_doubt = about.jid, set[str](), frozenset(doubted)
    parts = {_RUNS: [jid], _KEPT: [jid], _RUNNING: [], **({} if target is None else {_MATCHES: [target]})}
    recordless = dict[str, dict[str, Any]]()  # what doubted minions have answered without records

    def tell(new: Mapping[str, Any]) -> None:
        given = {minion: said for minion in new if (said := _by_function(list(parts), new[minion]))}
        for minion in in_doubt & given.keys():
            said = given[minion]
            if not (said[_RUNS] or _is_return(jid, said.get(_KEPT)) or once.record_of(said.get(_KEPT))):
                recordless[minion] = given.pop(minion)
        if given:
            heard.update(given)
            told(_answers(ports, about, given, True))

    try:
        question = await ports.questions.ask(list(parts), list(parts.values()), minions, timeout, tell)
        if recordless:
            again = (await ports.questions.ask(_KEPT, [jid], recordless, timeout)).given
            for minion in recordless.keys() & again.keys():
                recordless[minion][_KEPT] = again[minion]
    except NoMinionMatched:  # the key of none is accepted now
        return Answers({Evidence.SILENT: frozenset(minions)})
    silent = frozenset(minions) - heard - recordless.keys()
    unproven = silent & question.announced - question.given.keys()
    own = await _answers(ports, about, recordless, False)
    return dataclasses.replace(own, told={**own.told, Evidence.UNPROVEN: unproven, Evidence.SILENT: silent - unproven})


def _by_function(functions: list[str], told: Any) -> dict[str, Any] | None:
    """Return an answer by function; several come as a list in their order (``multifunc_ordered``). None if it is none."""
    said = dict(zip(functions, told, strict=False)) if isinstance(told, (list, tuple)) else told
    # The function returns the job's proc entry, or {}; anything else is an error text.
    return said if isinstance(said, dict) and isinstance(said.get(_RUNS), dict) else None


def _is_return(jid: str, kept: Any) -> bool:
    return isinstance(kept, dict) and kept.get("jid") == jid and "return" in kept


async def _answers(ports: EnginePorts, about: About, given: Mapping[str, Mapping[str, Any]], more: bool) -> Answers:
    """Return what minions have answered, and store returns that they have kept. :param given: ``{minion: by function}``."""
    kept: dict[str, Any] = {minion: said.get(_KEPT) for minion, said in given.items()}
    records = {minion: record for minion in kept if (record := once.record_of(kept[minion]))}
    begun = {minion for minion, record in records.items() if record.state == "begun"}
    running = frozenset(minion for minion, said in given.items() if said[_RUNS] or minion in begun)
    ran = {minion: data for minion, data in kept.items() if minion not in running and _is_return(about.jid, data)}
    others = frozenset(minion for minion, data in ran.items() if not once.is_return_of(about.fun, data))
    if others:  # these ignore the job itself
        log.warning("Job %s: %s has run another function under its jid, for another master", about.jid, sorted(others))
    stored = await _stored(ports, about, {minion: data for minion, data in ran.items() if minion not in others})
    records_say = dict[str, Said]()
    if once.is_recorded(about.fun, about.options):
        age = abs(ports.clock.now() - about.published_at)  # the clock may have been set back
        records_say = {minion: said_of(record, age) for minion, record in records.items()}
    idle = frozenset(given) - running - ran.keys()
    jobs = {minion: given[minion].get(_RUNNING) for minion in given if not given[minion][_RUNS] and minion not in ran}
    return Answers(
        {
            # A minion whose return cannot be stored now is asked again.
            Evidence.UNASKED: frozenset(ran) - stored - others,
            Evidence.FETCHED: stored,
            Evidence.RUNS: running,
            Evidence.IDLE: idle | others,
        },
        said=records_say | dict.fromkeys(others, Said.INTERRUPTED),
        ran={minion: record.at for minion, record in records.items()},
        # Only False means no: a minion may lack the function, or was not asked for it.
        unmatched=frozenset(minion for minion in idle if given[minion].get(_MATCHES) is False),
        applying=frozenset(m for m, those in jobs.items() if isinstance(those, list) and any(map(_runs_states, those))),
        free=frozenset(minion for minion in idle if once.keeps_nothing(kept[minion]) and jobs[minion] == []),
        more=more,
    )


def said_of(record: once.Record, age: float) -> Said:
    """Return what a record says of a job published ``age`` seconds ago: nothing if the records do not reach that far."""
    if record.state == "never" and record.complete_for > age + _SKEW:
        return Said.NEVER
    return Said.INTERRUPTED if record.state == "interrupted" else Said.NOT_SURE


def _runs_states(job: Any) -> bool:
    return isinstance(job, Mapping) and runs_states(job.get("fun"))


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
