"""The database of a master in SQLite: copied as a backup, and filled with the readable rows of damaged ones."""

from __future__ import annotations

import os
from typing import Any

from saltext.jobs.core.errors import Refused
from saltext.jobs.core.sqlite.tables import SqliteTables
from saltext.jobs.core.store.store import Store


def backup(store: Store, path: Any) -> dict[str, Any]:
    """Copy the file as it is at this moment, and return path and bytes of the copy. :raises Refused:"""
    tables = _file_of(store, "backup")
    if not isinstance(path, str) or not os.path.isabs(path) or "\0" in path:
        raise Refused(f"path is {path!r}; accepted is the absolute path of a file")
    try:
        tables.database.backup(path)
    except FileExistsError as exc:
        raise Refused(f"{exc.filename2 or exc.filename} is there already; name a file that does not exist") from exc
    except Exception as exc:  # SQLite and the disk raise many kinds
        raise Refused(f"The copy cannot be made: {exc}") from exc
    return {"path": path, "bytes": os.stat(path).st_size}


def recover(store: Store, path: Any) -> dict[str, int]:
    """Copy the readable records of a damaged file into the file in use, as ``core.sqlite.recovery``. :raises Refused:"""
    tables = _file_of(store, "recover")
    named = isinstance(path, str) and os.path.isfile(path) and path
    if not named or os.path.realpath(named) == os.path.realpath(tables.place):
        raise Refused(f"path is {path!r}; accepted is the path of a file that was set aside")
    from saltext.jobs.core.sqlite.recovery import recover as recovered

    try:
        return recovered(path, tables)
    except Exception as exc:  # SQLite and the disk raise many kinds
        raise Refused(f"{path} cannot be brought back: {exc}") from exc


def _file_of(store: Store, what: str) -> SqliteTables:
    tables = store.site
    if not isinstance(tables, SqliteTables):
        raise Refused(f"job_cache.{what} is for a file of SQLite; for {tables.place} use the server's own means")
    return tables
