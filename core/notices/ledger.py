"""
What was reported about each batch, owed job and engine, and which notices have not arrived yet. Both are in one record,
so that a crash loses no notice.

Pure: stdlib only. It compares states, and does not rely on events, which can be lost or forged.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from saltext.jobs.core.notices.notice import TEST, Condition, GivenUp, Seen, of_batch, of_engine, of_given_up, written

#: Most notices that wait for one target; beyond it the oldest are dropped.
MOST = 200


class Ledger:
    """
    :param master: the master's id.
    :param kinds: the kinds that are reported, of ``notice.KINDS``.
    :param console: the address of the console; empty for none.
    :param targets: the names of the targets.
    :param record: the result of an earlier ``record``; None at a first start.
    """

    def __init__(
        self,
        master: str,
        kinds: Collection[str],
        console: str,
        targets: Collection[str],
        record: Mapping[str, Any] | None,
    ) -> None:
        self._master, self._kinds, self._console = master, frozenset(kinds), console
        kept = record or {}
        #: At a first start the present states count as reported, so that no old news is sent.
        self._is_first = not kept.get("begun", False)
        self._told: dict[str, str] = dict(kept.get("told", {}))
        self._over: set[str] = set(kept.get("over", ()))
        self._number = int(kept.get("number", 0))
        #: For how many minions each job was given up when that was last reported; None before the first look.
        self._given_up: dict[str, int] | None = kept.get("given_up")
        before = kept.get("waiting", {})
        #: The notices that each target has not got yet, oldest first.
        self.waiting: dict[str, list[dict[str, Any]]] = {name: list(before.get(name, ())) for name in targets}
        reached = kept.get("delivered", {})
        #: When each target last got a notice, in Unix time; None if it never has.
        self.delivered: dict[str, float | None] = {name: reached.get(name) for name in targets}
        #: How many notices were dropped since the start.
        self.dropped = dict.fromkeys(targets, 0)

    def record(self) -> dict[str, Any]:
        """Return the record to keep."""
        return {
            "begun": not self._is_first,
            "told": self._told,
            "over": sorted(self._over),
            "number": self._number,
            "waiting": self.waiting,
            "given_up": self._given_up,
            "delivered": self.delivered,
        }

    def to_read(self, jids: Collection[str]) -> list[str]:
        """Return those of some batches that must be looked at: their end is not known yet."""
        return sorted(set(jids) - self._over)

    def take_batches(self, seen: Mapping[str, Seen], jids: Collection[str], now: float) -> bool:
        """
        Take the states of batches, and return whether anything has changed.

        :param seen: the batches that could be read.
        :param jids: all batches that exist; what is known of others is forgotten.
        :param now: Unix time.
        """
        before = (self._is_first, dict(self._told), set(self._over))
        for jid in sorted(seen):
            condition = of_batch(seen[jid].summary)
            self._take(f"batch {jid}", condition, seen[jid], now)
            if condition.over:
                self._over.add(jid)
            if condition.over and not condition.kind:
                self._end_of_parent(seen[jid], now)
        self._is_first = False
        self._over &= set(jids)
        alive = {f"batch {jid}" for jid in jids}
        self._told = {name: kind for name, kind in self._told.items() if not name.startswith("batch ") or name in alive}
        return before != (False, self._told, self._over)

    def take_given_up(self, jobs: Mapping[str, GivenUp], now: float) -> bool:
        """
        Take the owed jobs that were given up, by jid, and return whether anything has changed.

        A job is reported again when the number of its minions reaches a further power of two: ten times for a thousand.
        """
        before, counts = self._given_up, {jid: len(one.minions) for jid, one in jobs.items()}
        known = before or {}
        fresh = [jid for jid in sorted(jobs) if counts[jid].bit_length() > known.get(jid, 0).bit_length()]
        self._given_up = {jid: count if jid in fresh else min(count, known[jid]) for jid, count in counts.items()}
        if fresh and before is not None:
            given_up = [jobs[jid] for jid in fresh]
            self._write("dead", of_given_up(given_up), None, now, given_up)
        return before != self._given_up

    def take_engine(self, name: str, silent: float, now: float) -> bool:
        """Take for how many seconds an engine has not answered, and return whether anything has changed."""
        before = dict(self._told)
        self._take(f"engine {name}", of_engine(name, silent), None, now)
        return before != self._told

    def take_test(self, now: float) -> None:
        """Send a test notice: a user wants to see whether notices arrive."""
        self._write(TEST, "A test of the notices, which an operator has asked for. Nothing is wrong.", None, now)

    def arrived(self, target: str, number: str, now: float) -> None:
        """Note that a notice has arrived at a target."""
        self.delivered[target] = now
        self.forget(target, number)

    def forget(self, target: str, number: str) -> None:
        """Remove a notice from those that wait for a target."""
        self.waiting[target] = [one for one in self.waiting[target] if one["id"] != number]

    def _take(self, subject: str, condition: Condition, seen: Seen | None, now: float) -> None:
        before, after = self._told.get(subject, ""), condition.identity if condition.kind in self._kinds else ""
        if before == after:
            return
        if after:
            self._told[subject] = after
        else:
            del self._told[subject]
        if self._is_first:
            return
        self._write(condition.kind if after else "recovered", condition.text, seen, now)

    def _end_of_parent(self, seen: Seen, now: float) -> None:
        """A retry has succeeded, so the failure of the batch that it retried is over too."""
        parent = str(seen.summary.get("parent") or "")
        if self._told.pop(f"batch {parent}", "") and not self._is_first:
            text = f"Batch {seen.summary['jid']}, a retry of {parent}, has succeeded."
            self._write("recovered", text, seen, now)

    def _write(self, kind: str, text: str, seen: Seen | None, now: float, jobs: Sequence[GivenUp] = ()) -> None:
        if kind != TEST and kind not in self._kinds:
            return
        self._number += 1
        # The time makes it unique: after a crash the same number can come again.
        number = f"{self._master}-{round(now * 1000)}-{self._number}"
        notice = written(number, kind, text, now, self._master, seen, self._console, jobs)
        for target, waiting in self.waiting.items():
            if kind == TEST and any(one["kind"] == TEST for one in waiting):
                continue  # tests must not push out a real notice, however many there are
            waiting.append(notice)
            too_many = len(waiting) - MOST
            if too_many > 0:
                del waiting[:too_many]
                self.dropped[target] += too_many
