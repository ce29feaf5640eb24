"""
The beat shows an engine that the bus lost events: the engine numbers and signs its beats, and hears them come back.

Anyone who can fire events can fire a beat. It must never believe a beat without this process's signature.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import Any


class Beat:
    """The beats of one process. The key of their signatures never leaves it."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        #: The number of the last beat that was made, and of the last one that came back.
        self.sent = self.heard = 0

    @property
    def unheard(self) -> int:
        """How many beats have not come back since the last one that did."""
        return self.sent - self.heard

    def make(self) -> dict[str, Any]:
        """Return the payload of the next beat."""
        self.sent += 1
        return {"n": self.sent, "signature": self._signature(self.sent)}

    def skip(self) -> None:
        """Count one beat as lost, so that the next one that comes back shows a gap."""
        self.sent += 1

    def hear(self, payload: Any) -> int | None:
        """
        Take a beat from the bus.

        :return: how many beats were lost since the last one; None if this is not a new beat of this process.
        """
        n, signature = (payload.get("n"), payload.get("signature")) if isinstance(payload, dict) else (None, None)
        if type(n) is not int or not self.heard < n <= self.sent or not isinstance(signature, str):
            return None
        if not hmac.compare_digest(signature.encode("utf-8", "replace"), self._signature(n).encode()):
            return None
        lost, self.heard = n - self.heard - 1, n
        return lost

    def _signature(self, n: int) -> str:
        return hmac.new(self._key, str(n).encode(), hashlib.sha256).hexdigest()
