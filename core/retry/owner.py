"""
Whose the queue is. Masters that share a cachedir have one queue: its entries stand under one name, whichever of them leads.

That name is the id of the master that led first. It must never change as long as there are entries under it.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
from collections.abc import Mapping
from typing import Any, NamedTuple

from saltext.jobs.core import lines
from saltext.jobs.core.disk import files
from saltext.jobs.core.engine.names import JOB_RETRY
from saltext.jobs.core.engine.requests import engine_dir
from saltext.jobs.core.errors import StateError
from saltext.jobs.core.ids import is_plain
from saltext.jobs.core.retry.checkpoint import CHECKPOINT, read_checkpoint

log = lines.logger(__name__)


def owner_of(opts: Mapping[str, Any]) -> str:
    """Return the name under which the entries of this master's queue stand."""
    with contextlib.suppress(OSError):
        return _settled(opts) or str(opts["id"])
    return str(opts["id"])


def settle_owner(opts: Mapping[str, Any]) -> str:
    """
    Return that name, and have it stay. To be called by the engine that leads.

    :raises OSError: when it cannot be read or written now: under another name the queue would seem to be empty.
    """
    owner = _settled(opts)
    if not owner:
        owner = str(opts["id"])
        files.write_atomic(_path(opts), owner.encode(), durable=True)
    return owner


def _settled(opts: Mapping[str, Any]) -> str:
    """Return what the file says; empty where there is none, or where it names no master. :raises OSError:"""
    try:
        name = _path(opts).read_text(encoding="utf-8").strip()
    except (FileNotFoundError, UnicodeDecodeError):
        return ""
    return name if is_plain(name) else ""


def _path(opts: Mapping[str, Any]) -> pathlib.Path:
    return engine_dir(opts, JOB_RETRY) / "owner"


class Earlier(NamedTuple):
    """The queue that a master of a cluster had for itself up to version 0.2.0. ``at``: that of its checkpoint."""

    owner: str
    folder: pathlib.Path
    at: float


def earlier_queues(folder: pathlib.Path) -> list[Earlier]:
    """Return those whose engines do not run any more. :raises LaterVersion: as ``read_checkpoint``."""
    found = []
    for path in sorted(folder.glob(f"*/{CHECKPOINT}")):
        if files.is_held(path.parent / "lock"):
            log.warning(
                "The queue of %s is left to its engine, of an earlier version: restart that master", path.parent.name
            )
            continue
        try:
            read = read_checkpoint(path)
        except (StateError, OSError) as exc:
            log.error("Jobs of the past are not looked at for %s: %s", path.parent.name, exc)
            read = None
        if read is not None:
            found.append(Earlier(path.parent.name, path.parent, read["at"]))
    return found


def retire(queue: Earlier, folder: pathlib.Path) -> None:
    """Remove what was that queue's own, once its entries are stored anew; its requests are carried out. :raises OSError:"""
    for request in queue.folder.glob("requests/*.request"):
        os.replace(request, folder / "requests" / request.name)
    shutil.rmtree(queue.folder)
