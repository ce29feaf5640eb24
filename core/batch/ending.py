"""
What becomes of minions that were sent to: they return; or they are overdue, asked, killed, and given up in the end. Minions
that are not there are left out, or handed over to the retry queue (``offline``).

Part of the batch machine. Where returns can be proven, they are proven before they become facts. Starts are
unauthenticated: a forged one causes a short delay, never a success. A kill that was sent proves nothing: the minion is
asked whether it still runs the job. This part must never give a minion up before a last look into the job cache.
Pure: stdlib only.
"""

from __future__ import annotations

from collections.abc import Iterable

from saltext.jobs.core.batch import facts
from saltext.jobs.core.batch.facts import Effect
from saltext.jobs.core.batch.inflight import KILLS, Flight, Phase
from saltext.jobs.core.batch.outcomes import Outcome
from saltext.jobs.core.batch.state import BatchState


def returned(batch: BatchState, fact: facts.Returned, now: float) -> list[Effect]:
    """A minion has returned: this frees its slot."""
    if not batch.wants_return(fact.minion):
        return []
    _has_received_it(batch, fact.minion)
    batch.settle(fact.minion, _outcome_of(batch, fact), now, fact.retcode)
    return batch.check_budget()


def _has_received_it(batch: BatchState, minion: str) -> bool:
    """A minion has received the job after all: take it out of those pending, and tell whether it was among them."""
    if minion not in batch.maybe_received:
        return False
    batch.maybe_received.discard(minion)
    batch.waiting.drop(minion)
    batch.presence.unseen.pop(minion, None)
    batch.pace.charge(1)
    return True


def _outcome_of(batch: BatchState, fact: facts.Returned) -> Outcome:
    if not fact.retcode:
        return Outcome.COMPLETED
    flight = batch.flights.get(fact.minion)
    # A job that was told to terminate may still return: its failure is our doing.
    timed_out = flight.expired if flight else batch.record.timed_out(fact.minion)
    return Outcome.TIMED_OUT if timed_out else Outcome.FAILED


def acknowledged(batch: BatchState, fact: facts.Acknowledged, now: float) -> list[Effect]:
    """A minion has begun. If it was given up or put back, it is in flight again."""
    minion = fact.minion
    if not batch.wants_acknowledgement(minion):
        return []
    if batch.record.is_guess(minion):
        batch.record.reopen(minion)
        batch.to_hand_over.pop(minion, None)
        batch.inflight.revive(minion, now)
    elif _has_received_it(batch, minion):
        batch.inflight.revive(minion, now)
    batch.inflight.seen_running(minion, now, begins=True)
    return kill_what_was_late(batch)


def started(batch: BatchState, fact: facts.Started, _now: float) -> list[Effect]:
    """A minion's process has started."""
    batch.inflight.forget(fact.minion)
    return []


def events_lost(batch: BatchState, _fact: facts.EventsLost, _now: float) -> list[Effect]:
    """The bus may have lost events."""
    batch.inflight.doubt_silence()
    return []


def ticked(batch: BatchState, _fact: facts.Tick, now: float) -> list[Effect]:
    """Time has passed: look for overdue minions, and halt if a check has timed out. The first Tick starts the batch."""
    if batch.started is None:
        batch.started = now
        return [facts.Announce("new")]
    again, last = batch.inflight.overdue(now)
    late = None if batch.halted else batch.checks.timed_out(now)
    effects = batch.halt(late) if late else []
    return effects + look_for(batch, again) + look_for(batch, last, last=True)


def look_for(batch: BatchState, minions: Iterable[str], last: bool = False) -> list[Effect]:
    """Look for the returns of minions; after the ``last`` look, minions without one are given up."""
    chosen = batch.inflight.look_for(minions, last)
    return [facts.LookUp(chosen)] if chosen else []


def looked_up(batch: BatchState, fact: facts.LookedUp, now: float) -> list[Effect]:
    """The job cache was read: take its returns, and ask the other minions or give them up."""
    effects: list[Effect] = []
    batch.catching_up.difference_update(fact.minions)
    for minion, retcode in fact.found:
        effects += returned(batch, facts.Returned(minion, retcode), now)
    to_ask, to_give_up = batch.inflight.not_found(fact.minions)
    for minion in to_give_up:
        effects += _give_up(batch, minion, now)
    if to_ask:
        effects.append(facts.Probe(to_ask))
    return effects + batch.check_budget()


def probed(batch: BatchState, fact: facts.Probed, now: float) -> list[Effect]:
    """Minions were asked whether they run the job."""
    to_kill, to_terminate = [], []
    for minion in batch.inflight.in_doubt(fact.running):
        batch.inflight.seen_running(minion, now)
        too_long, killed = batch.inflight.has_run_too_long(minion, now), batch.flights[minion].kills
        if too_long and not killed and not batch.killing:
            to_terminate.append(minion)
        elif (too_long or batch.killing) and killed < KILLS:
            to_kill.append(minion)
    believed = batch.inflight.idle(fact.idle, now)
    connecting = now < batch.presence.settled_at  # silence is no evidence then
    final = [] if connecting else batch.inflight.silent(fact.silent, now)
    unasked = (*fact.unasked, *fact.silent) if connecting else fact.unasked
    batch.inflight.unasked([minion for minion in unasked if minion not in final], now)
    ask: list[Effect] = [facts.AskRecords(believed)] if believed else []
    effects = look_for(batch, final, last=True) + terminate(batch, to_terminate) + kill(batch, to_kill)
    return effects + ask


