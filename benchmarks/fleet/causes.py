"""
Finds evidence that excuses a second run of a job on a minion, or a return that the master took and the job cache lacks.

Three parts could know of the first run: the minion's executor, the job cache, and the engine. A second run is excused only
if evidence shows for each of them why it does not know: the job cache lacks that very return, the master could store
nothing when it answered, and the engine's process ended before it could write down what it had heard. A fault at about
that time is not enough. Pure: stdlib only.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from benchmarks.fleet.truth import Run

#: Most seconds from when the master stores a return until it answers. After that the minion sends the return again, or as
#: much later as the fleet is late.
_ON_THE_WAY = 10.0
#: Seconds within which an idle engine has heard of an event and has written its consequences to the disk.
_WRITTEN = 5.0


@dataclasses.dataclass(frozen=True)
class Evidence:
    """
    ``unstorable``: (since, until, why) of times when the master could store nothing. ``lives``: for each engine [(time,
    its process then, or None)], in order, as they were seen. ``answers``: for each engine [(since, until)] of the
    requests that it has answered. ``lag``: the most seconds by which the fleet was late.
    """

    unstorable: Sequence[tuple[float, float, str]] = ()
    lives: Mapping[str, Sequence[tuple[float, int | None]]] = dataclasses.field(default_factory=dict)
    answers: Mapping[str, Sequence[tuple[float, float]]] = dataclasses.field(default_factory=dict)
    lag: float = 0.0

    def why_not_stored(self, run: Run) -> str | None:
        """Return why the master could not store the return of a run when it answered it; None if it could."""
        if run.answered is None:
            return None
        since = run.answered - _ON_THE_WAY - self.lag
        return self.why_not(since if run.sent is None else max(run.sent, since), run.answered)

    def why_not(self, since: float, until: float) -> str | None:
        """Return why the master could store nothing at some moment between two times; None if it always could."""
        return next((why for first, last, why in self.unstorable if first <= until and since <= last), None)

    def durable_at(self, engine: str, heard: float) -> float:
        """
        Return when an engine has an event on the disk that it ``heard`` then. If its answers are known, they show how busy
        it was: it has the event once it has answered a request made ``_WRITTEN`` seconds after that, or later; ``inf`` if
        it has answered none. If its answers are not known, it has the event after ``_WRITTEN`` seconds.
        """
        at = heard + _WRITTEN
        answers = self.answers.get(engine, ())
        return min((until for since, until in answers if since >= at), default=math.inf) if answers else at

    def lived(self, engine: str, since: float, until: float) -> bool:
        """
        Tell whether one process of an engine ran all the time between two moments. An engine that was not watched counts as
        one that ran.
        """
        looks = self.lives.get(engine, ())
        first = max((at for at, _ in looks if at <= since), default=since)
        last = min((at for at, _ in looks if at >= until), default=until)
        seen = {process for at, process in looks if first <= at <= last}
        return not looks or (len(seen) == 1 and None not in seen)


@dataclasses.dataclass(frozen=True)
class Cause:
    """``why``, in words that follow "it ran again: "; ``excused``: whether the engine could not know better."""

    excused: bool
    why: str


def of_second_run(first: Run, second: Run, engine: str, evidence: Evidence) -> Cause:
    """
    Return why a job that had run on a minion ran there again.

    :param engine: the one that sends it.
    """
    if first.recorded:
        return Cause(False, "the executor had the first run on the disk")
    if first.stored:
        return Cause(False, "the job cache has the return of the first run")
    if first.answered is not None:
        why = evidence.why_not_stored(first)
        if why is None:
            return Cause(False, "the master took the return of the first run, could store it, and does not have it")
        if evidence.lived(engine, first.answered, second.begun):
            return Cause(False, f"{engine} heard of the return of the first run, which was not stored since {why}")
        return Cause(True, f"the return of the first run was not stored since {why}, and {engine} ended after that")
    if first.told:
        durable = min(evidence.durable_at(engine, first.begun), max(second.begun, first.begun + _WRITTEN))
        if not evidence.lived(engine, first.begun, durable):
            return Cause(True, f"{engine} did not run, or ended, when the master heard that the first run began")
        why = evidence.why_not(first.begun, durable)
        if why is None or evidence.lived(engine, first.begun, second.begun):
            return Cause(False, f"{engine} heard that the first run began")
        return Cause(
            True, f"that the first run began could not be written down since {why}, and {engine} ended after that"
        )
    return Cause(True, "the master has heard nothing of the first run")
