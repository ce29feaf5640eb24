"""
Returns that a master of a cluster stores because of a peer's event, though no minion sent them to it (Salt 3008).

Such an event proves nothing: any accepted minion can fire one in another's name. A return that a peer itself got from a
minion is in the peer's own log.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

from saltext.jobs.core.log.segments import folder_of
from saltext.jobs.core.master.identity import codes, frames_of_this_call

#: The file beside a master's log that says that its job cache has returns from events of peers; it names the first peer.
_MIRRORED = "mirrored"


def told_by(opts: Mapping[str, Any]) -> str:
    """Return the peer of a cluster whose event Salt is storing at this moment; empty if there is none."""
    if not opts.get("cluster_id"):
        return ""
    methods = codes("salt.master", "EventMonitor", "handle_event")
    for frame in frames_of_this_call() if methods else ():
        if frame.f_code in methods:
            return str(frame.f_locals.get("peer_id") or "")
    return ""


def note_mirrored(opts: Mapping[str, Any], peer: str) -> None:
    """Note that a return is stored only because of a peer's event. :raises OSError:"""
    path = _path(opts)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(peer, encoding="utf-8")


def mirrored_from(opts: Mapping[str, Any]) -> str:
    """Return a peer whose event was stored; empty if there is none, ``?`` if that cannot be read."""
    try:
        return _path(opts).read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except (OSError, ValueError):
        return "?"


def _path(opts: Mapping[str, Any]) -> pathlib.Path:
    return folder_of(opts["cachedir"], opts.get("id")) / _MIRRORED
