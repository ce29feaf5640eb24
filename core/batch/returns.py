"""
What minions say of their own accord: that they have returned the job, begun it, or started anew.

Part of the batch machine. Whether a minion has returned was found out before it became a fact. That it has begun, or
started anew, anybody can say in its name: it delays little, and makes no success. Pure: stdlib only.
"""

from __future__ import annotations

from saltext.jobs.core.batch import kills
from saltext.jobs.core.batch.facts import Acknowledged, Effect, EventsLost, Returned, Started
from saltext.jobs.core.batch.flight import Outcome
from saltext.jobs.core.batch.state import State


def returned(batch: State, fact: Returned, now: float) -> list[Effect]:
    """A minion has returned: this frees its slot."""
    if not batch.wants_return(fact.minion):
        return []
    _has_received_it(batch, fact.minion)
    batch.settle(fact.minion, _outcome_of(batch, fact), now, fact.retcode)
    return batch.check_budget()


def _has_received_it(batch: State, minion: str) -> bool:
    """A minion that is pending again has received the job all the same; tells whether it was."""
    if minion not in batch.tried:
        return False
    batch.tried.discard(minion)
    batch.waiting.drop(minion)
    batch.presence.unseen.pop(minion, None)
    batch.pace.sends_elsewhere()
    return True


def _outcome_of(batch: State, fact: Returned) -> Outcome:
    if not fact.retcode:
        return Outcome.COMPLETED
    flight = batch.flights.get(fact.minion)
    # A job that is told to terminate may still return: that it failed is our doing.
    timed_out = flight.expired if flight else batch.record.timed_out(fact.minion)
    return Outcome.TIMED_OUT if timed_out else Outcome.FAILED


def acknowledged(batch: State, fact: Acknowledged, now: float) -> list[Effect]:
    """A minion has begun. One that was given up, or put back, is in flight again."""
    minion = fact.minion
    if not batch.wants_acknowledgement(minion):
        return []
    if not batch.inflight.awaits_begin(minion):
        batch.begun_after_all[minion] = batch.begun_after_all.get(minion, 0) + 1
    if batch.record.is_guess(minion):
        batch.record.reopen(minion)
        batch.inflight.revive(minion, now)
    elif _has_received_it(batch, minion):
        batch.inflight.revive(minion, now)
    batch.inflight.seen_running(minion, now, begins=True)
    return kills.kill_what_was_late(batch)


def started(batch: State, fact: Started, _now: float) -> list[Effect]:
    """A minion's process has started."""
    batch.inflight.forget(fact.minion)
    return []


def events_lost(batch: State, _fact: EventsLost, _now: float) -> list[Effect]:
    """The bus may have lost events."""
    batch.inflight.doubt_silence()
    return []
