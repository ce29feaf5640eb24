"""
Recovers a batch when the engine starts: the outcome of everything that was under way is unknown, and must be found out.

Part of the batch machine. It must never send again to a minion until the outcome of its last publish is known. Pure: stdlib
only.
"""

from __future__ import annotations

from saltext.jobs.core.batch import holding
from saltext.jobs.core.batch.facts import Announce, Close, Effect, LookUp, Queue, Recovered
from saltext.jobs.core.batch.state import POLICY, BatchState

#: If the master ended together with its engine, publishes of the last so many seconds may not have left it. The batch then
#: goes on at this master after its restart, or at another one.
DOUBTFUL = 5.0


def recover(batch: BatchState, fact: Recovered, now: float) -> list[Effect]:
    """Recover a batch: the outcomes of what was under way are unknown, and the clock may have changed."""
    batch.room.recover(fact.shared)
    lacks_facts = bool(batch.history) and batch.history != fact.history
    batch.history = fact.history
    began: list[Effect] = []
    if batch.started is None and lacks_facts:  # the missing facts may include its start
        batch.started = now
        began.append(Announce("new"))
    if batch.closed:
        return []
    if batch.started is None:
        batch.pace.recover(now)  # it begins with the next Tick
        return []
    if batch.finished:
        return [Announce("halted" if batch.halted else "complete"), Close()]
    doubts, ended = fact.taken_over or fact.settled_at > now, batch.stepped_at
    passed = _follow_clock(batch, fact, now)
    batch.pace.recover(now)
    batch.publish_window.begin_anew()
    batch.schedule.recover()
    batch.rights.recover()
    _recover_presence(batch, fact.settled_at, now)
    if batch.policy != POLICY:
        _doubt_everything(batch, now)
    elif lacks_facts:
        _doubt_sendable(batch, now)
    effects = [*began, Announce("halted")] if batch.halted else began
    if batch.to_queue:
        effects.append(Queue(tuple(batch.to_queue)))
    if batch.checks.under_way and (batch.checks.by_hand or not batch.rights.limited):
        effects += holding.begin_check(batch, now)
    elif batch.checks.under_way:
        batch.checks.end()  # it is made again once the owner's right is confirmed
    in_flight = batch.inflight.recover(now, ended + passed - DOUBTFUL if doubts else None)
    given_up = tuple(minion for minion in batch.unsettled() if minion not in batch.inflight)
    batch.catching_up = {*in_flight, *given_up}
    return [*effects, LookUp(in_flight + given_up)] if batch.catching_up else effects


def _follow_clock(batch: BatchState, fact: Recovered, now: float) -> float:
    """
    Move all times to the clock of the restarted engine, and return by how many seconds it is ahead of the previous one.

    If the two clocks cannot be compared, it is not known how long no engine ran: that time is left out of run times.
    """
    is_known = bool(fact.boot) and fact.boot == batch.boot
    ahead = fact.offset - batch.clock_offset if is_known else now - batch.stepped_at
    batch.go_by(fact.boot, fact.offset)
    batch.inflight.shift(ahead)
    batch.checks.recover(ahead if is_known else 0.0, now)
    return ahead


def _recover_presence(batch: BatchState, settled_at: float, now: float) -> None:
    batch.presence.recover(now)
    if batch.presence.first_ping and batch.waiting:
        batch.presence.first_ping = False
        batch.order_pending()
    if settled_at > now:
        batch.presence.settled_at = settled_at
        batch.await_signs()


def _doubt_everything(batch: BatchState, now: float) -> None:
    """Another policy processed the facts so far: every minion that has not ended may have been sent to."""
    _may_have_been_sent_to(batch, batch.pending(), now)
    batch.policy = POLICY


def _doubt_sendable(batch: BatchState, now: float) -> None:
    """The last facts are lost: any minion may have been sent to, except those that answered no ping."""
    silent = {minion for minion, pings in batch.presence.unseen.items() if pings}
    _may_have_been_sent_to(batch, [minion for minion in batch.pending() if minion not in silent], now)


def _may_have_been_sent_to(batch: BatchState, minions: list[str], now: float) -> None:
    for minion in minions:
        batch.waiting.drop(minion)
        batch.presence.unseen.pop(minion, None)
    batch.tried.difference_update(minions)
    batch.pace.sends_elsewhere(len(minions))
    batch.inflight.send((*(batch.inflight.publishing or ()), *minions), now)
