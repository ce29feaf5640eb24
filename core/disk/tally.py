"""How many minions a job was for, and what became of them."""

from __future__ import annotations

from typing import NamedTuple


class Tally(NamedTuple):
    """How many minions a job was for (0 if not known), have returned, have failed, and are missing."""

    minions: int
    returned: int
    failed: int
    missing: int
    #: For the minion that was asked for: ``returned``, ``failed`` or ``missing``; empty if the job was not for it.
    of_minion: frozenset[str] = frozenset()
