"""
The index of jobs beside their records: jobs are found and listed by it, without reading the records.

===============  ====================================================================================================
table            holds
===============  ====================================================================================================
``marks``        each pair of function and user in a load, with its number
``jobs``         for each job: its jid; the number of its pair (NULL without a load); what else ``jobs.list_jobs`` shows
                 (``shown``: NULL before there is a load, or if the load must be read; empty after its removal); how
                 many minions it was for (``sent``); these and others that have returned (``who``)
``failures``     the returns that tell of a failure
``minions``      the id of each minion, with its number; numbers are never used again. The name of the number 0 changes when
                 minions are forgotten
``stretches``    a stretch of some hundred jobs, from its first jid to the next row's, with all their minions (``who``); NULL
                 if these have not been united yet
===============  ====================================================================================================

The index is written here, in the transaction that writes the records, and read in ``core/sqlite/job_lookup.py``. A row
says where to look; the records say what is there. Writing a job costs the same for any number of minions, because they
are one value (``core/sqlite/minion_sets.py``), and a stretch is united once for many jobs.
"""

from __future__ import annotations

import contextlib
import itertools
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from saltext.jobs.core import banks
from saltext.jobs.core.banks import LOADS, MINIONS
from saltext.jobs.core.disk.job_summary import has_failed, job_marks, shown_of
from saltext.jobs.core.sqlite import minion_sets

if TYPE_CHECKING:  # Python may have been built without it
    import sqlite3

RETURNS = f"{banks.RETURNS}/"

#: Jids that do not begin with a date and time.
UNTIMED = "jid NOT GLOB '" + 14 * "[0-9]" + "*'"
TABLES = (
    # A number is never used again, because a reader may look up later what it stands for.
    "CREATE TABLE marks (id INTEGER PRIMARY KEY AUTOINCREMENT, fun TEXT NOT NULL, user TEXT NOT NULL, UNIQUE (fun, user))",
    # The minions come last, so that a list of jobs need not read them.
    "CREATE TABLE jobs (jid TEXT PRIMARY KEY, mark INTEGER, shown BLOB, sent INTEGER, who BLOB) WITHOUT ROWID",
    "CREATE INDEX jobs_by_mark ON jobs (mark, jid) WHERE mark IS NOT NULL",
    f"CREATE INDEX jobs_untimed ON jobs (jid) WHERE {UNTIMED}",
    "CREATE TABLE minions (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE)",
    "CREATE TABLE failures (jid TEXT NOT NULL, minion TEXT NOT NULL, PRIMARY KEY (jid, minion)) WITHOUT ROWID",
    "CREATE TABLE stretches (first TEXT PRIMARY KEY, who BLOB) WITHOUT ROWID",
    "INSERT INTO stretches (first, who) VALUES ('', NULL)",
)
#: Jobs in a new stretch, and in one that is long enough to be divided.
STRETCH, LONG_STRETCH = 256, 512
#: Most jobs that are divided into stretches at a time; and how many jobs are stored, on average, until the length of a
#: stretch is checked.
MOST_DIVIDED, LOOKED_AT = 4096, 32
#: Removes the rows of jobs that have neither a load nor a list of minions nor returns any more.
_FORGET = f"""DELETE FROM jobs WHERE mark IS NULL
    AND NOT EXISTS (SELECT 1 FROM records WHERE bank = (SELECT id FROM banks WHERE name = '{MINIONS}') AND key = jobs.jid)
    AND NOT EXISTS (SELECT 1 FROM banks WHERE name = '{RETURNS}' || jobs.jid)"""
#: The empty ``shown`` says that there was a load.
_NO_LOAD = "UPDATE jobs SET mark = NULL, shown = x''"
AT_ONCE = 500  # values in one statement
#: Returns the set of the minions in a list, which may hold other things too.
Pack = Callable[["sqlite3.Connection", Sequence[Any]], bytes]


# -- writing it, in the transaction in which the records are written ---------------------------------------------------


def has_stored(
    sql: sqlite3.Connection, bank: str, key: str, value: Any, pack: Pack | None = None, is_new: bool = False
) -> None:
    """
    Index a value that was stored.

    :param pack: makes a set of minions; by default from the numbers in the file.
    :param is_new: whether there was no value in its place.
    """
    if bank == LOADS:
        mark = job_marks(value)
        put = """INSERT INTO jobs (jid, mark, shown) VALUES (?, ?, ?)
            ON CONFLICT (jid) DO UPDATE SET mark = excluded.mark, shown = excluded.shown"""
        shown = None if _replaces_published(sql, key) else shown_of(key, mark, value)
        sql.execute(put, (key, _number(sql, *mark), shown))
    elif bank == MINIONS:
        if isinstance(value, (list, tuple)):
            who = (pack or _pack)(sql, value)
            _add_minions(sql, key, who, minion_sets.count(who))
    elif bank.startswith(RETURNS):
        jid = bank[len(RETURNS) :]
        _has_returned(sql, jid, key)
        if has_failed(value):
            sql.execute("INSERT OR IGNORE INTO failures (jid, minion) VALUES (?, ?)", (jid, key))
        elif not is_new:
            sql.execute("DELETE FROM failures WHERE jid = ? AND minion = ?", (jid, key))


