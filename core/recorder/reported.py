"""
What was reported about each batch, owed job and engine, and which notices follow from what is there now.

Pure: stdlib only. It compares states, and does not rely on events, which can be lost or forged.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from saltext.jobs.core.recorder.notice import TEST, Condition, GivenUp, Seen, of_batch, of_engine, of_given_up, written


class Reported:
    """
    :param master: the master's id.
    :param kinds: the kinds that are reported.
    :param console: the address of the console; empty for none.
    :param record: the result of an earlier ``record``; None at a first start.
    """

    def __init__(
        self,
        master: str,
        kinds: Collection[str],
        console: str,
        record: Mapping[str, Any] | None,
    ) -> None:
        self._master, self._kinds, self._console = master, frozenset(kinds), console
        kept = record or {}
        #: At a first start the present states count as reported, so that no old news is sent.
        self._is_first = not kept.get("begun", False)
        self._told: dict[str, str] = dict(kept.get("told", {}))
        self._over: set[str] = set(kept.get("over", ()))
        self._number = 0
        #: For how many minions each job was given up when that was last reported; None before the first look.
        self._given_up: dict[str, int] | None = kept.get("given_up")
        self._written: list[dict[str, Any]] = []

    def record(self) -> dict[str, Any]:
        """Return the record to keep."""
        return {
            "begun": not self._is_first,
            "told": self._told,
            "over": sorted(self._over),
            "given_up": self._given_up,
        }

    def to_read(self, jids: Collection[str]) -> list[str]:
        """Return those of some batches that must be looked at: their end is not known yet."""
        return sorted(set(jids) - self._over)

    def take_batches(self, seen: Mapping[str, Seen], jids: Collection[str], now: float) -> None:
        """
        Take the states of batches.

        :param seen: the batches that could be read.
        :param jids: all batches that exist; what is known of others is forgotten.
        :param now: Unix time.
        """
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

    def take_given_up(self, jobs: Mapping[str, GivenUp], now: float) -> None:
        """
        Take the owed jobs that were given up, by jid.

        A job is reported again when the number of its minions reaches a further power of two: ten times for a thousand.
        """
        before, counts = self._given_up, {jid: len(one.minions) for jid, one in jobs.items()}
        known = before or {}
        fresh = [jid for jid in sorted(jobs) if counts[jid].bit_length() > known.get(jid, 0).bit_length()]
        self._given_up = {jid: count if jid in fresh else min(count, known[jid]) for jid, count in counts.items()}
        if fresh and before is not None:
            given_up = [jobs[jid] for jid in fresh]
            self._write("dead", of_given_up(given_up), None, now, given_up)

    def take_engine(self, name: str, silent: float, now: float) -> None:
        """Take for how many seconds an engine has not answered."""
        self._take(f"engine {name}", of_engine(name, silent), None, now)

    def take_test(self, now: float) -> None:
        """Send a test notice: a user wants to see whether notices arrive."""
        self._write(TEST, "A test of the notices, which an operator has asked for. Nothing is wrong.", None, now)

    def written(self) -> list[dict[str, Any]]:
        """Return the notices that were written since the last call, oldest first."""
        found, self._written = self._written, []
        return found

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
        # The time makes it unique over restarts.
        number = f"{self._master}-{round(now * 1000)}-{self._number}"
        self._written.append(written(number, kind, text, now, self._master, seen, self._console, jobs))
