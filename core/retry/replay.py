"""
Replays: when the next one to a minion begins, how a job goes there, and how the engine finds out what became of it. An entry
takes what becomes known (core/delivery/known.py), policy.py decides, and this module alone carries that out.

It must never let a minion have two replays, keep one whose entry has ended, publish a job whose claim is not durable, or
send a job before the minion has said that it does not run it. "I run nothing" covers all that was published before.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any

from saltext.jobs.core.delivery.known import ANSWERS, LOOKS, RESTING, Answers, Evidence, Said, Step
from saltext.jobs.core.functions import runs_states
from saltext.jobs.core.retry import facts
from saltext.jobs.core.retry.entry import UNDER_WAY, Entry, State
from saltext.jobs.core.retry.policy import Again, Case, Decision, Go, cooldown, decide
from saltext.jobs.core.retry.queue import Backlog, Queue
from saltext.jobs.core.retry.waiting import DOUBTED, Gatherings, Outbox, Purpose

#: What a minion waits for before a look: others that are owed the same job, others that have answered, or a set time.
COMPANY, ANSWERED, LOOK = GATHERINGS = ("company", "answered", "look")
#: Seconds for which a minion that has just started is left alone.
SETTLE = 1.0
#: If the store takes more than this many seconds for a claim, the job is not published, but looked up again.
STALE = 10.0
#: States in which a claimed start changes something.
_OPEN = UNDER_WAY | {State.PENDING}
#: The steps during an effect.
_DURING = {facts.LookUp: LOOKS.values(), facts.Ask: (Step.ASKING,), facts.Publish: (Step.SENDING,)}


class Turns:
    """
    Which minions are there, and when the next replay to each may begin. It must never let a newer job overtake an older one,
    let forged signs of life delay a replay, or ping a minion to which nothing may be sent now. If ``paused``, none begins.
    Sets the timers ``("minion", id)`` and ``("replay", id)``.
    """

    def __init__(self, queue: Queue, outbox: Outbox, paused: bool) -> None:
        self._queue, self._outbox, self.paused = queue, outbox, paused
        #: Seconds between a sign of life and the replay; up to as much again is added, different for each minion.
        self.settle = SETTLE

    def wake(self, minion: str, at: float) -> None:
        """Begin the next replay to a minion at ``at``, or as soon after that as it may begin."""
        backlog = self._queue.backlogs.get(minion)
        if backlog is None or backlog.replay is not None or self.paused:
            return
        first = self.first(backlog)
        if first is not None:
            at = max(at, backlog.not_before, 0.0 if first.state in UNDER_WAY else first.next_at)
            self._queue.timers.no_later(("minion", minion), at)

    def first(self, backlog: Backlog) -> Entry | None:
        """Return the entry that it may already have, else the one published first. A shut window holds up no other entry."""
        there, jobs = backlog.entries.values(), self._queue.jobs
        under_way = [entry for entry in there if entry.state in UNDER_WAY]
        free = under_way or [entry for entry in there if entry.state is State.PENDING and self.may_be_sent(entry)]
        return min(free, key=lambda entry: (jobs[entry.jid].published_at, entry.jid), default=None)

    def may_be_sent(self, entry: Entry) -> bool:
        """Tell whether windows let an entry be sent: its window is open, or an operator wants it now."""
        return entry.is_urged(self._queue.now) or self._queue.is_open(self._queue.jobs[entry.jid])

    # -- who is there -------------------------------------------------------------------------------------------------

    def sign_of_life(self, minions: Iterable[str], started: bool = False) -> None:
        """Minions are there: begin their next replays once they have settled."""
        now, timers = self._queue.now, self._queue.timers
        for minion in minions:
            backlog = self._queue.backlogs.get(minion)
            if backlog is None:
                continue
            backlog.seen = now
            self._queue.awake[minion] = None
            if started:
                backlog.started = now
                for entry in backlog.entries.values():
                    entry.next_at = 0.0
                    if entry.delivery is not None:
                        entry.delivery.starts(now)
            if backlog.replay is None:
                # The jitter spreads a fleet that starts at once. It is the same each time for the same minion.
                self.wake(minion, now + self.settle * (1.0 + zlib.crc32(minion.encode()) / 2**32))
            elif started and backlog.replay.step in RESTING:
                timers.set(("replay", minion), now + self.settle)

    def ping(self, minions: Iterable[str]) -> None:
        """Ping those of these minions to which a replay may begin now."""
        backlogs = ((minion, self._queue.backlogs[minion]) for minion in minions if not self.paused)
        there = (minion for minion, backlog in backlogs if backlog.replay is None and self.first(backlog))
        self._outbox.line_up(Purpose.PING, minions=there)


class Replays:
    """Sets the timers ``replay`` and those of GATHERINGS. ``acks``: whether minions say when they begin a job."""

    def __init__(self, queue: Queue, outbox: Outbox, turns: Turns, acks: bool) -> None:
        self._queue, self._outbox, self._turns, self._acks = queue, outbox, turns, acks
        self._gathered = Gatherings(queue.timers)
        # When the master last forwarded a receipt or an answer. Repeated and unproven ones do not count: they can be forged.
        self._heard = 0.0

    def begin(self, minion: str) -> None:
        """Begin the next replay to a minion: of a job that it may already have, else of the job that was published first."""
        backlog, now = self._queue.backlogs.get(minion), self._queue.now
        if backlog is None or backlog.replay is not None or self._turns.paused:
            return
        entry = self._turns.first(backlog)
        if entry is None:
            return
        backlog.replay, backlog.since = entry, now
        self._queue.awake[minion] = None
        entry.known.inquire()
        if entry.state in UNDER_WAY:
            self._gathered.add((LOOK, entry.jid), minion, now + DOUBTED)
        else:
            key, gather = (COMPANY, entry.jid), self._queue.gather(entry)
            longest = self._gathered.longest(key, now, self._queue.settings.gather)
            self._gathered.join(key, minion, now, gather, longest)

    # -- what is decided, and carried out -----------------------------------------------------------------------------

    def _decide(self, entry: Entry, **more: Any) -> None:
        settings, own = self._queue.settings, self._queue.jobs[entry.jid].limits.max_attempts
        most = settings.max_attempts if own is None else own
        case = Case(entry, entry.known, self._queue.now, settings.backoff, most, self._acks, **more)
        self._carry_out(entry, decide(case))

    def _carry_out(self, entry: Entry, decision: Decision) -> None:
        if isinstance(decision, Go):
            if decision.state is not None:
                self._queue.move(entry, decision.state, decision.reason)
            self._go(entry, decision.step, decision.wait)
        elif decision is not None:
            entry.counts = decision.counts or entry.counts
            if isinstance(decision, Again):
                self._try_again(entry, decision)
            else:
                self.end(entry, decision.state, decision.reason)

    def _go(self, entry: Entry, step: Step, wait: float = 0.0) -> None:
        """Take a replay to its next step, and begin what it waits for."""
        now, minion, jid = self._queue.now, entry.minion, entry.jid
        if entry.step is not step:
            entry.known.go(step)
        if step is Step.TO_ASK:
            self._outbox.line_up(Purpose.QUESTION, jid, (minion,))
        elif step is Step.TO_SEND:
            self._outbox.line_up(Purpose.JOB, jid, (minion,))
        elif step is Step.CLAIMING:
            entry.claim(now)
            self._queue.touch(entry)
        elif step is Step.SENDING:
            self._queue.tell(entry, "sent")
        elif step in RESTING:
            self._queue.timers.set(("replay", minion), now + wait)
        elif step is Step.ANSWERED and not wait:
            # So one publish serves many. They wait as long as this answer took: a busy master forwards with gaps.
            gather = self._queue.gather(entry)
            took = now - entry.known.asked_at if gather else 0.0
            self._gathered.join((ANSWERED, jid), minion, now, max(gather, took))
        else:
            self._gathered.add((LOOK, jid), minion, now + wait)

    def _try_again(self, entry: Entry, decision: Again) -> None:
        """End a replay without a return. The next one waits for a sign of life, the cooldown, and the pause decided."""
        now, backlog = self._queue.now, self._queue.backlogs[entry.minion]
        if decision.reason:
            self._queue.move(entry, State.PENDING, decision.reason)
        self._drop(entry)
        there = decision.there or backlog.seen > backlog.since
        backlog.false_signs += bool(decision.pause)
        backlog.not_before = now + max(decision.pause, cooldown(self._queue.settings.backoff))
        if decision.wait:
            has_started = backlog.started > max(backlog.since, entry.sent_at or 0.0)
            entry.next_at = 0.0 if has_started else now + decision.wait
        if entry.urged_at > backlog.since:  # meanwhile an operator has asked for another try
            entry.next_at, backlog.not_before, there = 0.0, 0.0, True
        if there:
            self._turns.wake(entry.minion, now + self._turns.settle)

    def _drop(self, entry: Entry) -> None:
        self._queue.backlogs[entry.minion].replay = entry.known.step = None
        self._queue.timers.cancel(("replay", entry.minion))

    def land(self, entry: Entry) -> None:
        """End the replay of an entry, if it has one; the next one may begin."""
        if entry.step is not None:
            self._drop(entry)
            self._turns.wake(entry.minion, self._queue.now)

    def end(self, entry: Entry, state: State, reason: str) -> None:
        """End an entry, or hold it: move it to a state that it does not leave by itself."""
        self._queue.move(entry, state, reason)
        self.land(entry)
        self._queue.tell(entry, state.value)
        if state is State.DONE:
            self.remove(entry)

    def remove(self, entry: Entry) -> None:
        self.land(entry)
        self._queue.remove(entry)

    def _why_shut(self, entry: Entry) -> str:
        if self._turns.paused:
            return "replays were paused before it was published"
        return "" if self._turns.may_be_sent(entry) else "its window closed before it was published"

    # -- looks at the job cache ---------------------------------------------------------------------------------------

    def doubt(self, evidence: Evidence, minion: str) -> None:
        """If a minion may have a job, find out what became of it, unless the receipt may still be on its way."""
        backlog = self._queue.backlogs.get(minion)
        entry = backlog.replay if backlog else None
        if entry is not None and entry.step in RESTING:
            entry.known.take(evidence, self._queue.now)
            self._decide(entry, heard=self._heard)

    def due(self, gathering: str, jid: str, *when: str) -> None:
        """Look up the minions that have gathered for a job."""
        there = list(self._queue.at(jid, self._gathered.take((gathering, jid, *when)), *LOOKS))
        for entry in there:
            again = entry.step is Step.ANSWERED or self._queue.has_answered(entry)
            entry.known.go(Step.LOOKING_AGAIN if again else Step.LOOKING)
        if there:
            askers = {entry.minion: entry.asker for entry in there if entry.asker is not None}
            self._queue.want(facts.LookUp(jid, tuple(entry.minion for entry in there), askers))

    def returned(self, fact: facts.Returned) -> None:
        self._heard = self._queue.now
        self._have_returned(fact.jid, (fact.minion,))

    def _have_returned(self, jid: str, minions: Iterable[str]) -> None:
        for entry in self._queue.at(jid, minions):
            self.end(entry, State.DONE, "the job cache has its return")

    def found(self, effect: facts.FindReturns, returned: frozenset[str]) -> None:
        """End the entries whose job was returned, and those whose time to live has passed without a return."""
        self._have_returned(effect.jid, returned)
        for entry in self._queue.at(effect.jid, effect.minions):
            if entry.state in (State.PENDING, State.HELD) and entry.expires_at <= self._queue.now:
                self.end(entry, State.EXPIRED, "its time to live has passed")

    def looked_up(self, effect: facts.LookUp, found: facts.LookedUp) -> None:
        self._have_returned(effect.jid, found.returned)
        for entry in self._queue.at(effect.jid, effect.minions, *LOOKS.values()):
            minion = entry.minion
            entry.known.take(Evidence.NOT_RETURNED, self._queue.now)
            denied = found.denied.get(minion) or ("" if entry.named else self._queue.jobs[entry.jid].obstacle)
            self._decide(entry, denied=denied, unsure=found.unsure.get(minion, ""), barred=minion in found.barred)

    # -- questions and their answers ----------------------------------------------------------------------------------

    def ask(self, jid: str, minions: tuple[str, ...]) -> None:
        asked = list(self._queue.at(jid, minions, Step.TO_ASK))
        if not asked:
            return
        for entry in asked:
            entry.known.go(Step.ASKING)
            entry.known.ask(self._queue.now)
        # A proxy keeps no record of a job with several functions (Salt's ``metaproxy``): it would deny that it began one.
        is_on_record = len(self._queue.jobs[jid].funs) == 1
        doubted = tuple(entry.minion for entry in asked if is_on_record and entry.sent_at is not None)
        self._queue.want(facts.Ask(jid, tuple(entry.minion for entry in asked), doubted))

    def asked(self, effect: facts.Ask, fact: Answers) -> None:
        jid, job, now = effect.jid, self._queue.jobs.get(effect.jid), self._queue.now
        refused = fact.applying if job is not None and any(map(runs_states, job.funs)) else frozenset[str]()
        for evidence, minions in fact.told.items():
            if minions and evidence in ANSWERS:
                self._heard = now
            for entry in self._queue.at(jid, minions, Step.ASKING):
                minion, backlog, known = entry.minion, self._queue.backlogs[entry.minion], entry.known
                known.take(evidence, now, fact.said.get(minion, Said.NOTHING), fact.ran.get(minion, 0.0))
                if evidence is Evidence.IDLE:
                    backlog.false_signs, backlog.free_at = 0, known.asked_at if minion in fact.free else 0.0
                elif evidence in (Evidence.SILENT, Evidence.UNPROVEN):
                    backlog.free_at = 0.0
                matches, occupied = minion not in fact.unmatched, minion in refused
                self._decide(entry, matches=matches, occupied=occupied, false_signs=backlog.false_signs)
        if not fact.more:
            self._gathered.hasten((ANSWERED, jid), now)

    def acknowledged(self, entry: Entry, proven: bool = False) -> None:
        """Take a claim, however late, that a minion has begun or returned a job: if it is ``proven``, or it was sent it."""
        if entry.state not in _OPEN:
            return
        # If the job is being claimed now, the minion can only mean an earlier publish.
        sent_at = entry.known.sent_before if entry.step is Step.CLAIMING else entry.sent_at
        if not proven and sent_at is None:
            return
        is_news = not entry.begun_at
        entry.known.take(Evidence.BEGUN, self._queue.now)
        self._queue.touch(entry)
        if entry.step is not None and (is_news or entry.state is not State.RUNNING):
            self._heard = self._queue.now if is_news else self._heard
            self._decide(entry)

    # -- the claim, the publish, the receipt --------------------------------------------------------------------------

    def claim(self, jid: str, minions: tuple[str, ...]) -> None:
        """Claim what may be published now, and have the claims made durable. End the replays of what may not."""
        claimed = []
        for entry in self._queue.at(jid, minions, Step.TO_SEND):
            if self._why_shut(entry):
                self.land(entry)
            else:
                self._go(entry, Step.CLAIMING)
                claimed.append(entry.minion)
        if claimed:
            self._queue.want(facts.Claim(jid, tuple(claimed)))

    def claimed(self, claim: facts.Claim) -> None:
        """Publish what is durably claimed."""
        now, ready = self._queue.now, list[Entry]()
        for entry in self._queue.at(claim.jid, claim.minions, Step.CLAIMING):
            is_late = now - (entry.sent_at or 0.0) > STALE
            if why := self._why_shut(entry) or ("the store was slow to take the claim" if is_late else ""):
                entry.known.take(Evidence.REFUSED, now, failure=why)
                self._decide(entry)
            else:
                self._go(entry, Step.SENDING)
                ready.append(entry)
        if not ready:
            return
        said = {entry.known.said for entry in ready}
        recorded = all(each.is_sure for each in said)
        named = frozenset(entry.minion for entry in ready if entry.named)
        minions = tuple(entry.minion for entry in ready)
        self._queue.want(facts.Publish(claim.jid, minions, named, Said.INTERRUPTED in said, recorded))

    def sent(self, publish: facts.Publish, missed: frozenset[str]) -> None:
        for entry in self._queue.at(publish.jid, publish.minions, Step.SENDING):
            entry.known.take(Evidence.MISSED if entry.minion in missed else Evidence.PUBLISHED, self._queue.now)
            self._decide(entry)

    def failed(self, fact: facts.Failed) -> None:
        """A look, a question or a publish has failed."""
        effect: Any = fact.effect
        for entry in self._queue.at(effect.jid, effect.minions, *_DURING[type(effect)]):
            entry.known.take(fact.outcome, self._queue.now, failure=fact.why)
            self._decide(entry)
