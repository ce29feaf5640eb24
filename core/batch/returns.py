"""
What minions say of their own accord: that they have returned the job, begun it, or started anew.

Part of the batch machine. Whether a minion has said it, was found out before it became a fact. Pure: stdlib only.
"""

from __future__ import annotations

from saltext.jobs.core.batch import attendance, kills
from saltext.jobs.core.batch.facts import Acknowledged, Effect, EventsLost, Returned, Seen, Started
from saltext.jobs.core.batch.flight import Outcome, Phase
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
    if batch.finished:
        return []
    if batch.record.is_guess(minion) and not batch.record.timed_out(minion):
        batch.record.reopen(minion)
        batch.inflight.revive(minion, now)
    elif _has_received_it(batch, minion):
        batch.inflight.revive(minion, now)
    if minion in batch.inflight and not batch.inflight.is_in(minion, Phase.KILLING):
        batch.inflight.seen_running(minion, now, begins=True)
    return kills.kill_what_was_late(batch)


def started(batch: State, fact: Started, now: float) -> list[Effect]:
    """A minion's process has started."""
    batch.inflight.forget(fact.minion)
    return attendance.seen(batch, Seen((fact.minion,)), now)


def events_lost(batch: State, _fact: EventsLost, _now: float) -> list[Effect]:
    """The bus may have lost events."""
    batch.inflight.doubt_silence()
    return []
