"""
The files of an engine, by names.

The leader writes in transactions that first make sure that it still leads (``core/postgresql/lease.py``). A runner, which
only writes requests, needs no lease. A failure to look must never be reported as a missing file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from saltext.jobs.core.disk.lease import Lease
from saltext.jobs.core.errors import StateError
from saltext.jobs.core.ledger.tables import FILES, Execute, Tables

_OF = "engine = ? AND name = ?"
_READ = f"SELECT part, body FROM {FILES} WHERE {_OF} ORDER BY part"
_DELETE = f"DELETE FROM {FILES} WHERE {_OF}"
_NAMES = f"SELECT name FROM {FILES} WHERE engine = ? AND name >= ? AND name < ? AND part = 0 ORDER BY name"
_MODIFIED = f"SELECT max(modified) FROM {FILES} WHERE {_OF}"
_IS_THERE = f"SELECT 1 FROM {FILES} WHERE {_OF} AND part = 0"


class Folder:
    """
    After an OSError other than FileNotFoundError it is not known whether the file is there.

    :param engine: whose files they are.
    :param lease: by which this process leads; None for a runner.
    """

    def __init__(self, tables: Tables, engine: str, lease: Lease | None = None) -> None:
        self.tables, self._engine, self._lease = tables, engine, lease
        now = tables.dialect.now
        self._insert = f"INSERT INTO {FILES} (engine, name, part, body, modified) VALUES (?, ?, ?, ?, {now})"

    def where(self, name: str = "") -> str:
        """Return how messages name a file, or the folder."""
        return f"{name or 'the files'} of {self._engine} in {self.tables.place}"

    def read(self, name: str) -> bytes:
        """
        Return the content of a file.

        :raises FileNotFoundError: when it is not there. :raises OSError: :raises StateError: when others have written it.
        """
        found = self.tables.read(_READ, (self._engine, name))
        if not found:
            raise self._absent(name)
        parts = [self.tables.seal.take(bytes(body), *self._sealed(name, part)) for part, body in found]
        if None in parts:
            raise StateError(f"{self.where(name)} is not sealed by a master of this site")
        return b"".join(part for part in parts if part is not None)

    def write(self, name: str, data: bytes, durable: bool = False) -> None:
        """
        Replace a file as a whole.

        :param durable: whether it must survive a power cut when this returns.
        :raises OSError: the old content stays. If only durability is uncertain, a power cut may leave either content.
        """

        def work(execute: Execute) -> None:
            self._replace(execute, name, data)
            self.tables.tell(execute, self._engine)

        self._do(work, durable)

    def names(self, below: str) -> list[str]:
        """Return the names of the files in ``below``, each with ``below/`` before it, sorted. :raises OSError:"""
        return [str(row[0]) for row in self.tables.read(_NAMES, (self._engine, f"{below}/", f"{below}0"))]

    def modified(self, name: str) -> float:
        """Return when a file was last written, in Unix time. :raises FileNotFoundError, OSError:"""
        found = self._one(_MODIFIED, name)
        if found is None:
            raise self._absent(name)
        return float(found)

    def remove(self, name: str) -> bool:
        """Remove a file, and tell whether it was there. :raises OSError:"""
        return bool(self._do(lambda execute: execute(_DELETE, (self._engine, name)).rowcount, durable=False))

    def exists(self, *names: str) -> bool:
        """Tell whether one of these is there. :raises OSError: when that cannot be told."""
        return any(self._one(_IS_THERE, name) for name in names)

    # -- asking the database ------------------------------------------------------------------------------------------

    def _replace(self, execute: Execute, name: str, data: bytes) -> None:
        execute(_DELETE, (self._engine, name))
        self._store(execute, self._insert, name, 0, data)

    def _store(self, execute: Execute, statement: str, name: str, part: int, data: bytes) -> None:
        execute(statement, (self._engine, name, part, self.tables.seal.put(data, *self._sealed(name, part))))

    def _sealed(self, name: str, part: int) -> tuple[object, ...]:
        """Return what a part is sealed for."""
        return FILES, self._engine, name, part

    def _absent(self, name: str) -> FileNotFoundError:
        return FileNotFoundError(f"There is no {self.where(name)}")

    def _one(self, query: str, name: str) -> Any:
        found = self.tables.read(query, (self._engine, name))
        return found[0][0] if found else None

    def _do(self, work: Callable[[Execute], Any], durable: bool = True) -> Any:
        return self.tables.write(work, self._lease, durable)
