"""
The publishes that were made here lately: the event of one is no news. Pure: time is an argument.
"""

from __future__ import annotations

from typing import Any

#: Seconds for which the event of a publish of ours is expected.
_ECHO = 60.0


class Echoes:
    """What was published from here, by jid and target."""

    def __init__(self) -> None:
        self._until: dict[tuple[str, int], float] = {}

    def expect(self, jid: str, tgt: list[str] | str, now: float) -> None:
        """Expect the event of a publish."""
        self._until = {key: until for key, until in self._until.items() if until > now}
        self._until[jid, _digest_of(tgt)] = now + _ECHO

    def has(self, jid: str, tgt: Any, now: float) -> bool:
        """Tell whether this is the event of a publish that is expected."""
        return isinstance(tgt, (str, list)) and self._until.get((jid, _digest_of(tgt)), 0.0) > now


def _digest_of(tgt: list[Any] | str) -> int:
    return hash(tgt if isinstance(tgt, str) else ",".join(map(str, tgt)))
