"""
What operators ask the engine for, and how a request becomes a fact. An exception refuses the request, with the reason.

It must never let a request overtake an earlier one: what an operator enqueues and then cancels is cancelled.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from saltext.jobs.core import compat, lines
from saltext.jobs.core.engine.service import Verb
from saltext.jobs.core.errors import JobCacheError, NotYet, StateError
from saltext.jobs.core.ids import is_plain
from saltext.jobs.core.retry.effects import Ports
from saltext.jobs.core.retry.entry import Entry, Job
from saltext.jobs.core.retry.reader import job_of
from saltext.jobs.core.users import Identity

log = lines.logger(__name__)

Request = Mapping[str, Any]
Given = Mapping[str, Any]
_Make = Callable[[Request], Given | Awaitable[Given]]
#: Entries that are read before the collector is told of them.
_PART = 2000


class Verbs:
    """
    :param carry_out: has the machine do what is asked for under that name, and returns the answer.
    :param restart: starts the engine anew, once what is known is stored.
    """

    def __init__(self, ports: Ports, carry_out: Callable[[str, Given], Any], restart: Callable[[], None]) -> None:
        self._ports, self._carry_out, self._restart = ports, carry_out, restart
        self._last: Any = None  # resolves when the last request has been taken

    def table(self) -> dict[str, Verb]:
        """Return ``{verb: function}`` for the Service."""
        made: dict[str, _Make] = {
            "enqueue": self._hand_over,
            "replay": lambda request: {"minion": str(request.get("minion"))},
            "retry": lambda request: {**_selected(request), **_wish(request)},
            "cancel": lambda request: {**_selected(request), "minions": request.get("minions")},
            "purge": lambda request: {"states": tuple(request["states"])},
            "pause": lambda request: {},
            "resume": lambda request: {},
        }
        verbs = {verb: functools.partial(self._in_order, verb, make) for verb, make in made.items()}
        # ``job_cache.recover`` has brought back entries: an engine that starts reads the whole queue.
        return {**verbs, "take_up": lambda _request: self._restart()}

    def _in_order(self, do: str, make: _Make, request: Request) -> Awaitable[Any]:
        # The order is settled here, before any request waits for anything.
        before, self._last = self._last, compat.Future()
        return self._after(before, self._last, do, make, request)

    async def _after(self, before: Any, done: Any, do: str, make: _Make, request: Request) -> Any:
        if before is not None:
            await before
        try:
            given = make(request)
            return self._carry_out(do, given if isinstance(given, Mapping) else await given)
        finally:
            done.set_result(None)

    async def _hand_over(self, request: Request) -> Given:
        """Nobody waits for the answer to a request of a batch: what fails is tried again, and a refusal is logged."""
        try:
            return await self._enqueue(request)
        except (OSError, JobCacheError, StateError) as exc:
            if request.get("batch"):
                raise NotYet(f"Batch {request.get('jid')} cannot hand minions over now: {exc}") from exc
            raise
        except ValueError as exc:
            if request.get("batch"):
                log.error("The retry queue takes no minion of batch %s over: %s", request.get("jid"), exc)
            raise

    async def _enqueue(self, request: Request) -> Given:
        jid, named = str(request.get("jid")), request.get("minions")
        if not is_plain(jid) or (named is not None and not all(is_plain(minion) for minion in named)):
            raise ValueError(f"The jid {jid!r} or one of the minion ids {named!r} is not valid")
        reader, ask = self._ports.reader, self._ports.cache_worker.call
        read = await ask(reader.read, jid)
        job = read.job
        if job is None:
            raise ValueError(f"Job {jid} is not in the job cache as one that this master has published")
        if (job.load.get("kwargs") or {}).get("nocache"):
            raise ValueError(f"Job {jid} stores no returns, so it could not be known which minions have run it")
        minions = sorted(read.missing) if named is None else list(named)
        accepted = (await ask(reader.keys))[0]
        unknown = [minion for minion in minions if minion not in accepted]
        if unknown and request.get("batch"):
            log.warning(
                "Batch %s: these minions have no accepted key and are owed nothing: %s", jid, ", ".join(unknown)
            )
            minions = [minion for minion in minions if minion in accepted]
        elif unknown and named is not None:
            raise ValueError(f"Not enqueued, since these minions have no accepted key here: {', '.join(unknown[:10])}")
        returned = await ask(self._ports.returns.of, jid, minions)
        outside = [minion for minion in minions if minion not in read.missing and minion not in returned]
        if outside:
            raise ValueError(f"Job {jid} was not published to {', '.join(outside[:10])}")
        owed = tuple(minion for minion in minions if minion in accepted and minion not in returned)
        if job.obstacle and named is None:
            raise ValueError(f"Job {jid} cannot be delivered: {job.obstacle}; name the minions")
        reason = str(request.get("reason") or "by an operator")
        given = {"job": job, "minions": owed, "reason": reason}
        return {**given, "named": named is not None, **_wish(request)}


def _selected(request: Request) -> Given:
    return {"minion": request.get("minion"), "jid": request.get("jid")}


def _wish(request: Request) -> Given:
    # A request of a batch has no asker: the user of the batch is the job's user. Each kill of the batch's job counts.
    wanted_at = 0.0 if request.get("batch") else request["asked_at"]
    return {"asker": Identity.from_record(request.get("asker")), "wanted_at": wanted_at}


def read_queue(ports: Ports) -> tuple[dict[str, Job], list[Entry]]:
    """Return what the store holds: the jobs, by jid, and the entries. Blocks. :raises OSError: when it cannot be read."""
    jobs, entries = dict[str, Job](), list[Entry]()
    for entry, snapshot in ports.store.entries():
        if entry.jid not in jobs:
            jobs[entry.jid] = job_of(entry.jid, snapshot["load"], float(snapshot["published_at"]))
        entries.append(entry)
        if len(entries) % _PART == 0:
            gc.freeze()  # these live for long: a pass of the collector, which stops all else, must not walk through them
    return jobs, entries
