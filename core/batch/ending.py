"""
What becomes of minions that were sent to: they return; or they are overdue, asked, killed, and given up in the end. Minions
that are not there are left out, or handed over to the retry queue (``offline``).

Part of the batch machine: ``member.py`` decides what follows from what is known of a minion. Starts are unauthenticated: a
forged one causes a short delay, never a success. A kill that was sent proves nothing: the minion says whether it has reached
a process, and is asked whether it still runs the job. This part must never give a minion up before a last look into the job
cache. Pure: stdlib only.
"""

from __future__ import annotations

from collections.abc import Iterable

from saltext.jobs.core.batch import facts, member
from saltext.jobs.core.batch.facts import Effect
from saltext.jobs.core.batch.member import IN_DOUBT, KILL_PAUSE, TERM_PAUSE, Outcome
from saltext.jobs.core.batch.state import Batch
from saltext.jobs.core.delivery.known import Answers, Evidence, Said, Step
from saltext.jobs.core.functions import runs_states


def returned(batch: Batch, fact: facts.Returned, now: float) -> list[Effect] | None:
    """A minion has returned: this frees its slot."""
    if not batch.wants_return(fact.minion):
        return None
    known = batch.members[fact.minion]
    # A job that was told to terminate may still return: its failure is our doing.
    bad = Outcome.TIMED_OUT if known.expired and known.killed else Outcome.FAILED
    batch.settle(fact.minion, bad if fact.retcode else Outcome.COMPLETED, now, fact.retcode)
    return []


def acknowledged(batch: Batch, fact: facts.Acknowledged, now: float) -> list[Effect] | None:
    """
    An event says that a minion has begun. If the minion was given up or put back, it is in flight again. A forger can fire
    any number of such events, so one is believed only of a minion that was sent to and is not known to have begun.
    """
    minion = fact.minion
    if batch.finished or not batch.wants_return(minion):
        return None
    known = batch.members[minion]
    if known.sent_at is None or known.has_begun:
        return None
    if known.step is None:
        known.kills, known.expired, known.killed = 0, False, False
    _runs(batch, minion, Evidence.BEGUN, now)
    return []


def _runs(batch: Batch, minion: str, evidence: Evidence, now: float) -> bool:
    """Take that a minion runs the job, and tell whether it is killed there."""
    known = batch.members[minion]
    doubted = known.step in IN_DOUBT or known.step is Step.LOOKING
    known.take(evidence, now)
    known.since = now
    if evidence is Evidence.BEGUN:
        known.claimed, known.ran_since = True, now
    due = member.seen(known, batch.spec, now, doubted, batch.killing)
    batch.go(minion, Step.RUNNING, due)
    return due is None


def started(batch: Batch, fact: facts.Started, now: float) -> list[Effect] | None:
    """A minion has started, and has forgotten which jids it knew: one that was put back cannot be sent the job again."""
    minion, known = fact.minion, batch.members.get(fact.minion)
    if known is not None and known.was_put_back:
        batch.settle(minion, Outcome.LOST, now, None)
    elif minion not in batch.flights or batch.flights[minion].restarted:
        return None
    batch.change(minion).starts(now)
    return []


def doubt_silence(batch: Batch, _fact: facts.Fact, _now: float) -> list[Effect]:
    """Events may have been lost: a minion that was not heard to begin may have begun."""
    for minion, known in batch.flights.items():
        if not (known.begun_at or known.unheard):
            batch.change(minion).unheard = True
    return []


def ticked(batch: Batch, _fact: facts.Tick, now: float) -> list[Effect]:
    """Time has passed: look for overdue minions."""
    due = batch.flights.overdue(now)
    last = dict.fromkeys(batch.flights.at(due, Step.ANSWERED))
    first = [minion for minion in due if minion not in last]
    return look_for(batch, first, Step.LOOKING) + look_for(batch, last, Step.LOOKING_AGAIN)


def look_for(batch: Batch, minions: Iterable[str], step: Step) -> list[Effect]:
    """Look for the returns of minions. LOOKING_AGAIN is the last look: minions without a return are given up then."""
    chosen = tuple(minions)
    for minion in chosen:
        batch.go(minion, step)
    return [facts.LookUp(chosen)] if chosen else []


