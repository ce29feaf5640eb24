"""
What the retry queue holds: an entry for each minion and job, the job that its entries share, and what is known of a job
besides its entries.

Pure: stdlib only. An entry must never change its state but by the table of transitions, which stands here alone.
"""

from __future__ import annotations

import enum
import functools
import math
import sys
from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field
from typing import Any, NamedTuple

from saltext.jobs.core.delivery.known import Delivery, Evidence, Outcome, Step
from saltext.jobs.core.users import Identity

#: The fields that every stored entry has.
_ALWAYS = ("state", "expires_at", "history")
#: Most steps of an entry's history that are kept: the first, and the newest.
_HISTORY = 20
#: For how many seconds windows do not count once an operator has asked for an immediate replay.
URGENT = 300.0


class State(str, enum.Enum):
    """Where an entry stands."""

    PENDING = "pending"  # waits for a sign of life of its minion, or for its turn
    CLAIMED = "claimed"  # about to be published; recorded first, so after a crash it may have been published
    SENT = "sent"  # published; the minion has shown no receipt yet
    RUNNING = "running"  # the minion has it: it acknowledged the job, or answered that it runs it
    HELD = "held"  # may have been begun, cannot be delivered, or its user's rights are not known; an operator decides
    DONE = "done"  # the job cache has its return; the entry is removed
    EXPIRED = "expired"  # its time to live has passed
    CANCELLED = "cancelled"  # by an operator, a newer job, or because the minion's key was deleted
    DEAD = "dead"  # given up, for the reason that its history names

    __hash__ = str.__hash__  # that of an Enum is written in Python, and states are looked up for each event


class Kind(enum.IntEnum):
    """What is stored; by the numbers of core/ledger/queue.py."""

    JOB = 1
    ENTRY = 2
    WATCHED = 3  # what is known of a job's minions without an entry
    CURSOR = 5  # how far the log was read
    DONE = 6  # an entry whose job has returned, or for which there was no room (DEAD); only shown
    PAUSED = 7  # replays are paused


class Key(NamedTuple):
    """The key of a stored record; only that of an entry has a minion."""

    kind: Kind
    jid: str
    minion: str = ""


#: The keys of the only records of their kinds.
CURSOR, PAUSED = Key(Kind.CURSOR, "log"), Key(Kind.PAUSED, "queue")
#: The job may be with the minion, or on its way.
UNDER_WAY = frozenset({State.CLAIMED, State.SENT, State.RUNNING})
#: Nothing more happens by itself. The entry is kept for a while, so that its reason can be read.
ENDED = frozenset({State.EXPIRED, State.CANCELLED, State.DEAD})
_ENDS = ENDED | {State.HELD, State.DONE}
#: The states to which an entry may go, by the state that it is in.
TRANSITIONS: Mapping[State, frozenset[State]] = {
    State.PENDING: _ENDS | {State.PENDING, State.CLAIMED, State.RUNNING},
    State.CLAIMED: (_ENDS - {State.EXPIRED}) | {State.PENDING, State.SENT, State.RUNNING},
    State.SENT: (_ENDS - {State.EXPIRED}) | {State.PENDING, State.RUNNING},
    State.RUNNING: _ENDS | {State.PENDING},
    State.HELD: frozenset({State.PENDING, State.DONE, State.EXPIRED, State.CANCELLED}),
    State.EXPIRED: frozenset({State.PENDING, State.DONE, State.CANCELLED}),
    State.CANCELLED: frozenset({State.PENDING, State.DONE}),
    State.DEAD: frozenset({State.PENDING, State.DONE, State.CANCELLED}),
    State.DONE: frozenset(),
}


class Counts(NamedTuple):
    """How often an entry was tried."""

    attempts: int = 0  # publishes with a receipt, and the one under way
    tries: int = 0  # publishes in a row without a receipt
    lost: int = 0  # those of them that the minion may have begun nevertheless
    vain: int = 0  # those that the minion did not take although it was there, or that matched no minion
    reached: bool = False  # one of them may have reached the minion
    ignored: int = 0  # those that the minion ignored while it lived: it knows the jid


#: One for all entries that were never tried.
_UNTRIED = Counts()


