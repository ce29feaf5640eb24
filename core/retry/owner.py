"""
The owner of the queue. Masters that share a cachedir have one queue. Its entries are stored under one name, whichever
master leads.

The name is the id of the master that led first. It must never change as long as there are entries under it.
"""

from __future__ import annotations

import pathlib
import shutil
from collections.abc import Mapping
from typing import Any, NamedTuple

from saltext.jobs.core import lines
from saltext.jobs.core.disk import files
from saltext.jobs.core.disk.folder import FileFolder
from saltext.jobs.core.engine.names import JOB_RETRY
from saltext.jobs.core.errors import StateError
from saltext.jobs.core.ids import is_plain
from saltext.jobs.core.retry.checkpoint import CHECKPOINT, read_checkpoint
from saltext.jobs.core.site import Folder, site_of

log = lines.logger(__name__)

#: Its file in the engine's folder.
_OWNER = "owner"


def owner_of(opts: Mapping[str, Any]) -> str:
    """Return the name under which this master's queue is stored. :raises OSError: when it cannot be read now."""
    return _settled(site_of(opts).folder(JOB_RETRY)) or str(opts["id"])


def settle_owner(folder: Folder, master: str) -> str:
    """
    Return the name of the owner. If there is none yet, it becomes the given master's. Only the engine that leads may call
    this.

    :raises OSError: when it cannot be read or written now. To go on under another name would make the queue seem empty.
    """
    owner = _settled(folder)
    if not owner:
        owner = master
        folder.write(_OWNER, owner.encode(), durable=True)
    return owner


def _settled(folder: Folder) -> str:
    """Return the name in the file; empty if there is no file, or no usable name in it. :raises OSError:"""
    try:
        name = folder.read(_OWNER).decode().strip()
    except (FileNotFoundError, UnicodeDecodeError):
        return ""
    return name if is_plain(name) else ""


class Earlier(NamedTuple):
    """The queue that a master of a cluster had for itself up to version 0.2.0. ``at``: the time of its checkpoint."""

    owner: str
    folder: pathlib.Path
    at: float


def earlier_queues(root: pathlib.Path | None) -> list[Earlier]:
    """Return the earlier queues below ``root`` whose engines do not run. :raises LaterVersion: as ``read_checkpoint``."""
    found = []
    for path in sorted(root.glob(f"*/{CHECKPOINT}")) if root is not None else ():
        if files.is_held(path.parent / "lock"):
            log.warning(
                "The queue of %s is left to its own engine, of an earlier version: restart that master",
                path.parent.name,
            )
            continue
        try:
            read = read_checkpoint(FileFolder(path.parent))
        except (StateError, OSError) as exc:
            log.error("The checkpoint of %s is lost, so its earlier jobs are not checked: %s", path.parent.name, exc)
            read = None
        if read is not None:
            found.append(Earlier(path.parent.name, path.parent, read["at"]))
    return found


def retire(queue: Earlier, folder: Folder) -> None:
    """Take over the requests of a queue whose entries have been taken over, and remove its folder. :raises OSError:"""
    for request in queue.folder.glob("requests/*.request"):
        folder.write(f"requests/{request.name}", request.read_bytes(), durable=True)
    shutil.rmtree(queue.folder)
