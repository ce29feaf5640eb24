"""
A note: what is known of minions and one job beside the entries of the queue. Who has begun it, for whom an operator has
killed it, and whose entry was removed without a return. A later look at the job must not owe it to those anew. Part of the
retry machine, and as pure as it; the notes about all jobs are in notes.py.

There is one note for each job, however many minions it names: a job that 10,000 minions run for an hour costs one record.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any


class Note:
    """
    ``until`` is the Unix time at which nobody can be owed the job any more; ``killed`` is ``{minion: who killed it}``.
    """

    __slots__ = ("begun", "killed", "settled", "until")

    def __init__(
        self,
        until: float,
        begun: Iterable[str] = (),
        settled: Iterable[str] = (),
        killed: Mapping[str, str] | None = None,
    ) -> None:
        self.until, self.begun, self.settled = until, set(begun), set(settled)
        self.killed = dict(killed or {})

    def __bool__(self) -> bool:
        return bool(self.begun or self.settled or self.killed)

    def as_record(self) -> dict[str, Any]:
        """Return the form that is stored."""
        return {
            "until": self.until,
            "begun": sorted(self.begun),
            "settled": sorted(self.settled),
            "killed": dict(self.killed),
        }

    @classmethod
    def from_record(cls, record: Any) -> Note:
        """Return the note that a stored record describes. :raises ValueError: when it describes none."""
        try:
            until, begun, settled = float(record["until"]), list(record["begun"]), list(record["settled"])
            killed = dict(record["killed"])
        except (KeyError, TypeError) as exc:
            raise ValueError(f"{type(exc).__name__}: {exc}") from exc
        names = (*begun, *settled, *killed, *killed.values())
        if not math.isfinite(until) or not all(isinstance(name, str) for name in names):
            raise ValueError("it is no note about a job")
        return cls(until, begun, settled, killed)