@dataclass(slots=True, eq=False)
class Entry:
    """One job that one minion is owed. Times are Unix time in seconds. Those that were never tried have no ``delivery``."""

    minion: str
    jid: str
    queued_at: InitVar[float]
    expires_at: float
    why: InitVar[str]
    state: State = State.PENDING
    counts: Counts = _UNTRIED
    delivery: Delivery | None = None
    named: bool = False  # an operator named the minion, so it gets the job whether or not the job's target matches it
    asker: Identity | None = None  # who last asked for it by hand; their rights count as well as the publisher's
    wanted_at: float = 0.0  # when that was; 0 for never
    next_at: float = 0.0  # not tried again before this time, unless the minion starts
    urged_at: float = 0.0  # when an operator last asked for an immediate replay; 0 for never
    history: tuple[tuple[float, str, str], ...] = ()

    def __post_init__(self, queued_at: float, why: str) -> None:
        self.history = ((queued_at, self.state.value, why),)

    def move(self, to: State, now: float, reason: str) -> None:
        """Go to another state. :raises ValueError: when the table forbids it."""
        if to not in TRANSITIONS[self.state]:
            raise ValueError(f"an entry cannot go from {self.state.value} to {to.value}")
        if to is State.RUNNING:
            # Others may have published what is begun now: then it is an attempt too.
            self.counts = Counts(self.counts.attempts + (self.state is State.PENDING))
            self.known.begun_at = self.begun_at or now
        elif to is State.PENDING and self.begun_at and self.known.last not in (Evidence.REFUSED, Evidence.MISSED):
            self.known.begun_at = 0.0  # whatever was begun is over
        self.state = to
        history = (*self.history, (now, to.value, reason))
        self.history = history if len(history) <= _HISTORY else (history[0], *history[2:])

    def claim(self, now: float) -> None:
        """Note that it is about to be published."""
        self.counts = self.counts._replace(attempts=self.counts.attempts + 1)
        self.known.publish(now)
        self.move(State.CLAIMED, now, f"attempt {self.counts.attempts}")

    @property
    def known(self) -> Delivery:
        """What is known of its delivery."""
        if self.delivery is None:
            self.delivery = Delivery()
        return self.delivery

    @property
    def step(self) -> Step | None:
        """Where its delivery stands; None if none is under way."""
        return self.delivery.step if self.delivery else None

    @property
    def sent_at(self) -> float | None:
        """When it was last published, or was about to be; None for never."""
        return self.delivery.sent_at if self.delivery else None

    @property
    def begun_at(self) -> float:
        """When its start became known; 0 for never."""
        return self.delivery.begun_at if self.delivery else 0.0

    def is_urged(self, now: float) -> bool:
        """Whether its window need not be open: an operator has asked for an immediate replay not long ago."""
        return self.urged_at <= now < self.urged_at + URGENT

    @property
    def queued(self) -> float:
        return self.history[0][0]

    @property
    def since(self) -> float:
        """When it came into its state."""
        return self.history[-1][0]

    @property
    def reason(self) -> str:
        return self.history[-1][2]

    def as_record(self) -> dict[str, Any]:
        """Return what is stored; of most entries that is little."""
        record = {
            "state": self.state.value,
            "expires_at": self.expires_at,
            "history": self.history,
            "counts": self.counts if self.counts != _UNTRIED else None,
            "sent_at": self.sent_at,
            "begun_at": self.begun_at,
            "named": self.named,
            "asker": None if self.asker is None else self.asker.as_record(),
            "wanted_at": self.wanted_at,
            "next_at": self.next_at,
            "urged_at": self.urged_at,
        }
        return {name: value for name, value in record.items() if value}

    @classmethod
    def from_record(cls, minion: str, jid: str, record: Any) -> Entry:
        """Return the entry that a stored record describes. :raises Exception: of many kinds, when it describes none."""
        entry = cls(minion, jid, 0.0, _finite(record["expires_at"]), "", State(record["state"]))
        entry.history = _history(tuple(map(tuple, record["history"])))
        if len(record) > len(_ALWAYS):
            entry.counts, entry.named = Counts(*record.get("counts", ())), bool(record.get("named"))
            entry.asker = Identity.from_record(record.get("asker"))
            times = (_finite(record.get(name, 0.0)) for name in ("wanted_at", "next_at", "urged_at"))
            entry.wanted_at, entry.next_at, entry.urged_at = times
        sent_at, begun_at = record.get("sent_at"), _finite(record.get("begun_at", 0.0))
        if sent_at is not None or begun_at or entry.state in UNDER_WAY:
            # The engine was not there to hear of a start.
            at = None if sent_at is None else _finite(sent_at)
            outcome = Outcome.IN_DOUBT if entry.state is State.CLAIMED else Outcome.TAKEN
            entry.delivery = Delivery(sent_at=at, sent_before=at, outcome=outcome, begun_at=begun_at, unheard=True)
        return entry