def has_removed(sql: sqlite3.Connection, bank: str, keys: Sequence[str] | None = None) -> None:
    """Remove from the index what was removed from a bank: some values, or all of them."""
    if bank == LOADS:
        if keys is None:
            sql.execute(_NO_LOAD)
        else:
            sql.executemany(f"{_NO_LOAD} WHERE jid = ?", [(key,) for key in keys])
    if bank == MINIONS:
        rows = [()] if keys is None else [(key,) for key in keys]
        sql.executemany("UPDATE jobs SET sent = NULL" + ("" if keys is None else " WHERE jid = ?"), rows)
    if bank.startswith(RETURNS):
        jid = bank[len(RETURNS) :]
        if keys is None:
            sql.execute("DELETE FROM failures WHERE jid = ?", (jid,))
        else:
            sql.executemany("DELETE FROM failures WHERE jid = ? AND minion = ?", [(jid, key) for key in keys])
        keys = [jid] if keys is None else []
    if bank in (LOADS, MINIONS) or bank.startswith(RETURNS):
        rest = "" if keys is None else " AND jid = ?"
        sql.executemany(_FORGET + rest, [()] if keys is None else [(key,) for key in keys])


def has_removed_jobs(sql: sqlite3.Connection, jids: Sequence[str]) -> None:
    """Remove from the index jobs that were removed completely."""
    for table in ("jobs", "failures"):
        sql.execute(f"DELETE FROM {table} WHERE jid IN ({','.join('?' * len(jids))})", tuple(jids))


def _replaces_published(sql: sqlite3.Connection, jid: str) -> bool:
    """
    Tell whether a load replaces one that a publish stored, so that a reader must check whether it is the same job.

    A copied load does not, even if the record that vouches for it is there already.
    """
    before = sql.execute("SELECT mark, shown FROM jobs WHERE jid = ?", (jid,)).fetchone() or (None, None)
    if before == (None, None):
        return False
    of_it = "SELECT 1 FROM records WHERE bank = (SELECT id FROM banks WHERE name = ?) AND key = ?"
    return sql.execute(of_it, (banks.PUBLISHED, jid)).fetchone() is not None


def _number(sql: sqlite3.Connection, fun: str, user: str) -> int:
    found = sql.execute("SELECT id FROM marks WHERE fun = ? AND user = ?", (fun, user)).fetchone()
    if found is not None:
        return int(found[0])
    return int(sql.execute("INSERT INTO marks (fun, user) VALUES (?, ?)", (fun, user)).lastrowid or 0)


def ids_in(listed: Sequence[Any]) -> list[str]:
    """Return the items of a list of minions that can be ids."""
    return [name for name in listed if isinstance(name, str)]


def numbers_of(sql: sqlite3.Connection, names: Sequence[str]) -> list[int]:
    """Return the numbers of minions, in the same order; a minion without a number gets one."""
    found: dict[str, int] = {}
    for start in range(0, len(names), AT_ONCE):
        part = names[start : start + AT_ONCE]
        query = f"SELECT name, id FROM minions WHERE name IN ({','.join('?' * len(part))})"
        found.update(sql.execute(query, part).fetchall())
    for name in names:
        if name not in found:
            found[name] = int(sql.execute("INSERT INTO minions (name) VALUES (?)", (name,)).lastrowid or 0)
    return [found[name] for name in names]


def minions_of_no_job(execute: Callable[[str, tuple[Any, ...]], Iterable[tuple[Any, ...]]]) -> list[int]:
    """
    Return the numbers of minions that are in no set; none if that cannot be determined. The highest number is left out,
    so that it is never used again.

    :param execute: returns the rows that a query finds.
    """
    known = [row[0] for row in execute("SELECT id FROM minions WHERE id > 0 ORDER BY id", ())][:-1]
    edges = [*execute("SELECT first, who FROM stretches ORDER BY first", ()), (None, None)]
    merged = b""
    for (first, who), (end, _) in itertools.pairwise(edges):
        if who is None:
            of_it = "SELECT who FROM jobs WHERE who IS NOT NULL AND jid >= ?" + ("" if end is None else " AND jid < ?")
            found = [row[0] for row in execute(of_it, (first,) if end is None else (first, end))]
        else:
            found = [who]
        united = _united((merged, *found) if merged else found)
        if united is None:
            return []
        merged = united
    digits = minion_sets.digits_of(merged) if merged else ""
    return [number for number in known if digits[number : number + 1] != "1"]


