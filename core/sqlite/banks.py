"""
The banks of salt.cache in one SQLite file: ``cache: sqlite`` (cache/sqlite.py), the job cache and the retry queue.

It behaves like the driver localfs: a bank lists its keys and the banks in it, and stays when its last key is removed;
flushing a bank removes the banks below it too; a missing key fetches ``{}``. An expired value counts as absent. The
function and the user of each job are kept beside its load, so that jobs can be found by them.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from saltext.jobs.core.banks import below, plain_bank
from saltext.jobs.core.disk.job_lookup import CHUNK, parts
from saltext.jobs.core.errors import StateError
from saltext.jobs.core.sqlite import job_index, stored
from saltext.jobs.core.sqlite.database import Database, database_at
from saltext.jobs.core.sqlite.job_lookup import JobLookup
from saltext.jobs.core.sqlite.removal import remove_older

FILE = "cache.sqlite"

_SYNC = ("NORMAL", "FULL")
_OF = "bank = (SELECT id FROM banks WHERE name = ?)"
_ALIVE = "(expires IS NULL OR expires > ?)"
_ADD_TO_BANK = """INSERT OR IGNORE INTO records (bank, key, updated, expires, value)
    SELECT id, ?, ?, ?, ? FROM banks WHERE name = ?"""
_ADD = "INSERT OR IGNORE INTO records (bank, key, updated, expires, value) VALUES (?, ?, ?, ?, ?)"
_PUT = """INSERT INTO records (bank, key, updated, expires, value) VALUES (?, ?, ?, ?, ?)
    ON CONFLICT (bank, key) DO UPDATE SET updated = excluded.updated, expires = excluded.expires, value = excluded.value"""


def banks_of(opts: Mapping[str, Any], cachedir: str | None = None) -> SqliteBanks:
    """
    Return the banks that a master's options name.

    :param cachedir: another directory than the master's own; the option for the path does not apply to it.
    :raises StateError: for an option that is not accepted.
    """
    return SqliteBanks(database_of(opts, cachedir=cachedir))


def database_of(opts: Mapping[str, Any], name: str = FILE, cachedir: str | None = None) -> Database:
    """
    Return the database that a master's options name.

    :param name: the path below ``cachedir`` where it is if no option names its path.
    :param cachedir: as in ``banks_of``. :raises StateError: as ``banks_of``.
    """
    home = str(opts.get("cachedir") or "")
    path = opts.get("sqlite_cache_path")
    if path is not None and (not isinstance(path, str) or not os.path.isabs(path)):
        raise StateError(f"sqlite_cache_path is {path!r}; accepted is the absolute path of a file")
    sync = opts.get("sqlite_cache_synchronous", _SYNC[0])
    if sync not in _SYNC:
        raise StateError(f"sqlite_cache_synchronous is {sync!r}; accepted is one of {', '.join(_SYNC)}")
    chosen = path is not None and cachedir in (None, home)
    if not chosen:
        path = os.path.join(cachedir or home, name)
    return database_at(os.path.normpath(str(path)), sync == "FULL", chosen)


class SqliteBanks:
    """:param database: the file."""

    loads = staticmethod(stored.loads)

    def __init__(self, database: Database) -> None:
        self._database = database
        self.path = database.path
        #: Finds and lists jobs.
        self.index = JobLookup(database)

    def transaction(self, durable: bool = False) -> AbstractContextManager[sqlite3.Connection]:
        """All writes of this thread in the block happen together or not at all. Nothing else writes meanwhile."""
        return self._database.transaction(durable)

    # -- one value -------------------------------------------------------------------------------------------------

    def store(self, bank: str, key: str, value: Any, durable: bool = False, expires: float | None = None) -> None:
        """
        Store a value.

        :param durable: whether it must survive a power cut when this returns.
        :param expires: in how many seconds the value counts as absent.
        :raises Exception: of sqlite3, or StateError; the old value is still there then.
        """
        name, row = plain_bank(bank), _row(key, value, expires)
        with self.transaction(durable) as sql:
            sql.execute(_PUT, (_bank_id(sql, name), *row))
            job_index.has_stored(sql, name, row[0], value)

    def store_all(self, items: Sequence[tuple[str, str, Any]], durable: bool = False) -> None:
        """Store (bank, key, value) triples as a whole."""
        with self.transaction(durable):
            for item in items:
                self.store(*item)

    def store_new(self, bank: str, key: str, value: Any, durable: bool = False) -> bool:
        """Store a value if there is none, and tell whether it was stored."""
        name, row = plain_bank(bank), _row(key, value, None)
        with self.transaction(durable) as sql:
            if sql.execute(_ADD_TO_BANK, (*row, name)).rowcount != 1:  # the bank is missing, or there is a value
                place = (_bank_id(sql, name), row[0])
                sql.execute("DELETE FROM records WHERE bank = ? AND key = ? AND expires <= ?", (*place, _now()))
                if sql.execute(_ADD, (place[0], *row)).rowcount != 1:
                    return False
            job_index.has_stored(sql, name, row[0], value, is_new=True)
            return True

    def fetch(self, bank: str, key: str, default: Any = None) -> Any:
        """
        Return a value; ``default`` or ``{}`` if there is none.

        :raises Exception: anything that msgpack raises for a broken value.
        """
        found = self._rows(f"SELECT value FROM records WHERE {_OF} AND key = ? AND {_ALIVE}", bank, str(key), _now())
        if not found:
            return {} if default is None else default
        return stored.loads(found[0][0])

    def read_all(self, items: Sequence[tuple[str, str]]) -> list[bytes | None]:
        """Return the stored bytes of (bank, key) pairs, read at one moment; None for a missing one."""
        places = [(plain_bank(bank), str(key)) for bank, key in items]
        banks, keys = dict(places), dict.fromkeys(key for _, key in places)
        query = f"""SELECT name, key, value FROM banks JOIN records ON bank = banks.id
            WHERE name IN ({_marks(banks)}) AND key IN ({_marks(keys)}) AND {_ALIVE}"""
        found = {(name, key): value for name, key, value in self._database.read(query, (*banks, *keys, _now()))}
        return [found.get(place) for place in places]

    def contains(self, bank: str, key: str | None = None) -> bool:
        """Tell whether there is a value; without a key, whether the bank exists."""
        if key is None:
            name = plain_bank(bank)
            query = "SELECT 1 FROM banks WHERE name = ? OR (name > ? AND name < ?) LIMIT 1"
            return bool(self._database.read(query, (name, *below(name))))
        return bool(self._rows(f"SELECT 1 FROM records WHERE {_OF} AND key = ? AND {_ALIVE}", bank, str(key), _now()))

    def updated(self, bank: str, key: str) -> float | None:
        """Return the Unix time of the last write; None if there is no value."""
        query = f"SELECT updated FROM records WHERE {_OF} AND key = ? AND {_ALIVE}"
        found = self._rows(query, bank, str(key), _now())
        return found[0][0] / 1000 if found else None

    def flush(self, bank: str, key: str | None = None) -> bool:
        """Remove a key; without one, the bank with all that is in and below it. Returns whether anything was there."""
        name = plain_bank(bank)
        with self.transaction() as sql:
            if key is not None:
                count = sql.execute(f"DELETE FROM records WHERE {_OF} AND key = ?", (name, str(key))).rowcount
                job_index.has_removed(sql, name, str(key))
                return count > 0
            found = dict(
                sql.execute(
                    "SELECT name, id FROM banks WHERE name = ? OR (name > ? AND name < ?)", (name, *below(name))
                )
            )
            for gone, number in found.items():
                sql.execute("DELETE FROM records WHERE bank = ?", (number,))
                sql.execute("DELETE FROM banks WHERE id = ?", (number,))
                job_index.has_removed(sql, gone)
            return bool(found)

    # -- what there is ---------------------------------------------------------------------------------------------

    def keys(self, bank: str) -> list[str]:
        """Return the keys of a bank, in order."""
        found = self._rows(f"SELECT key FROM records WHERE {_OF} AND {_ALIVE} ORDER BY key", bank, _now())
        return [row[0] for row in found]

    def banks(self, bank: str) -> list[str]:
        """Return the names of the banks in a bank, in order."""
        name = plain_bank(bank)
        found = self._database.read("SELECT name FROM banks WHERE name > ? AND name < ? ORDER BY name", below(name))
        start = len(name) + 1
        return list(dict.fromkeys(str(row[0])[start:].partition("/")[0] for row in found))

    def outside(self, bank: str, low: str, high: str) -> list[str]:
        """Return the keys of a bank that are before ``low`` or after ``high``."""
        query = f"SELECT key FROM records WHERE {_OF} AND key {{}} ?"
        return [
            row[0] for sign, edge in (("<", low), (">", high)) for row in self._rows(query.format(sign), bank, edge)
        ]

    def banks_outside(self, bank: str, low: str, high: str) -> list[str]:
        """As ``outside``, for the names of the banks in a bank."""
        name = plain_bank(bank)
        first, last = below(name)
        found: list[Any] = []
        for edges in ((first, f"{name}/{low}"), (f"{name}/{high}", last)):
            found += self._database.read("SELECT name FROM banks WHERE name >= ? AND name < ?", edges)
        names = dict.fromkeys(str(row[0])[len(name) + 1 :].partition("/")[0] for row in found)
        return [name for name in names if not low <= name <= high]

    def items(self, bank: str) -> Iterator[tuple[str, bytes]]:
        """Yield the keys of a bank, in order, with their stored bytes. Writes made meanwhile may be seen or not."""
        query = f"SELECT key, value FROM records WHERE {_OF} AND key {{}} ? AND {_ALIVE} ORDER BY key LIMIT {CHUNK}"
        rows = self._rows(query.format(">="), bank, "", _now())
        while rows:
            yield from rows
            rows = self._rows(query.format(">"), bank, rows[-1][0], _now())

    def pick(self, bank: str, keys: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        """Yield those of some keys that have a value, in the given order, with their stored bytes."""
        for part in parts(list(keys)):
            query = f"SELECT key, value FROM records WHERE {_OF} AND key IN ({_marks(part)}) AND {_ALIVE}"
            found = dict(self._rows(query, bank, *part, _now()))
            yield from ((key, found[key]) for key in part if key in found)

    def present(self, bank: str, keys: Iterable[str]) -> set[str]:
        """Return those of some keys that have a value."""
        found: set[str] = set()
        for part in parts(list(keys)):
            query = f"SELECT key FROM records WHERE {_OF} AND key IN ({_marks(part)}) AND {_ALIVE}"
            found.update(row[0] for row in self._rows(query, bank, *part, _now()))
        return found

    def clean_expired(self, bank: str) -> int:
        """Remove the expired values of a bank, and return how many there were."""
        now, count = _now(), 0
        # Looked for outside a transaction, since usually nothing has expired.
        found = [row[0] for row in self._rows(f"SELECT id FROM records WHERE {_OF} AND expires <= ?", bank, now)]
        for part in parts(found):
            if count:
                self.give_way()
            with self.transaction() as sql:
                query = f"DELETE FROM records WHERE id IN ({_marks(part)}) AND expires <= ?"
                count += sql.execute(query, (*part, now)).rowcount
        return count

    def count(self, bank: str) -> int:
        """Return how many keys a bank has, expired ones too."""
        return int(self._rows(f"SELECT count(*) FROM records WHERE {_OF}", bank)[0][0])

    def count_below(self, bank: str) -> int:
        """Return how many keys the banks below a bank have, expired ones too."""
        query = "SELECT count(*) FROM banks JOIN records ON records.bank = banks.id WHERE name > ? AND name < ?"
        return int(self._database.read(query, below(plain_bank(bank)))[0][0])

    # -- jobs ------------------------------------------------------------------------------------------------------

    def remove_older(self, banks: Sequence[str], parent: str, names: Sequence[str], than: float) -> None:
        """As ``removal.remove_older``."""
        remove_older(self._database, banks, parent, names, than)

    def give_way(self) -> None:
        """Pause, so that writers that wait for this thread can write."""
        self._database.give_way()

    # -- the file as a whole ---------------------------------------------------------------------------------------

    def add_rows(self, rows: Sequence[tuple[Any, ...]]) -> int:
        """Store rows (bank, key, updated, expires, value) unchanged where there is no value; return how many."""
        count = 0
        with self.transaction() as sql:
            for bank, key, *rest in rows:
                name, value = plain_bank(bank), stored.loads(rest[-1])
                if sql.execute(_ADD, (_bank_id(sql, name), key, *rest)).rowcount:
                    count += 1
                    job_index.has_stored(sql, name, key, value)
        return count

    def is_sound(self) -> bool:
        """Read the whole file, and tell whether it is sound; if it is damaged, it has been set aside."""
        return self._database.check()

    def damage(self) -> str | None:
        """As ``Database.damage``."""
        return self._database.damage()

    def backup(self, path: str) -> None:
        """Copy the file as it is at this moment; others may write. :raises OSError: also if the path exists."""
        self._database.backup(path)

    def file_bytes(self) -> int:
        """Return the size of the file, with that of its log."""
        size = 0
        for name in (self.path, f"{self.path}-wal"):
            with contextlib.suppress(FileNotFoundError):
                size += os.stat(name).st_blocks * 512
        return size

    def used_bytes(self) -> int:
        """Return how many bytes of the file are used."""
        ((pages, free, size),) = self._database.read(
            "SELECT page_count, freelist_count, page_size FROM pragma_page_count, pragma_freelist_count, pragma_page_size"
        )
        return int((pages - free) * size)

    def free_bytes(self) -> int:
        """Return how many bytes of the file are free for new records."""
        ((pages, size),) = self._database.read(
            "SELECT freelist_count, page_size FROM pragma_freelist_count, pragma_page_size"
        )
        return int(pages * size)

    def damaged(self) -> list[str]:
        """Return the damaged files that have been set aside, oldest first."""
        return self._database.damaged()

    def _rows(self, query: str, bank: str, *values: Any) -> list[Any]:
        return self._database.read(query, (plain_bank(bank), *values))

    def list(self, bank: str) -> list[str]:
        """Return the names of the keys and banks in a bank."""
        return list(dict.fromkeys((*self.keys(bank), *self.banks(bank))))


# -- names and marks ---------------------------------------------------------------------------------------------------


def _row(key: Any, value: Any, expires: float | None) -> tuple[Any, ...]:
    now = _now()
    until = None if expires is None else now + int(float(expires) * 1000)
    return (str(key), now, until, stored.dumps(value))


def _bank_id(sql: sqlite3.Connection, name: str) -> int:
    """Return the number of a bank, which is created if it is missing."""
    found = sql.execute("SELECT id FROM banks WHERE name = ?", (name,)).fetchone()
    if found is not None:
        return int(found[0])
    return int(sql.execute("INSERT INTO banks (name) VALUES (?)", (name,)).lastrowid or 0)


def _now() -> int:
    return int(time.time() * 1000)


def _marks(values: Collection[Any]) -> str:
    return ",".join("?" * len(values))
