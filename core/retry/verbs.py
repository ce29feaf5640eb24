"""
What operators ask the engine for, and how a request becomes a fact. A request is refused by an exception with the reason.

It must never let a request overtake one that was made before: what an operator enqueues and then cancels is cancelled.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from saltext.jobs.core import compat
from saltext.jobs.core.engine.service import Verb
from saltext.jobs.core.errors import LaterVersion
from saltext.jobs.core.ids import is_plain
from saltext.jobs.core.master.identity import WHO
from saltext.jobs.core.retry import facts
from saltext.jobs.core.retry.entry import Asker, Entry, Job
from saltext.jobs.core.retry.pause import pause, resume
from saltext.jobs.core.retry.ports import Ports
from saltext.jobs.core.retry.reader import job_of

#: Seconds without a heartbeat after which a master counts as gone.
OWNER_GONE = 180.0

Request = Mapping[str, Any]
_Make = Callable[[Request], facts.Fact | Awaitable[facts.Fact]]


class Verbs:
    """
    :param ports: what is read.
    :param loads: the loads of the jobs that the machine knows, by jid.
    :param take: gives the machine a fact, and returns a future of the answer, which comes once all changes are durable.
    """

    def __init__(
        self,
        ports: Ports,
        loads: dict[str, dict[str, Any]],
        take: Callable[[facts.Fact], Any],
    ) -> None:
        self._ports, self._owner, self._loads, self._take = ports, ports.owner, loads, take
        self._last: Any = None  # resolves when the request before has been taken

    def table(self) -> dict[str, Verb]:
        """Return ``{verb: function}`` for the Service."""
        made: dict[str, _Make] = {
            "enqueue": self._enqueue,
            "adopt": self._adopt,
            "take_up": self._take_up,
            "replay": lambda asked: facts.ReplayRequested(str(asked.get("minion"))),
            "retry": lambda asked: facts.RetryRequested(asked.get("minion"), asked.get("jid"), asker_of(asked)),
            "cancel": lambda asked: facts.CancelRequested(asked.get("minion"), asked.get("jid")),
            "purge": lambda asked: facts.PurgeRequested(tuple(asked["states"])),
            "pause": self._pause,
            "resume": self._resume,
        }
        return {verb: self._in_order(make) for verb, make in made.items()}

    def _in_order(self, make: _Make) -> Verb:
        def verb(request: Request) -> Awaitable[Any]:
            # Which request is next is settled here, before any of them waits for anything.
            before, self._last = self._last, compat.Future()
            return self._carry_out(make, request, before, self._last)

        return verb

    async def _carry_out(self, make: _Make, request: Request, before: Any, done: Any) -> Any:
        if before is not None:
            await before
        try:
            made = make(request)
            durable = self._take(made if isinstance(made, facts.Fact) else await made)
        finally:
            done.set_result(None)
        return await durable

    # -- requests -----------------------------------------------------------------------------------------------------

    def _pause(self, _request: Request) -> facts.Fact:
        pause(self._ports.folder)
        return facts.PauseRequested()

    def _resume(self, _request: Request) -> facts.Fact:
        resume(self._ports.folder)
        return facts.ResumeRequested()

    async def _enqueue(self, request: Request) -> facts.Fact:
        jid, named = str(request.get("jid")), request.get("minions")
        if not is_plain(jid) or (named is not None and not all(is_plain(minion) for minion in named)):
            raise ValueError(f"{jid!r} with {named!r} names no job and minions")
        reader, ask = self._ports.reader, self._ports.cache_worker.call
        read, load = await ask(reader.read, jid)
        if read.job is None:
            raise ValueError(f"Job {jid} is not in the job cache as one that this master has published")
        if (load.get("kwargs") or {}).get("nocache"):
            raise ValueError(f"Job {jid} stores no returns, so nobody could tell who has run it")
        owner = (await self._ports.store_worker.call(self._ports.store.snapshot, jid)).get("owner", self._owner)
        if owner != self._owner:
            raise ValueError(f"Job {jid} is in the queue of the master {owner}")
        minions = sorted(read.missing) if named is None else list(named)
        accepted = (await ask(reader.keys))[0]
        unknown = [minion for minion in minions if minion not in accepted]
        if unknown and named is not None:
            raise ValueError(f"Not enqueued, since they have no accepted key here: {', '.join(unknown[:10])}")
        returned = await ask(self._ports.cache.have_returned, jid, minions)
        outside = [minion for minion in minions if minion not in read.missing and minion not in returned]
        if outside:
            raise ValueError(f"Job {jid} was not published to {', '.join(outside[:10])}")
        if request.get("who"):  # of a batch that somebody else has taken over since
            self._loads[jid] = {**load, WHO: request["who"]}
        self._loads.setdefault(jid, load)
        owed = tuple(minion for minion in minions if minion in accepted and minion not in returned)
        if read.job.obstacle and named is None:
            raise ValueError(f"Job {jid} cannot be delivered: {read.job.obstacle}; name the minions")
        reason = str(request.get("reason") or "by an operator")
        return facts.EnqueueRequested(read.job, owed, reason, named=named is not None, asker=asker_of(request))

    async def _adopt(self, request: Request) -> facts.Fact:
        owner = str(request.get("owner"))
        if owner == self._owner:
            raise ValueError(f"{owner} is this master")
        age = self._ports.wall() - await self._ports.store_worker.call(self._ports.store.last_beat, owner)
        if age < OWNER_GONE:
            raise ValueError(f"The master {owner} was alive {age:.0f} s ago; its entries are its own")
        jobs, entries = await self._ports.store_worker.call(read_queue, self._ports, owner)
        if not jobs:
            raise ValueError(f"The master {owner} has no entries")
        # A job is taken over whole: one of whose minions this master does not know stays where it is.
        accepted = (await self._ports.cache_worker.call(self._ports.reader.keys))[0]
        foreign = {entry.jid for entry in entries if entry.minion not in accepted}
        jobs = {jid: job for jid, job in jobs.items() if jid not in foreign}
        if not jobs:
            raise ValueError(f"Each job of the master {owner} is owed to a minion that has no accepted key here")
        self._loads.update({jid: load for jid, (_, load) in jobs.items()})
        taken = tuple(entry for entry in entries if entry.jid in jobs)
        return facts.Adopted(tuple(job for job, _ in jobs.values()), taken)

    async def _take_up(self, request: Request) -> facts.Fact:
        """Take up what the store holds of this master's own queue and is not known: job_cache.recover brought it back."""
        jobs, entries = await self._ports.store_worker.call(read_queue, self._ports, self._owner, False)
        for jid, (_, load) in jobs.items():
            self._loads.setdefault(jid, load)
        return facts.Adopted(tuple(job for job, _ in jobs.values()), tuple(entries))


def asker_of(request: Request) -> Asker | None:
    """
    Return who has asked by hand for a job to be delivered. Nobody where a batch does: its user is the job's.

    :raises ValueError: when the request names somebody in another way than the runner does.
    """
    return Asker.from_record(request.get("asker"))


def read_queue(
    ports: Ports, owner: str, tidy: bool = True
) -> tuple[dict[str, tuple[Job, dict[str, Any]]], list[Entry]]:
    """
    Return what the store holds of a master's queue: ``{jid: (job, load)}`` and the entries. Blocks.

    :param tidy: whether a snapshot without entries is removed; its first one may be about to be written.
    :raises StateError: when the store cannot be read.
    """
    jobs, entries = {}, []
    for jid, snapshot in ports.store.snapshots(owner):
        try:
            found = list(ports.store.entries(jid, snapshot))
        except LaterVersion:
            continue
        if found:
            load = dict(snapshot["load"])
            jobs[jid] = job_of(jid, load, float(snapshot["published_at"])), load
            entries += found
        elif tidy:
            ports.store.drop_snapshot(jid)
    return jobs, entries
