"""
What really happened on the minions: every run of every job, noted by the minion, and what follows from that.

Times come from the monotonic clock, which is the same for all processes of the machine. Pure: stdlib only.
"""

from __future__ import annotations

import collections
import dataclasses
import heapq
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

#: How a run ended.
ENDED, KILLED, CUT = "ended", "killed", "cut"


@dataclasses.dataclass
class Run:
    """
    One run of a job on a minion.

    ``number``: counts the runs there from 1; its return names it. ``end``: None while it runs; ``how``: ENDED,
    KILLED (by ``kill_job``) or CUT (its minion died). ``sent``, ``answered``: when its return was sent, and when the
    master answered it. ``told``: whether the master has answered its acknowledgement; ``recorded``: whether the
    minion's executor has it on the disk. ``stored``: whether the job cache has the return of this very run.
    """

    minion: str
    jid: str
    begun: float
    end: float | None = None
    how: str | None = None
    retcode: int | None = None
    number: int = 1
    sent: float | None = None
    answered: float | None = None
    told: bool = False
    recorded: bool = False
    stored: bool = False


@dataclasses.dataclass(frozen=True)
class Publish:
    """
    A job as it came over the wire, which reaches every minion whatever its target. ``minions``: how many it names; ``size``:
    its bytes, decrypted; ``targets``: the minions in the list of a job; ``master``: the number of the sender.
    """

    at: float
    jid: str
    fun: str
    minions: int
    question: bool
    size: int = 0
    targets: frozenset[str] = frozenset()
    master: int = 0


class Truth:
    """The fleet's notes. They can be passed between processes."""

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self.publishes: list[Publish] = []
        #: (time, minion, whether it is running from then on)
        self.presence: list[tuple[float, str, bool]] = []
        #: Jobs that came to a minion which knew their jid, and did not run again: (time, minion, jid).
        self.repeats: list[tuple[float, str, str]] = []
        #: The most seconds by which the fleet was late with due actions.
        self.lag = 0.0
        #: The returns in the job cache, once looked up: (minion, jid), and the run that each belongs to.
        self.cached: dict[tuple[str, str], int] = {}

    def look_up(self, found: Mapping[tuple[str, str], int]) -> None:
        """
        Add the returns in the job cache, which was read after the minions were asked.

        :param found: ``{(minion, jid): the number of the run whose return it is}``, 0 if no run returned it.
        """
        self.cached = dict(found)
        for run in self.runs:
            run.stored = found.get((run.minion, run.jid)) == run.number

    def of(self, jid: str) -> dict[str, list[Run]]:
        """Return ``{minion: its runs}`` of a job."""
        found: dict[str, list[Run]] = collections.defaultdict(list)
        for run in self.runs:
            if run.jid == jid:
                found[run.minion].append(run)
        return dict(found)

    def there(self) -> set[str]:
        """Return the minions that are there now."""
        found = {minion: is_there for _, minion, is_there in sorted(self.presence)}
        return {minion for minion, is_there in found.items() if is_there}

    def stayed(self, since: float) -> set[str]:
        """Return the minions that have been there all the time since."""
        there, gone = set(), set()
        for at, minion, is_there in sorted(self.presence):
            if at < since:
                (there.add if is_there else there.discard)(minion)
            elif not is_there:
                gone.add(minion)
        return there - gone

    def silent(self, since: float) -> set[tuple[str, str]]:
        """
        Return each (minion, jid) that has run and whose return the master has not answered.

        A minion that has given up sending remembers the jid, does not run it again, and says that it does not run it.
        """
        ended = {(run.minion, run.jid) for run in self.runs if run.end is not None}
        later = {(run.minion, run.jid) for run in self.runs if run.end is None or run.end + self.lag >= since}
        return ended - later - {(run.minion, run.jid) for run in self.runs if run.answered is not None}

    def again(self, jids: Collection[str]) -> Iterator[tuple[Run, Run]]:
        """Yield (earlier run, later run) of each minion on which one of these jobs ran more than once."""
        earlier: dict[tuple[str, str], list[Run]] = collections.defaultdict(list)
        for run in sorted(self.runs, key=lambda run: run.begun):
            if run.jid in jids:
                yield from ((before, run) for before in earlier[run.minion, run.jid])
                earlier[run.minion, run.jid].append(run)

    def published(self, jids: Collection[str] | None = None, since: float = 0.0) -> tuple[int, int]:
        """Return the number of publishes of these jobs (or of all), and the number of questions."""
        later = [each for each in self.publishes if each.at >= since]
        jobs = sum(not each.question and (jids is None or each.jid in jids) for each in later)
        return jobs, sum(each.question for each in later)

    def last_begun(self, jids: Iterable[str]) -> float:
        wanted = set(jids)
        return max((run.begun for run in self.runs if run.jid in wanted), default=0.0)

    def busy(self, jids: Collection[str], now: float) -> list[tuple[float, int]]:
        """Return [(time, number of runs from then on)]. At equal times, ends come before beginnings."""
        steps = []
        for run in self.runs:
            if run.jid in jids:
                steps += [(run.begun, 1), (now if run.end is None else run.end, -1)]
        count, found = 0, []
        for at, step in sorted(steps):
            count += step
            found.append((at, count))
        return found

    def most_at_once(self, jid: str, now: float) -> int:
        return max((count for _, count in self.busy({jid}, now)), default=0)

    def ended(self, jids: Collection[str]) -> list[tuple[float, int]]:
        """Return [(time, number of runs that have ended by then)]."""
        ends = sorted(run.end for run in self.runs if run.jid in jids and run.end is not None)
        return [(at, number) for number, at in enumerate(ends, 1)]


def makespan(runs: Sequence[Run]) -> float:
    """Return the seconds from the first beginning to the last end of runs."""
    ended = [run for run in runs if run.end is not None]
    return max((run.end or 0.0 for run in ended), default=0.0) - min((run.begun for run in ended), default=0.0)


def ideal(runs: Sequence[Run], slots: int) -> float:
    """Return the makespan of the same runs, in the same order, if each slot were taken again at once."""
    free = [0.0] * slots
    for run in sorted(runs, key=lambda run: run.begun):
        if run.end is not None:
            heapq.heapreplace(free, free[0] + run.end - run.begun)
    return max(free)
