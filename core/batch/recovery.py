"""
The start of an engine: the outcome of what was under way is not known, and is found out.

Part of the batch machine. Before that it must never send again to a minion whose publish has no outcome. Pure: stdlib only.
"""

from __future__ import annotations

from saltext.jobs.core.batch import holding
from saltext.jobs.core.batch.facts import Announce, Close, Effect, LookUp, Queue, Recovered
from saltext.jobs.core.batch.pending import Pending
from saltext.jobs.core.batch.state import POLICY, State

#: Seconds before the end of an engine of which it is doubtful whether a publish has left a master that ended with it. What
#: goes on may be the same master, started anew, or another one.
DOUBTFUL = 5.0


def recover(batch: State, fact: Recovered, now: float) -> list[Effect]:
    """Nothing that was under way has an outcome, and the clock may be another one."""
    if batch.closed or batch.started is None:
        return []
    if batch.finished:
        return [Announce("halted" if batch.halted else "complete"), Close()]
    doubts, ended = fact.taken_over or fact.settled_at > now, batch.stepped_at
    passed = _follow_clock(batch, fact, now)
    batch.pace.recover(now)
    batch.publish_window.begin_anew()
    batch.schedule.recover()
    batch.rights.recover()
    batch.room.recover(fact.shared)
    _recover_presence(batch, fact.settled_at, now)
    if batch.policy != POLICY:
        _doubt_everything(batch, now)
    effects: list[Effect] = [Announce("halted")] if batch.halted else []
    if batch.to_queue:
        effects.append(Queue(tuple(batch.to_queue)))
    if batch.checks.under_way and (batch.checks.by_hand or not batch.rights.limited):
        effects += holding.begin_check(batch, now)
    elif batch.checks.under_way:
        batch.checks.end()  # it begins once it is known whether its owner still may
    to_look_for, last = batch.inflight.recover(now, ended + passed - DOUBTFUL if doubts else None)
    given_up = tuple(minion for minion in batch.unsettled() if minion not in batch.inflight)
    batch.catching_up = {*to_look_for, *last, *given_up}
    return effects + [LookUp(minions) for minions in (to_look_for + given_up, last) if minions]


def _follow_clock(batch: State, fact: Recovered, now: float) -> float:
    """
    Have times go by the clock of the engine that has started, and return by how much that is ahead of the one before.

    Where that cannot be told, for how long no engine ran is not known, and no minion's run time counts it.
    """
    is_known = bool(fact.boot) and fact.boot == batch.boot
    ahead = fact.offset - batch.clock_offset if is_known else now - batch.stepped_at
    batch.go_by(fact.boot, fact.offset)
    batch.inflight.shift(ahead)
    batch.checks.recover(ahead if is_known else 0.0, now)
    return ahead


def _recover_presence(batch: State, settled_at: float, now: float) -> None:
    batch.presence.recover(now)
    if batch.presence.gathering and batch.waiting:
        batch.presence.gathering = False
        batch.order_pending()
    if settled_at > now:
        batch.presence.settled_at = settled_at
        batch.await_signs()


def _doubt_everything(batch: State, now: float) -> None:
    """The facts so far were folded by another policy: whoever has not ended may have been sent to."""
    doubtful = batch.pending()
    batch.waiting = Pending((), batch.membership, batch.pace.group)
    batch.presence.unseen.clear()
    batch.tried.difference_update(doubtful)
    batch.pace.sends_elsewhere(len(doubtful))
    batch.inflight.send((*(batch.inflight.publishing or ()), *doubtful), now)
    batch.policy = POLICY
