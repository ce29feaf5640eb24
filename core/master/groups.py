"""
The groups of a caller, from Salt's backend of that login or from this machine. Blocks.

It must never take a group from the caller's own words, nor guess: if the groups are not known, the caller has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import salt.auth
import salt.utils.user

from saltext.jobs.core.master.caller import Caller
from saltext.jobs.core.master.identity import KEY, MASTER, SUDO


def names_of(who: Caller) -> frozenset[str]:
    """
    Return the names of a caller: the one that batches show, and that with the backend before it.

    A user of the API whose name has a meaning to Salt (``root``) has only the name with the backend.
    """
    known = who.who
    own = {who.name, *({known.name} if known and known.kind in (MASTER, SUDO, KEY) else ())}
    # Some backends have users named "%ops" or "pam:anna", which mean a group or a user of another backend here.
    plain = {name for name in own if not name.startswith("%") and ":" not in name}
    return frozenset({*plain, *(f"{backend}:{known.name}" for backend in known.backends)} if known else plain)


def groups_of(opts: Mapping[str, Any], who: Caller) -> frozenset[str]:
    """Return the groups of a caller; none if they are not known, as with a token that may be of several backends."""
    known = who.who
    if known is None or who.peer:
        return frozenset()
    if known.kind in (MASTER, SUDO, KEY):
        try:
            return frozenset(salt.utils.user.get_group_list(known.name))
        except KeyError:  # no user of this machine
            return frozenset()
    if len(known.backends) != 1:
        return frozenset()
    found = salt.auth.LoadAuth(dict(opts)).get_groups({"eauth": known.backends[0], "username": known.name})
    return frozenset(str(name) for name in found) if isinstance(found, (list, tuple, set)) else frozenset()
