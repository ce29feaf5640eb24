"""
The owner of the queue. The masters of a site have one queue. Its entries are stored under one name, whichever
master leads.

The name is the id of the master that led first. It must never change as long as there are entries under it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from saltext.jobs.core.engine.names import JOB_RETRY
from saltext.jobs.core.ids import is_plain
from saltext.jobs.core.site import Folder, site_of

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