def recorded(batch: BatchState, fact: facts.Recorded, now: float) -> list[Effect]:
    """
    Minions were asked for their records. That the job has not begun is believed, unless they turn out to run it. Silent ones
    are asked again, a few times.
    """
    batch.inflight.never_begun(fact.never)
    batch.inflight.recorded(fact.minions, now)
    batch.inflight.records_unknown(fact.silent, now)
    return []


def _give_up(batch: BatchState, minion: str, now: float) -> list[Effect]:
    """Settle a minion that has no return anywhere."""
    flight = batch.flights[minion]
    if _never_got_it(batch, minion, flight):
        batch.resends[minion] += 1
        batch.put_back([minion])
        return []
    if flight.kills and flight.idle:
        batch.settle(minion, Outcome.TIMED_OUT if flight.expired else Outcome.KILLED, now, None)
    elif flight.seen or _is_lost(batch, minion, flight):
        batch.settle(minion, Outcome.LOST, now, None)
    else:
        leave_out(batch, [minion], now)
    batch.record.begun.update([minion] if flight.seen else [])
    return batch.check_budget()


def _is_lost(batch: BatchState, minion: str, flight: Flight) -> bool:
    """
    Tell whether a minion may have begun the job: then it is lost, not just away. That it has answered a ping says nothing
    of the time at which it was sent the job.

    With ``offline=queue`` a silent minion goes to the retry queue, which asks it before it delivers anything.
    """
    return bool(flight.idle) or (batch.spec.offline != "queue" and batch.inflight.may_have_begun(minion))


def _never_got_it(batch: BatchState, minion: str, flight: Flight) -> bool:
    """
    Tell whether a minion that neither runs the job nor has returned it never got it: then it is sent the job again.

    That is assumed if the outcome of its publish is not known, if its own records say so, or if its start would have
    been heard. A minion that did receive the job ignores the duplicate jid.
    """
    if flight.kills or not batch.inflight.is_idle(flight):
        return False
    if flight.seen and not flight.never_begun:
        return False
    if flight.restarted and not flight.never_begun:
        return False  # it may have begun, and would not ignore the job
    if flight.unknown:
        return True
    begins_aloud = batch.spec.acks and not flight.unheard
    return (flight.never_begun or begins_aloud) and batch.resends[minion] < batch.spec.probe_attempts


def leave_out(batch: BatchState, minions: list[str], now: float) -> None:
    """
    Minions are not there: do with them what ``offline`` says. They do not count against the budget. With
    ``offline=queue`` they go to the retry queue later (``hand_over``).
    """
    outcome = Outcome.FAILED if batch.spec.offline == "fail" else Outcome.OFFLINE
    for minion in minions:
        batch.settle(minion, outcome, now, None)
    if batch.spec.offline == "queue":
        batch.to_hand_over.update(dict.fromkeys(minions))


def hand_over(batch: BatchState, now: float) -> list[Effect]:
    """
    Hand minions that were not there over to the retry queue, once all others have ended. Until then the batch may find
    that the job must not go on, and the queue knows nothing of stages, checks and failures.
    """
    waits = batch.paused or batch.has_more() or batch.flights or batch.is_publishing() or batch.checks.under_way
    if waits or batch.halted or not batch.to_hand_over:
        return []
    minions = tuple(batch.to_hand_over)
    for minion in minions:
        batch.settle(minion, Outcome.QUEUED, now, None)
    return [facts.Queue(minions)]


def kill_what_was_late(batch: BatchState) -> list[Effect]:
    """Kill the job on minions whose publish was under way when an operator asked for the kill."""
    if not batch.killing:
        return []
    late = (minion for minion, flight in batch.flights.items() if not flight.kills)
    return kill(batch, [minion for minion in late if not batch.inflight.is_in(minion, Phase.SENDING)])


def kill(batch: BatchState, minions: Iterable[str]) -> list[Effect]:
    """Send minions a kill."""
    chosen = batch.inflight.kill(minions)
    return [facts.Kill(chosen)] if chosen else []


def terminate(batch: BatchState, minions: Iterable[str]) -> list[Effect]:
    """Terminate the job on minions that have run it for too long; it is killed later if it does not end."""
    chosen = batch.inflight.kill(minions, expired=True)
    return [facts.Kill(chosen, gently=True)] if chosen else []


def kill_sent(batch: BatchState, fact: facts.KillSent, now: float) -> list[Effect]:
    """A kill was tried."""
    batch.inflight.kill_sent(fact.minions, fact.gently, now)
    return []
