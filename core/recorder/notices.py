"""
Which conditions of batches, owed jobs and engines deserve a notice, what was reported before, and what a notice says.

Pure: stdlib only. It compares states, and does not rely on events, which can be lost or forged. A notice must never contain
the return of a minion or an argument of a job.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

from saltext.jobs.core.display.text import counted, cut

#: The kind that is sent on request; the others are ``NOTICES`` of the options.
TEST = "test"
#: Most minions that a notice names.
NAMED = 20
#: Most characters of a text; most jobs that it describes, and most characters of a function or a reason in it.
_LONGEST, _JOBS, _SHORT = 2000, 5, 120
#: States of minions on which a batch did not succeed, worst first.
_WRONG = ("failed", "timed_out", "lost", "killed", "offline", "queued")
_COUNTS = ("total", "completed", "active", "pending", *_WRONG)
_ENDED = ("complete", "halted")
#: Seconds after its end for which a batch is looked at: a retry, the retry queue or late returns may complete it.
_FOLLOWED = 7 * 86400.0
_UNSAFE = re.compile(r"[^A-Za-z0-9_.,:;/#%@() -]")


class Condition(NamedTuple):
    """The state of a batch or an engine."""

    kind: str  # one of ``NOTICES`` of the options, or empty if there is nothing to report
    text: str  # a sentence for people
    mark: str = ""  # distinguishes conditions of one kind, such as the number of the stage that waits for an approval


class Seen(NamedTuple):
    """The present state of a batch: its summary (``batch.status``) and its minions (``batch.minions``)."""

    summary: Mapping[str, Any]
    minions: Mapping[str, Mapping[str, Any]]


class GivenUp(NamedTuple):
    """A job of the retry queue that was given up for some minions. ``minions``: ``{minion: reason}``."""

    jid: str
    fun: str
    minions: Mapping[str, str]


class Reported:
    """Reports these ``kinds``, with the address of the ``console``. ``record``: the last one kept; None at first."""

    def __init__(self, master: str, kinds: Collection[str], console: str, record: Mapping[str, Any] | None) -> None:
        self._master, self._kinds, self._console = master, frozenset(kinds), console
        kept = record or {}
        # At a first start the present states count as reported, so that no old news is sent.
        self._is_first = not kept.get("begun", False)
        self._told: dict[str, str] = dict(kept.get("told", {}))
        self._settled: set[str] = set(kept.get("settled", ()))  # batches that are not looked at any more
        self._ended: set[str] = set()  # others that have ended
        # For how many minions each job was given up when that was last reported; None before the first look.
        self._given_up: dict[str, int] | None = kept.get("given_up")
        self._number = 0
        self._written: list[dict[str, Any]] = []

    def record(self) -> dict[str, Any]:
        begun = not self._is_first
        return {"begun": begun, "told": self._told, "settled": sorted(self._settled), "given_up": self._given_up}

    def to_read(self, jids: Collection[str], ended: bool) -> list[str]:
        """Return those of some batches that must be looked at: either those that have ``ended``, or all others."""
        others = set(jids) - self._settled
        return sorted(others & self._ended if ended else others - self._ended)

    def take_batches(self, seen: Mapping[str, Seen], jids: Collection[str], now: float) -> None:
        """Take the states of those batches that could be read. ``jids``: all that exist; any other is forgotten."""
        for jid in sorted(seen):
            found, condition = seen[jid].summary, _of_batch(seen[jid].summary)
            if condition:
                self._take(f"batch {jid}", condition, now, seen[jid])
            if found["state"] in _ENDED:
                is_well = condition and not condition.kind
                (self._settled if is_well or now - found["finished"] > _FOLLOWED else self._ended).add(jid)
        self._is_first = False
        self._settled &= set(jids)
        self._ended &= set(jids) - self._settled
        alive = {f"batch {jid}" for jid in jids}
        self._told = {name: kind for name, kind in self._told.items() if not name.startswith("batch ") or name in alive}

    def take_given_up(self, jobs: Mapping[str, GivenUp], now: float) -> None:
        """
        Take the owed jobs that were given up, by jid. One is reported again when the number of its minions reaches a further
        power of two: ten times for a thousand.
        """
        before, counts = self._given_up, {jid: len(one.minions) for jid, one in jobs.items()}
        known = before or {}
        fresh = [jid for jid in sorted(jobs) if counts[jid].bit_length() > known.get(jid, 0).bit_length()]
        self._given_up = {jid: count if jid in fresh else min(count, known[jid]) for jid, count in counts.items()}
        if fresh and before is not None:
            given_up = [jobs[jid] for jid in fresh]
            told = [
                f"{one.jid} ({_cut(one.fun, _SHORT)}) for {counted(len(one.minions), 'minion')}: "
                f"{_cut(next(iter(one.minions.values())), _SHORT)}"
                for one in given_up[:_JOBS]
            ]
            more = f"; and {len(fresh) - _JOBS} more jobs" if len(fresh) > _JOBS else ""
            text = f"Owed jobs were given up: {'; '.join(told)}{more}. salt-run job_retry.list state=dead shows all."
            self._write("dead", text, now, jobs=given_up)

    def take_engine(self, name: str, silent: float, now: float) -> None:
        """Take for how many seconds an engine has not answered; 0 if it has."""
        hangs = Condition("engine", f"The {name} engine has not answered for {silent:.0f} s: it hangs or does not run")
        self._take(f"engine {name}", hangs if silent else Condition("", f"The {name} engine answers again"), now)

    def take_test(self, now: float) -> None:
        """Send a test notice: a user wants to see whether notices arrive."""
        self._write(TEST, "A test of the notices, which an operator has asked for. Nothing is wrong.", now)

    def written(self) -> list[dict[str, Any]]:
        """Return the notices that were written since the last call, oldest first."""
        found, self._written = self._written, []
        return found

    def _take(self, subject: str, condition: Condition, now: float, seen: Seen | None = None) -> None:
        after = f"{condition.kind} {condition.mark}".strip()
        if (after and condition.kind not in self._kinds) or self._told.get(subject, "") == after:
            return
        if after:
            self._told[subject] = after
        else:
            del self._told[subject]
        if not self._is_first:
            self._write(condition.kind if after else "recovered", condition.text, now, seen)

    def _write(self, kind: str, text: str, now: float, seen: Seen | None = None, jobs: Sequence[GivenUp] = ()) -> None:
        """Write a notice in the form that is sent. ``jobs``: those that were given up, for a notice about these."""
        if kind not in self._kinds | {TEST}:
            return
        self._number += 1
        found: Mapping[str, Any] = seen.summary if seen else {}
        wrong = _wrong(seen.minions) if seen else sorted({minion for one in jobs for minion in one.minions})
        page = "queue" if jobs else f"batches/{quote(str(found['jid']), safe='')}" if found.get("jid") else ""
        address = f"{self._console.split('#')[0]}#/{page}" if self._console and page else ""
        names = f" Minions: {', '.join(wrong[:NAMED])}{', …' if len(wrong) > NAMED else ''}." if wrong else ""
        shown = [name for name in ("jid", "fun", "user", "tgt", "state", "parent") if found.get(name)]
        notice = {
            # The time makes it unique over restarts; a repeated notice has the same.
            "id": f"{self._master}-{round(now * 1000)}-{self._number}",
            "kind": kind,
            "text": f"{_cut(text)}{names}{f' {address}' if address else ''}",
            "time": round(now, 3),
            "master": self._master,
            **{name: _bounded(found[name]) for name in shown},
            "counts": {name: found[name] for name in _COUNTS if name in found},
            "jobs": [{"jid": one.jid, "fun": _cut(one.fun, _SHORT)} for one in jobs[:NAMED]],
            "minions": wrong[:NAMED],
            "minions_in_all": len(wrong),
            "link": address,
        }
        self._written.append({name: value for name, value in notice.items() if value})


def _of_batch(found: Mapping[str, Any]) -> Condition | None:
    """Return the condition of a batch; None where what was reported before stays true, or nothing is to be reported yet."""
    state, by, counted = found["state"], found.get("paused_by"), _counted(found)
    batch, left = f"Batch {found['jid']}", found.get("unmended", found)
    if found.get("success"):
        return Condition("", f"{batch} has succeeded. {counted}")
    if found.get("retries") and not left:
        return Condition("", f"{batch} is mended by {', '.join(found['retries'])}. {counted}")
    if state in ("stopping", "halted"):  # do not wait for minions in flight: they may run for long
        return Condition("halted", f"{batch} was halted: {found['halted_reason']}. {counted}")
    if state == "complete":
        # The retry queue or a retry is at work on those that are left, or somebody has to act.
        is_under_way = not any(left.get(name) for name in _WRONG if name != "queued")
        return None if is_under_way else Condition("failed", f"{batch} has not succeeded. {counted}")
    if by == "approval":
        return Condition("approval", f"{batch} waits for an approval. {counted}", str(found.get("approve")))
    if by in ("publish", "permission"):
        return Condition("paused", f"{batch} is paused: {found['paused_reason']}. {counted}", by)
    return Condition("", f"{batch} goes on. {counted}")


def _counted(found: Mapping[str, Any]) -> str:
    """Return ``36 of 40 minions completed, 3 failed, 1 pending.``"""
    rest = [f"{found[name]} {name.replace('_', ' ')}" for name in (*_WRONG, "active", "pending") if found.get(name)]
    done = f"{found['completed']} of {counted(found['total'], 'minion')} completed"
    return f"{', '.join([done, *rest])}."


def _wrong(minions: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the minions on which a batch and its retries did not succeed, worst first."""
    states = {minion: record.get("retry_state") or record["state"] for minion, record in minions.items()}
    return sorted((one for one in states if states[one] in _WRONG), key=lambda one: _WRONG.index(states[one]))


def _bounded(value: Any) -> Any:
    """Return a value of a summary, and cut long lists of names: 200 notices may wait, each with such lists."""
    if isinstance(value, (list, tuple)):
        return [*value[:NAMED], *(["…"] if len(value) > NAMED else [])]
    return _cut(value) if isinstance(value, str) else value


def _cut(text: str, most: int = _LONGEST) -> str:
    return cut(text, most, middle=False)


def plain(text: str) -> str:
    """Return text without what is special to a shell, to YAML or to Jinja, by which the returner for mail renders it."""
    return _UNSAFE.sub("_", text)
