"""
What Salt 3008 has a master of a cluster store though no minion has brought it: returns of which the event of a peer tells.

An event proves nothing: any accepted minion can fire one in another's name. What a peer has stored itself, from the minion
that sent it, it has in its own log.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

from saltext.jobs.core.log.masters import shares
from saltext.jobs.core.log.segments import folder_of
from saltext.jobs.core.master.frames import codes, of_this_call

#: The file, beside a master's log, that says that its job cache has what events of peers told; it names the first peer.
_MIRRORED = "mirrored"


def told_by(opts: Mapping[str, Any]) -> str:
    """Return the peer of a cluster by whose event Salt has something stored at this moment; empty where it is none's."""
    if not opts.get("cluster_id"):
        return ""
    methods = codes("salt.master", "EventMonitor", "handle_event")
    for frame in of_this_call() if methods else ():
        if frame.f_code in methods:
            return str(frame.f_locals.get("peer_id") or "")
    return ""


def stores_itself(opts: Mapping[str, Any], peer: str) -> bool:
    """Tell whether what a peer's event tells is stored by that peer in the same place."""
    return shares(opts["cachedir"], peer)


def note_mirrored(opts: Mapping[str, Any], peer: str) -> None:
    """Note that something is stored of which nothing but a peer's event tells. :raises OSError:"""
    path = _path(opts)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(peer, encoding="utf-8")


def mirrored_from(opts: Mapping[str, Any]) -> str:
    """Return a peer by whose event something was stored; empty where there is none."""
    try:
        return _path(opts).read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except (OSError, ValueError):
        return "?"


def _path(opts: Mapping[str, Any]) -> pathlib.Path:
    return folder_of(opts["cachedir"], opts.get("id")) / _MIRRORED
