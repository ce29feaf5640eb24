"""
What is concluded where a minion does not return a job: pure functions that return a decision, which ends.py carries out.

Pure: stdlib only, no state. It must never take silence for absence, nor let a job run again of which it is known that it was
begun, unless ``retry_interrupted`` asks for that.
"""

from __future__ import annotations

from dataclasses import dataclass

from saltext.jobs.core.retry.entry import Entry, State
from saltext.jobs.core.retry.steps import Said

#: Longest wait between two tries, in seconds.
LONGEST_BACKOFF = 3600.0
#: Publishes without a sign of receipt after which the minion may have begun the job all the same: a job that takes its own
#: minion down must not do so at each of its starts.
_LOST = 2


@dataclass(frozen=True)
class Terms:
    """
    The rules by which a job is tried again: the options, or what the job says about itself. ``backoff`` is in seconds;
    ``acks`` tells whether minions say when they begin a job.
    """

    backoff: float
    max_attempts: int
    retry_interrupted: bool
    acks: bool


@dataclass(frozen=True)
class Decision:
    """
    The state that an entry goes to, and why.

    ``tries`` and ``lost`` are the entry's counters from now on. Where it is to be tried again (PENDING): ``wait``
    seconds before that, ``received`` whether the publish counts as an attempt, ``alive`` whether the minion is there.
    """

    state: State
    reason: str
    tries: int = 0
    lost: int = 0
    wait: float = 0.0
    received: bool = True
    alive: bool = False


def silent(entry: Entry, now: float, terms: Terms, said: Said = Said.NOTHING) -> Decision | None:
    """
    The minion was asked about a job that may be with it, and said nothing. None: all stays as it is.

    :param said: what its records said when it answered last. One that would have recorded it may be sent it.
    """
    if entry.state is not State.RUNNING:
        begun = said in (Said.NOTHING, Said.NOT_SURE)
        return not_received(entry, "no sign of receipt, and it does not answer", terms, begun)
    if entry.expires_at <= now:
        return Decision(State.EXPIRED, "it was begun, but nothing more was heard of it in its time to live")
    return None


def vanished(entry: Entry, unheard: bool, terms: Terms, said: Said = Said.NOTHING) -> Decision:
    """
    The minion is there, does not run the job, and has not returned it.

    :param unheard: whether it may have begun the job without that being heard: it started anew, or this engine did.
    :param said: what its records say of the job, which nothing else outweighs.
    """
    if said is Said.NEVER:
        return not_received(entry, "the minion has never begun it", terms, begun=False, alive=True)
    if said is Said.INTERRUPTED or entry.state is State.RUNNING or entry.acknowledged:
        return interrupted(entry, terms)
    begun = unheard or not terms.acks
    return not_received(entry, "no sign of receipt; the minion does not run it", terms, begun, alive=True)


def interrupted(entry: Entry, terms: Terms) -> Decision:
    """The job was begun, and ended without a return."""
    if not terms.retry_interrupted:
        return Decision(State.HELD, "it was begun and ended without a return", entry.tries, entry.lost)
    if entry.attempts >= terms.max_attempts:
        return Decision(State.DEAD, f"it was begun {entry.attempts} times and never returned")
    reason = "it was begun and ended without a return; it will be run again"
    return Decision(State.PENDING, reason, entry.tries, entry.lost, wait=terms.backoff, alive=True)


def not_received(entry: Entry, reason: str, terms: Terms, begun: bool, alive: bool = False) -> Decision:
    """
    Nothing says that the minion got the job: that was no attempt.

    :param begun: whether it may have begun the job all the same.
    :param alive: whether it is there.
    """
    lost = entry.lost + begun
    if begun and lost >= _LOST:
        return Decision(
            State.HELD,
            f"it was sent {lost} times without a sign of receipt, and may have been begun",
            entry.tries,
            lost,
        )
    wait = min(terms.backoff * 2 ** min(entry.tries, 20), LONGEST_BACKOFF)
    return Decision(State.PENDING, reason, entry.tries + 1, lost, wait, received=False, alive=alive)
