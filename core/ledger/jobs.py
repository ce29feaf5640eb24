"""
The index of jobs: a row for each load, by which jobs are found and listed, in the order of their jids, without reading the
values. ``mark`` is the function and the user of the load.

It is written in the transaction that writes the values (``core/ledger/values.py``). A row says where to look; the values say
what is there. All functions raise OSError when the database cannot be used now.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import salt.payload

from saltext.jobs.core.banks import LOADS, MINIONS, RETURNS
from saltext.jobs.core.ledger import stored
from saltext.jobs.core.ledger.tables import JOBS, VALUES, Tables, marks_of
from saltext.jobs.core.ledger.tally import JobTally, Named, job_marks, tally_of

#: Rows read at first, at a time later, and at a time where the database checks each.
FEW, MANY, WINDOW = 40, 500, 4000
#: Most values in one query.
CHUNK = 500
#: Between the function and the user in a mark.
_BETWEEN = "\x01"

_PUT = f"INSERT INTO {JOBS} (jid, mark) VALUES (?, ?) ON CONFLICT (jid) DO UPDATE SET mark = excluded.mark"
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


def put(tables: Tables, jid: str, load: Any) -> None:
    tables.run(_PUT, (jid, _BETWEEN.join(map(_clean, job_marks(load)))))


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
    return int(tables.read(f"SELECT count(*) FROM {JOBS}")[0][0])


# -- finding them -------------------------------------------------------------------------------------------------------


def jids(tables: Tables, low: str, high: str, mark: str | None = None) -> Iterator[str]:
    """Yield the jids of loads from ``high`` down to ``low``, both included; only those with this mark, if one is given."""
    where, values = ("mark = ? AND", (mark,)) if mark is not None else ("", ())
    return _down(tables, _DOWN.format(where, "{}", "{}"), low, high, *values)


def _down(tables: Tables, query: str, low: str, high: str, *values: str) -> Iterator[str]:
    # a caller that wants the newest jobs wants only a few
    rows = tables.read(query.format("<=", FEW), (*values, high, low))
    while rows:
        yield from (row[0] for row in rows)
        rows = tables.read(query.format("<", MANY), (*values, rows[-1][0], low))


def failed(tables: Tables, low: str, high: str) -> Iterator[str]:
    """As ``jids``, for jobs with a return that tells of a failure."""
    before = f"{RETURNS}/"
    return (bank[len(before) :] for bank in _down(tables, _FAILED, before + low, before + high))


def near(tables: Tables, low: str, high: str, minion: str) -> Iterator[str]:
    """As ``jids``, for jobs that are (or may be) for a minion, or that have its return."""
    name = salt.payload.dumps(minion, use_bin_type=True)  # as it stands in a list: its length, then the name
    sign, size = "<=", FEW
    while True:
        # Each query is short, however rare the minion is.
        ((last, number),) = tables.read(_WINDOW.format(sign, size), (high, low))
        if number:
            found = tables.read(_NEAR.format(sign), (high, last, name, minion))
            yield from (row[0] for row in found)
        if number < size:
            return
        sign, high, size = "<", last, WINDOW


def tallies(tables: Tables, wanted: Sequence[str], named: Named | None) -> dict[str, JobTally]:
    """
    Return the tallies of some jobs, without reading their returns. A job whose list of minions is damaged has none. A return
    that was removed while its job stays counts as missing. ``named``: the minions of ``JobTally.of_named``.
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
    """Return ``{mark: (function, user)}`` of all loads."""
    pairs = {mark: mark.partition(_BETWEEN) for (mark,) in tables.read(_MARKS)}
    return {mark: (fun, user) for mark, (fun, _, user) in pairs.items()}


def oldest(tables: Tables, most: int) -> list[str]:
    """Return up to ``most`` jids of loads, the first ones."""
    return [row[0] for row in tables.read(f"SELECT jid FROM {JOBS} ORDER BY jid LIMIT ?", (most,))]


def parts(values: Sequence[str]) -> Iterator[list[str]]:
    for start in range(0, len(values), CHUNK):
        yield list(values[start : start + CHUNK])
