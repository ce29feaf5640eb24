"""
The batch_manager engine's shell: adopts the batches at its start, feeds them facts from the bus and from requests, looks
after them while they run, and closes them. It holds no policy about batches. ``live.py`` writes what a fact changes and then
acts on it; ``effects.py`` performs effects.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from saltext.jobs.core import lines
from saltext.jobs.core.batch import effects, facts
from saltext.jobs.core.batch.live import Live, Ports, Sharing, Turns
from saltext.jobs.core.batch.machine import misses
from saltext.jobs.core.batch.member import Outcome
from saltext.jobs.core.batch.pace import Rights
from saltext.jobs.core.batch.spec import Spec
from saltext.jobs.core.batch.state import Batch
from saltext.jobs.core.batch.store import KEPT_ASIDE
from saltext.jobs.core.batch.summary import OVER, minions, summary, verdict, word
from saltext.jobs.core.display.text import counted
from saltext.jobs.core.engine.names import BATCH_MANAGER, JOB_RETRY
from saltext.jobs.core.engine.proof import Proof
from saltext.jobs.core.errors import StateError
from saltext.jobs.core.ledger.batches import Kind
from saltext.jobs.core.ledger.records import Published, Record
from saltext.jobs.core.master import events
from saltext.jobs.core.metrics import Figures, of_engine
from saltext.jobs.core.options.engines import BatchSettings

log = lines.logger(__name__)

#: Seconds between two passes of the maintenance.
INTERVAL = 5.0
#: Most batches that have sent nothing yet of one user with limited rights: each is kept in memory with its arguments.
MOST_WAITING = 20
#: Seconds that all minions need to connect again to a restarted master.
YOUNG = 120.0
#: Seconds after which no runner waits any more for a batch to be taken: it was cut off, and its operator knows of no batch.
LATE = 120.0


class BatchShell:
    """An engine.App, and the Listener of its bus and of the Proof of returns."""

    def __init__(self, ports: Ports, settings: BatchSettings, interval: float = INTERVAL) -> None:
        self._ports, self._interval = ports, interval
        self.live: dict[str, Live] = {}
        self._sharing = Sharing(settings.max_in_flight, ports, self.live)
        self._proof = Proof(
            ports.loop, ports.clock, ports.log(self.functions_of, lambda: self._proof.wake()), ports.questions, self
        )
        self._turns = Turns(ports, self.live, effects.perform)
        self.service = ports.service
        self._quiet = lines.Quiet(log)
        self._timer: Any = None  # of the next maintenance, or of the next try to begin
        # How batches and minions have ended since the engine's start.
        self._batches, self._minions = Counter[str](), Counter[Outcome]()

    def start(self) -> None:
        """Subscribe to the bus, and begin once its events come through: answers would be missed before that."""
        self._ports.bus.listen(self, on_ready=self._begin)

    def _begin(self) -> None:
        """Adopt the batches of an earlier engine, and go on. Each looks for returns; the log is read from its end on."""
        if not self._attempt("the batches", self._adopt_all):
            self._timer = self._ports.loop.call_later(self._interval, self._begin)
            return
        left = YOUNG - self._ports.master_age()  # minions take a while to connect to a master that has just started
        settled_at = self._ports.clock.now() + left if left > 0 else 0.0
        for live in list(self.live.values()):
            self._attempt(f"batch {live.jid}", live.step, facts.Recovered(settled_at, self._ports.is_takeover))
        control = dict.fromkeys(("stop", "pause", "resume", "approve"), self._control)
        # What a batch was about to send when it is stopped here is not sent.
        self.service.serve({"start": self._start_batch, **control}, self._turns.answer)
        self._maintain()
        self._proof.start()
        log.info("Carrying on %s", counted(len(self.live), "batch", "batches"))

    def metrics(self) -> Figures:
        ports, limit, now = self._ports, self._sharing.limit, self._ports.clock.now()
        batches = [live.batch for live in self.live.values()]
        for live in self.live.values():
            self._count(live)
        words = [word(summary(batch, now)).replace("scheduled", "waiting") for batch in batches]
        running = (batch for batch, state in zip(batches, words, strict=True) if state == "running")
        return {
            "batches": {state: words.count(state) for state in ("running", "paused", "waiting", "stopping")},
            "batches_ended_total": {state: self._batches[state] for state in OVER},
            "batch_minions_total": {outcome.value: self._minions[outcome] for outcome in Outcome},
            "batch_in_flight_minions": sum(len(batch.flights) for batch in batches),
            "batch_pending_minions": sum(len(batch.pending) for batch in batches),
            "batch_without_progress_seconds": max([0.0, *(now - batch.last_progress for batch in running)]),
            **({} if limit is None else {"batch_in_flight_limit_minions": limit}),
            **of_engine(BATCH_MANAGER, ports.bus, ports.publisher),
        }

    def close(self) -> None:
        """Release everything. All state is in the rows."""
        if self._timer is not None:
            self._ports.loop.remove_timeout(self._timer)
            self._timer = None
        self._proof.close()
        self._sharing.close()
        self._turns.close()
        for live in self.live.values():
            live.close()
        self._ports.close()

    # -- facts in -----------------------------------------------------------------------------------------------------

    def wants(self, tag: str) -> bool:
        """Whether an event belongs to a batch, or answers a question."""
        if (parts := events.parts_of_job(tag)) is None:
            return bool(self.live) and events.started_by(tag) is not None
        jid, kind, _ = parts
        if jid in self.live:
            if kind != "ret":
                return True
            self._proof.wake()
            return False
        return self._ports.questions.wants(jid)

    def handle(self, tag: str, data: Any) -> None:
        fact = events.fact_of(tag, data)
        if isinstance(fact, events.JobReturned):
            self._ports.questions.heard(fact.jid, fact.minion, data.get("return"), fact.retcode)
            self._proof.wake()
        elif isinstance(fact, events.JobStarted) and fact.jid in self.live:
            self.live[fact.jid].step(facts.Acknowledged(fact.minion))
        elif isinstance(fact, events.MinionStarted):
            for live in list(self.live.values()):
                live.step(facts.Started(fact.minion))

    def functions_of(self, jid: str, minion: str) -> str | None:
        """Return the functions of a batch that waits for this return, or None."""
        live = self.live.get(jid)
        return live.batch.spec.fun if live and live.batch.wants_return(minion) else None

    @property
    def is_idle(self) -> bool:
        """Whether nothing in the log is urgent: no batch is under way."""
        return not self.live

    def logged(self, record: Record) -> None:
        """Take a return from the log, which also shows that the minion is there."""
        if isinstance(record, Published):
            return
        if record.jid in self.live:
            self.live[record.jid].step(facts.Returned(record.minion, record.retcode))
        for live in list(self.live.values()):
            if misses(live.batch, record.minion):
                live.step(facts.Pinged((record.minion,)))

    def on_read(self) -> None:
        """Do nothing: effects that need the log read to its end see to that themselves (``Proof.read_on``)."""

    def on_lost(self) -> None:
        """The log may lack returns: look in the job cache for all that would change anything."""
        for live in list(self.live.values()):
            effects.perform(self._ports, live, [facts.LookUp(tuple(live.batch.unsettled()), extra=True)])

    def on_gap(self) -> None:
        """Events may have been lost, such as acknowledgements."""
        for live in list(self.live.values()):
            self._attempt(f"batch {live.jid}", live.step, facts.EventsLost())

    # -- requests -----------------------------------------------------------------------------------------------------
    # Each gives its batch a fact at once. Answer and changes are written together.

    def _control(self, request: Mapping[str, Any]) -> bool:
        verb, user = request["do"], str(request.get("user", ""))
        fact = facts.Requested(verb, user, bool(request.get("kill")), int(request.get("stage", 0)))
        live = self.live.get(str(request.get("jid")))
        if live is None or not live.step(fact):
            return False
        log.info("Batch %s: %s by %s", live.jid, verb, user)
        return True

    async def _start_batch(self, request: Mapping[str, Any]) -> dict[str, Any] | None:
        ports, spec = self._ports, Spec.from_dict(request["spec"])
        live = self.live.get(spec.jid)
        if live is None:
            ended = await ports.disk_worker.call(ports.store.read, spec.jid)  # the request may be from before a crash
            if ended:
                return summary(ended, ports.clock.now())
            if (late := ports.wall() - request["asked_at"]) > LATE:
                log.warning("Batch %s is not started: it was asked for %d s ago, and nobody waits", spec.jid, late)
                raise ValueError(f"the request is {late:.0f} s old, by the clock of the master whose engine leads")
            live = await self._new(spec)
        return summary(live.batch, ports.clock.now())

    async def _new(self, spec: Spec) -> Live:
        """Take in a new batch. :raises ValueError: if it cannot be carried out."""
        ports = self._ports
        self._check_others(spec)
        strangers = await ports.disk_worker.call(ports.permission.strangers, spec.minions)
        if strangers:
            raise ValueError(
                f"the master whose engine leads has not accepted the keys of {len(strangers)} of the minions, such as "
                f"{strangers[0]}: accept them there too (salt-run batch.masters names it)"
            )
        if spec.offline == "queue" and not ports.can_queue():
            raise ValueError(
                f"offline is 'queue', but no {JOB_RETRY} engine runs that could deliver the job to minions that are away; "
                "salt-run jobs_doctor.run says why; or choose another `offline`"
            )
        if ports.cache.keeps_first_load:
            await effects.store_load(ports, spec)
        self._check_others(spec)  # others may have been taken in meanwhile
        live = self._take_in(Batch(dataclasses.replace(spec, acks=ports.acks), ports.clock.now()))
        self._turns.took(live, ())
        await self._turns.durable()
        live.step(facts.Tick())
        log.info("Batch %s: %s on %s, by %s", spec.jid, spec.fun, counted(len(spec.minions), "minion"), spec.user)
        return live

    def _check_others(self, spec: Spec) -> None:
        """Refuse a retry of what another batch has not ended, and one of too many of a limited user. :raises ValueError:"""
        others, job = [live.batch for live in self.live.values()], (spec.fun, spec.arg, spec.kwargs)
        for one in (one for one in others if spec.parent and (one.spec.fun, one.spec.arg, one.spec.kwargs) == job):
            stands = minions(one)
            if any("open" in stands.get(name, ()) for name in spec.minions):
                raise ValueError(f"batch {one.spec.jid} has not ended this job on some of these minions")
        mine = [one for one in others if one.spec.user == spec.user and not one.pace.publishes]
        if Rights(spec).limited and len(mine) >= MOST_WAITING:
            raise ValueError(f"{spec.user} has {MOST_WAITING} batches that have sent nothing yet, and limited rights")

    def _take_in(self, batch: Batch) -> Live:
        ports = self._ports
        live = self.live[batch.spec.jid] = Live(batch, ports, self._turns, self._sharing, self._close_down)
        self._proof.wake()
        self._attempt(f"the state file of batch {live.jid}", ports.store.show_to_salt, batch.spec, batch.created)
        return live

    # -- looking after batches ----------------------------------------------------------------------------------------

    def _maintain(self) -> None:
        """Do the regular work. A step that fails is repeated next time, and does not stop the others."""
        self._timer = self._ports.loop.call_later(self._interval, self._maintain)
        for live in list(self.live.values()):
            self._attempt(f"batch {live.jid}", live.heed_clock)
            self._attempt(f"the job of batch {live.jid}", self._ports.store.keep_job, live.jid)
        if self.live:
            self._turns.put(())  # the database may be another one than before
        self._attempt("old batches", self._forget_old)

    def _attempt(self, what: str, function: Callable[..., object], *args: Any) -> bool:
        """Call a function, and tell whether that worked; an error is logged, and the next pass calls it again."""
        try:
            function(*args)
            return True
        except Exception as exc:
            told = None if isinstance(exc, OSError) else exc
            line = "%s: maintenance failed, and is tried again: %s"
            self._quiet.error(what, line, what.capitalize(), exc, exc_info=told)
            return False

    def _adopt_all(self) -> None:
        """Take in the batches that are on the disk: all, or none if one cannot be read now."""
        found, store = [], self._ports.store
        for jid in store.jids(Kind.OPEN):
            try:
                found.append(store.read(jid))
            except StateError as exc:
                store.set_aside(jid)
                log.error("Batch %s is set aside and the others go on: %s", jid, exc)
        for batch in filter(None, found):
            self._take_in(batch)

    def _forget_old(self) -> None:
        now = self._ports.wall()
        if self._ports.keep:
            self._ports.store.forget(Kind.ENDED, now - self._ports.keep)
        self._ports.store.forget(Kind.ASIDE, now - KEPT_ASIDE)

    async def _close_down(self, live: Live) -> None:
        """Close a batch: from now on no engine drives it."""
        live.batch.closed = True
        self._turns.took(live, ())
        await self._turns.durable()
        live.close()
        del self.live[live.jid]
        self._count(live)
        self._batches[live.batch.state] += 1
        log.info("%s", verdict(summary(live.batch, self._ports.clock.now())))

    def _count(self, live: Live) -> None:
        """Count the minions of a batch that have ended since the last call: each when it ends, not with its batch."""
        counts = live.batch.counts
        self._minions.update(counts - live.counted)  # fewer than before: a lost minion has returned after all
        live.counted |= counts
