"""
The index of jobs: a row for each load, by which jobs are found and listed without reading the values.

``mark`` is the function and the user of the load, ``shown`` what else ``jobs.list_jobs`` shows of it
(``core/disk/job_summary.py``), NULL if the load must be read. ``dated``: whether the jid begins with a date.

The index is written in the transaction that writes the values (``core/ledger/values.py``). A row says where to look; the
values say what is there. All functions raise OSError when the database cannot be used now.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import salt.payload

from saltext.jobs.core.banks import LOADS, MINIONS, RETURNS
from saltext.jobs.core.disk import stored
from saltext.jobs.core.disk.job_summary import JobTally, Named, decoded, job_marks, shown_mark, shown_of, tally_of
from saltext.jobs.core.ledger.tables import JOBS, VALUES, Tables, marks_of

#: Rows read at first, at a time later, and at a time where the database checks each.
FEW, MANY, WINDOW = 40, 500, 4000
#: Most values in one query.
CHUNK = 500
#: Between the function and the user in a mark.
_BETWEEN = "\x01"

is_dated = re.compile("[0-9]{8}").match

_PUT = f"""INSERT INTO {JOBS} (jid, mark, dated, shown) VALUES (?, ?, ?, ?)
    ON CONFLICT (jid) DO UPDATE SET mark = excluded.mark, shown = excluded.shown"""
# The index leads from each mark to the next, past all jobs with that mark.
_MARKS = f"""WITH RECURSIVE found (mark) AS (
        SELECT min(mark) FROM {JOBS}
        UNION ALL SELECT (SELECT min(mark) FROM {JOBS} WHERE mark > found.mark) FROM found WHERE found.mark IS NOT NULL)
    SELECT mark FROM found WHERE mark IS NOT NULL"""
_DOWN = f"SELECT jid FROM {JOBS} WHERE {{}} jid {{}} ? AND jid >= ? ORDER BY jid DESC LIMIT {{}}"
_FAILED = f"""SELECT DISTINCT bank FROM {VALUES} WHERE failed = 1 AND bank {{}} ? AND bank >= ?
    ORDER BY bank DESC LIMIT {{}}"""
_WINDOW = f"""SELECT min(jid), count(*) FROM (
    SELECT jid FROM {JOBS} WHERE jid {{}} ? AND jid >= ? ORDER BY jid DESC LIMIT {{}}) AS w"""
_NEAR = f"""SELECT j.jid FROM {JOBS} AS j WHERE j.jid {{}} ? AND j.jid >= ? AND (
        EXISTS (SELECT 1 FROM {VALUES} AS v WHERE v.bank = '{MINIONS}' AND v.key = j.jid AND {{{{holds}}}})
        OR EXISTS (SELECT 1 FROM {VALUES} AS r WHERE r.bank = '{RETURNS}/' || j.jid AND r.key = ?))
    ORDER BY j.jid DESC"""
_REMOVE = f"""DELETE FROM {JOBS}
    WHERE jid = ? AND NOT EXISTS (SELECT 1 FROM {VALUES} WHERE bank = '{LOADS}' AND key = ?)"""
_UNDATED = f"""SELECT j.jid, v.updated FROM {JOBS} AS j CROSS JOIN {VALUES} AS v
    WHERE j.dated = 0 AND v.bank = '{LOADS}' AND v.key = j.jid"""


def put(tables: Tables, jid: str, load: Any) -> None:
    """Index a load that was stored."""
    mark = job_marks(load)
    kept = [_clean(part) for part in mark]
    shown = shown_of(jid, mark, load) if tuple(kept) == mark else None
    tables.run(_PUT, (jid, _BETWEEN.join(kept), int(bool(is_dated(jid))), shown))


def _clean(text: str) -> str:
    """Return a function or a user as a text that can be stored: what a minion sends may hold anything."""
    return text.replace("\0", "").replace(_BETWEEN, "").encode("utf-8", "replace").decode()


def remove(tables: Tables, jid: str | None = None) -> None:
    """Remove a job without a load from the index; by default all jobs."""
    if jid is None:
        tables.run(f"DELETE FROM {JOBS}")
    else:
        tables.run(_REMOVE, (jid, jid))


def count(tables: Tables) -> int:
    """Return how many loads there are."""
    return int(tables.read(f"SELECT count(*) FROM {JOBS}")[0][0])


# -- finding them -------------------------------------------------------------------------------------------------------


def jids(tables: Tables, low: str, high: str, mark: str | None = None) -> Iterator[str]:
    """
    Yield the jids of loads that begin with a date, from ``high`` down to ``low``, both included.

    :param mark: only loads with this mark.
    """
    where, values = ("mark = ? AND", (mark,)) if mark is not None else ("", ())
    # a caller that wants the newest jobs wants only a few
    rows = tables.read(_DOWN.format(where, "<=", FEW), (*values, high, low))
    while rows:
        yield from (row[0] for row in rows if is_dated(row[0]))
        rows = tables.read(_DOWN.format(where, "<", MANY), (*values, rows[-1][0], low))


def failed(tables: Tables, low: str, high: str) -> Iterator[str]:
    """As ``jids``, for jobs with a return that tells of a failure."""
    before = f"{RETURNS}/"
    rows = tables.read(_FAILED.format("<=", FEW), (before + high, before + low))
    while rows:
        yield from filter(is_dated, (row[0][len(before) :] for row in rows))
        rows = tables.read(_FAILED.format("<", MANY), (rows[-1][0], before + low))


def near(tables: Tables, low: str, high: str, minion: str) -> Iterator[str]:
    """As ``jids``, for jobs that are (or may be) for a minion, or that have its return."""
    name = salt.payload.dumps(minion, use_bin_type=True)  # as it stands in a list: its length, then the name
    sign, size = "<=", FEW
    while True:
        # Each query is short, however rare the minion is.
        ((last, number),) = tables.read(_WINDOW.format(sign, size), (high, low))
        if number:
            found = tables.read(_NEAR.format(sign), (high, last, name, minion))
            yield from (row[0] for row in found if is_dated(row[0]))
        if number < size:
            return
        sign, high, size = "<", last, WINDOW


def tallies(tables: Tables, wanted: Sequence[str], named: Named | None) -> dict[str, JobTally]:
    """
    Return the tallies of some jobs, without reading their returns. A job whose list of minions is damaged has none. A
    return that was removed while its job stays counts as missing.

    :param named: the minions of ``JobTally.of_named``.
    """
    found, known = dict[str, JobTally](), dict[bytes, frozenset[str]]()
    for part in parts(wanted):
        query = f"SELECT key, value FROM {VALUES} WHERE bank = '{MINIONS}' AND key IN ({marks_of(part)})"
        lists = dict(tables.read(query, part))
        query = f"SELECT bank, key FROM {VALUES} WHERE {{}} bank IN ({marks_of(part)})"
        banks = [f"{RETURNS}/{jid}" for jid in part]
        returned, failing = (_by_jid(tables.read(query.format(only), banks)) for only in ("", "failed = 1 AND"))
        for jid in part:
            data = lists.get(jid, b"\x90")  # an empty list
            if data not in known:  # jobs are often for the same minions
                try:
                    known[data] = frozenset(name for name in stored.loads(data) if isinstance(name, str))
                except Exception:  # msgpack raises many kinds for a broken value
                    continue
            found[jid] = tally_of(known[data], returned.get(jid, set()), failing.get(jid, set()), named)
    return found


def _by_jid(rows: Iterable[Sequence[Any]]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for bank, key in rows:
        found.setdefault(bank[len(RETURNS) + 1 :], set()).add(key)
    return found


def marks(tables: Tables) -> Mapping[str, tuple[str, str]]:
    """Return each mark that loads have, with its function and user."""
    return {row[0]: _pair(row[0]) for row in tables.read(_MARKS)}


def _pair(mark: str) -> tuple[str, str]:
    fun, _, user = mark.partition(_BETWEEN)
    return fun, user


def oldest(tables: Tables, most: int) -> list[str]:
    """Return up to ``most`` jids of loads that begin with a date, oldest first."""
    query = f"SELECT jid FROM {JOBS} WHERE dated = 1 AND jid > ? ORDER BY jid LIMIT {MANY}"
    return list(itertools.islice((row[0] for rows in _pages(tables, query) for row in rows), most))


def undated(tables: Tables) -> dict[str, float]:
    """Return the jids of loads that do not begin with a date, with the Unix times of their last write."""
    return dict(tables.read(_UNDATED))


def shown(tables: Tables) -> Iterator[tuple[Sequence[str], list[tuple[str, str]], list[list[Any] | None]]]:
    """
    Yield what ``jobs.list_jobs`` shows of all loads, some at a time: their jids, in order; in the same order, their
    (function, user); and for each a list of arguments, target, target type and, if there is any, metadata.

    None in place of a list says that the load must be read, for example because the list is damaged.
    """
    query = f"SELECT jid, mark, shown FROM {JOBS} WHERE jid > ? ORDER BY jid LIMIT {MANY}"
    known: dict[str, tuple[str, str]] = {}
    for rows in _pages(tables, query):
        found, pairs, values = zip(*rows, strict=True)
        for mark in pairs:
            if mark not in known:
                known[mark] = shown_mark(*_pair(mark))
        yield found, [known[mark] for mark in pairs], decoded(values)


def _pages(tables: Tables, query: str) -> Iterator[list[tuple[Any, ...]]]:
    rows = tables.read(query, ("",))
    while rows:
        yield rows
        rows = tables.read(query, (rows[-1][0],))


def parts(values: Sequence[str]) -> Iterator[list[str]]:
    """Yield the values in lists of ``CHUNK``."""
    for start in range(0, len(values), CHUNK):
        yield list(values[start : start + CHUNK])
