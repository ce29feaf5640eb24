"""
Returns that a master of a cluster stores because of a peer's event, though no minion sent them to it (Salt 3008).

Such an event proves nothing: any accepted minion can fire one in another's name. A peer of the same site has itself stored
what minions returned to it.
"""

from __future__ import annotations

from saltext.jobs.core.master.identity import codes, frames_of_this_call


def told_by_peer() -> bool:
    """Tell whether Salt is storing a return at this moment because a peer's event tells of it."""
    methods = codes("salt.master", "EventMonitor", "handle_event")
    return any(frame.f_code in methods and frame.f_locals.get("peer_id") for frame in frames_of_this_call())
