"""
The batch state machine: facts in, effects out, time as an argument. The table at the end says which part takes which fact.

Pure: stdlib only, no clock, no I/O. It must never depend on anything but its state, the fact and the given time.

A minion's way through a batch:

    pending -> in flight -> completed | failed | lost | offline | killed | timed_out
                  |  ^
                  v  '---- running: asked, and it does run the job
              overdue: looked for in the job cache, then asked (find_job); see Phase

Only a return, or evidence that the job does not run there, frees a slot. Silence counts only after ``probe_attempts``
questions, and means absence only for a minion that cannot have begun the job.

The state of a batch is in ``state.py``. It has these parts: the minions still to be sent to, and which of them are there
(``pending.py``); how many at a time, and when (``pace.py``); the gates that must be open (``gates.py``); the minions in
flight (``inflight.py``); and how each ended (``outcomes.py``). What the start of an engine changes is in this file.
Three more files say what the other facts change; their functions take the state and return effects:

    sending.py     which minions are there, and publishing to them
    holding.py     gates, and requests of operators
    ending.py      returns, overdue minions, kills, minions that are not there
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from saltext.jobs.core.batch import ending, facts, holding, sending
from saltext.jobs.core.batch.facts import Announce, Effect, Fact, LookUp, Recovered
from saltext.jobs.core.batch.state import BatchState


class Batch(BatchState):
    """
    One batch. Build it from a Spec, feed it a Tick, and then every fact.

    :param spec: what was asked for.
    :param now: Unix time in seconds.
    """

    __slots__ = ()

    def step(self, fact: Fact, now: float, ahead: float = 0.0) -> list[Effect]:
        """
        Take a fact that has become known at ``now``, and return what is to be done, in this order.

        :param ahead: seconds by which the wall clock, which windows follow, is ahead of ``now``.
        """
        self.schedule.ahead = ahead
        effects = _HANDLERS[type(fact)](self, fact, now) + self._advance(now)
        self.stepped_at, self.room.allotted = now, 0
        return effects

    def _advance(self, now: float) -> list[Effect]:
        """Return the effects that the state calls for, whatever fact led to it."""
        self.pace.warm(now)
        self.room.wanted = 0  # ``sending`` sets it again
        if self.finished or self.started is None:
            return []
        effects = ([] if self.is_over() else self._go_on(now)) + ending.hand_over(self, now)
        return effects + self._finish(now) if self.is_over() else effects

    def _go_on(self, now: float) -> list[Effect]:
        """Find out which minions are there, and send to the next ones, unless something forbids that."""
        if self.halted or self.paused:
            self.pace.publish_at = None
            return []
        may_send = not self.has_more() or self.schedule.look(now + self.schedule.ahead)
        effects = holding.heed_windows(self, may_send)
        if not may_send:
            self.pace.publish_at = None
            return effects
        if self.has_more() and not self.rights.may_send(now):
            self.pace.publish_at = None
            return effects + holding.heed_rights(self, now)
        effects += sending.ping(self, now)
        return effects if self.presence.first_ping else effects + sending.publish(self, now)

    def _finish(self, now: float) -> list[Effect]:
        self.finished = now
        self.checks.end()
        self.paused = self.pace.publish_at = None
        return [] if self.halted else [Announce("complete")]


# -- the start of an engine --------------------------------------------------------------------------------------------
# The outcome of everything that was under way is unknown, and must be found out. No minion may be sent to again before the
# outcome of its last publish is known.

#: If the master ended together with its engine, publishes of its last ``DOUBTFUL`` seconds may not have left it. The
#: batch then goes on at this master after its restart, or at another one.
DOUBTFUL = 5.0


def _recover(batch: BatchState, fact: Recovered, now: float) -> list[Effect]:
    """Recover a batch: the outcomes of what was under way are unknown."""
    batch.room.recover(fact.shared)
    batch.pace.recover(now)
    if batch.started is None:
        return []  # it begins with the next Tick
    if batch.finished:
        return [Announce("halted" if batch.halted else "complete")]
    batch.publish_window.reset()
    batch.rights.doubt()
    batch.checks.recover(now)
    batch.presence.ping_at, batch.presence.settled_at = now, fact.settled_at
    if batch.spec.presence == "ping" or fact.settled_at > now:
        batch.await_signs()
    effects: list[Effect] = [Announce("halted")] if batch.halted else []
    master_may_have_ended = fact.taken_over or fact.settled_at > now
    batch.inflight.recover(now, batch.stepped_at - DOUBTFUL if master_may_have_ended else None)
    batch.catching_up = set(batch.unsettled())
    return [*effects, LookUp(tuple(batch.catching_up))] if batch.catching_up else effects


_HANDLERS: dict[type, Callable[[Any, Any, float], list[Effect]]] = {
    facts.Seen: sending.seen,
    facts.Pinged: sending.pinged,
    facts.PingFailed: sending.ping_failed,
    facts.Checked: holding.checked,
    facts.Published: sending.published,
    facts.PublishFailed: sending.publish_failed,
    facts.Returned: ending.returned,
    facts.Acknowledged: ending.acknowledged,
    facts.Started: ending.started,
    facts.EventsLost: ending.events_lost,
    facts.Tick: ending.ticked,
    facts.LookedUp: ending.looked_up,
    facts.Probed: ending.probed,
    facts.Recorded: ending.recorded,
    facts.KillSent: ending.kill_sent,
    facts.StopRequested: holding.stop,
    facts.PauseRequested: holding.pause_requested,
    facts.ResumeRequested: holding.resume,
    facts.RightsChecked: holding.rights_checked,
    facts.Allotted: sending.allotted,
    facts.Approved: holding.approved,
    facts.Recovered: _recover,
}
