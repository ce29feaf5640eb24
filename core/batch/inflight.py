"""
The minions in flight: where each stands, when it is overdue, what is asked then, and what follows from the answers.

An overdue minion's return is first looked for in the job cache. If it is not there, the minion is asked, together with many
others, whether it runs the job. The table of transitions is here and nowhere else, and no other file may change a flight's
phase. Pure: stdlib only.
"""

from __future__ import annotations

import dataclasses
import enum
import heapq
from collections.abc import Iterable, Mapping
from typing import Any

from saltext.jobs.core.batch.spec import Spec

#: Seconds for which overdue minions are gathered, for one look-up and one question.
CHECK_WINDOW = 1.0
#: Longest pause in seconds between two questions to a minion that still runs the job, unless ``timeout`` is longer.
LONGEST_CHECK = 600.0
#: Answers in a row after which a minion is believed not to run the job: after the first it may still be about to begin.
IDLE_ANSWERS = 2
#: How often a minion that still runs the job is sent a kill.
KILLS = 5
#: Seconds between a kill and asking whether it worked.
KILL_PAUSE = 1.0
#: The same after a request to terminate: a job may have to clean up.
TERM_PAUSE = 10.0


class Phase(str, enum.Enum):
    """Where a minion in flight stands."""

    SENDING = "sending"  # its publish is under way; the intent is recorded, the outcome is not known
    SENT = "sent"  # published, due after ``timeout``; or a kill was sent, due soon
    RUNNING = "running"  # seen running (an acknowledgement or an answer); due ``timeout`` after that
    LOOKING = "looking"  # overdue; the job cache is read
    PROBING = "probing"  # not in the job cache; asked whether it runs the job
    ASKED = "asked"  # gave no answer, or said for the first time that it does not run the job; it will be asked again
    GRACE = "grace"  # says again that it does not run the job; its return may still be on the way
    FINAL = "final"  # given up unless this last look into the job cache finds its return
    KILLING = "killing"  # a kill is under way


#: The phases that may follow each phase. A flight can end in any phase: the minion returns, is given up, or is put back.
TRANSITIONS: Mapping[Phase, frozenset[Phase]] = {
    Phase.SENDING: frozenset({Phase.SENT, Phase.RUNNING, Phase.LOOKING}),
    Phase.SENT: frozenset({Phase.RUNNING, Phase.LOOKING, Phase.KILLING}),
    Phase.RUNNING: frozenset({Phase.RUNNING, Phase.LOOKING, Phase.KILLING}),
    Phase.LOOKING: frozenset({Phase.LOOKING, Phase.PROBING, Phase.RUNNING, Phase.KILLING}),
    Phase.PROBING: frozenset(
        {Phase.RUNNING, Phase.GRACE, Phase.ASKED, Phase.FINAL, Phase.LOOKING, Phase.KILLING},
    ),
    Phase.ASKED: frozenset({Phase.LOOKING, Phase.RUNNING, Phase.KILLING}),
    Phase.GRACE: frozenset({Phase.FINAL, Phase.ASKED, Phase.LOOKING, Phase.RUNNING, Phase.KILLING}),
    Phase.FINAL: frozenset({Phase.LOOKING, Phase.RUNNING, Phase.KILLING}),
    Phase.KILLING: frozenset({Phase.SENT, Phase.LOOKING}),
}


@dataclasses.dataclass(slots=True)
class Flight:
    """One minion in flight. Its row holds the fields in this order."""

    phase: Phase
    since: float  # when it was sent to, or last seen running
    due: float | None = None  # when the next step is due
    unanswered: int = 0  # questions in a row without an answer
    kills: int = 0  # kills sent
    seen: bool = False  # it is known to have begun
    idle: int = 0  # answers in a row that it does not run the job
    unknown: bool = False  # the outcome of its publish is not known: the job may never have been sent
    began: float = 0.0  # start of its run time: when it said that it had begun, or else when it was sent to
    expired: bool = False  # it exceeded ``max_runtime``, and is being killed for that
    unheard: bool = False  # its start may have gone unheard, or the minion may have forgotten the jid
    runs: int = 0  # answers in a row that it runs the job
    never_begun: bool = False  # its own records say that it has not begun the job
    restarted: bool = False  # its process has restarted since it was sent to: it would run the job again

    def move(self, to: Phase, due: float | None = None) -> None:
        """Go to another phase, whose next step is due at ``due``. :raises ValueError: if the table forbids it."""
        if to not in TRANSITIONS[self.phase]:
            raise ValueError(f"a minion in flight cannot go from {self.phase.value} to {to.value}")
        self.phase, self.due = to, due

    def as_list(self) -> list[Any]:
        """Return the flight in the form of a row."""
        return [self.phase.value, *(getattr(self, name) for name in _AFTER_PHASE)]

    @classmethod
    def from_list(cls, values: Iterable[Any]) -> Flight:
        """Return the flight in a row. :raises ValueError, TypeError:"""
        phase, *rest = values
        return cls(Phase(phase), *rest)