def looked_up(batch: Batch, fact: facts.Done, now: float) -> list[Effect]:
    """The job cache was read: take its returns, and ask the other minions or give them up."""
    for minion, retcode in fact.found.items():
        returned(batch, facts.Returned(minion, retcode), now)
    minions = () if fact.effect.extra else fact.effect.minions
    if minions == batch.catching_up:
        batch.catching_up = ()
    to_ask, again = tuple(batch.flights.at(minions, Step.LOOKING)), list[str]()
    for minion in batch.flights.at(minions, Step.LOOKING_AGAIN):
        known = batch.members[minion]
        outcome = member.given_up(known, batch.spec)
        if outcome is None:
            known.resends += 1
            again.append(minion)
        else:
            batch.settle(minion, outcome, now, None)
    for minion in to_ask:
        batch.go(minion, Step.ASKING).ask(now)
    effects: list[Effect] = [facts.Ask(to_ask)] if to_ask else []
    # They keep their slots, and are sent to at once, since they may restart at any time; or else are asked before that.
    if batch.publishing or batch.catching_up or now < batch.pace.not_before or batch.holds_publish(now):
        batch.put_back(again)
        return effects
    return effects + batch.send(tuple(again), now)


def asked(batch: Batch, fact: facts.Done, now: float) -> list[Effect]:
    """Minions were asked whether they run the job. Silence is no evidence while minions still connect."""
    answers: Answers = fact.found
    # With ``queue=True`` the job may wait where ``find_job`` does not look, until the other states have ended.
    waiting = answers.applying if runs_states(batch.spec.fun) else frozenset[str]()
    runs = waiting.union(answers.told.get(Evidence.RUNS, ()))
    in_doubt = batch.flights.at(sorted(runs), *IN_DOUBT)
    late = [minion for minion in in_doubt if _runs(batch, minion, Evidence.RUNS, now)]
    look = list[str]()
    for evidence, minions in answers.told.items():
        if evidence in (Evidence.SILENT, Evidence.UNPROVEN):
            evidence = Evidence.UNASKED if now < batch.pending.settled_at else Evidence.SILENT
        for minion in batch.flights.at(sorted(minions - runs), Step.ASKING):
            known = batch.members[minion]
            known.take(evidence, now, answers.said.get(minion, Said.NOTHING))
            step = member.answered(known, batch.spec)
            if step is Step.LOOKING_AGAIN:
                look.append(minion)
            else:
                batch.go(minion, step, now + batch.spec.gather_job_timeout)
    return look_for(batch, look, Step.LOOKING_AGAIN) + kill(batch, late, now)


def hand_over(batch: Batch, now: float) -> None:
    """
    Hand minions that were not there over to the retry queue, once all others have ended: until then the batch may find that
    the job must not go on, and the queue knows nothing of stages, checks and failures.
    """
    waits = batch.paused or batch.pending or batch.flights or batch.publishing or batch.pace.checking is not None
    if waits or batch.halted or not batch.hands_over():
        return
    for minion, known in batch.members.items():
        if known.ended is Outcome.OFFLINE:
            batch.settle(minion, Outcome.QUEUED, now, None)


# -- kills ------------------------------------------------------------------------------------------------------------


def killed(batch: Batch, fact: facts.Done, _now: float) -> list[Effect]:
    """A kill has reached a process of the job there. A minion that was put back meanwhile is ignored."""
    for minion in fact.found:
        if minion in batch.flights and batch.flights[minion].kills:
            batch.change(minion).is_killed()
    return []


def kill(batch: Batch, minions: Iterable[str], now: float) -> list[Effect]:
    """Send minions a kill, and ask soon whether it worked. A job that ran too long is first told to terminate."""
    chosen: dict[bool, list[str]] = {True: [], False: []}
    for minion in minions:
        gently = not (batch.members[minion].kills or batch.killing)
        known = batch.go(minion, Step.SENT, now + (TERM_PAUSE if gently else KILL_PAUSE))
        known.kills, known.unanswered = known.kills + 1, 0
        known.expired = known.expired or gently
        chosen[gently].append(minion)
    return [facts.Kill(tuple(names), gently) for gently, names in chosen.items() if names]
