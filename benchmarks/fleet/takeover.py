"""
How long it took until another master led, and until it published, after the leader had gone.

Pure: stdlib only. It goes by what the minions heard, and by the leases.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Mapping, Sequence

from benchmarks.fleet.truth import Truth

#: Seconds in which a leader takes a freed slot again: its intent may be durable before any minion has heard of it.
_TAKEN_AGAIN = 1.0
#: Aims after a kill, in seconds.
TAKEN, FREE, DOUBTED, OWED = "taken over", "next publish, into free slots", "into slots in doubt", "first owed job"
AIMS = {TAKEN: 15.0, FREE: 20.0, DOUBTED: 35.0, OWED: 30.0}


@dataclasses.dataclass(frozen=True)
class Fault:
    """
    ``what`` happened at a time; ``until`` the next one. ``lost``: the engines whose leader it took away; ``back``: minions
    that came back at that moment, and are owed jobs.
    """

    at: float
    what: str
    lost: frozenset[str] = frozenset()
    back: frozenset[str] = frozenset()
    until: float = math.inf


@dataclasses.dataclass(frozen=True)
class Lead:
    """From ``at`` on a process of ``master`` leads an engine."""

    at: float
    engine: str
    master: str
    epoch: int


def taken_over(fault: Fault, leads: Iterable[Lead]) -> dict[str, float]:
    """Return ``{engine: seconds until another process led}``."""
    found: dict[str, float] = {}
    for lead in sorted(leads, key=lambda lead: lead.at):
        if lead.engine in fault.lost and fault.at < lead.at < fault.until:
            found.setdefault(lead.engine, lead.at - fault.at)
    return found


def until_slots_filled(truth: Truth, jid: str, limit: int, fault: Fault) -> tuple[float | None, float | None]:
    """
    Return two numbers of seconds: until a further minion got the job in a slot that was free when the leader went, and
    until one got it in another slot. Each is None if none did before the next fault, or if no minion had got the job yet.

    A slot was free if its minion had returned a second before: the leader had not taken it again, because of ``batch_wait``.
    """
    published = [each for each in truth.publishes if each.jid == jid and not each.question]
    before = {name for each in published if each.at <= fault.at for name in each.targets}
    if not before:
        return None, None
    free_since = fault.at - _TAKEN_AGAIN
    returned = {run.minion for run in truth.runs if run.jid == jid and (run.answered or math.inf) <= free_since}
    free, further = limit - len(before - returned), set[str]()
    into_free = into_doubted = None
    for each in sorted(published, key=lambda publish: publish.at):
        if not fault.at < each.at < fault.until or not each.targets - before - further:
            continue
        further |= each.targets - before
        if free > 0 and into_free is None:
            into_free = each.at - fault.at
        if len(further) > free:
            into_doubted = each.at - fault.at
            break
    return into_free, into_doubted


def first_owed(truth: Truth, jids: Collection[str], fault: Fault) -> float | None:
    """Return the seconds until one of the minions that came back was sent one of these jobs; None if none was."""
    sent = [each.at for each in truth.publishes if each.jid in jids and each.targets & fault.back]
    return min((at - fault.at for at in sent if fault.at < at < fault.until), default=None)


def spread(values: Sequence[float]) -> str:
    """Return the median, the 99th percentile and the most of some seconds, as text."""
    if not values:
        return "none"
    ordered = sorted(values)

    def share(part: float) -> float:
        return ordered[max(0, math.ceil(part * len(ordered)) - 1)]

    return f"p50 {share(0.5):.1f} s, p99 {share(0.99):.1f} s, most {ordered[-1]:.1f} s of {len(ordered)}"


def measured(
    truth: Truth,
    faults: Iterable[Fault],
    leads: Collection[Lead],
    limits: Mapping[str, int],
    owed: Collection[str],
    batches: str,
    queue: str,
) -> dict[str, list[float]]:
    """
    Return the seconds for each name in ``AIMS``.

    :param limits: ``{jid: how many at a time}`` of the batches; ``owed``: the jids of the owed jobs.
    :param batches: the engine that drives the former; ``queue``: the one that delivers the latter.
    """
    found: dict[str, list[float]] = {name: [] for name in AIMS}
    for fault in faults:
        found[TAKEN] += taken_over(fault, leads).values()
        if batches in fault.lost:
            for jid, limit in limits.items():
                for name, seconds in zip((FREE, DOUBTED), until_slots_filled(truth, jid, limit, fault), strict=True):
                    found[name] += [] if seconds is None else [seconds]
        if queue in fault.lost and (seconds := first_owed(truth, owed, fault)) is not None:
            found[OWED].append(seconds)
    return found
