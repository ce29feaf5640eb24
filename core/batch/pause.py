"""
Why a batch sends to no minion for now: a code for programs, and a sentence for people. All such sentences are here.

Pure: stdlib only.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Any


class PausedBy(str, enum.Enum):
    """What a batch waits for."""

    OPERATOR = "operator"  # an operator has paused it
    PUBLISH = "publish"  # publishes or pings failed too often
    PERMISSION = "permission"  # its owner may not run it any more
    APPROVAL = "approval"  # a stage is over and needs an approval
    WINDOW = "window"  # its window is shut
    START = "start"  # its time has not come
    RIGHTS = "rights"  # it is not known now whether its owner still may run it


_UNKNOWN = "whether its owner still may cannot be said now"
#: Pauses that a resume ends.
HELD = frozenset({PausedBy.OPERATOR, PausedBy.PUBLISH, PausedBy.PERMISSION})
#: Pauses that end when it is time.
SCHEDULED = frozenset({PausedBy.WINDOW, PausedBy.START})


@dataclasses.dataclass(frozen=True, slots=True)
class Pause:
    """
    :param by: what the batch waits for.
    :param detail: who has paused the batch, or what went wrong.
    """

    by: PausedBy
    detail: str = ""

    @property
    def reason(self) -> str:
        """The sentence for people."""
        plain, detailed = _SENTENCES[self.by]
        return f"{detailed}{self.detail}" if self.detail else plain

    def payload(self) -> dict[str, Any]:
        """Return the fields of the event ``paused``."""
        return {"reason": self.reason, "paused_by": self.by.value}


#: The sentence without a detail, and what comes before a detail.
_SENTENCES = {
    PausedBy.OPERATOR: ("paused", "paused by "),
    PausedBy.PUBLISH: ("publishes failed", ""),
    PausedBy.PERMISSION: ("its owner may not run it any more", ""),
    PausedBy.APPROVAL: ("waits for approval", "waits for approval: "),
    PausedBy.WINDOW: ("outside its window", "when it may send is not known: "),
    PausedBy.START: ("before its start time", "when it may send is not known: "),
    PausedBy.RIGHTS: (_UNKNOWN, f"{_UNKNOWN}: "),
}


def write(pause: Pause | None) -> list[str] | None:
    """Return the form of a snapshot."""
    return None if pause is None else [pause.by.value, pause.detail]


def read(data: Any) -> Pause | None:
    """Return the pause in a snapshot; up to version 0.2.0 it was a sentence. :raises ValueError, TypeError:"""
    if not isinstance(data, str):
        return None if data is None else Pause(PausedBy(data[0]), str(data[1]))
    if data == "paused" or data.startswith("paused by "):
        return Pause(PausedBy.OPERATOR, data[len("paused by ") :])
    by = PausedBy.PUBLISH if " publishes failed in a row, the last one: " in data else PausedBy.PERMISSION
    return Pause(by, data) if data else None


def code(by: PausedBy | None) -> str | None:
    """Return a code in the form of a snapshot."""
    return by and by.value


def of_code(data: str | None) -> PausedBy | None:
    """Return the inverse of ``code``. :raises ValueError: for an unknown one."""
    return None if data is None else PausedBy(data)