def forget_numbers(sql: sqlite3.Connection, numbers: Sequence[int]) -> None:
    """Remove minions by their numbers, and let every process that caches numbers know."""
    sql.executemany("DELETE FROM minions WHERE id = ?", [(number,) for number in numbers])
    times = sql.execute("SELECT name FROM minions WHERE id = 0").fetchone()
    # No minion has such a name.
    sql.execute(
        "INSERT OR REPLACE INTO minions (id, name) VALUES (0, ?)", (f"/{int(times[0][1:]) + 1 if times else 1}",)
    )


def _pack(sql: sqlite3.Connection, listed: Sequence[Any]) -> bytes:
    return minion_sets.pack(numbers_of(sql, ids_in(listed)))


def _add_minions(sql: sqlite3.Connection, jid: str, who: bytes, sent: int | None = None) -> None:
    """
    Add minions to those of a job, and to those of its stretch.

    :param sent: how many minions the job is for, if that is known.
    """
    before, known = sql.execute("SELECT who, sent FROM jobs WHERE jid = ?", (jid,)).fetchone() or (None, None)
    if before is not None:
        merged = _united((before, who))
        if merged == before and sent in (known, None):
            return
        if merged is None:  # damaged: left as it is, and counted as a job that may be for any minion
            sql.execute(
                "UPDATE stretches SET who = NULL WHERE first = (SELECT max(first) FROM stretches WHERE first <= ?)",
                (jid,),
            )
            return
        who = merged
    put = """INSERT INTO jobs (jid, sent, who) VALUES (?, ?, ?)
        ON CONFLICT (jid) DO UPDATE SET who = excluded.who, sent = coalesce(excluded.sent, sent)"""
    sql.execute(put, (jid, sent, who))
    query = "SELECT first, who FROM stretches WHERE first <= ? ORDER BY first DESC LIMIT 1"
    first, everybody = sql.execute(query, (jid,)).fetchone() or ("", None)
    if everybody is not None:
        merged = _united((everybody, who))
        if merged != everybody:
            sql.execute("UPDATE stretches SET who = ? WHERE first = ?", (merged, first))
    if zlib.crc32(jid.encode("utf-8", "replace")) % LOOKED_AT == 0:
        _divide(sql, first)


def _has_returned(sql: sqlite3.Connection, jid: str, minion: str) -> None:
    """Add a minion that has returned to those of its job. Usually it is one of them already."""
    query = "SELECT (SELECT who FROM jobs WHERE jid = ?), (SELECT id FROM minions WHERE name = ?)"
    who, number = sql.execute(query, (jid, minion)).fetchone()
    with contextlib.suppress(Exception):  # damaged data; zlib has an error of its own
        if who is not None and number is not None and minion_sets.has(who, number):
            return
    _add_minions(sql, jid, _pack(sql, [minion]))


def _divide(sql: sqlite3.Connection, first: str) -> None:
    """Divide a stretch that has become long into stretches of ``STRETCH`` jobs."""
    (end,) = sql.execute("SELECT min(first) FROM stretches WHERE first > ?", (first,)).fetchone()
    of_it = "FROM jobs WHERE jid >= ?" + ("" if end is None else " AND jid < ?")
    edges = (first,) if end is None else (first, end)
    some = f"SELECT 1 {of_it} LIMIT {LONG_STRETCH}"
    if sql.execute(f"SELECT count(*) FROM ({some})", edges).fetchone()[0] < LONG_STRETCH:
        return
    rows = sql.execute(f"SELECT jid, who {of_it} ORDER BY jid LIMIT {MOST_DIVIDED + 1}", edges).fetchall()
    is_all = len(rows) <= MOST_DIVIDED
    for start in range(0, len(rows), STRETCH):
        part = rows[start : start + STRETCH]
        # The last stretch is not united: every new job goes into it.
        is_open = start + STRETCH >= len(rows) and (end is None or not is_all)
        merged = None if is_open else _united(row[1] for row in part if row[1] is not None)
        put = "INSERT OR REPLACE INTO stretches (first, who) VALUES (?, ?)"
        sql.execute(put, (part[0][0] if start else first, merged))


def _united(sets: Iterable[bytes]) -> bytes | None:
    """Return the union of some sets; None, for not known, if one is damaged."""
    try:
        return minion_sets.union(sets)
    except Exception:  # zlib has an error of its own
        return None
