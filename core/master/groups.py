"""
In which groups whoever asks is, as Salt's backend of that login or this machine says. Blocks.

It must never take a group from what whoever asks says, nor guess: of whom nobody can tell it, there are none.
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
    Return what whoever asks may be called by: the name under which batches show them, and those with the backend before it.

    A user of the API who is called as one of this machine that means something to Salt (``root``) has the latter alone.
    """
    known = who.who
    own = {who.name, *({known.name} if known and known.kind in (MASTER, SUDO, KEY) else ())}
    # Some backends let in whoever is called "%ops" or "pam:anna", which is a group or a user of another backend here.
    plain = {name for name in own if not name.startswith("%") and ":" not in name}
    return frozenset({*plain, *(f"{backend}:{known.name}" for backend in known.backends)} if known else plain)


def groups_of(opts: Mapping[str, Any], who: Caller) -> frozenset[str]:
    """Return the groups of whoever asks; none where they are not known, as with a token that may be of several backends."""
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
