"""
Kills: of whatever is in flight when a batch is stopped with ``kill``, and of jobs that have run for too long.

Part of the batch machine. That a kill was sent is no evidence: whether it worked, the minion is asked. Pure: stdlib only.
"""

from __future__ import annotations

from collections.abc import Iterable

from saltext.jobs.core.batch.facts import Effect, Kill, KillSent
from saltext.jobs.core.batch.flight import Phase
from saltext.jobs.core.batch.state import State


def kill_what_was_late(batch: State) -> list[Effect]:
    """Kill the job on minions to which it was still being published when the kill was asked for."""
    if not batch.killing:
        return []
    late = (minion for minion, flight in batch.flights.items() if not flight.kills)
    return kill(batch, [minion for minion in late if not batch.inflight.is_in(minion, Phase.SENDING)])


def kill(batch: State, minions: Iterable[str]) -> list[Effect]:
    """Send minions a kill."""
    chosen = batch.inflight.kill(minions)
    return [Kill(chosen)] if chosen else []


def terminate(batch: State, minions: Iterable[str]) -> list[Effect]:
    """Minions have run the job for too long: terminate it, before it is killed."""
    chosen = batch.inflight.kill(minions, expired=True)
    return [Kill(chosen, gently=True)] if chosen else []


def kill_sent(batch: State, fact: KillSent, now: float) -> list[Effect]:
    """A kill was tried."""
    # A journal of the first release does not say whom the kill was for: it was for all.
    batch.inflight.kill_sent(fact.minions or list(batch.flights), fact.gently, now)
    return []