_AFTER_PHASE = tuple(field.name for field in dataclasses.fields(Flight))[1:]


_IN_DOUBT = (Phase.PROBING, Phase.ASKED, Phase.GRACE, Phase.FINAL)


class InFlight:
    """
    :param spec: what was asked for.
    :param touched: the minions whose rows have changed.
    """

    __slots__ = ("_due", "_touched", "flights", "publishing", "spec")

    def __init__(self, spec: Spec, touched: set[str]) -> None:
        self.spec, self._touched = spec, touched
        self.flights: dict[str, Flight] = {}
        self.publishing: tuple[str, ...] | None = None  # the minions of the publish that is under way
        self._due: list[tuple[float, str]] = []  # heap over the flights' due times; some are out of date

    def load(self, flights: dict[str, Flight]) -> None:
        """Take the flights of a batch that was written down."""
        self.flights = flights
        self.publishing = tuple(self.of(flights, Phase.SENDING)) or None
        self._due = [(flight.due, minion) for minion, flight in flights.items() if flight.due is not None]
        heapq.heapify(self._due)

    # -- what stands where --------------------------------------------------------------------------------------------

    def __contains__(self, minion: object) -> bool:
        return minion in self.flights

    def __len__(self) -> int:
        return len(self.flights)

    def is_in(self, minion: str, phase: Phase) -> bool:
        """Tell whether a minion is in flight and in this phase."""
        flight = self.flights.get(minion)
        return flight is not None and flight.phase is phase

    def of(self, minions: Iterable[str], phase: Phase) -> list[str]:
        """Return those of ``minions`` that are in flight and in this phase."""
        return [minion for minion in minions if self.is_in(minion, phase)]

    def in_doubt(self, minions: Iterable[str]) -> list[str]:
        """
        Return those of ``minions`` that are being asked whether they run the job.

        That includes minions that have answered no: if a minion says both yes and no, the no may be forged, and the yes
        counts.
        """
        return [minion for minion in minions if minion in self.flights and self.flights[minion].phase in _IN_DOUBT]

    def awaits_begin(self, minion: str) -> bool:
        """Tell whether a minion was sent to and is not known to have begun."""
        flight = self.flights.get(minion)
        return flight is not None and not flight.seen and flight.phase is not Phase.KILLING

    def is_in_doubt(self, minion: str) -> bool:
        """Tell whether the batch is finding out what became of a minion."""
        flight = self.flights.get(minion)
        return flight is not None and (flight.phase in _IN_DOUBT or flight.phase is Phase.LOOKING)

    def relies_on_hearing(self, minion: str) -> bool:
        """Tell whether silence of a minion would mean that it has not received the job."""
        flight = self.flights.get(minion)
        return flight is not None and not flight.unheard

    def may_have_begun(self, minion: str) -> bool:
        """Tell whether a minion in flight, without a return, may have begun the job."""
        flight = self.flights[minion]
        if flight.seen or flight.unknown:
            return not flight.never_begun
        return not flight.never_begun and (flight.unheard or not self.spec.acks)

    def next_due(self) -> float | None:
        """Return when minions are next overdue, or None."""
        while self._due and self._stale(self._due[0]):
            heapq.heappop(self._due)
        return self._due[0][0] + CHECK_WINDOW if self._due else None

    def survivors(self) -> list[str]:
        """Return the minions that still run the job after ``KILLS`` kills."""
        return [minion for minion, flight in self.flights.items() if flight.kills >= KILLS]

    # -- sending ------------------------------------------------------------------------------------------------------

    def send(self, minions: tuple[str, ...], now: float) -> None:
        """Begin a publish to minions."""
        self.publishing = minions
        self._touched.update(minions)
        for minion in minions:
            self.flights[minion] = Flight(Phase.SENDING, now, began=now)

    def end_publish(self) -> list[str]:
        """End the publish under way, and return its minions that have not returned or begun meanwhile."""
        minions, self.publishing = self.publishing or (), None
        return self.of(minions, Phase.SENDING)

    def sent(self, minion: str, now: float) -> None:
        """A minion was published to."""
        self.flights[minion].began = now
        self._move(minion, Phase.SENT, self._next_look(minion, now))

    def revive(self, minion: str, now: float) -> None:
        """Take in a minion that was given up too early; there may be no slot free for it."""
        self.flights[minion] = Flight(Phase.SENT, now, began=now)
        self._touched.add(minion)

    def remove(self, minion: str) -> bool:
        """Take a minion out, and tell whether it was in."""
        self._touched.add(minion)
        return self.flights.pop(minion, None) is not None

    def seen_running(self, minion: str, now: float, begins: bool = False) -> None:
        """A minion says that it runs the job or, with ``begins``, that it has just begun."""
        flight, doubted = self.flights[minion], self.is_in_doubt(minion)
        if begins and not flight.seen:
            flight.began = now
        flight.runs = 0 if begins else flight.runs + 1
        flight.since, flight.unanswered = now, 0
        flight.seen, flight.idle, flight.unknown, flight.never_begun = True, 0, False, False
        due = self._next_look(minion, now)
        if begins and flight.kills and flight.due is not None:
            due = min(due, flight.due)  # whatever it says now, it is asked whether the kill has worked
        if begins and doubted:
            due = min(due, now + self.spec.gather_job_timeout)  # a start can be forged: the minion is asked soon
        self._move(minion, Phase.RUNNING, due)

    def _next_look(self, minion: str, now: float) -> float:
        """
        Return when a minion that may run the job is overdue: after ``timeout``, or when ``max_runtime`` has passed.

        A minion that keeps saying that it runs the job is asked less and less often, except between two kills.
        """
        flight, limit, wait = self.flights[minion], self.spec.max_runtime, self.spec.timeout
        if flight.runs > 1 and (not flight.kills or flight.kills >= KILLS):
            wait = max(wait, min(wait * 2.0 ** min(flight.runs - 1, 30), LONGEST_CHECK))
        if limit is None or flight.kills:
            return now + wait
        return min(now + wait, max(now, flight.began + limit))

    def has_run_too_long(self, minion: str, now: float) -> bool:
        """Tell whether a minion has run the job for longer than it may."""
        flight, limit = self.flights[minion], self.spec.max_runtime
        return flight.expired or (limit is not None and now >= flight.began + limit)

    @staticmethod
    def is_idle(flight: Flight) -> bool:
        """Tell whether a minion has said often enough that it does not run the job."""
        return flight.idle >= IDLE_ANSWERS

    # -- overdue minions ----------------------------------------------------------------------------------------------

    def overdue(self, now: float) -> tuple[list[str], list[str]]:
        """Return the minions to look for and then ask, and those to look for a last time."""
        found: dict[str, None] = {}
        first = self.next_due()  # drops entries that are out of date
        if first is not None and first <= now:
            while self._due and self._due[0][0] <= now:
                entry = heapq.heappop(self._due)
                if not self._stale(entry):
                    found[entry[1]] = None
        last = self.of(found, Phase.GRACE)
        return [minion for minion in found if not self.is_in(minion, Phase.GRACE)], last

    def look_for(self, minions: Iterable[str], last: bool = False) -> tuple[str, ...]:
        """Minions are looked for in the job cache; after that they are asked or, after the last look, given up."""
        chosen = tuple(minions)
        for minion in chosen:
            self._move(minion, Phase.FINAL if last else Phase.LOOKING)
        return chosen

    def not_found(self, minions: Iterable[str]) -> tuple[tuple[str, ...], list[str]]:
        """The job cache has no return of these minions: return those to ask, and those to give up."""
        minions = list(minions)
        to_ask = tuple(self.of(minions, Phase.LOOKING))
        for minion in to_ask:
            self._move(minion, Phase.PROBING)
        return to_ask, self.of(minions, Phase.FINAL)

    def idle(self, minions: Iterable[str], now: float) -> tuple[str, ...]:
        """
        Minions say that they do not run the job: return those that are believed, and ask the others again later.

        Believed minions wait until their records are known (``recorded``): one that was killed may have returned before.
        """
        believed = []
        for minion in self.of(minions, Phase.PROBING):
            flight = self.flights[minion]
            flight.idle, flight.runs, flight.unanswered = flight.idle + 1, 0, 0
            if self.is_idle(flight) or (flight.kills and flight.seen):
                self._move(minion, Phase.GRACE)
                believed.append(minion)
            else:
                self._ask_later(minion, now)
        return tuple(believed)

    def recorded(self, minions: Iterable[str], now: float) -> None:
        """The records of minions were read: look for their returns a last time soon."""
        for minion in self.of(minions, Phase.GRACE):
            if self.flights[minion].due is None:
                due = self._changed(minion).due = now + self.spec.gather_job_timeout
                heapq.heappush(self._due, (due, minion))

    def records_unknown(self, minions: Iterable[str], now: float) -> None:
        """Minions did not say what is in their records: ask them again, a few times."""
        for minion in self.of(minions, Phase.GRACE):
            if self.flights[minion].idle < IDLE_ANSWERS + self.spec.probe_attempts:
                self._ask_later(minion, now)
            else:
                self.recorded([minion], now)

    def never_begun(self, minions: Iterable[str]) -> None:
        """The records of minions that do not run the job say that they have not begun it."""
        for minion in minions:
            if minion in self.flights and self.is_idle(self.flights[minion]):
                self._changed(minion).never_begun = True

    def silent(self, minions: Iterable[str], now: float) -> list[str]:
        """Minions did not answer: return those that have been asked often enough."""
        final = []
        for minion in self.of(minions, Phase.PROBING):
            self._changed(minion).unanswered += 1
            if self.flights[minion].unanswered >= self.spec.probe_attempts:
                final.append(minion)
            else:
                self._ask_later(minion, now)
        return final

    def unasked(self, minions: Iterable[str], now: float) -> None:
        """Minions could not be asked about the job, or for their records: that is no evidence."""
        minions = list(minions)
        for minion in (*self.of(minions, Phase.PROBING), *self.of(minions, Phase.GRACE)):
            self._ask_later(minion, now)

    def _ask_later(self, minion: str, now: float) -> None:
        self._move(minion, Phase.ASKED, now + self.spec.gather_job_timeout)

    # -- kills, and the start of an engine ----------------------------------------------------------------------------

    def kill(self, minions: Iterable[str], expired: bool = False) -> tuple[str, ...]:
        """Minions are sent a kill; ``expired``: because they have run too long."""
        chosen = tuple(minions)
        for minion in chosen:
            flight = self.flights[minion]
            flight.kills += 1
            flight.expired = flight.expired or expired
            self._move(minion, Phase.KILLING)
        return chosen

    def kill_sent(self, minions: Iterable[str], gently: bool, now: float) -> None:
        """A kill was sent to minions: ask soon whether it worked; after a gentle one, leave the job time to clean up."""
        for minion in self.of(minions, Phase.KILLING):
            self.flights[minion].unanswered = 0
            self._move(minion, Phase.SENT, now + (TERM_PAUSE if gently else KILL_PAUSE))

    def doubt_silence(self) -> None:
        """Events may have been lost: a minion that was not heard to begin may have begun."""
        for minion, flight in self.flights.items():
            if not (flight.seen or flight.unheard):
                self._changed(minion).unheard = True

    def forget(self, minion: str) -> None:
        """A minion's process has restarted: the minion would run the job a second time if it were sent again."""
        if minion in self.flights:
            flight = self._changed(minion)
            flight.unheard = flight.restarted = True

    def doubt_publish(self, minions: Iterable[str]) -> None:
        """It is not known whether minions were sent to."""
        for minion in minions:
            self._changed(minion).unknown = True

    def recover(self, now: float, doubtful_since: float | None) -> None:
        """
        The engine has restarted: nothing that was under way has a known outcome. What is known stays known. All minions
        must be looked for. Those that were being asked, or were about to be given up, are asked again unless they have
        returned: what they said of their records is lost.

        :param doubtful_since: publishes after that time may not have left the master, which ended soon after.
        """
        self.doubt_silence()
        self.doubt_publish(self.end_publish())
        self._touched.update(self.flights)
        self._due.clear()
        for minion, flight in self.flights.items():
            if flight.phase in (Phase.SENT, Phase.RUNNING, Phase.ASKED):
                is_asked = flight.phase is Phase.ASKED
                latest = now + self.spec.gather_job_timeout if is_asked else self._next_look(minion, now)
                flight.due = min(latest if flight.due is None else flight.due, latest)
                heapq.heappush(self._due, (flight.due, minion))
            else:
                self._move(minion, Phase.LOOKING)
            recent = doubtful_since is not None and flight.since >= doubtful_since
            flight.unknown = flight.unknown or (recent and not flight.seen)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _changed(self, minion: str) -> Flight:
        self._touched.add(minion)
        return self.flights[minion]

    def _move(self, minion: str, to: Phase, due: float | None = None) -> None:
        self._changed(minion).move(to, due)
        if due is not None:
            heapq.heappush(self._due, (due, minion))

    def _stale(self, entry: tuple[float, str]) -> bool:
        due, minion = entry
        flight = self.flights.get(minion)
        return flight is None or flight.due != due
