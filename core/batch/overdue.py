"""
Minions that have not returned in time: their returns are looked for, then they are asked, and in the end given up.

Part of the batch machine. It must never give a minion up before a last look into the job cache. Pure: stdlib only.
"""

from __future__ import annotations

from collections.abc import Iterable

from saltext.jobs.core.batch import attendance, kills, returns
from saltext.jobs.core.batch.facts import (
    Announce,
    AskRecords,
    Effect,
    LookedUp,
    LookUp,
    NeverBegun,
    Probe,
    Probed,
    Returned,
    Tick,
)
from saltext.jobs.core.batch.flight import Flight, Outcome
from saltext.jobs.core.batch.state import State


def ticked(batch: State, _fact: Tick, now: float) -> list[Effect]:
    """Time has passed: look for the minions that are overdue, and see to a check that has no answer."""
    if batch.started is None:
        batch.started = now
        return [Announce("new")]
    again, last = batch.inflight.overdue(now)
    late = None if batch.halted else batch.checks.timed_out(now)
    effects = batch.halt(late) if late else []
    return effects + look_for(batch, again) + look_for(batch, last, last=True)


def look_for(batch: State, minions: Iterable[str], last: bool = False) -> list[Effect]:
    """Look for the returns of minions; after the ``last`` look those without one are given up."""
    chosen = batch.inflight.look_for(minions, last)
    return [LookUp(chosen)] if chosen else []


def looked_up(batch: State, fact: LookedUp, now: float) -> list[Effect]:
    """The job cache was read: take the returns that it has, and ask the other minions, or give them up."""
    effects: list[Effect] = []
    for minion, retcode in fact.found:
        effects += returns.returned(batch, Returned(minion, retcode), now)
    to_ask, to_give_up = batch.inflight.not_found(fact.asked)
    for minion in to_give_up:
        effects += _give_up(batch, minion, now)
    if to_ask:
        effects.append(Probe(to_ask))
    return effects + batch.check_budget()


def probed(batch: State, fact: Probed, now: float) -> list[Effect]:
    """Minions were asked whether they run the job."""
    to_kill, to_terminate = [], []
    for minion in batch.inflight.in_doubt(fact.running):
        batch.inflight.seen_running(minion, now)
        too_long, killed = batch.inflight.has_run_too_long(minion, now), batch.flights[minion].kills
        if too_long and not killed and not batch.killing:
            to_terminate.append(minion)
        elif (too_long or batch.killing) and killed < batch.spec.kill_attempts:
            to_kill.append(minion)
    believed = batch.inflight.idle(fact.idle, now)
    in_doubt = tuple(minion for minion in believed if not batch.flights[minion].kills)
    final = batch.inflight.silent(fact.silent, now)
    batch.inflight.unasked([minion for minion in fact.unasked if minion not in final], now)
    ask: list[Effect] = [AskRecords(in_doubt)] if in_doubt else []
    effects = look_for(batch, final, last=True) + kills.terminate(batch, to_terminate) + kills.kill(batch, to_kill)
    return effects + ask


def never_begun(batch: State, fact: NeverBegun, _now: float) -> list[Effect]:
    """Minions have no record of the job: believe that, unless they turn out to run it."""
    batch.inflight.keep_no_records(fact.without)
    batch.inflight.never_begun(fact.minions)
    return []


def _give_up(batch: State, minion: str, now: float) -> list[Effect]:
    """No return anywhere: say what became of the minion."""
    flight = batch.flights[minion]
    if _never_got_it(batch, minion, flight):
        batch.resent[minion] = batch.resent.get(minion, 0) + 1
        batch.put_back([minion])
        return []
    if flight.kills and flight.idle:
        batch.settle(minion, Outcome.TIMED_OUT if flight.expired else Outcome.KILLED, now, None)
    elif flight.seen or (minion not in batch.spec.unsure and (flight.idle or batch.presence.was_there(minion))):
        batch.settle(minion, Outcome.LOST, now, None)
    else:
        return attendance.leave_out(batch, [minion], now)
    return batch.check_budget()


def _never_got_it(batch: State, minion: str, flight: Flight) -> bool:
    """
    Tell whether a minion that does not run the job, and has not returned it, is to get it once more.

    Either its publish had no outcome; or its own records say so; or it is one that says when it begins, and we would have
    heard that. In all cases the minion itself refuses a job that it has received all the same.
    """
    if flight.kills or not batch.inflight.is_idle(flight) or (flight.seen and not flight.never):
        return False
    if flight.unknown:
        return True
    if minion in batch.spec.unsure:
        return False  # the target may not match it
    if flight.never:
        return batch.resent.get(minion, 0) < batch.spec.probe_attempts
    return (
        batch.inflight.says_that_it_begins(minion)
        and not flight.deaf
        and batch.resent.get(minion, 0) < batch.spec.probe_attempts
    )
