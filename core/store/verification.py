"""
Finds records of the job cache that are unreadable or contradict each other, and repairs what can be repaired.

It must never remove a job that may be in the middle of its publish, nor a record that merely cannot be read now.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from typing import Any

from salt.exceptions import SaltCacheError

from saltext.jobs.core.banks import LOADS, MINIONS, PUBLISHED, RETURNS
from saltext.jobs.core.disk.job_summary import has_failed
from saltext.jobs.core.store import calling, records
from saltext.jobs.core.store.store import Store

# a younger record may belong to a publish that is under way, or be a return that is being stored
SETTLED_SECONDS = 300

Load = dict[str, Any]
Fix = Callable[[], bool]


class Verification:
    """
    :param store: the store to check.
    :param clean: returns a load without its secrets.
    :param repair: repair what can be repaired; without it nothing is written.
    """

    def __init__(self, store: Store, clean: Callable[[Load], Load], repair: bool) -> None:
        self._store, self._clean, self._repair = store, clean, repair
        self._problems: list[dict[str, Any]] = []
        self._returns = 0

    def run(self, told: Callable[[int, int], None]) -> dict[str, Any]:
        """
        Look at every job, and return ``jobs``, ``returns`` (counts) and ``problems``: dicts with jid, problem, minion,
        detail and repaired.

        :param told: gets the number of jobs looked at so far, and the number of all jobs.
        :raises Outage: if the store cannot be used.
        """
        loads = sorted(self._store.keys(LOADS))
        for count, key in enumerate(loads, 1):
            self._look_at_load(key)
            self._look_at_returns(key, self._expected(key))
            told(count, len(loads))
        self._look_for_jobs_without_load(set(loads))
        return {"jobs": len(loads), "returns": self._returns, "problems": self._problems}

    def _note(
        self, problem: str, key: str, fix: Fix | None = None, minion: str | None = None, detail: Any = None
    ) -> None:
        """Note a problem. ``fix()`` is called if repairs are wanted, and returns whether the problem is repaired."""
        repaired = bool(self._repair and fix is not None and fix())
        self._problems.append(
            {
                "jid": self._store.decode(key),
                "problem": problem,
                "minion": minion and self._store.decode(minion),
                "detail": None if detail is None else str(detail),
                "repaired": repaired,
            }
        )

    def _read(self, bank: str, key: str) -> tuple[Any, SaltCacheError | None]:
        """Return the value, and why it cannot be read."""
        try:
            return self._store.fetch(bank, key), None
        except calling.Outage:
            raise
        except SaltCacheError as exc:
            return None, exc

    def _set_aside(self, bank: str, key: str, kind: type, *lock: str) -> bool:
        with self._store.lock(*lock):
            return bool(records.set_aside(self._store, bank, key, kind))

    def _look_at_load(self, key: str) -> None:
        load, error = self._read(LOADS, key)
        if error or not isinstance(load, dict):
            self._note(
                "unreadable-load",
                key,
                (lambda: self._set_aside(LOADS, key, dict, key)) if _is_damage(error) else None,
                detail=error or f"it is a {type(load).__name__}",
            )
            return
        (record,) = self._store.driver.read_all([(PUBLISHED, key)])
        if not records.is_believed(self._store, key, load, record):
            self._note("unpublished-load", key, detail="it is not the one that was published, and no reader shows it")
        if self._clean(load) != load:
            self._note("secrets-in-load", key, lambda: bool(records.replace_load(self._store, key, self._clean)))

    def _expected(self, key: str) -> set[str] | None:
        """Return the minions that a published job is for; None if that is not known."""
        minions, error = self._read(MINIONS, key)
        if not minions and not error:
            return None
        if error or not (isinstance(minions, list) and all(isinstance(name, str) for name in minions)):
            fix = (lambda: self._write_minions(key)) if _is_damage(error) else None
            self._note("unreadable-minions", key, fix, detail=error)
            return None
        return set(minions) if self._store.contains(PUBLISHED, key) else None

    def _write_minions(self, key: str) -> bool:
        answered = {self._store.decode(name) for name in self._store.keys(f"{RETURNS}/{key}")}
        with self._store.lock(key):
            records.set_aside(self._store, MINIONS, key, list)
            records.add_minions(self._store, key, answered, always=True)
        return True

    def _look_at_returns(self, key: str, expected: set[str] | None) -> None:
        bank, failed = f"{RETURNS}/{key}", {}
        for minion in sorted(self._store.keys(bank)):
            self._returns += 1
            record, error = self._read(bank, minion)
            if error:
                set_aside = functools.partial(self._set_aside, bank, minion, object, key, minion)
                fix = set_aside if isinstance(error, calling.Undecodable) else None
                self._note("unreadable-return", key, fix, minion, error)
                continue
            failed[minion] = has_failed(record)
            if expected is not None and self._store.decode(minion) not in expected:
                self._note("unexpected-return", key, minion=minion)
        self._compare_with_index(key, failed)

    def _compare_with_index(self, key: str, failed: Mapping[str, bool]) -> None:
        """:param failed: for each readable return of a job, whether it reports a failure."""
        index = self._store.driver.index
        tally = index.tallies([key], None).get(key)
        if tally is None or tally.failed == sum(failed.values()):
            return
        for minion, is_failure in failed.items():
            known = index.tallies([key], minion).get(key)
            if known is not None and ("failed" in known.of_minion) is not is_failure:
                self._note("miscounted-return", key, functools.partial(self._store_again, key, minion), minion)

    def _store_again(self, key: str, minion: str) -> bool:
        bank = f"{RETURNS}/{key}"
        with self._store.lock(key, minion):
            record, _ = self._read(bank, minion)
            if record:  # it may have been removed meanwhile
                self._store.store(bank, minion, record, self._store.sync_all)
        return bool(record)

    def _look_for_jobs_without_load(self, loads: set[str]) -> None:
        left = {key for bank in records.BANKS[1:] for key in self._store.keys(bank)}
        left = left.union(self._store.driver.banks(RETURNS)) - loads
        for key in sorted(left):
            if self._store.contains(LOADS, key):
                continue  # published meanwhile
            if self._is_settled(key):
                self._note("no-load", key, functools.partial(self._drop, key))

    def _is_settled(self, key: str) -> bool:
        written = records.last_written(self._store, key)
        return written is None or time.time() - written > SETTLED_SECONDS

    def _drop(self, key: str) -> bool:
        with self._store.lock(key):
            if self._store.contains(LOADS, key) or not self._is_settled(key):
                return False
            records.drop(self._store, key)
            return True


def _is_damage(error: SaltCacheError | None) -> bool:
    """Tell whether the record itself is damaged, and not only unreadable."""
    return error is None or isinstance(error, calling.Undecodable)
