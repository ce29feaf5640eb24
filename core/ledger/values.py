"""
The values of ``cache: sqlite`` and ``cache: postgresql``: what ``salt.cache`` keeps, the job cache included. They behave as
with the driver localfs; an expired value counts as absent, by the clock of the database. Each call writes everything or
nothing.

Banks have their plain form (``banks.plain_bank``). All functions raise OSError when the database cannot be used now, and
whatever Salt's serializer raises for a value.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from saltext.jobs.core.banks import OF_JOBS, RETURNS, below
from saltext.jobs.core.ledger import stored
from saltext.jobs.core.ledger.jobs import mark_of
from saltext.jobs.core.ledger.tables import MOST, VALUES, Tables, marks_of, parts_of

Row = tuple[str, str, str | None, bytes, float | None]

#: Seconds after which a transaction that removes jobs ends, and how many it removes at most.
_SHORT, _MOST = 0.01, 500
_COLUMNS = "(bank, key, mark, value, updated, expires)"
_NEW = """updated = excluded.updated, expires = excluded.expires, mark = excluded.mark, value = excluded.value"""
_ALIVE = "(expires IS NULL OR expires > {now})"
_BETWEEN = f"SELECT bank FROM {VALUES} WHERE bank {{}} ? AND bank < ? ORDER BY bank LIMIT 1"
# The index leads from each bank to the next, past all keys in it.
_BANKS = f"""WITH RECURSIVE found (bank) AS (
        SELECT ({_BETWEEN.format(">=")})
        UNION ALL SELECT (SELECT v.bank FROM {VALUES} AS v WHERE v.bank > found.bank AND v.bank < ? ORDER BY v.bank LIMIT 1)
            FROM found WHERE found.bank IS NOT NULL)
    SELECT bank FROM found WHERE bank IS NOT NULL"""
_BELOW = "bank = ? OR (bank > ? AND bank < ?)"
_SHARED = f"bank IN ({', '.join(repr(bank) for bank in OF_JOBS)}) AND key = ?"
_LOCK_JOB = f"SELECT 1 FROM {VALUES} WHERE {_SHARED} ORDER BY bank, key {{lock}}"
_REMOVE_JOB = f"""DELETE FROM {VALUES} WHERE ({_SHARED} OR bank = ?)
    AND NOT EXISTS (SELECT 1 FROM {VALUES} WHERE ({_SHARED} OR bank = ?) AND updated >= ?)"""


def _alive(tables: Tables, what: str, where: str, *values: Any) -> list[tuple[Any, ...]]:
    return tables.read(f"SELECT {what} FROM {VALUES} WHERE {_ALIVE} AND {where}", values)


# -- one value ----------------------------------------------------------------------------------------------------------


def store(tables: Tables, bank: str, key: str, value: Any, expires: float | None = None) -> None:
    """Store a value, in place of the old one. ``expires``: in how many seconds it counts as absent."""
    store_all(tables, [(bank, key, value)], expires)


def store_all(tables: Tables, items: Sequence[tuple[str, str, Any]], expires: float | None = None) -> None:
    """Store (bank, key, value) triples as a whole; for the same bank and key the last one counts."""
    values = {(bank, key): value for bank, key, value in items}
    # in the order of all writers, so that they cannot deadlock
    rows = [_row(*place, values[place], expires) for place in sorted(values)]
    tables.run(_insert(len(rows), f"DO UPDATE SET {_NEW}"), [value for row in rows for value in row])


def _row(bank: str, key: str, value: Any, expires: float | None = None) -> Row:
    return bank, key, mark_of(bank, value), stored.dumps(value), None if expires is None else float(expires)


def _insert(count: int, conflict: str) -> str:
    each = ", ".join(["(?, ?, ?, ?, {now}, {now} + ?)"] * count)
    return f"INSERT INTO {VALUES} {_COLUMNS} VALUES {each} ON CONFLICT (bank, key) {conflict}"


def store_new(tables: Tables, bank: str, key: str, value: Any) -> bool:
    """Store a value if there is none, and tell whether it was stored."""
    row = _row(bank, key, value)
    count = tables.changed(_insert(1, f"DO UPDATE SET {_NEW} WHERE {VALUES}.expires <= {{now}}"), row)
    return count > 0 or (count < 0 and read_all(tables, [row[:2]]) == [row[3]])


def fetch(tables: Tables, bank: str, key: str) -> Any:
    """Return a value; ``{}`` if there is none. :raises Exception: anything that msgpack raises for a broken value."""
    (found,) = read_all(tables, [(bank, key)])
    return {} if found is None else stored.loads(found)


def read_all(tables: Tables, items: Sequence[tuple[str, str]]) -> list[bytes | None]:
    """Return the stored bytes of a few (bank, key) pairs, read at one moment; None for a missing one."""
    any_of = " OR ".join(["(bank = ? AND key = ?)"] * len(items))
    rows = _alive(tables, "bank, key, value", f"({any_of})", *(text for place in items for text in place))
    found = {(bank, key): value for bank, key, value in rows}
    return [found.get(place) for place in items]


def contains(tables: Tables, bank: str, key: str | None = None) -> bool:
    """Tell whether there is a value; without a key, whether the bank exists."""
    if key is None:
        return bool(tables.read(f"SELECT 1 FROM {VALUES} WHERE {_BELOW} LIMIT 1", (bank, *below(bank))))
    return updated(tables, bank, key) is not None


def updated(tables: Tables, bank: str, key: str) -> float | None:
    """Return the Unix time of the last write; None if there is no value."""
    found = _alive(tables, "updated", "bank = ? AND key = ?", bank, key)
    return found[0][0] if found else None


def flush(tables: Tables, bank: str, key: str | None = None) -> bool:
    """Remove a key; without one, the bank with all that is in and below it. Returns whether anything was there."""
    where, place = ("bank = ? AND key = ?", (bank, key)) if key is not None else (_BELOW, (bank, *below(bank)))
    return tables.changed(f"DELETE FROM {VALUES} WHERE {where}", place) != 0


# -- what there is ------------------------------------------------------------------------------------------------------


def keys(tables: Tables, bank: str) -> list[str]:
    """Return the keys of a bank, in order."""
    return [row[0] for row in _alive(tables, "key", "bank = ? ORDER BY key", bank)]


def _banks_between(tables: Tables, bank: str, low: str, high: str) -> list[str]:
    rows, start = tables.read(_BANKS, (low, high, high)), len(bank) + 1
    return list(dict.fromkeys(row[0][start:].partition("/")[0] for row in rows))


def names(tables: Tables, bank: str) -> list[str]:
    """Return the names of the keys and the banks in a bank."""
    return list(dict.fromkeys((*keys(tables, bank), *_banks_between(tables, bank, *below(bank)))))


def outside(tables: Tables, bank: str, low: str, high: str) -> list[str]:
    """Return the keys of a bank that are before ``low`` or after ``high``."""
    # Two statements in one: for an OR, SQLite reads all keys of the bank.
    before, after = (f"SELECT key FROM {VALUES} WHERE bank = ? AND key {sign} ?" for sign in "<>")
    return [row[0] for row in tables.read(f"{before} UNION ALL {after}", (bank, low, bank, high))]


def banks_outside(tables: Tables, bank: str, low: str, high: str) -> list[str]:
    """As ``outside``, for the names of the banks in a bank."""
    first, last = below(bank)
    found = [*_banks_between(tables, bank, first, first + low), *_banks_between(tables, bank, first + high, last)]
    return [each for each in dict.fromkeys(found) if not low <= each <= high]


def items(tables: Tables, bank: str) -> Iterator[tuple[str, bytes]]:
    """Yield the keys of a bank, in order, with their stored bytes. Writes made meanwhile may be seen or not."""
    sign, last = ">=", ""
    while rows := _alive(tables, "key, value", f"bank = ? AND key {sign} ? ORDER BY key LIMIT {MOST}", bank, last):
        yield from rows
        sign, last = ">", rows[-1][0]


def pick(tables: Tables, bank: str, wanted: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    """Yield those of some keys that have a value, in the given order, with their stored bytes."""
    for part in parts_of(list(wanted)):
        where = f"bank = ? AND key IN ({marks_of(part)})"
        found = dict(_alive(tables, "key, value", where, bank, *part))
        yield from ((key, found[key]) for key in part if key in found)


def clean_expired(tables: Tables, bank: str) -> None:
    """Remove the expired values of a bank."""
    where = f"{VALUES} WHERE bank = ? AND expires <= {{now}}"
    if tables.read(f"SELECT 1 FROM {where} LIMIT 1", (bank,)):  # usually nothing has expired, and no writer has to wait
        tables.run(f"DELETE FROM {where}", (bank,))


def count_below(tables: Tables, bank: str) -> int:
    """Return how many keys the banks below a bank have, expired ones too."""
    return int(tables.read(f"SELECT count(*) FROM {VALUES} WHERE bank > ? AND bank < ?", below(bank))[0][0])


# -- old ones -----------------------------------------------------------------------------------------------------------


def remove_older(tables: Tables, jids: Sequence[str], than: float) -> None:
    """
    Remove the jobs of which nothing was written since ``than``, in Unix time: each as a whole, and many in short
    transactions, so that no writer waits long.
    """

    def work(first: int) -> int:
        until, number = time.monotonic() + _SHORT, first
        while number < min(len(jids), first + _MOST) and time.monotonic() < until:
            jid, number = jids[number], number + 1
            if tables.dialect.lock:
                # From here on other writers of these rows wait, and the next statement sees all earlier writes.
                tables.run(_LOCK_JOB, (jid,))
            its = jid, f"{RETURNS}/{jid}"
            tables.run(_REMOVE_JOB, (*its, *its, than))
        return number

    done = 0
    while done < len(jids):
        if done:
            tables.give_way()
        done = tables.together(lambda: work(done))  # noqa: B023 (called at once)
