"""
What to do about a job that is owed, at each step of its replay and for all that can become known. Only this module decides.

It changes nothing: replay.py carries out the decision. It must never take silence for absence, nor repeat a job that is
known to have begun, unless ``max_attempts`` or an operator asks for that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from saltext.jobs.core.delivery.known import BEFORE, Delivery, Evidence, Outcome, Said, Step, Verdict
from saltext.jobs.core.retry.entry import UNDER_WAY, Counts, Entry, State
from saltext.jobs.core.retry.waiting import AGAIN, DOUBTED, GRACE

#: Seconds after a publish before a minion is first asked: if its receipt is missing; if minions send no receipts.
_RECEIPT, _EARLY = 4.0, 1.0
#: Seconds without a receipt or an answer from any minion after which the master counts as having no backlog; the longest
#: wait for a backlog, from the publish. A busy master may forward nothing for seconds, and a question makes it busier.
_QUIET, _LONGEST_RECEIPT = 10.0, 120.0
#: Seconds before a minion is first asked whether it still runs a job.
_STILL_RUNNING = 60.0
#: Seconds to wait after a try without a return: as a rule; at most, after false signs of life; at most, for the job.
_COOLDOWN, _LONGEST_COOLDOWN, LONGEST_BACKOFF = 30.0, 300.0, 3600.0
#: A job is held after this many publishes that may have begun without a receipt: it may take down its minion each time.
_LOST = 2
#: A job is held after this many publishes that the minion did not take although it was there, or that matched no minion.
_IN_VAIN = 5
#: A job is held after this many publishes that the minion ignored while it lived: it knows the jid. If it restarts before
#: the last of them, it would run the job again, so the job is held then.
_IGNORED = 2
#: Why a job is held that its minion knows, does not run, and has not returned.
_SILENTLY = "the minion lived, and ignored it"
#: Why it is tried again before that.
_NOT_TAKEN = "no sign of receipt; the minion does not run it"
#: Why a job counts as begun: the minion has said so unasked; it was asked.
BEGUN, _RUNS = "the minion says that it has begun", "the minion says that it runs it"


class Case(NamedTuple):
    """What a decision depends on. Times are Unix time in seconds."""

    entry: Entry
    delivery: Delivery
    now: float
    backoff: float  # seconds between two tries; a pause that grows begins with it
    max_attempts: int
    acks: bool  # minions say when they begin a job
    denied: str = ""  # why the job must not be sent
    unsure: str = ""  # why that cannot be determined
    barred: bool = False  # the minion's key is not accepted now
    matches: bool = True  # the job's target matches the minion
    occupied: bool = False  # Salt would refuse the job there, because another one runs
    heard: float = 0.0  # when the last receipt or answer of any minion came
    false_signs: int = 0  # the minion's signs of life in a row after which it did not answer


class Go(NamedTuple):
    """The delivery goes on at ``step``, where it waits for ``wait`` seconds. ``state``: that of the entry from now on."""

    step: Step
    wait: float = 0.0
    state: State | None = None
    reason: str = ""


class Again(NamedTuple):
    """The job is tried again, after ``wait`` seconds at the earliest."""

    reason: str = ""
    wait: float = 0.0
    counts: Counts | None = None
    there: bool = False  # the minion is known to be there
    pause: float = 0.0  # seconds for which it gets nothing, since its signs of life were false


class End(NamedTuple):
    """The delivery ends, and the entry stays in ``state``."""

    state: State
    reason: str
    counts: Counts | None = None


#: None: nothing is done now.
Decision = Go | Again | End | None

_SENT = Go(Step.SENT, _RECEIPT, State.SENT, "published")
_DOUBT = Go(Step.WAITING, DOUBTED)
_LATER = {step: Go(before, AGAIN) for step, before in BEFORE.items()}


def decide(case: Case) -> Decision:
    last, step = case.delivery.last, case.delivery.step
    if last is Evidence.FETCHED:
        return End(State.DONE, "the minion had run it; its return was fetched")
    assert step is not None, "nothing is decided about what nobody delivers"
    if last is Evidence.UNASKED:
        return _LATER[step]
    if last is Evidence.BEGUN:
        return _begun(case)
    return (_UNDER_WAY_AT if case.entry.state in UNDER_WAY else _AT)[step](case)


def cooldown(backoff: float) -> float:
    """Return the shortest time in seconds between two tries for one minion after a try that ended without a return."""
    return min(_COOLDOWN, backoff / 2)


# -- before the job is sent --------------------------------------------------------------------------------------------


def _forbidden(case: Case) -> Decision:
    if case.denied:
        return End(State.DEAD, case.denied)
    if case.unsure:
        return End(State.HELD, case.unsure)
    return Again(wait=case.backoff) if case.barred else None


def _answered(case: Case) -> Decision:
    last = case.delivery.last
    if last is Evidence.RUNS:
        return _run(case, _RUNS)
    if last is Evidence.IDLE:
        if not (case.matches or case.entry.named or case.delivery.begun_at):
            return End(State.DEAD, "it no longer matches the job's target")
        # If it is occupied, Salt's refusal would be the return of the job.
        return Again(wait=case.backoff, there=True) if case.occupied else Go(Step.ANSWERED)
    # Each false sign of life doubles the pause: it can be forged. An unproven answer may reach the job cache late.
    pause = min(cooldown(case.backoff) * 2 ** min(case.false_signs, 20), _LONGEST_COOLDOWN)
    return Again(pause=pause, there=last is Evidence.UNPROVEN)


def _checked_again(case: Case) -> Decision:
    entry, delivery = case.entry, case.delivery
    if forbidden := _forbidden(case):
        return forbidden
    if delivery.begun_at:
        return Go(Step.TO_ASK, state=State.RUNNING, reason=BEGUN)
    # If ``reached``, the interrupted run may be newer than the one that somebody has asked to repeat.
    may_run_again = entry.asker is not None or case.max_attempts > 1
    if delivery.said is Said.INTERRUPTED and (entry.counts.reached or not may_run_again):
        return _interrupted(case)
    if entry.counts.ignored and not delivery.said.is_sure and delivery.restarted:
        return End(State.HELD, f"it may have run without a return: {_SILENTLY}, and has connected anew since")
    return Go(Step.TO_SEND)


def _published(case: Case) -> Decision:
    last, failure, counts = case.delivery.last, case.delivery.failure, case.entry.counts
    if last is Evidence.REFUSED:
        return _not_received(case, f"the publish was refused: {failure}")
    if last is Evidence.FORBIDDEN:
        reason = f"the master does not let it be published: {failure}"
        return End(State.HELD, reason, counts._replace(attempts=counts.attempts - 1))
    if last is Evidence.MISSED:
        return _in_vain(case, _not_received(case, "the master does not know the minion"))
    if case.delivery.begun_at:
        return _run(case, BEGUN)
    go = _SENT
    if last is Evidence.UNCONFIRMED:
        go = go._replace(reason=f"the publish was not confirmed: {failure}")
    return go if case.acks or case.delivery.said is not Said.NOTHING else go._replace(wait=_EARLY)


# -- the job may be with the minion ------------------------------------------------------------------------------------


def _begun(case: Case) -> Decision:
    """A claim has come, perhaps late, that the minion has begun the job."""
    step = case.delivery.step
    if step is Step.SENT:
        return _run(case, BEGUN)
    if step in (Step.TO_SEND, Step.CLAIMING):  # an earlier publish was received after all
        return Go(Step.TO_ASK, state=State.RUNNING, reason=BEGUN)
    return None  # the claim counts, whatever is found or answered


def _run(case: Case, reason: str) -> Go:
    """Wait for the return. The job may die without one, so the minion is asked, ever less often."""
    if case.entry.state is not State.RUNNING:
        return Go(Step.RUNNING, _STILL_RUNNING, State.RUNNING, reason)
    return Go(Step.RUNNING, max(_STILL_RUNNING, case.now - case.entry.since))


def _overdue(case: Case) -> Decision:
    """No receipt, or no return, came in time. While the master forwards receipts of others, this one may be queued there."""
    is_due = case.delivery.last is Evidence.DUE and case.entry.state is State.SENT
    if is_due and case.acks and not case.delivery.restarted:
        until = min(case.heard + _QUIET, (case.delivery.sent_at or 0.0) + _LONGEST_RECEIPT)
        if until > case.now:
            return Go(Step.SENT, until - case.now)
    return _DOUBT


def _probed(case: Case) -> Decision:
    """The minion was asked about a job that it may have."""
    entry, delivery = case.entry, case.delivery
    if delivery.last is Evidence.UNPROVEN:
        return _LATER[Step.ASKING]  # the answer is forged, or the job cache does not have it yet
    if delivery.verdict(case.acks) is Verdict.RUNS:
        return _run(case, _RUNS if delivery.last is Evidence.RUNS else BEGUN)
    if delivery.last is not Evidence.SILENT:
        is_new = abs(case.now - (delivery.sent_at or 0.0)) < _RECEIPT and not delivery.restarted
        if entry.state is State.SENT and is_new:
            return Go(Step.SENT, _RECEIPT - _EARLY)  # the job may still begin
        return Go(Step.ANSWERED, GRACE)
    if not delivery.begun_at and entry.state is not State.RUNNING:
        # A minion that keeps records refuses a job that it has begun, so the job may be sent again.
        begun = not delivery.said.is_sure
        return _not_received(case, "no sign of receipt, and it does not answer", begun, reached=True)
    if entry.expires_at <= case.now and entry.state is State.RUNNING:
        return End(State.EXPIRED, "it was begun, but nothing more was heard of it in its time to live")
    # The silence of a minion that has started since it was asked tells nothing.
    return _LATER[Step.ASKING] if delivery.started_at > delivery.asked_at else _run(case, BEGUN)


def _vanished(case: Case) -> Go | Again | End:
    """The second look has found no return. A verdict that is not named here does not pass the type checker."""
    delivery = case.delivery
    match delivery.verdict(case.acks):
        case Verdict.RUNS:
            return _run(case, BEGUN)
        case Verdict.SILENT:
            return Go(Step.TO_ASK)
        case Verdict.INTERRUPTED:
            return _interrupted(case)
        case Verdict.NEVER:
            return _not_begun(case, "the minion has never begun it")
        case Verdict.NOT_AGAIN:
            return _not_begun(case, "the minion has not begun it again")
        case Verdict.MAY_HAVE_BEGUN:
            again = _not_received(case, _NOT_TAKEN, begun=True, reached=True)
            return again if delivery.restarted or delivery.unheard else _ignored(case, again)
        case Verdict.UNKNOWN:
            return _ignored(case, _not_received(case, _NOT_TAKEN, reached=True))


def _not_begun(case: Case, reason: str) -> Again | End:
    again = _not_received(case, reason)
    return again if case.delivery.restarted else _in_vain(case, again)


def _ignored(case: Case, again: Again | End) -> Again | End:
    counts = (again.counts or case.entry.counts)._replace(ignored=case.entry.counts.ignored + 1)
    if counts.ignored < _IGNORED:
        return again._replace(counts=counts)
    ran = "ran" if case.delivery.outcome is Outcome.TAKEN else "may have run"
    return End(State.HELD, f"it {ran} without a return: {_SILENTLY} {counts.ignored} times", counts)


# -- what did not succeed ----------------------------------------------------------------------------------------------


def _interrupted(case: Case) -> Again | End:
    """The job was begun, and ended without a return."""
    # The first publish of the job is counted only if somebody has told of its start.
    counts = Counts(case.entry.counts.attempts + (case.entry.state is State.PENDING))
    attempts = max(1, counts.attempts)
    reason = "it was begun and ended without a return"
    if attempts >= case.max_attempts:
        return End(State.HELD, reason + (f", {attempts} times" if attempts > 1 else ""), counts)
    return Again(f"{reason}; it will be run again", case.backoff, counts, there=True)


def _not_received(case: Case, reason: str, begun: bool = False, reached: bool = False) -> Again | End:
    """
    Nothing shows that the minion got the job, so the publish does not count as an attempt. ``begun``: the minion may have
    begun it all the same. ``reached``: the publish may have reached it.
    """
    counts = case.entry.counts
    lost = counts.lost + begun
    if begun and lost >= _LOST:
        held = f"it was sent {lost} times without a sign of receipt, and may have been begun"
        return End(State.HELD, held, counts._replace(lost=lost, reached=True))
    wait = min(case.backoff * 2 ** min(counts.tries, 20), max(case.backoff, LONGEST_BACKOFF))
    reached = reached or counts.reached
    counts = counts._replace(attempts=counts.attempts - 1, tries=counts.tries + 1, lost=lost, reached=reached)
    return Again(reason, wait, counts, there=case.delivery.last not in (Evidence.MISSED, Evidence.SILENT))


def _in_vain(case: Case, decision: Again | End) -> Again | End:
    """The minion is there and did not take the job. After some such tries the job steps aside for others."""
    counts = (decision.counts or case.entry.counts)._replace(vain=case.entry.counts.vain + 1)
    if counts.vain < _IN_VAIN:
        return decision._replace(counts=counts)
    reached = "; it may have been begun" if counts.reached else ""
    return End(State.HELD, f"it was sent {counts.vain} times in vain: {decision.reason}{reached}", counts)


_Decides = Callable[[Case], Decision]
#: Which function decides at each step: before the job is sent, and once the minion may have it.
_AT: Mapping[Step, _Decides] = {
    Step.LOOKING: lambda case: _forbidden(case) or Go(Step.TO_ASK),
    Step.ASKING: _answered,
    Step.LOOKING_AGAIN: _checked_again,
}
_UNDER_WAY_AT: Mapping[Step, _Decides] = {
    Step.CLAIMING: lambda case: _not_received(case, case.delivery.failure),
    Step.SENDING: _published,
    Step.SENT: _overdue,
    Step.RUNNING: _overdue,
    Step.LOOKING: lambda _: Go(Step.TO_ASK),
    Step.ASKING: _probed,
    Step.LOOKING_AGAIN: _vanished,
}
