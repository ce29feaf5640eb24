"""
What is known of minions and a job beside the entries of the queue: who has begun it, and whose entry was removed without a
return. A later look at the job must not owe it to those anew. Part of the retry machine, and as pure as it.

There is one note for each job, however many minions it names: a job that 10,000 minions run for an hour costs one record.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any


class Note:
    """``until`` is the Unix time at which nobody can be owed the job any more."""

    __slots__ = ("begun", "settled", "until")

    def __init__(self, until: float, begun: Iterable[str] = (), settled: Iterable[str] = ()) -> None:
        self.until, self.begun, self.settled = until, set(begun), set(settled)

    def __bool__(self) -> bool:
        return bool(self.begun or self.settled)

    def as_record(self) -> dict[str, Any]:
        """Return the form that is stored."""
        return {"until": self.until, "begun": sorted(self.begun), "settled": sorted(self.settled)}

    @classmethod
    def from_record(cls, record: Any) -> Note:
        """Return the note that a stored record describes. :raises ValueError: when it describes none."""
        try:
            until, begun, settled = float(record["until"]), list(record["begun"]), list(record["settled"])
        except (KeyError, TypeError) as exc:
            raise ValueError(f"{type(exc).__name__}: {exc}") from exc
        if not math.isfinite(until) or not all(isinstance(name, str) for name in (*begun, *settled)):
            raise ValueError("it is no note about a job")
        return cls(until, begun, settled)
