"""
What to do about a job that is owed, at each step of its replay and for all that can become known. Only this module decides.

It changes nothing: replay.py carries out the decision, which is one of ``Go``, ``Again`` and ``End``. It must never take
silence for absence. Nor must it repeat a job that is known to have begun, unless ``max_attempts`` or an operator asks for
that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from saltext.jobs.core.delivery.known import Evidence, Said, Verdict
from saltext.jobs.core.delivery.steps import BEFORE, Step
from saltext.jobs.core.retry.entry import UNDER_WAY, Counts, Entry, State
from saltext.jobs.core.retry.looks import DOUBTED
from saltext.jobs.core.retry.timers import AGAIN, GRACE

#: Seconds after a publish before a minion is first asked: if its receipt is missing; if minions send no receipts.
RECEIPT, EARLY = 4.0, 1.0
#: Seconds without a receipt or an answer from any minion after which the master counts as having no backlog; and the
#: longest wait for a backlog, in seconds from the publish. A busy master may forward nothing for seconds, and a
#: question makes it busier.
_QUIET, _LONGEST_RECEIPT = 10.0, 120.0
#: Seconds before a minion is first asked whether it still runs a job.
STILL_RUNNING = 60.0
#: The usual wait of a minion after a try without a return, in seconds.
_COOLDOWN = 30.0
#: The longest wait between two tries, and after false signs of life, in seconds.
LONGEST_BACKOFF, LONGEST_COOLDOWN = 3600.0, 300.0
#: A job is held after this many publishes that the minion may have begun although no receipt came: a job that takes down
#: its own minion must not do so at each start.
_LOST = 2
#: A job steps aside for others after this many publishes that the minion ignored although it was there. As a rule the minion
#: knows the jid, and its return was lost.
IN_VAIN = 3
#: A job is held after this many publishes that the minion ignored while it lived: it knows the jid. If it restarts before
#: the last of them, it would run the job again, so the job is held then.
_IGNORED = 2
#: Appended to a reason if a publish may have reached the minion.
REACHED = "; it may have been begun"
#: Why a job is held that its minion knows, does not run, and has not returned.
_RAN, _SILENTLY = "it ran without a return", "the minion lived, and ignored it"
#: Why it is tried again before that.
_NOT_TAKEN = "no sign of receipt; the minion does not run it"
#: Why a job counts as begun: the minion has said so unasked; it was asked.
BEGUN, _RUNS = "the minion says that it has begun", "the minion says that it runs it"
#: What the minion's records say of a publish that it did not take.
_NOT_BEGUN = {
    Verdict.NEVER: "the minion has never begun it",
    Verdict.NOT_AGAIN: "the minion has not begun it again",
}


@dataclass(frozen=True)
class Terms:
    """
    The rules for trying a job again: the options, or what the job says about itself. ``backoff`` is in seconds; ``acks``
    tells whether minions say when they begin a job.
    """

    backoff: float
    max_attempts: int
    acks: bool

    @property
    def cooldown(self) -> float:
        """Shortest time in seconds between two tries for one minion after a try that ended without a return."""
        return min(_COOLDOWN, self.backoff / 2)


class Permits(NamedTuple):
    """
    What else a decision depends on.

    ``denied``: why the job must not be sent; ``unsure``: why that cannot be determined; ``barred``: the minion's key is not
    accepted now; ``matches``: the job's target matches the minion; ``occupied``: Salt would refuse the job there, because
    another one runs; ``waited_for``: another job that may be sent now waits for this one; ``heard``: Unix time of the last
    receipt or answer of any minion; ``false_signs``: the minion's signs of life in a row after which it did not answer.
    """

    denied: str = ""
    unsure: str = ""
    barred: bool = False
    matches: bool = True
    occupied: bool = False
    waited_for: bool = False
    heard: float = 0.0
    false_signs: int = 0


class Go(NamedTuple):
    """The delivery goes on at ``step``, where it waits for ``wait`` seconds. ``state``: that of the entry from now on."""

    step: Step
    wait: float = 0.0
    state: State | None = None
    reason: str = ""


class Again(NamedTuple):
    """
    The job is tried again, after ``wait`` seconds at the earliest.

    ``there``: the minion is known to be there. ``pause``: seconds for which it gets nothing, since its signs of life were
    false.
    """

    reason: str = ""
    wait: float = 0.0
    counts: Counts | None = None
    there: bool = False
    pause: float = 0.0


class End(NamedTuple):
    """The delivery ends, and the entry stays in ``state``."""

    state: State
    reason: str
    counts: Counts | None = None


#: None: nothing is done now.
Decision = Go | Again | End | None

#: Made once, since a decision is made for each event.
_GO = {step: Go(step) for step in Step}
_RETURNED = End(State.DONE, "the job cache has its return")
_FETCHED = End(State.DONE, "the minion had run it; its return was fetched")
_SENT = Go(Step.SENT, RECEIPT, State.SENT, "published")
_DOUBT = Go(Step.WAITING, DOUBTED)
_LATER = {step: Go(before, AGAIN) for step, before in BEFORE.items()}
NOTHING_ELSE = Permits()


def decide(entry: Entry, permits: Permits, terms: Terms, now: float) -> Decision:
    """Return what to do."""
    if entry.last is Evidence.RETURNED:
        return _RETURNED
    if entry.last is Evidence.FETCHED:
        return _FETCHED
    assert entry.step is not None, "nothing is decided about what nobody delivers"
    if entry.last in (Evidence.UNREADABLE, Evidence.UNASKED):
        return _LATER[entry.step]
    if entry.last is Evidence.BEGUN:
        return _begun(entry, now)
    decides = _UNDER_WAY_AT if entry.state in UNDER_WAY else _AT
    return decides[entry.step](entry, permits, terms, now)


def stepped_aside(entry: Entry) -> End:
    """Return what to do about an entry that its minion has ignored several times, and for which others wait."""
    return End(State.HELD, _steps_aside(entry.counts.vain, entry.reason, entry.counts.reached))


# -- before the job is sent --------------------------------------------------------------------------------------------


def _forbidden(permits: Permits, terms: Terms) -> Decision:
    if permits.denied:
        return End(State.DEAD, permits.denied)
    if permits.unsure:
        return End(State.HELD, permits.unsure)
    return Again(wait=terms.backoff) if permits.barred else None


def _checked(entry: Entry, permits: Permits, terms: Terms, now: float) -> Decision:
    return _forbidden(permits, terms) or _GO[Step.TO_ASK]


def _answered(entry: Entry, permits: Permits, terms: Terms, now: float) -> Decision:
    if entry.last is Evidence.RUNS:
        return _run(entry, now, _RUNS)
    if entry.last is Evidence.IDLE:
        if permits.occupied:  # the refusal would be the return of the job
            return _unmatched(entry, permits) or Again(wait=terms.backoff, there=True)
        return _unmatched(entry, permits) or _GO[Step.ANSWERED]
    # Signs of life can be forged, so each false one doubles the pause. An unproven answer may reach the job cache late,
    # so the minion counts as there.
    pause = min(terms.cooldown * 2 ** min(permits.false_signs, 20), LONGEST_COOLDOWN)
    return Again(pause=pause, there=entry.last is Evidence.UNPROVEN)


def _unmatched(entry: Entry, permits: Permits) -> Decision:
    if permits.matches or entry.named or entry.begun_at:
        return None
    return End(State.DEAD, "it no longer matches the job's target")


def _checked_again(entry: Entry, permits: Permits, terms: Terms, now: float) -> Decision:
    if forbidden := _forbidden(permits, terms):
        return forbidden
    if entry.begun_at:
        return Go(Step.TO_ASK, state=State.RUNNING, reason=BEGUN)
    # If ``reached``, the interrupted run may be newer than the last known start of the job, or than the operator's
    # request. Nobody has asked to repeat that run.
    may_run_again = entry.asker is not None or terms.max_attempts > 1
    if entry.said is Said.INTERRUPTED and (entry.counts.reached or not may_run_again):
        return _interrupted(entry, terms)
    was_ignored = entry.counts.vain > 0 and entry.reason == _NOT_TAKEN
    if was_ignored and entry.said in (Said.NOTHING, Said.NOT_SURE) and entry.restarted:
        return End(State.HELD, f"{_RAN}: {_SILENTLY}, and has restarted since")
    return _GO[Step.TO_SEND]


def _claimed(entry: Entry, permits: Permits, terms: Terms, now: float) -> Decision:
    if entry.last is Evidence.REFUSED:
        return _not_received(entry, entry.failure, terms, there=True)
    return _GO[Step.SENDING]


def _published(entry: Entry, permits: Permits, terms: Terms, now: float) -> Decision:
    if entry.last is Evidence.REFUSED:
        return _not_received(entry, f"the publish was refused: {entry.failure}", terms, there=True)
    if entry.last is Evidence.FORBIDDEN:
        counts = entry.counts._replace(attempts=entry.counts.attempts - 1)
        return End(State.HELD, f"the master does not let it be published: {entry.failure}", counts)
    if entry.last is Evidence.MISSED:
        return _in_vain(entry, _not_received(entry, "the master does not know the minion", terms), permits)
    if entry.begun_at:
        return _run(entry, now, BEGUN)
    soon = terms.acks or entry.said is not Said.NOTHING
    if entry.last is Evidence.UNCONFIRMED:
        reason = f"the publish was not confirmed: {entry.failure}"
        return Go(Step.SENT, RECEIPT if soon else EARLY, State.SENT, reason)
    return _SENT if soon else _SENT._replace(wait=EARLY)


# -- the job may be with the minion ------------------------------------------------------------------------------------


def _begun(entry: Entry, now: float) -> Decision:
    """A claim has come, perhaps late, that the minion has begun the job."""
    if entry.step is Step.SENT:
        return _run(entry, now, BEGUN)
    if entry.step in (Step.TO_SEND, Step.CLAIMING):  # an earlier publish was received after all
        return Go(Step.TO_ASK, state=State.RUNNING, reason=BEGUN)
    return None  # the claim counts, whatever is found or answered


def _run(entry: Entry, now: float, reason: str) -> Decision:
    """Wait for the return. The job may die without one, so the minion is asked, ever less often."""
    if entry.state is not State.RUNNING:
        return Go(Step.RUNNING, STILL_RUNNING, State.RUNNING, reason)
    return Go(Step.RUNNING, max(STILL_RUNNING, now - entry.since))


def _overdue(entry: Entry, permits: Permits, terms: Terms, now: float) -> Decision:
    """
    No receipt, or no return, came in time. As long as the master forwards receipts of others, this one may be queued there.
    A question would be queued behind it, and make the master busier.
    """
    if entry.last is Evidence.DUE and entry.state is State.SENT and terms.acks and not entry.restarted:
        until = min(permits.heard + _QUIET, (entry.sent_at or 0.0) + _LONGEST_RECEIPT)
        if until > now:
            return Go(Step.SENT, until - now)
    return _DOUBT


def _probed(entry: Entry, permits: Permits, terms: Terms, now: float) -> Decision:
    """The minion was asked about a job that it may have."""
    if entry.last is Evidence.UNPROVEN:
        return _LATER[Step.ASKING]  # the answer is forged, or the job cache does not have it yet
    verdict = entry.verdict(terms.acks)
    if verdict is Verdict.RUNS:
        return _run(entry, now, _RUNS if entry.last is Evidence.RUNS else BEGUN)
    if entry.last is not Evidence.SILENT:
        if unmatched := _unmatched(entry, permits):
            return unmatched
        if entry.state is State.SENT and not entry.restarted and abs(now - (entry.sent_at or 0.0)) < RECEIPT:
            return Go(Step.SENT, RECEIPT - EARLY)  # the job may still begin
        return Go(Step.ANSWERED, GRACE)
    if not entry.begun_at and entry.state is not State.RUNNING:
        # A minion that keeps records refuses a job that it has begun, so the job may be sent again.
        begun = entry.said in (Said.NOTHING, Said.NOT_SURE)
        return _not_received(entry, "no sign of receipt, and it does not answer", terms, begun, reached=True)
    if entry.expires_at <= now and entry.state is State.RUNNING:
        return End(State.EXPIRED, "it was begun, but nothing more was heard of it in its time to live")
    return _LATER[Step.ASKING] if entry.was_away else _run(entry, now, BEGUN)


def _vanished(entry: Entry, permits: Permits, terms: Terms, now: float) -> Decision:
    """The minion is there and does not run the job, and the second look has found no return."""
    verdict = entry.verdict(terms.acks)
    if verdict is Verdict.RUNS:
        return _run(entry, now, BEGUN)
    if verdict is Verdict.INTERRUPTED:
        return _interrupted(entry, terms)
    if verdict is Verdict.NEVER and entry.said is not Said.NEVER:
        return _not_received(entry, "the engine ended before it was published", terms, there=True)
    if verdict in _NOT_BEGUN:
        never = _not_received(entry, _NOT_BEGUN[verdict], terms, there=True)
        return never if entry.restarted else _in_vain(entry, never, permits)
    begun = verdict is Verdict.MAY_HAVE_BEGUN
    decision = _not_received(entry, _NOT_TAKEN, terms, begun, there=True, reached=True)
    if begun and (entry.restarted or entry.unheard):
        return decision
    counts = (decision.counts or entry.counts)._replace(vain=entry.counts.vain + 1)
    if counts.vain < _IGNORED:
        return decision._replace(counts=counts)
    return End(State.HELD, f"{_RAN}: {_SILENTLY} {counts.vain} times", counts)


# -- what did not succeed ----------------------------------------------------------------------------------------------


def _interrupted(entry: Entry, terms: Terms) -> Decision:
    """The job was begun, and ended without a return."""
    # The first publish of the job is counted only if somebody has told of its start.
    counts = Counts(entry.counts.attempts + (entry.state is State.PENDING))
    attempts = max(1, counts.attempts)
    reason = "it was begun and ended without a return"
    if attempts >= terms.max_attempts:
        return End(State.HELD, reason + (f", {attempts} times" if attempts > 1 else ""), counts)
    return Again(f"{reason}; it will be run again", terms.backoff, counts, there=True)


def _not_received(
    entry: Entry, reason: str, terms: Terms, begun: bool = False, there: bool = False, reached: bool = False
) -> Again | End:
    """
    Nothing shows that the minion got the job, so the publish does not count as an attempt.

    :param begun: whether the minion may have begun the job nevertheless.
    :param there: whether the minion is there.
    :param reached: whether the publish may have reached the minion.
    """
    counts = entry.counts
    lost = counts.lost + begun
    if begun and lost >= _LOST:
        held = f"it was sent {lost} times without a sign of receipt, and may have been begun"
        return End(State.HELD, held, counts._replace(lost=lost, reached=True))
    wait = min(terms.backoff * 2 ** min(counts.tries, 20), LONGEST_BACKOFF)
    reached = reached or counts.reached
    counts = Counts(counts.attempts - 1, counts.tries + 1, lost, counts.vain, reached)
    return Again(reason, wait, counts, there)


def _in_vain(entry: Entry, decision: Again | End, permits: Permits) -> Decision:
    """The minion is there and did not take the job. After some such tries the job steps aside for others that wait."""
    counts = (decision.counts or entry.counts)._replace(vain=entry.counts.vain + 1)
    if counts.vain < IN_VAIN or not permits.waited_for:
        return decision._replace(counts=counts)
    return End(State.HELD, _steps_aside(counts.vain, decision.reason, counts.reached), counts)


def _steps_aside(vain: int, reason: str, reached: bool) -> str:
    return f"it was sent {vain} times in vain, and others wait for it: {reason}{REACHED if reached else ''}"


_Decides = Callable[[Entry, Permits, Terms, float], Decision]
#: Which function decides at each step: before the job is sent, and once the minion may have it. ``decide`` itself handles
#: what means the same at all steps.
_AT: Mapping[Step, _Decides] = {
    Step.LOOKING: _checked,
    Step.ASKING: _answered,
    Step.LOOKING_AGAIN: _checked_again,
    Step.TO_SEND: lambda *_: _GO[Step.CLAIMING],
}
_UNDER_WAY_AT: Mapping[Step, _Decides] = {
    Step.CLAIMING: _claimed,
    Step.SENDING: _published,
    Step.SENT: _overdue,
    Step.RUNNING: _overdue,
    Step.LOOKING: lambda *_: _GO[Step.TO_ASK],
    Step.ASKING: _probed,
    Step.LOOKING_AGAIN: _vanished,
}
