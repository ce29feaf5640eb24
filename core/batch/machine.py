"""
The batch state machine: facts in, effects out, time as an argument. The table at the end says which part takes which fact.

Pure: stdlib only, no clock, no I/O. A minion's way through a batch:

    pending -> in flight -> completed | failed | lost | offline | killed | timed_out
                  |  ^
                  v  '---- running: asked, and it does run the job
              overdue: looked for in the job cache, then asked; see core/delivery/known.py

It must never free a slot but for a return, or evidence that the job does not run there. Silence counts only after
``probe_attempts`` questions, and means absence only for a minion that cannot have begun the job.

``sending.py`` and ``ending.py`` have functions that take the state (``state.py``) and return effects. What the start of an
engine changes, and what operators want, is in this file.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from saltext.jobs.core.batch import ending, facts, sending
from saltext.jobs.core.batch.facts import Announce, Effect, Fact, LookUp
from saltext.jobs.core.batch.member import overdue_at
from saltext.jobs.core.batch.pace import PausedBy
from saltext.jobs.core.batch.state import BatchState
from saltext.jobs.core.delivery.known import Evidence, Step


class Batch(BatchState):
    """One batch. Build it from a Spec, feed it a Tick, and then every fact."""

    __slots__ = ()

    def step(self, fact: Fact, now: float, ahead: float = 0.0, shared: bool = False) -> list[Effect] | None:
        """
        Take a fact that has become known at ``now``, and return what is to be done, in this order; None if the fact changes
        nothing. ``ahead``: seconds by which the wall clock is ahead of ``now``. ``shared``: the batch sends only to as many
        minions as it is allotted.
        """
        self.schedule.ahead, self.pace.allotted = ahead, 0 if shared else None
        effects = _HANDLERS[type(fact)](self, fact, now)
        if effects is None:
            return None
        new = [] if self.stepped_at else [Announce("new")]
        self.stepped_at = now
        return [*new, *effects, *self._advance(now)]

    def _advance(self, now: float) -> list[Effect]:
        """Return the effects that the state calls for, whatever fact led to it."""
        self.pace.warm(now)
        self.pace.wanted, self.goes_on_at = 0, None  # ``sending`` sets them again
        if self.finished:
            return []
        overdrawn = "" if self.halted else self.overdrawn()
        effects = self.halt(overdrawn) if overdrawn else []
        if self.killing:
            effects += ending.kill_all(self, now)
        if not self.is_over():
            effects += sending.go_on(self, now)
        ending.hand_over(self, now)
        if not self.is_over():
            return effects
        self.finished = now
        self.paused = self.pace.checking = None
        return effects if self.halted else [*effects, Announce("complete")]


# -- the start of an engine --------------------------------------------------------------------------------------------
# No minion may be sent to again before the outcome of its last publish is found out.

#: If the master ended with its engine, publishes of its last ``DOUBTFUL`` seconds may not have left it.
DOUBTFUL = 5.0


def _recover(batch: BatchState, fact: facts.Recovered, now: float) -> list[Effect]:
    batch.pace.recover(now)
    if batch.finished:
        return [Announce("halted" if batch.halted else "complete")]
    batch.rights.doubt()
    batch.pending.ping_at, batch.pending.settled_at = now, fact.settled_at
    if batch.spec.presence == "ping" or fact.settled_at > now:
        batch.pending.await_signs()
    master_may_have_ended = fact.taken_over or fact.settled_at > now
    doubtful_since = batch.stepped_at - DOUBTFUL if master_may_have_ended else math.inf
    ending.doubt_silence(batch, fact, now)
    batch.publishing = ()
    for minion in batch.flights:
        known = batch.change(minion)
        if known.step in (Step.SENT, Step.RUNNING, Step.WAITING):
            batch.flights.set_due(minion, min(known.due or math.inf, overdue_at(known, batch.spec, now)))
        else:  # those that were being asked, or were about to be given up, are asked again
            batch.go(minion, Step.LOOKING)
        if not known.begun_at and (known.sent_at or 0.0) >= doubtful_since:
            known.take(Evidence.UNCONFIRMED, now)
    batch.catching_up = tuple(batch.unsettled())
    look = [LookUp(batch.catching_up)] if batch.catching_up else []
    return [*([Announce("halted")] if batch.halted else ()), *look]


# -- what operators want -----------------------------------------------------------------------------------------------


def _requested(batch: BatchState, fact: facts.Requested, now: float) -> list[Effect] | None:
    if fact.verb == "stop":
        return _stop(batch, fact, now)
    if batch.finished or batch.halted:
        return None
    if fact.verb == "approve":
        if not (batch.pace.by_hand and batch.pace.checking == fact.stage):
            return None
        batch.rights.doubt()
        batch.pace.pass_check()
        return [Announce("checked", {**batch.spec.check, "stage": fact.stage, "user": fact.user})]
    if bool(batch.paused) is not (fact.verb == "resume"):
        return None
    if fact.verb == "pause":
        return batch.pause(PausedBy.OPERATOR, fact.user)
    batch.rights.doubt()
    batch.paused = None
    batch.pace.failures, batch.pace.not_before = 0, now
    return [Announce("resumed", {"user": fact.user})]


def _stop(batch: BatchState, fact: facts.Requested, now: float) -> list[Effect] | None:
    """Send to no more minions; with ``kill``, also kill the job on those in flight."""
    if batch.finished or (batch.halted and not (fact.kill and not batch.killing and batch.flights)):
        return None
    batch.last_progress, batch.stopped_by = now, fact.user
    batch.killing = batch.killing or fact.kill
    for known in batch.flights.values() if fact.kill else ():
        known.kills = 0  # one that was told to terminate is killed too
    return [] if batch.halted else batch.halt("stop")


#: What takes each fact. It returns None if the fact changes nothing.
_HANDLERS: dict[type, Callable[[Any, Any, float], list[Effect] | None]] = {
    facts.Pinged: sending.pinged,
    facts.Checked: sending.checked,
    facts.RightsChecked: sending.rights_checked,
    facts.Published: sending.published,
    facts.Allotted: sending.allotted,
    facts.Returned: ending.returned,
    facts.Acknowledged: ending.acknowledged,
    facts.Started: ending.started,
    facts.EventsLost: ending.doubt_silence,
    facts.Tick: ending.ticked,
    facts.LookedUp: ending.looked_up,
    facts.Asked: ending.asked,
    facts.Killed: ending.killed,
    facts.Requested: _requested,
    facts.Recovered: _recover,
}