# Entries that were queued together have much in common. Sharing that saves memory and work.
@functools.lru_cache(maxsize=4096)
def _history(steps: tuple[tuple[Any, ...], ...]) -> tuple[tuple[float, str, str], ...]:
    if not steps:
        raise ValueError("it has no history")
    return tuple((_finite(at), State(state).value, sys.intern(str(why))) for at, state, why in steps)


@functools.lru_cache(maxsize=4096)
def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{value!r} is no time")
    return number


@dataclass(frozen=True)
class Limits:
    """What a job says about its replay in its metadata; None for what it does not say."""

    off: bool = False  # it is to be kept out
    given: bool = False  # it asks to be kept, whatever its function
    ttl: float | None = None  # seconds
    max_attempts: int | None = None
    window: str | None = None  # when it may be replayed, as core/windows.py reads it
    timezone: str | None = None  # the zone of that window


@dataclass(frozen=True)
class Job:
    """What the queue needs to know of a job."""

    jid: str
    funs: tuple[str, ...]
    published_at: float
    digest: str = ""  # equal for jobs with the same functions and arguments
    limits: Limits = Limits()
    kept_out: bool = False  # it is never queued
    obstacle: str = ""  # why it cannot be published again to single minions
    by_id: bool = False  # its target goes by the ids of minions, which do not change
    kilobytes: int = 0  # of its load
    # As it was published, without secrets; the machine does not look into it.
    load: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def as_record(self) -> dict[str, Any]:
        """Return what is stored; all else follows from the load."""
        return {"published_at": self.published_at, "load": dict(self.load)}


# -- what is known of a job besides its entries ------------------------------------------------------------------------


class Killed(NamedTuple):
    """An operator has killed a job on a minion."""

    user: str
    at: float
    again: bool = False  # the master has published something under its jid to that minion since


@dataclass(slots=True, eq=False)
class Watched:
    """
    To whom a job was published, which minions have begun it, on which an operator has killed it, and which lost their entry
    without a return: a later look must not send it to these again. If 10,000 minions run a job, there is one record.
    """

    until: float = 0.0  # when it is no longer owed, as far as that is known
    begun: set[str] = field(default_factory=set)  # minions that have begun it
    settled: set[str] = field(default_factory=set)  # minions that are no longer owed it, whatever the job cache says
    killed: dict[str, Killed] = field(default_factory=dict)  # where it was killed, by minion
    # -- of a job whose outcome is not known: until it is closed
    at: float = -math.inf  # its newest publish; minus infinity if there was none since it was closed
    named: set[str] = field(default_factory=set)  # minions that it was published to
    awaits: object | None = None  # the look or the survey whose outcome counts
    asking: frozenset[str] = frozenset()  # minions that are to be asked, or are being asked
    answers: dict[str, bool | None] = field(default_factory=dict)  # who was asked, and runs it; None: did not answer
    claims: set[str] = field(default_factory=set)  # named minions of which an event says that they have begun it
    started: set[str] = field(default_factory=set)  # named minions that have started since it was opened

    def closed(self) -> Watched:
        """Return what is to be remembered of it."""
        return Watched(self.until, self.begun, self.settled, self.killed)

    def as_record(self) -> dict[str, Any]:
        return {
            "until": self.until,
            "begun": sorted(self.begun),
            "settled": sorted(self.settled),
            "killed": {minion: list(kill) for minion, kill in self.killed.items()},
            "published": [self.at, sorted(self.named)],
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any], now: float) -> Watched:
        """Return the job that a record describes. :raises Exception: of many kinds, when it describes none."""
        its = record["killed"].items()  # the clock may have been set back since
        killed = {minion: Killed(str(user), min(float(at), now), *more) for minion, (user, at, *more) in its}
        at, named = record["published"]
        note = float(record["until"]), set(record["begun"]), set(record["settled"]), killed
        return cls(*note, min(float(at), now), set(named))
