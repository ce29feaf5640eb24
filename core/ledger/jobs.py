"""
How jobs are found, listed and counted in the order of their jids, without reading what is stored of them: by the ``mark``
beside a value of ``cache: sqlite`` or ``cache: postgresql`` (``values.py``). That of a load is its function and its user;
that of a return which tells of a failure is ``FAILED``; other values have none.

All functions with tables raise OSError when the database cannot be used now.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, NamedTuple

import salt.payload

from saltext.jobs.core.banks import LOADS, MINIONS, RETURNS
from saltext.jobs.core.functions import retcode_of
from saltext.jobs.core.ledger import stored
from saltext.jobs.core.ledger.tables import VALUES, Tables, marks_of, parts_of

#: Rows read at first, at a time later, and at a time where the database checks each.
FEW, MANY, WINDOW = 40, 500, 4000
#: The mark of a failed return; and what is between the function and the user in that of a load.
FAILED, _BETWEEN = "failed", "\x01"

# The index leads from each mark to the next, past all values with that mark.
_MARKS = f"""WITH RECURSIVE found (mark) AS (
        SELECT min(mark) FROM {VALUES} WHERE mark > ''
        UNION ALL SELECT (SELECT min(mark) FROM {VALUES} WHERE mark > found.mark) FROM found WHERE found.mark IS NOT NULL)
    SELECT mark FROM found WHERE mark IS NOT NULL"""
_DOWN = f"SELECT key FROM {VALUES} WHERE bank = '{LOADS}' AND {{}} key {{}} ? AND key >= ? ORDER BY key DESC LIMIT {{}}"
_FAILED = f"""SELECT DISTINCT bank FROM {VALUES} WHERE mark = '{FAILED}' AND bank {{}} ? AND bank >= ?
    ORDER BY bank DESC LIMIT {{}}"""
_WINDOW = f"SELECT min(key), count(*) FROM ({_DOWN.format('', '{}', '{}')}) AS w"
_NEAR = f"""SELECT j.key FROM {VALUES} AS j WHERE j.bank = '{LOADS}' AND j.key {{}} ? AND j.key >= ? AND (
        EXISTS (SELECT 1 FROM {VALUES} AS v WHERE v.bank = '{MINIONS}' AND v.key = j.key AND {{{{holds}}}})
        OR EXISTS (SELECT 1 FROM {VALUES} AS r WHERE r.bank = '{RETURNS}/' || j.key AND r.key = ?))
    ORDER BY j.key DESC"""


def mark_of(bank: str, value: Any) -> str | None:
    """Return the mark of a value."""
    if bank == LOADS:
        return _BETWEEN.join(map(_clean, job_marks(value)))
    return FAILED if bank.startswith(f"{RETURNS}/") and has_failed(value) else None


def _clean(text: str) -> str:
    """Return a function or a user as a text that can be stored: what a minion sends may hold anything."""
    return text.replace("\0", "").replace(_BETWEEN, "").encode("utf-8", "replace").decode()


def job_marks(load: Any) -> tuple[str, str]:
    """Return the function and the user of a load; several functions are joined by commas."""
    if not isinstance(load, Mapping):
        return "", ""
    fun, user = load.get("fun"), load.get("user")
    if isinstance(fun, (list, tuple)):
        fun = ",".join(name for name in fun if isinstance(name, str))
    return fun if isinstance(fun, str) else "", user if isinstance(user, str) else ""


def has_failed(record: Any) -> bool:
    return isinstance(record, Mapping) and retcode_of(record) != 0


# -- finding them -------------------------------------------------------------------------------------------------------


def count(tables: Tables) -> int:
    return int(tables.read(f"SELECT count(*) FROM {VALUES} WHERE bank = '{LOADS}'")[0][0])


def oldest(tables: Tables, most: int) -> list[str]:
    """Return up to ``most`` jids of loads, the first ones."""
    query = f"SELECT key FROM {VALUES} WHERE bank = '{LOADS}' ORDER BY key LIMIT ?"
    return [row[0] for row in tables.read(query, (most,))]


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
            yield from (row[0] for row in tables.read(_NEAR.format(sign), (high, last, name, minion)))
        if number < size:
            return
        sign, high, size = "<", last, WINDOW


def marks(tables: Tables) -> Mapping[str, tuple[str, str]]:
    """Return ``{mark: (function, user)}`` of all loads."""
    pairs = {mark: mark.partition(_BETWEEN) for (mark,) in tables.read(_MARKS)}
    return {mark: (fun, user) for mark, (fun, between, user) in pairs.items() if between}


# -- counting their minions ---------------------------------------------------------------------------------------------


class JobTally(NamedTuple):
    """Counts of minions: those that a job was for (0 if not known), and those that returned, failed and are missing."""

    minions: int
    returned: int
    failed: int
    missing: int
    # Which of the words returned, failed and missing hold for at least one of the minions that were asked for.
    of_named: frozenset[str] = frozenset()


#: The minions that are asked for: one id, or a function that tells whether an id is meant.
Named = str | Callable[[str], bool]


def tally_of(minions: Set[str], returned: Set[str], failed: Set[str], named: Named | None) -> JobTally:
    """
    Return the tally of a job. ``minions``: those that it was for; empty if that is not known. ``failed``: those of
    ``returned`` that have failed. ``named``: whom ``of_named`` is about.
    """
    missing = minions - returned
    groups = {"returned": returned, "failed": failed, "missing": missing}
    of_named: Iterable[str] = ()
    if isinstance(named, str):
        of_named = (name for name, group in groups.items() if named in group)
    elif named is not None:
        of_named = (name for name, group in groups.items() if any(map(named, group)))
    of_named = frozenset(of_named)
    if minions:  # returns of minions that the job was not for do not count
        returned, failed = returned & minions, failed & minions
    return JobTally(len(minions), len(returned), len(failed), len(missing), of_named)


def tallies(tables: Tables, wanted: Sequence[str], named: Named | None) -> dict[str, JobTally]:
    """
    Return the tallies of some jobs, without reading their returns. A job whose list of minions is damaged has none. A return
    that was removed while its job stays counts as missing. ``named``: the minions of ``JobTally.of_named``.
    """
    found, known = dict[str, JobTally](), dict[bytes, frozenset[str]]()
    for part in parts_of(wanted):
        query = f"SELECT key, value FROM {VALUES} WHERE bank = '{MINIONS}' AND key IN ({marks_of(part)})"
        lists = dict(tables.read(query, part))
        query = f"SELECT bank, key FROM {VALUES} WHERE {{}} bank IN ({marks_of(part)})"
        banks = [f"{RETURNS}/{jid}" for jid in part]
        returned, failing = (_by_jid(tables.read(query.format(only), banks)) for only in ("", f"mark = '{FAILED}' AND"))
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
