"""
What is kept beside the records of jobs, so that they are found and listed without reading them.

===================  ================================================================================================
table                holds
===================  ================================================================================================
``marks``            the pairs of function and user that loads have, a number for each
``jobs``             of each load its jid, the number of its mark, and what else ``jobs.list_jobs`` shows (``shown``)
``minions``          the ids of minions, a number for each
``jobs_of_minions``  in which seconds of an hour a minion was sent a job or returned one: a character for each second.
                     Only of jids that begin with such a time.
===================  ================================================================================================

It is written here, in the transaction in which the records are written, and read in ``core/disk/job_lookup.py``. A row says
where to look; the records say what is there. Rows of ``jobs`` go with their loads; those of ``marks`` and
``jobs_of_minions`` may outlive their jobs by some hours. The hour comes first, so that what is written at one time lies on
few pages.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import salt.payload
import salt.utils.jid

from saltext.jobs.core.disk import packed

if TYPE_CHECKING:  # Python may have been built without it
    import sqlite3

LOADS, MINIONS, RETURNS = "jobs/loads", "jobs/minions", "jobs/returns/"

#: Jids that begin with no second. Of them nothing is known by minions.
UNTIMED = "jid NOT GLOB '" + 14 * "[0-9]" + "*'"
TABLES = (
    # A number is never used again: whoever has read it may look later what it stands for.
    "CREATE TABLE marks (id INTEGER PRIMARY KEY AUTOINCREMENT, fun TEXT NOT NULL, user TEXT NOT NULL, UNIQUE (fun, user))",
    "CREATE TABLE jobs (jid TEXT PRIMARY KEY, mark INTEGER NOT NULL, shown BLOB) WITHOUT ROWID",
    "CREATE INDEX jobs_by_mark ON jobs (mark, jid)",
    f"CREATE INDEX jobs_untimed ON jobs (jid) WHERE {UNTIMED}",
    "CREATE TABLE minions (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE)",
    """CREATE TABLE jobs_of_minions (hour INTEGER NOT NULL, minion INTEGER NOT NULL, seconds TEXT NOT NULL,
        PRIMARY KEY (hour, minion)) WITHOUT ROWID""",
)
NAMES = ("marks", "jobs", "minions", "jobs_of_minions")
AT_ONCE = 500  # values in one statement
is_timed = re.compile("[0-9]{14}").match
#: Whether Salt shows the time of a jid. With ``unique_jid`` there is the number of a process after it.
_is_regular = re.compile("[0-9]{8}(?:[01][0-9]|2[0-3])[0-5][0-9][0-5][0-9][0-9]{6}(?:_.+)?", re.DOTALL).fullmatch
#: What Salt shows of a job besides its time; the last one only where there is some.
_SHOWN = ["Function", "Arguments", "Target", "Target-type", "User", "Metadata"]


# -- writing it, in the transaction in which the records are written ---------------------------------------------------


def has_stored(sql: sqlite3.Connection, bank: str, key: str, value: Any) -> None:
    """Keep what belongs to a value that was stored."""
    if bank == LOADS:
        mark = job_marks(value)
        put = "INSERT OR REPLACE INTO jobs (jid, mark, shown) VALUES (?, ?, ?)"
        sql.execute(put, (key, _number(sql, *mark), _shown(key, mark, value)))
    elif bank == MINIONS:
        if isinstance(value, (list, tuple)):
            _add_minions(sql, key, [name for name in value if isinstance(name, str)])
    elif bank.startswith(RETURNS):
        jid = bank[len(RETURNS) :]
        if not _is_known(sql, jid, key):
            _add_minions(sql, jid, [key])


def has_removed(sql: sqlite3.Connection, bank: str, keys: Sequence[str] | None = None) -> None:
    """Remove what belongs to some values that were removed from a bank, or to all of it."""
    if bank != LOADS:
        return
    if keys is None:
        sql.execute("DELETE FROM jobs")
        sql.execute("DELETE FROM jobs_of_minions")
        return
    sql.execute(f"DELETE FROM jobs WHERE jid IN ({','.join('?' * len(keys))})", tuple(keys))


def build(sql: sqlite3.Connection) -> None:
    """Fill the empty tables from the records that there are."""
    query = """SELECT banks.name, records.key, records.value FROM records JOIN banks ON banks.id = records.bank
        WHERE banks.name IN (?, ?)"""
    for bank, key, data in sql.execute(query, (LOADS, MINIONS)):
        try:
            value = packed.loads(data)
        except Exception:  # msgpack raises many kinds for a broken value
            value = None
        has_stored(sql, bank, key, value)
    query = """SELECT banks.name, records.key FROM banks JOIN records ON records.bank = banks.id
        WHERE banks.name > ? AND banks.name < ?"""
    for bank, key in sql.execute(query, (RETURNS, f"{RETURNS[:-1]}0")):
        has_stored(sql, bank, key, None)


def _number(sql: sqlite3.Connection, fun: str, user: str) -> int:
    found = sql.execute("SELECT id FROM marks WHERE fun = ? AND user = ?", (fun, user)).fetchone()
    if found is not None:
        return int(found[0])
    return int(sql.execute("INSERT INTO marks (fun, user) VALUES (?, ?)", (fun, user)).lastrowid or 0)


def _add_minions(sql: sqlite3.Connection, jid: str, names: Sequence[str]) -> None:
    if not is_timed(jid):
        return
    hour, second = place(jid)
    for start in range(0, len(names), AT_ONCE):
        part = names[start : start + AT_ONCE]
        marks = ",".join("?" * len(part))
        put = f"""INSERT INTO jobs_of_minions (hour, minion, seconds) SELECT ?, id, ? FROM minions WHERE name IN ({marks})
            ON CONFLICT (hour, minion) DO UPDATE SET seconds = seconds || excluded.seconds
            WHERE instr(seconds, excluded.seconds) = 0"""
        if sql.execute(put, (hour, second, *part)).rowcount == len(part):
            continue
        known = {row[0] for row in sql.execute(f"SELECT name FROM minions WHERE name IN ({marks})", part)}
        if len(known) < len(part):
            new = [(name,) for name in part if name not in known]
            sql.executemany("INSERT OR IGNORE INTO minions (name) VALUES (?)", new)
            sql.execute(put, (hour, second, *part))


def place(jid: str) -> tuple[int, str]:
    """Return the hour of a jid that begins with a time, and the character for minute and second in it."""
    return int(jid[:10]), chr(int(jid[10:14]) + 1)  # SQLite takes a text to end at a character 0


def seconds_in(text: str) -> list[str]:
    """Return minutes and seconds as they stand in jids, the last one first."""
    return [f"{number - 1:04d}" for number in sorted(set(map(ord, text)), reverse=True)]


def _is_known(sql: sqlite3.Connection, jid: str, name: str) -> bool:
    """Tell whether a minion was sent a job of this second, as it was as a rule when it returns one."""
    if not is_timed(jid):
        return True
    hour, second = place(jid)
    query = """SELECT 1 FROM jobs_of_minions WHERE hour = ? AND minion = (SELECT id FROM minions WHERE name = ?)
        AND instr(seconds, ?) > 0"""
    return bool(sql.execute(query, (hour, name, second)).fetchall())


def job_marks(load: Any) -> tuple[str, str]:
    """Return the function and the user of a load; of several functions their names with commas between them."""
    if not isinstance(load, Mapping):
        return "", ""
    fun, user = load.get("fun"), load.get("user")
    if isinstance(fun, (list, tuple)):
        fun = ",".join(name for name in fun if isinstance(name, str))
    return fun if isinstance(fun, str) else "", user if isinstance(user, str) else ""


def shown_mark(fun: str, user: str) -> tuple[str, str]:
    """Return what Salt shows as function and user of a load with this mark."""
    return fun, user or "root"


def _shown(jid: str, mark: tuple[str, str], load: Any) -> bytes | None:
    """
    Return what is shown of a load besides what its mark and its jid tell: a list of the arguments, the target and its type
    and, where there are some, the metadata. None where only a look at the load itself can tell.
    """
    if not isinstance(load, dict) or not load or not _is_regular(jid):
        return None
    try:
        found = salt.utils.jid.format_job_instance(load)
        function, *middle, user = [found.pop(name) for name in _SHOWN[:5]]
        if (function, user) != shown_mark(*mark) or found.keys() - _SHOWN[5:]:
            return None
        data: bytes = salt.payload.dumps([*middle, *found.values()], use_bin_type=True)
    except Exception:  # a load holds whatever it holds
        return None
    return data
