"""How many minions a job was for, and what became of them."""

from __future__ import annotations

from typing import NamedTuple


class Tally(NamedTuple):
    """How many minions a job was for (0 where that is not known), have returned, have failed, and are missing."""

    minions: int
    returned: int
    failed: int
    missing: int
    #: What of ``returned``, ``failed`` and ``missing`` one minion is that was asked for; nothing, where it is not for it.
    of_minion: frozenset[str] = frozenset()
