"""
The batch state machine: facts in, effects out, time as an argument. All policy about batches is here.

Pure: stdlib only, no clock, no I/O. It must never depend on anything but its state, the fact and the time that it is
given: the state is rebuilt after a crash by stepping through the same facts again.

A minion's way through a batch:

    pending -> in flight -> completed | failed | lost | offline | killed
                  |  ^
                  v  '---- running: asked, and it does run the job
              overdue: looked for in the job cache, then asked (find_job); see Phase

Only a return, or evidence that the job is not running there, frees a slot. Silence is taken for absence only after
``probe_attempts`` questions.
"""

from __future__ import annotations

import collections
import heapq
from collections.abc import Callable, Iterable
from typing import Any

from saltext.jobs.core.batch.facts import (
    Acknowledged,
    Announce,
    Close,
    Closed,
    Effect,
    Fact,
    Gather,
    Gathered,
    Kill,
    KillSent,
    LookedUp,
    LookUp,
    PauseRequested,
    Probe,
    Probed,
    Publish,
    Published,
    PublishFailed,
    Queue,
    Queued,
    Recovered,
    ResumeRequested,
    Returned,
    StopRequested,
    Tick,
)
from saltext.jobs.core.batch.flight import Flight, Outcome, Phase
from saltext.jobs.core.batch.spec import Spec

#: Seconds for which overdue minions are gathered into one look-up and one question.
CHECK_WINDOW = 1.0
#: Seconds between a kill and the question whether it worked.
KILL_PAUSE = 1.0
#: Longest wait between two tries of a publish, in seconds.
LONGEST_BACKOFF = 60.0

#: Outcomes that a later return corrects.
_GUESSED = frozenset({Outcome.LOST, Outcome.OFFLINE, Outcome.KILLED})
#: Outcomes that count against the failure budget: a minion that never answered does not.
_AGAINST_BUDGET = frozenset({Outcome.FAILED, Outcome.LOST})


