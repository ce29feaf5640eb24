"""
Checks what the engines say against what really happened, by the fleet's own notes.

Pure: stdlib only. It compares the minions' states in ``batch.minions``, the entries of ``job_retry.list``, the runs
that the minions have noted, and their returns in the job cache.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import statistics
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.fleet import causes
from benchmarks.fleet.causes import Evidence
from benchmarks.fleet.truth import CUT, ENDED, KILLED, Run, Truth

#: Seconds in which an engine must answer a request, on an idle machine.
ANSWER = 2.0
#: Seconds for its first answer after a start, or after a time when no answer could be expected.
RECOVERS = 30.0
#: States of entries that do not change by themselves.
AT_REST = ("held", "expired", "cancelled", "dead")
#: A shorter scenario cannot show growth.
_LONG_ENOUGH = 120.0


@dataclasses.dataclass(frozen=True)
class Check:
    """``what`` must be true; ``found`` is what was seen."""

    what: str
    good: bool
    found: str


def wrong_about(state: str, runs: Sequence[Run], native: bool = False) -> str | None:
    """
    Return what is wrong with a minion's state in a batch, or None.

    :param native: the state is that of Salt's own manager. To it, a minion that has not returned is failed too.
    """
    returned = [run for run in runs if run.how == ENDED and run.stored]
    succeeded = any(run.retcode == 0 for run in returned)
    if state == "completed":
        return None if succeeded else "completed, but has returned no success"
    if state == "failed" and native:
        return "failed, but has returned a success" if succeeded else None
    if state == "failed":
        # A minion with the executor reports an interrupted job itself.
        good = any(run.retcode for run in returned) or any(run.how == CUT for run in runs)
        return None if good else "failed, but has returned no failure"
    if state == "active":
        return None if any(run.end is None for run in runs) else "active, but runs nothing"
    if state in ("killed", "timed_out"):
        return None if any(run.how == KILLED for run in runs) else f"{state}, but no kill has reached it"
    if returned:
        return f"{state}, but has returned"
    if state == "pending" and runs:
        return "pending, but has run it"
    return None


def lost_though_run(told: Mapping[str, Any] | None, runs: Sequence[Run]) -> bool:
    """Tell whether a minion is reported lost although it ran the job to its end; if it keeps returns, it can be asked."""
    return told is not None and told["state"] == "lost" and any(run.how == ENDED for run in runs)


def batch(
    truth: Truth,
    jid: str,
    names: Collection[str],
    states: Mapping[str, Mapping[str, Any]],
    limit: int,
    now: float,
    engine: str,
    evidence: Evidence,
) -> list[Check]:
    """
    Judge one batch.

    :param names: the minions that it was for. ``states``: ``{minion: {"state": …}}``, as ``batch.minions`` returns them.
    :param limit: how many may run it at a time.
    :param engine: the one that drives it. ``evidence``: what excuses a second run, or a return that was not stored.
    """
    runs = truth.of(jid)
    wrong = {name: states.get(name, {}).get("state", "not named") for name in names}
    wrong = {name: told for name, state in wrong.items() if (told := wrong_about(state, runs.get(name, ())))}
    missing = [name for name in names if name not in states]
    strangers = [name for name in runs if name not in names]
    most = truth.most_at_once(jid, now)
    return [
        Check("no minion is reported wrongly", not wrong and not missing, _some(wrong, missing)),
        twice(truth, {jid}, engine, evidence),
        taken(truth, {jid}, evidence),
        Check("no other minion has run it", not strangers, _names(strangers)),
        Check(f"never more than {limit:,} at a time", most <= limit, f"{most:,} at once"),
    ]


def reached(truth: Truth, jid: str, names: Collection[str], since: float) -> Check:
    """Judge whether a batch that ran to its end has reached each of its minions that was there all the time."""
    stayed = truth.stayed(since) & set(names)
    missed = stayed - truth.of(jid).keys()
    told = f"{len(stayed):,} were there; not: {_names(list(missed))}"
    return Check("each minion that was there all the time has run it", not missed, told)


def twice(truth: Truth, jids: Collection[str], engine: str, evidence: Evidence) -> Check:
    """Judge whether jobs ran again although their first run could be known, and name the cause of each second run."""
    wrong: dict[tuple[str, str], str] = {}
    excused: dict[tuple[str, str], str] = {}
    for first, second in truth.again(jids):
        cause = causes.of_second_run(first, second, engine, evidence)
        (excused if cause.excused else wrong)[second.minion, second.jid] = cause.why
    excused = {pair: why for pair, why in excused.items() if pair not in wrong}
    told = _by_cause(wrong) or "none"
    if excused:
        told += f"; excused: {_by_cause(excused)}"
    return Check("no job ran twice on a minion where that could be known", not wrong, told)


def taken(truth: Truth, jids: Collection[str], evidence: Evidence) -> Check:
    """Judge whether the job cache has the returns that the master has answered."""
    wrong: dict[tuple[str, str], str] = {}
    excused: dict[tuple[str, str], str] = {}
    for run in truth.runs:
        if run.jid in jids and run.answered is not None and (run.minion, run.jid) not in truth.cached:
            why = evidence.why_not_stored(run)
            (excused if why else wrong)[run.minion, run.jid] = why or "nothing kept the master from storing it"
    told = _by_cause(wrong) or "none is missing"
    if excused:
        told += f"; excused: {_by_cause(excused)}"
    return Check("the job cache has each return that the master has taken", not wrong, told)


def owed(
    truth: Truth,
    pairs: Iterable[tuple[str, str]],
    entries: Iterable[Mapping[str, Any]],
    engine: str,
    evidence: Evidence,
) -> list[Check]:
    """
    Judge the deliveries of a retry queue.

    :param pairs: the (minion, jid) that are owed. ``entries``: what ``job_retry.list`` returns now.
    :param engine: the one that delivers them. ``evidence``: as for ``batch``.
    """
    pairs = set(pairs)
    jids, times = {jid for _, jid in pairs}, collections.Counter((run.minion, run.jid) for run in truth.runs)
    standing = {(entry["minion"], entry["jid"]): str(entry["state"]) for entry in entries}
    lost = [pair for pair in pairs if pair not in times and pair not in standing]
    kept = [pair for pair in pairs & truth.cached.keys() if pair in standing]
    there = truth.there()
    # If the master has heard nothing of a return, the run is not known, and the minion ignores a second delivery.
    unmet = [pair for pair in pairs & standing.keys() if standing[pair] not in AT_REST and not times[pair]]
    waiting = [pair for pair in unmet if pair[0] in there]
    states = collections.Counter(standing[pair] for pair in pairs & standing.keys())
    told = (
        f"{sum(times[pair] == 1 for pair in pairs):,} of {len(pairs):,} ran once, {states.total():,} stand in the queue"
    )
    told += f" ({', '.join(f'{count:,} {state}' for state, count in states.most_common())})" if states else ""
    return [
        Check(
            "each job that is owed ran, or stands in the queue with a reason", not lost, f"{told}; lost: {_names(lost)}"
        ),
        twice(truth, jids, engine, evidence),
        taken(truth, jids, evidence),
        Check("no entry is kept for a job with a return", not kept, _names(kept)),
        Check("no minion that is there still waits for its first run", not waiting, _names(waiting)),
    ]


def responsive(
    samples: Sequence[Any], spared: Iterable[tuple[float, float]] = (), within: float = ANSWER
) -> list[Check]:
    """
    Judge how long engines took to answer a runner, without the time for which they waited for a core.

    :param within: seconds that they may take. The first answer of a process, and the first after a time in which none could
        be expected, may take RECOVERS.
    :param spared: (since, until) of such times.
    """
    spared, checks = list(spared), []
    for engine in sorted({engine for sample in samples for engine in sample.answered}):
        asked = [(s.at, s.answered[engine], s.processes.get(engine)) for s in samples if engine in s.answered]
        answers = list(_answers(asked, spared))
        usual = [seconds for seconds, first, _ in answers if not first]
        firsts = [seconds for seconds, first, _ in answers if first]
        silent = sum(not came for _, _, came in answers)
        slow = max(usual, default=0.0) > within or max(firsts, default=0.0) > max(within, RECOVERS)
        told = f"longest {max(usual, default=0.0):.2f} s, of {len(answers):,} requests"
        told += f"; {max(firsts):.2f} s after it could answer none" if firsts else ""
        told += f"; {silent} without answer" if silent else ""
        checks.append(Check(f"{engine} answers a runner within {within:g} s", not slow, told))
    return checks


def _answers(
    asked: Sequence[tuple[float, Any, Any]], spared: Collection[tuple[float, float]]
) -> Iterator[tuple[float, bool, bool]]:
    """
    Yield (seconds, whether it is a first answer, whether it came) for each request that counts.

    The first answer is that of a new process, or after a spared time. Its seconds include those of the unanswered requests
    before it, because a runner gives up each request sooner than RECOVERS.

    :param asked: (time, answer, process) of each request, in order.
    """
    known, first, silence = asked[0][2], False, 0.0
    for at, answer, process in asked:
        first, known = first or process != known, process
        if _overlaps(at, at + answer.seconds, spared):
            first, silence = True, 0.0
            continue
        seconds = silence + answer.own if first else answer.own
        yield seconds, first, answer.came
        first, silence = (False, 0.0) if answer.came else (first, seconds)


def alive(samples: Sequence[Any], spared: Iterable[tuple[float, float]], engines: Iterable[str]) -> list[Check]:
    """
    Judge whether engines ended without being killed.

    :param spared: (since, until) of times in which they were killed, or could not be expected to run on.
    """
    spared, checks = list(spared), []
    for engine in engines:
        seen = [(sample.at, sample.processes[engine]) for sample in samples if engine in sample.processes]
        ends = [(at, later) for (at, one), (later, other) in itertools.pairwise(seen) if one != other]
        wrong = [at for at, later in ends if not _overlaps(at, later, spared)]
        checks.append(Check(f"{engine} ends only where it is killed", not wrong, f"{len(wrong)} of {len(ends)} times"))
    return checks


def _overlaps(since: float, until: float, spans: Iterable[tuple[float, float]]) -> bool:
    return any(first <= until and since <= last for first, last in spans)


def flat(samples: Sequence[Any], engines: Iterable[str]) -> list[Check]:
    """Judge whether memory, open files and files on the disk grow, if the scenario lasts long enough to tell."""
    if not samples or samples[-1].at - samples[0].at < _LONG_ENOUGH:
        return []
    quarter = len(samples) // 4
    early, late, checks = samples[quarter : 2 * quarter], samples[-quarter:], []
    for engine in engines:
        for what, read, slack in (("megabytes", _megabytes, 15.0), ("open files", _files, 30.0)):
            before, after = (
                statistics.median([read(s.kinds[engine]) for s in some if _is_there(s, engine)] or [0.0])
                for some in (early, late)
            )
            told = f"{before:.0f}, and {after:.0f} in the end"
            checks.append(Check(f"{engine}: {what} do not grow", after <= 1.15 * before + slack, told))
    before, after = (statistics.median(sample.left[0] for sample in some) for some in (early, late))
    checks.append(
        Check(
            "files of the engines do not grow",
            after <= 1.15 * before + 20,
            f"{before:.0f}, and {after:.0f} in the end",
        )
    )
    return checks


def _is_there(sample: Any, engine: str) -> bool:
    return engine in sample.kinds and sample.kinds[engine].resident > 0


def _megabytes(load: Any) -> float:
    return float(load.resident / 1e6)


def _files(load: Any) -> float:
    return float(load.files)


def _some(wrong: Mapping[str, str], missing: Sequence[str]) -> str:
    told = [f"{name} is {what}" for name, what in sorted(wrong.items())]
    told += [f"{name} is not named" for name in missing]
    return "none" if not told else f"{len(told):,}: {'; '.join(told[:3])}"


def _by_cause(found: Mapping[tuple[str, str], str]) -> str:
    """Count each cause, with one example of what it caused."""
    every: dict[str, list[tuple[str, str]]] = collections.defaultdict(list)
    for pair, why in sorted(found.items()):
        every[why].append(pair)
    return "; ".join(f"{len(pairs):,}: {why} ({' '.join(pairs[0])})" for why, pairs in every.items())


def _names(found: Sequence[Any]) -> str:
    return "none" if not found else f"{len(found):,}: {', '.join(str(each) for each in sorted(found)[:3])}"


def table(checks: Sequence[Check]) -> str:
    """Return checks as lines of text."""
    return "\n".join(f"  {'good ' if check.good else 'WRONG'}  {check.what}: {check.found}" for check in checks)
