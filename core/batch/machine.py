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
from saltext.jobs.core.batch.gates import PausedBy
from saltext.jobs.core.batch.member import overdue_at
from saltext.jobs.core.batch.state import BatchState
from saltext.jobs.core.delivery.known import Evidence, Step


class Batch(BatchState):
    """One batch. Build it from a Spec, feed it a Tick, and then every fact."""

    __slots__ = ()

    def step(self, fact: Fact, now: float, ahead: float = 0.0, shared: bool = False) -> list[Effect]:
        """
        Take a fact that has become known at ``now``, and return what is to be done, in this order. ``ahead``: seconds by
        which the wall clock is ahead of ``now``. ``shared``: the batch sends only to as many minions as it is allotted.
        """
        self.schedule.ahead, self.pace.allotted = ahead, 0 if shared else None
        effects = _HANDLERS[type(fact)](self, fact, now) + self._advance(now)
        self.stepped_at = now
        return effects

    def accepts(self, fact: facts.Requested) -> bool:
        """Whether a request changes anything."""
        if self.finished:
            return False
        if fact.verb == "stop":
            return not self.halted or (fact.kill and not self.killing and bool(self.flights))
        if self.halted:
            return False
        if fact.verb == "approve":
            return self.pace.by_hand and self.pace.checking == fact.stage
        return bool(self.paused) is (fact.verb == "resume")

    def _advance(self, now: float) -> list[Effect]:
        """Return the effects that the state calls for, whatever fact led to it."""
        self.pace.warm(now)
        self.pace.wanted, self.goes_on_at = 0, None  # ``sending`` sets them again
        if self.finished or self.started is None:
            return []
        effects = [] if self.is_over() else sending.go_on(self, now)
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
    if batch.started is None:
        return []  # it begins with the next Tick
    if batch.finished:
        return [Announce("halted" if batch.halted else "complete")]
    batch.rights.doubt()
    batch.pending.ping_at, batch.pending.settled_at = now, fact.settled_at
    if batch.spec.presence == "ping" or fact.settled_at > now:
        batch.pending.await_signs()
    master_may_have_ended = fact.taken_over or fact.settled_at > now
    doubtful_since = batch.stepped_at - DOUBTFUL if master_may_have_ended else math.inf
    ending.doubt_silence(batch)
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


def _requested(batch: BatchState, fact: facts.Requested, now: float) -> list[Effect]:
    """An operator wants something that the batch ``accepts``."""
    if fact.verb == "stop":
        return _stop(batch, fact, now)
    if fact.verb == "pause":
        return batch.pause(PausedBy.OPERATOR, fact.user)
    batch.rights.doubt()
    if fact.verb == "approve":
        batch.pace.pass_check()
        return [Announce("checked", {**batch.spec.check, "stage": fact.stage, "user": fact.user})]
    batch.paused = None
    batch.pace.failures, batch.pace.not_before = 0, now
    return [Announce("resumed", {"user": fact.user})]


def _stop(batch: BatchState, fact: facts.Requested, now: float) -> list[Effect]:
    """Send to no more minions; with ``kill``, also kill the job on those in flight."""
    batch.last_progress, batch.stopped_by = now, fact.user
    effects = [] if batch.halted else batch.halt("stop")
    if not fact.kill:
        return effects
    batch.killing = True
    # Those whose publish is under way are killed when that is over.
    minions = [minion for minion, known in batch.flights.items() if known.step is not Step.SENDING]
    return effects + ending.kill(batch, minions, now)


_HANDLERS: dict[type, Callable[[Any, Any, float], list[Effect]]] = {
    facts.Pinged: sending.pinged,
    facts.Checked: sending.checked,
    facts.RightsChecked: sending.rights_checked,
    facts.Published: sending.published,
    facts.PublishFailed: sending.publish_failed,
    facts.Allotted: sending.allotted,
    facts.Returned: ending.returned,
    facts.Acknowledged: ending.acknowledged,
    facts.Started: ending.started,
    facts.EventsLost: ending.events_lost,
    facts.Tick: ending.ticked,
    facts.LookedUp: ending.looked_up,
    facts.Asked: ending.asked,
    facts.Killed: ending.killed,
    facts.Requested: _requested,
    facts.Recovered: _recover,
}