class Batch:
    """
    One batch. Build it from a Spec, then feed it a Tick, and from then on every fact there is.

    :param spec: what was asked for.
    :param now: Unix time in seconds.
    """

    def __init__(self, spec: Spec, now: float) -> None:
        self.spec = spec
        self.created = self.last_progress = now
        self.started: float | None = None  # when it was announced
        self.finished: float | None = None
        self.closed = False
        self.halted: str | None = None  # why nothing more is published
        self.paused: str | None = None
        self.killing = False
        self.stopped_by = ""
        self.gathering = spec.presence == "ping"
        self.pinging = False  # the presence ping is under way
        self.publishing: tuple[str, ...] | None = None  # the publish that is under way
        self.publish_at: float | None = None  # when the next one goes out, where there is something to send
        self.not_before = now  # backoff: nothing goes out before
        self.failures = 0  # publishes that failed in a row
        self.publishes = self.publish_failures = 0
        self.stage = 0
        self.quota = self._quota_of(0)  # minions that this stage may still send to; None for any number
        self.flights: dict[str, Flight] = {}
        # (outcome, since, retcode) of each minion that has one
        self.outcomes: dict[str, tuple[Outcome, float, int | None]] = {}
        self.counts: collections.Counter[Outcome] = collections.Counter()
        self.budget_used = 0
        self.tried: set[str] = set()  # minions back in pending that may have received the job
        self.to_queue: dict[str, None] = {}
        self.cooling: collections.deque[float] = collections.deque()  # slots that batch_wait keeps taken, until when
        self.waiting = set(spec.minions)  # minions to be sent to
        self.order: collections.deque[str] = collections.deque(spec.minions)  # in this order; some no longer wait
        self.due: list[tuple[float, str]] = []  # heap over the flights' due times; some are out of date

    # -- what the shell asks ------------------------------------------------------------------------------------------

    @property
    def batch_size(self) -> int:
        """The most minions that may be in flight at this stage."""
        return self.spec.sizes[self.stage]

    @property
    def state(self) -> str:
        """running, paused, stopping, complete or halted."""
        if self.halted:
            return "halted" if self.finished else "stopping"
        if self.finished:
            return "complete"
        return "paused" if self.paused else "running"

    @property
    def success(self) -> bool | None:
        """Whether all that it was for has succeeded; None as long as that is open."""
        if not self.finished:
            return None
        wrong = self.counts[Outcome.FAILED] + self.counts[Outcome.LOST] + self.counts[Outcome.KILLED]
        return not self.halted and not wrong

    @property
    def next_due(self) -> float | None:
        """When a Tick is next due, in Unix time; None as long as only a fact can change anything."""
        if self.started is None:
            return self.created
        times = [self.publish_at, self.cooling[0] if self._waits_for_cooling() else None]
        while self.due and self._stale(self.due[0]):
            heapq.heappop(self.due)
        if self.due:
            times.append(self.due[0][0] + CHECK_WINDOW)
        return min((time for time in times if time is not None), default=None)

    def pending(self) -> list[str]:
        """The minions that are still to be sent to, in order."""
        return [minion for minion in dict.fromkeys(self.order) if minion in self.waiting]

    def unsettled(self) -> list[str]:
        """The minions whose return would change something: those in flight, and those given up without one."""
        return [*self.flights, *(minion for minion, (outcome, *_) in self.outcomes.items() if outcome in _GUESSED)]

    def wants_return(self, minion: str) -> bool:
        """Whether a return of ``minion`` changes anything."""
        if minion in self.flights or minion in self.tried:
            return True
        return minion in self.outcomes and self._is_guess(minion)

    def accepts(self, fact: Fact) -> bool:
        """Whether a request changes anything."""
        if self.finished:
            return False
        if isinstance(fact, StopRequested):
            return not self.halted or (fact.kill and not self.killing and bool(self.flights))
        if isinstance(fact, PauseRequested):
            return not self.halted and not self.paused
        return isinstance(fact, ResumeRequested) and bool(self.paused)

    def has_taken(self, request: Fact) -> bool:
        """Whether the batch already is as a request wants it."""
        if isinstance(request, StopRequested):
            return self.halted == "stop" and (self.killing or not request.kill)
        return isinstance(request, PauseRequested) == bool(self.paused) and not self.halted

    def survivors(self) -> list[str]:
        """The minions that still run the job although it was killed as often as it may be."""
        return [minion for minion, flight in self.flights.items() if flight.kills >= self.spec.kill_attempts]

    # -- the machine --------------------------------------------------------------------------------------------------

    def step(self, fact: Fact, now: float) -> list[Effect]:
        """Take a fact that has become known at ``now``, and return what is to be done, in this order."""
        effects = _HANDLERS[type(fact)](self, fact, now)
        return effects + self._advance(now)

    def _advance(self, now: float) -> list[Effect]:
        """Do what the state calls for, whatever fact led to it."""
        while self.cooling and self.cooling[0] <= now:
            self.cooling.popleft()
        if self.finished or self.started is None:
            return []
        if self._is_over():
            return self._finish(now)
        if self.halted or self.paused:
            self.publish_at = None
            return []
        if self.gathering:
            return self._ping(now)
        self._next_stage()
        return self._publish(now)

    def _is_over(self) -> bool:
        busy = self.flights or self.publishing or self.pinging or self.to_queue
        return not busy and (bool(self.halted) or (not self.gathering and not self.waiting))

    def _finish(self, now: float) -> list[Effect]:
        self.finished = now
        self.paused = self.publish_at = None
        return [Close()] if self.halted else [Announce("complete"), Close()]

    def _ping(self, now: float) -> list[Effect]:
        if self.pinging or self._must_wait(now, 0.0):
            return []
        self.pinging, self.publish_at = True, None
        return [Gather()]

    def _must_wait(self, now: float, window: float) -> bool:
        """Whether it is too early to publish; sets the time when it will not be."""
        if self.publish_at is None:
            self.publish_at = max(now + window, self.not_before)
        return now < self.publish_at

    # Sending: freed slots are gathered for ``publish_window``, so that many returns lead to one publish.

    def _publish(self, now: float) -> list[Effect]:
        if self.publishing is not None or not self._capacity():
            self.publish_at = None
            return []
        if self._must_wait(now, self.spec.publish_window if self.publishes else 0.0):
            return []
        self.publish_at = None
        self.publishing = tuple(self._take() for _ in range(self._capacity()))
        self.publishes += 1
        self.last_progress = now
        for minion in self.publishing:
            self.flights[minion] = Flight(Phase.SENDING, now)
            self.tried.discard(minion)
        if self.quota is not None:
            self.quota -= len(self.publishing)
        return [Publish(self.publishing)]

    def _capacity(self) -> int:
        free = self.batch_size - len(self.flights) - len(self.cooling)
        if self.quota is not None:
            free = min(free, self.quota)
        return max(0, min(free, len(self.waiting)))

    def _waits_for_cooling(self) -> bool:
        return bool(self.cooling and self.waiting and not self.halted and not self.paused)

    def _take(self) -> str:
        while True:
            minion = self.order.popleft()
            if minion in self.waiting:
                self.waiting.discard(minion)
                return minion

    def _put_back(self, minions: Iterable[str]) -> None:
        """Make minions pending again, before all others."""
        for minion in reversed(list(minions)):
            del self.flights[minion]
            self.waiting.add(minion)
            self.order.appendleft(minion)
            self.tried.add(minion)
            if self.quota is not None:
                self.quota += 1

    def _quota_of(self, stage: int) -> int | None:
        """All stages but the last are waves: so many minions, and no more before all have ended."""
        return self.spec.sizes[stage] if stage < len(self.spec.sizes) - 1 else None

    def _next_stage(self) -> None:
        wave_over = self.quota == 0 and not self.flights and self.publishing is None and not self.cooling
        if wave_over and self.waiting:
            self.stage += 1
            self.quota = self._quota_of(self.stage)

    def _published(self, fact: Published, now: float) -> list[Effect]:
        missed = set(fact.missed)
        self.failures = 0
        effects: list[Effect] = []
        for minion in self._close_publish():
            flight = self.flights[minion]
            if minion in missed:
                effects += self._give_up(minion, flight, now)
            else:
                flight.phase = Phase.SENT
                self._wait(minion, flight, now + self.spec.timeout)
        return effects + self._kill_what_was_late(now)

    def _publish_failed(self, fact: PublishFailed, now: float) -> list[Effect]:
        self.failures += 1
        self.publish_failures += 1
        self.pinging = False
        sending = self._close_publish()
        effects: list[Effect] = []
        if fact.certain:
            self._put_back(sending)
        else:
            effects += self._look_up(sending, unknown=True)
        if self.failures > self.spec.publish_retries:
            effects += self._pause(f"{self.failures} publishes failed in a row, the last one: {fact.reason}")
        else:
            backoff = min(self.spec.publish_backoff * 2 ** (self.failures - 1), LONGEST_BACKOFF)
            self.not_before = now + backoff
        return effects + self._kill_what_was_late(now)

    def _close_publish(self) -> list[str]:
        """End the publish under way and return its minions that have not returned or begun meanwhile."""
        minions, self.publishing = self.publishing or (), None
        return [minion for minion in minions if self._in_phase(minion, Phase.SENDING)]

    def _gathered(self, fact: Gathered, now: float) -> list[Effect]:
        self.gathering = self.pinging = False
        self.failures = 0
        if self.halted:
            return []
        there = set(fact.answered)
        absent = [minion for minion in self.pending() if minion not in there]
        outcome = Outcome.FAILED if self.spec.offline == "fail" else Outcome.OFFLINE
        for minion in absent:
            self.waiting.discard(minion)
            self._settle(minion, outcome, now, None, counts=False)
        return self._queue(absent)

    # Returns and acknowledgements.

    def _returned(self, fact: Returned, now: float) -> list[Effect]:
        if not self.wants_return(fact.minion):
            return []
        if fact.minion in self.tried:
            self.tried.discard(fact.minion)
            self.waiting.discard(fact.minion)
            if self.quota is not None:
                self.quota -= 1
        outcome = Outcome.FAILED if fact.retcode else Outcome.COMPLETED
        self._settle(fact.minion, outcome, now, fact.retcode)
        return self._check_budget()

    def _acknowledged(self, fact: Acknowledged, now: float) -> list[Effect]:
        minion = fact.minion
        if minion in self.outcomes and self._is_guess(minion) and not self.finished:
            # It was given up too early: it takes a slot again, though there may be none free.
            outcome, *_ = self.outcomes.pop(minion)
            self._count(outcome, -1)
            self.flights[minion] = Flight(Phase.SENT, now)
        flight = self.flights.get(minion)
        if flight is not None and flight.phase is not Phase.KILLING:
            self._seen_running(minion, flight, now)
        return []

    def _settle(self, minion: str, outcome: Outcome, now: float, retcode: int | None, counts: bool = True) -> None:
        earlier = self.outcomes.get(minion)
        if earlier is not None:
            self._count(earlier[0], -1, against_budget=earlier[2] is not None or earlier[0] is not Outcome.FAILED)
        if self.flights.pop(minion, None) is not None and self.spec.batch_wait:
            self.cooling.append(now + self.spec.batch_wait)
        self.outcomes[minion] = (outcome, now, retcode)
        self._count(outcome, 1, counts)
        self.last_progress = now

    def _count(self, outcome: Outcome, by: int, against_budget: bool = True) -> None:
        self.counts[outcome] += by
        if outcome in _AGAINST_BUDGET and against_budget:
            self.budget_used = max(0, self.budget_used + by)

    def _is_guess(self, minion: str) -> bool:
        """Whether a minion's outcome was found without a return of it."""
        outcome, _, retcode = self.outcomes[minion]
        return outcome in _GUESSED or (outcome is Outcome.FAILED and retcode is None)

    def _check_budget(self) -> list[Effect]:
        if self.halted or self.finished:
            return []
        if self.spec.failhard and self.budget_used:
            return self._halt("failhard")
        allowed = self.spec.failures_allowed
        executed = self.counts[Outcome.COMPLETED] + self.budget_used
        if allowed is not None and self.budget_used > allowed and executed >= self.spec.min_executed:
            return self._halt("max_failures")
        return []

    # Overdue minions: the job cache first, then a question, many minions at once.

    def _wait(self, minion: str, flight: Flight, due: float) -> None:
        flight.due = due
        heapq.heappush(self.due, (due, minion))

    def _stale(self, entry: tuple[float, str]) -> bool:
        due, minion = entry
        flight = self.flights.get(minion)
        return flight is None or flight.due != due

    def _ticked(self, _fact: Fact, now: float) -> list[Effect]:
        if self.started is None:
            self.started = now
            return [Announce("new")]
        overdue: dict[str, None] = {}
        if self.due and self.due[0][0] + CHECK_WINDOW <= now:
            while self.due and self.due[0][0] <= now:
                entry = heapq.heappop(self.due)
                if not self._stale(entry):
                    overdue[entry[1]] = None
        final = [minion for minion in overdue if self.flights[minion].phase is Phase.GRACE]
        again = [minion for minion in overdue if self.flights[minion].phase is not Phase.GRACE]
        return self._look_up(again) + self._look_up(final, Phase.FINAL)

    def _look_up(self, minions: list[str], phase: Phase = Phase.LOOKING, unknown: bool = False) -> list[Effect]:
        for minion in minions:
            flight = self.flights[minion]
            flight.phase, flight.due = phase, None
            flight.unknown = flight.unknown or unknown
        return [LookUp(tuple(minions))] if minions else []

    def _looked_up(self, fact: LookedUp, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for minion, retcode in fact.found:
            effects += self._returned(Returned(minion, retcode), now)
        to_ask = []
        for minion in fact.asked:
            if self._in_phase(minion, Phase.LOOKING):
                self.flights[minion].phase = Phase.PROBING
                to_ask.append(minion)
            elif self._in_phase(minion, Phase.FINAL):
                effects += self._give_up(minion, self.flights[minion], now)
        if to_ask:
            effects.append(Probe(tuple(to_ask)))
        return effects + self._check_budget()

    def _probed(self, fact: Probed, now: float) -> list[Effect]:
        to_kill, final = [], []
        for minion in self._all_in_phase(fact.running, Phase.PROBING):
            flight = self.flights[minion]
            self._seen_running(minion, flight, now)
            if self.killing and flight.kills < self.spec.kill_attempts:
                to_kill.append(minion)
        for minion in self._all_in_phase(fact.idle, Phase.PROBING):
            flight = self.flights[minion]
            flight.phase, flight.idle = Phase.GRACE, True
            self._wait(minion, flight, now + self.spec.gather_job_timeout)
        for minion in self._all_in_phase(fact.silent, Phase.PROBING):
            flight = self.flights[minion]
            flight.asked += 1
            if flight.asked >= self.spec.probe_attempts:
                final.append(minion)
            else:
                self._ask_later(minion, flight, now)
        for minion in self._all_in_phase(fact.unasked, Phase.PROBING):
            self._ask_later(minion, self.flights[minion], now)
        return self._look_up(final, Phase.FINAL) + self._kill(to_kill)

    def _ask_later(self, minion: str, flight: Flight, now: float) -> None:
        flight.phase = Phase.ASKED
        self._wait(minion, flight, now + self.spec.gather_job_timeout)

    def _seen_running(self, minion: str, flight: Flight, now: float) -> None:
        flight.phase, flight.since, flight.asked = Phase.RUNNING, now, 0
        flight.seen, flight.idle, flight.unknown = True, False, False
        self._wait(minion, flight, now + self.spec.timeout)

    def _give_up(self, minion: str, flight: Flight, now: float) -> list[Effect]:
        """No return anywhere: say what became of the minion."""
        if not flight.idle:
            self._settle(minion, Outcome.OFFLINE, now, None)
            return [] if flight.seen else self._queue([minion])
        if flight.unknown and not flight.seen and not flight.kills:
            # Its publish had no outcome, it does not run the job and has not returned it: it never got it.
            self._put_back([minion])
            return []
        self._settle(minion, Outcome.KILLED if flight.kills else Outcome.LOST, now, None)
        return []

    def _queue(self, minions: list[str]) -> list[Effect]:
        if self.spec.offline != "queue" or not minions:
            return []
        self.to_queue.update(dict.fromkeys(minions))
        return [Queue(tuple(minions))]

    def _queued(self, fact: Queued, _now: float) -> list[Effect]:
        for minion in fact.minions:
            self.to_queue.pop(minion, None)
        return []

    # Requests.

    def _stop(self, fact: StopRequested, now: float) -> list[Effect]:
        if not self.accepts(fact):
            return []
        effects: list[Effect] = []
        self.last_progress = now
        self.stopped_by = fact.user
        if not self.halted:
            effects += self._halt("stop")
        if fact.kill:
            self.killing = True
            effects += self._kill([minion for minion in self.flights if not self._in_phase(minion, Phase.SENDING)])
        return effects

    def _halt(self, reason: str) -> list[Effect]:
        self.halted = reason
        self.paused = self.publish_at = None
        return [Announce("halted")]

    def _kill_what_was_late(self, _now: float) -> list[Effect]:
        """Kill on minions whose publish was still under way when the kill was asked for."""
        if not self.killing:
            return []
        return self._kill([minion for minion, flight in self.flights.items() if not flight.kills])

    def _kill(self, minions: list[str]) -> list[Effect]:
        for minion in minions:
            flight = self.flights[minion]
            flight.phase, flight.due = Phase.KILLING, None
            flight.kills += 1
        return [Kill(tuple(minions))] if minions else []

    def _kill_sent(self, _fact: Fact, now: float) -> list[Effect]:
        for minion in self._all_in_phase(list(self.flights), Phase.KILLING):
            flight = self.flights[minion]
            flight.phase, flight.asked = Phase.SENT, 0
            self._wait(minion, flight, now + KILL_PAUSE)
        return []

    def _pause_requested(self, fact: PauseRequested, _now: float) -> list[Effect]:
        return self._pause(f"paused by {fact.user}" if fact.user else "paused") if self.accepts(fact) else []

    def _pause(self, reason: str) -> list[Effect]:
        if self.halted:
            return []
        self.paused, self.publish_at = reason, None
        return [Announce("paused", {"reason": reason})]

    def _resume(self, fact: ResumeRequested, now: float) -> list[Effect]:
        if not self.accepts(fact):
            return []
        self.paused, self.failures, self.not_before = None, 0, now
        return [Announce("resumed", {"user": fact.user})]

    # Crash and end.

    def _recover(self, _fact: Fact, now: float) -> list[Effect]:
        """Nothing that was under way has an outcome, and the clock may be another one."""
        if self.closed or self.started is None:
            return []
        if self.finished:
            return [Announce("halted" if self.halted else "complete"), Close()]
        unsent = self._close_publish()
        for minion in unsent:
            self.flights[minion].unknown = True
        self.pinging = False
        self.publish_at, self.not_before = None, now
        latest = now + self.spec.batch_wait
        self.cooling = collections.deque(min(until, latest) for until in self.cooling)
        self.due.clear()
        effects: list[Effect] = [Announce("halted")] if self.halted else []
        if self.to_queue:
            effects.append(Queue(tuple(self.to_queue)))
        return effects + self._look_up(list(self.flights))

    def _close(self, _fact: Fact, _now: float) -> list[Effect]:
        self.closed = True
        return []

    def _in_phase(self, minion: str, phase: Phase) -> bool:
        flight = self.flights.get(minion)
        return flight is not None and flight.phase is phase

    def _all_in_phase(self, minions: Iterable[str], phase: Phase) -> list[str]:
        return [minion for minion in minions if self._in_phase(minion, phase)]


_HANDLERS: dict[type, Callable[[Any, Any, float], list[Effect]]] = {
    Gathered: Batch._gathered,
    Returned: Batch._returned,
    Acknowledged: Batch._acknowledged,
    Published: Batch._published,
    PublishFailed: Batch._publish_failed,
    LookedUp: Batch._looked_up,
    Probed: Batch._probed,
    KillSent: Batch._kill_sent,
    Queued: Batch._queued,
    StopRequested: Batch._stop,
    PauseRequested: Batch._pause_requested,
    ResumeRequested: Batch._resume,
    Recovered: Batch._recover,
    Tick: Batch._ticked,
    Closed: Batch._close,
}
