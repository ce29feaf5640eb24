"""The file of ``cache: sqlite``: copied as a backup, and filled with the readable records of damaged ones."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from saltext.jobs.core.errors import Refused
from saltext.jobs.core.store.store import Store

if TYPE_CHECKING:  # Python may have been built without sqlite3
    from saltext.jobs.core.sqlite.banks import SqliteBanks


def backup(store: Store, path: Any) -> dict[str, Any]:
    """
    Copy the file as it is at this moment.

    :param path: of the copy; absolute.
    :return: path and bytes.
    :raises Refused: if that cannot be done.
    """
    banks = _file_of(store, "backup")
    if not isinstance(path, str) or not os.path.isabs(path) or "\0" in path:
        raise Refused(f"path is {path!r}; accepted is the absolute path of a file")
    try:
        banks.backup(path)
    except FileExistsError as exc:
        raise Refused(f"{exc.filename2 or exc.filename} is there already; name a file that does not exist") from exc
    except Exception as exc:  # SQLite and the disk raise many kinds
        raise Refused(f"The copy cannot be made: {exc}") from exc
    return {"path": path, "bytes": os.stat(path).st_size}


def recover(store: Store, path: Any = None) -> dict[str, Any]:
    """
    Copy the readable records of damaged files into the file in use.

    :param path: one damaged file; None for all that were set aside.
    :return: by the path of each file: read, written and gaps, or error.
    :raises Refused: if there is none.
    """
    banks = _file_of(store, "recover")
    if path is not None and (not isinstance(path, str) or not _is_another_file(path, banks.path)):
        raise Refused(f"path is {path!r}; accepted is the path of a file that was set aside")
    done = {name: _recovered(name, banks) for name in (banks.damaged() if path is None else [path])}
    if not done:
        raise Refused(f"There is no damaged file beside {banks.path}")
    return done


def _is_another_file(path: str, own: str) -> bool:
    try:
        return os.path.isfile(path) and not os.path.samefile(path, own)
    except FileNotFoundError:
        return True
    except (OSError, ValueError):
        return False


def _recovered(path: str, banks: SqliteBanks) -> dict[str, Any]:
    import sqlite3

    from saltext.jobs.core.sqlite.salvage import Unreadable
    from saltext.jobs.core.store.salvage import JobSalvage

    salvage = JobSalvage(path, banks)
    try:
        salvage.require_known_format()
        salvage.run()
    except Unreadable as exc:
        return {"error": f"nothing of it can be read: {exc}"}
    except sqlite3.Error as exc:
        return {"error": f"the file in use cannot be written: {exc}"}
    except OSError as exc:
        return {"error": f"it cannot be read now: {exc}"}
    return {"read": salvage.read, "written": salvage.written, "gaps": salvage.gaps}


def _file_of(store: Store, what: str) -> SqliteBanks:
    if store.driver.one_file is None:
        raise Refused(f"job_cache.{what} is for cache: sqlite; the master has cache: {store.driver.name}")
    return store.driver.one_file.banks_file
