"""
The batch state machine: facts in, effects out, time as an argument. The table at the end says which part takes which fact.

Pure: stdlib only, no clock, no I/O. A minion's way through a batch:

    pending -> in flight -> completed | failed | lost | offline | killed | timed_out
                  |  ^
                  v  '---- running: asked, and it does run the job
              overdue: looked for in the job cache, then asked; see core/delivery/known.py

It must never free a slot but for a return, or evidence that the job does not run there. Silence counts only after
``probe_attempts`` questions, and means absence only for a minion that was not sent the job. Nor must it send the job
under another jid to a minion that may have received it: the same one the minion runs once.

This file has how the next minions are reached, what the start of an engine changes, and what operators want; ``ending.py``
has what becomes of minions that were sent to. Freed slots are gathered, so that many returns lead to one publish.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from saltext.jobs.core.batch import ending, facts
from saltext.jobs.core.batch.facts import Announce, Effect, Fact, LookUp
from saltext.jobs.core.batch.member import Outcome, absent, overdue_at
from saltext.jobs.core.batch.pace import PausedBy
from saltext.jobs.core.batch.state import Batch
from saltext.jobs.core.delivery.known import Evidence, Step


def step(batch: Batch, fact: Fact, now: float) -> list[Effect] | None:
    """
    Have a batch take a fact that has become known at ``now``, first of all a Tick. Return what is to be done, in this order;
    None if the fact changes nothing.
    """
    effects = _HANDLERS[type(fact.effect if isinstance(fact, facts.Done) else fact)](batch, fact, now)
    if effects is None:
        return None
    new = [] if batch.stepped_at else [Announce("new")]
    batch.stepped_at = now
    return [*new, *effects, *_advance(batch, fact, now)]


def _advance(batch: Batch, fact: Fact, now: float) -> list[Effect]:
    """Return the effects that the state calls for, after this fact."""
    batch.pace.warm(now)
    batch.pace.wanted, batch.pending.awaited_until, batch.goes_on_at = 0, 0.0, math.inf  # ``_go_on`` sets them
    if batch.finished:
        return []
    overdrawn = "" if batch.halted else batch.overdrawn()
    effects = batch.halt(overdrawn) if overdrawn else []
    if batch.killing and not isinstance(fact, facts.Returned):  # where it was not done yet, or once a publish is over
        late = [minion for minion, known in batch.flights.items() if not known.kills and known.step is not Step.SENDING]
        effects += ending.kill(batch, late, now)
    if not batch.is_over():
        effects += _go_on(batch, now)
    ending.hand_over(batch, now)
    if not batch.is_over():
        return effects
    silent = [name for name, known in batch.members.items() if known.ended is Outcome.OFFLINE and known.unanswered]
    for minion in [*silent, *(name for name, known in batch.members.items() if known.was_put_back)]:
        batch.settle(minion, Outcome.LOST, now, None)  # it may have the job, and begin it yet
    batch.finished = now
    batch.paused = batch.pace.checking = None
    # The counts of a halted batch have changed since that was announced.
    return [*effects, Announce("progress" if batch.halted else "complete"), facts.Close()]


# -- the next minions ---------------------------------------------------------------------------------------------------


def _go_on(batch: Batch, now: float) -> list[Effect]:
    """Find out which minions are there, and send to the next ones, unless something forbids that."""
    pace, rights, pending = batch.pace, batch.rights, batch.pending
    if batch.halted or batch.paused or not pending:
        return []
    may_send = batch.schedule.look(now)
    effects = _announce_windows(batch, may_send)
    _wait_until(batch, batch.schedule.look_at - batch.schedule.ahead)
    if not may_send:
        return effects
    if not rights.may_send(now):
        ask = [facts.CheckRights(tuple(pending.in_order()))] if rights.must_ask(now) else []
        _wait_until(batch, rights.ask_at)
        return [*effects, *ask]
    pending.first_ping &= bool(pending.pinged or pending.unseen)  # all may have shown a sign of life without it
    if pending.unseen and not pending.pinged:
        ping_at = max(pending.ping_at, pace.not_before)
        if now >= ping_at:
            effects.append(facts.Ping(pending.ping(pace.size, now)))
        else:
            _wait_until(batch, ping_at)
    effects += [] if pending.first_ping else _publish(batch, now)
    is_idle = not (pending.first_ping or batch.flights or pending.available(pace.group) or pace.checking is not None)
    if pending.unseen and is_idle:
        pending.awaited_until = pending.given_up_by()
    return effects


def _wait_until(batch: Batch, at: float) -> None:
    """Something keeps the batch from sending until ``at``."""
    batch.goes_on_at = min(batch.goes_on_at, at)


def _announce_windows(batch: Batch, may_send: bool) -> list[Effect]:
    """Announce each beginning and end of a wait for a window or the start time."""
    if batch.announced is not may_send:
        return []
    batch.announced = not may_send
    if may_send:
        reason = f"its {'window is open' if batch.spec.window else 'start time has come'}"
        return [Announce("resumed", {"reason": reason})]
    return [Announce("paused", {**batch.schedule.pause().payload(), "opens_at": batch.schedule.opens})]


def _rights_checked(batch: Batch, fact: facts.Done, now: float) -> list[Effect]:
    """The rights were checked. If they are lacking, the batch pauses until a user with the rights resumes it."""
    reason, trouble = fact.found
    if batch.halted or batch.finished or not batch.rights.told(reason, trouble, now):
        return []
    return batch.pause(PausedBy.PERMISSION, reason)


# -- pings ------------------------------------------------------------------------------------------------------------


def misses(batch: Batch, minion: str) -> bool:
    """Whether ``minion`` was left out before it was sent to, and is sent to if it shows a sign of life now."""
    known = None if batch.halted or batch.finished else batch.members.get(minion)
    if known is None or known.ended in (None, Outcome.QUEUED):
        return False
    return known.sent_at is None and known.retcode is None


def _pinged(batch: Batch, fact: facts.Pinged, _now: float) -> list[Effect]:
    """Minions are there, and may be sent to: also if they were left out, since they may have been too busy to answer."""
    batch.pending.see(fact.minions)
    for minion in fact.minions:
        if misses(batch, minion):
            batch.reopen(minion)
            batch.pending.put([minion])
    return []


def _ping_over(batch: Batch, fact: facts.Done, now: float) -> list[Effect]:
    """A ping is over. If it was confirmed, leave out those pinged often enough."""
    if fact.found:
        batch.pending.pinged = ()
        return _failed_again(batch, fact.found, now)
    batch.pace.failures = 0
    away = batch.pending.ping_over(now)
    if batch.spec.presence == "none":
        batch.pending.put(away)
    else:
        for minion in away:
            batch.settle(minion, absent(batch.spec), now, None)
    return []


def _failed_again(batch: Batch, reason: str, now: float) -> list[Effect]:
    """A publish or ping has failed: wait longer each time, and pause in the end."""
    if batch.pace.publish_failed(now):
        return []
    return batch.pause(PausedBy.PUBLISH, f"{batch.pace.failures} publishes failed in a row, the last one: {reason}")


# -- publishes --------------------------------------------------------------------------------------------------------


def _publish(batch: Batch, now: float) -> list[Effect]:
    """Send to as many minions as there are free slots, if the stage allows it and freed slots have gathered long enough."""
    if batch.publishing or batch.catching_up:
        return []
    effects = _next_stages(batch, now)
    if batch.pace.cooling and batch.pending.ready:
        _wait_until(batch, batch.pace.cooling[0])
    count, again = batch.pace.turn(now, len(batch.flights), batch.pending.available(batch.pace.group))
    _wait_until(batch, again)
    taken = batch.pending.take(count)
    batch.pace.quota -= len(taken)
    doubted = [minion for minion in taken if minion in batch.members and batch.members[minion].was_put_back]
    effects += ending.look_for(batch, doubted, Step.LOOKING)  # they may have restarted since
    return [*effects, *batch.send(tuple(minion for minion in taken if minion not in doubted), now)]


def _published(batch: Batch, fact: facts.Published, now: float) -> list[Effect]:
    """The publish under way is over. If it was not confirmed, put its minions back, or find out whether they received it."""
    sent, missed = batch.flights.at(batch.publishing, Step.SENDING), set(fact.missed)
    batch.publishing = ()
    if fact.failure:
        for minion in sent:
            batch.flights[minion].take(Evidence.REFUSED if fact.certain else Evidence.UNCONFIRMED, now)
        if not fact.certain:
            return ending.look_for(batch, sent, Step.LOOKING) + _failed_again(batch, fact.failure, now)
        batch.put_back(sent)
        return [] if batch.holds_publish(now) else _failed_again(batch, fact.failure, now)
    batch.pace.failures = 0
    for minion in sent:
        known = batch.flights[minion]
        if minion in missed:
            known.take(Evidence.MISSED, now)
            batch.settle(minion, absent(batch.spec), now, None)
        else:
            known.take(Evidence.PUBLISHED, now)
            known.ran_since = now
            batch.go(minion, Step.SENT, overdue_at(known, batch.spec, now))
    return []


# -- stages -----------------------------------------------------------------------------------------------------------


def _next_stages(batch: Batch, now: float) -> list[Effect]:
    """Go on to the next wave or group once this one has ended, has kept its budget and has passed its check."""
    pace, pending = batch.pace, batch.pending
    while pending.ready and pace.stage_is_over(len(batch.flights), available := pending.available(pace.group)):
        if not available and pending.awaits_signs(pace.group):
            return []
        if pace.spec.check and pace.passed != pace.stage:
            return [] if pace.checking == pace.stage else _begin_check(batch)
        pace.next_stage(available, now)
    return []


def _begin_check(batch: Batch) -> list[Effect]:
    stage = batch.pace.checking = batch.pace.stage
    announced = Announce("check", {**batch.spec.check, "stage": stage + 1})
    if batch.spec.by_hand:
        return [announced]
    began = batch.pace.began
    done = (name for name, known in batch.members.items() if known.ended is Outcome.COMPLETED and known.since >= began)
    return [announced, facts.Check(tuple(sorted(done)), stage)]


def _checked(batch: Batch, fact: facts.Done, _now: float) -> list[Effect] | None:
    stage = fact.effect.stage
    if batch.halted or batch.spec.by_hand or batch.pace.checking != stage:
        return None
    if fact.found:
        return batch.halt(f"check {batch.spec.check['fun']}: {fact.found}")
    batch.pace.pass_check()
    return [Announce("checked", {**batch.spec.check, "stage": stage + 1})]


# -- the start of an engine --------------------------------------------------------------------------------------------
# No minion may be sent to again before the outcome of its last publish is found out.

#: If the master ended with its engine, publishes of its last ``DOUBTFUL`` seconds may not have left it.
DOUBTFUL = 5.0


def _recover(batch: Batch, fact: facts.Recovered, now: float) -> list[Effect]:
    batch.pace.recover(now)
    if batch.finished:
        return [Announce("halted" if batch.halted else "complete"), facts.Close()]
    batch.rights.doubt()
    batch.pending.ping_at, batch.pending.settled_at = now, fact.settled_at
    if batch.spec.presence == "ping" or fact.settled_at > now:
        batch.pending.await_signs()
    doubtful_since = batch.stepped_at - DOUBTFUL if fact.taken_over or fact.settled_at > now else math.inf
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


def _requested(batch: Batch, fact: facts.Requested, now: float) -> list[Effect] | None:
    if fact.verb == "stop":
        return _stop(batch, fact, now)
    if batch.finished or batch.halted:
        return None
    if fact.verb == "approve":
        if fact.stage != batch.pace.to_approve:
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


def _stop(batch: Batch, fact: facts.Requested, now: float) -> list[Effect] | None:
    """Send to no more minions; with ``kill``, also kill the job on those in flight."""
    if batch.finished or (batch.halted and not (fact.kill and not batch.killing and batch.flights)):
        return None
    batch.last_progress, batch.stopped_by = now, fact.user
    batch.killing = batch.killing or fact.kill
    for known in batch.flights.values() if fact.kill else ():
        known.kills = 0  # one that was told to terminate is killed too
    return [] if batch.halted else batch.halt("stop")


#: What takes each fact, and what came of each effect. It returns None if that changes nothing.
_HANDLERS: dict[type, Callable[[Any, Any, float], list[Effect] | None]] = {
    facts.Pinged: _pinged,
    facts.Ping: _ping_over,
    facts.Published: _published,
    facts.Check: _checked,
    facts.CheckRights: _rights_checked,
    facts.Returned: ending.returned,
    facts.Acknowledged: ending.acknowledged,
    facts.Started: ending.started,
    facts.EventsLost: ending.doubt_silence,
    facts.Tick: ending.ticked,
    LookUp: ending.looked_up,
    facts.Ask: ending.asked,
    facts.Kill: ending.killed,
    facts.Requested: _requested,
    facts.Recovered: _recover,
}
