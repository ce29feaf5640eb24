"""
A user, and how Salt has authenticated them. Jobs, batches and the retry queue record it, so that the rights can be checked
again later. Pure. It must never come from a request's own claims (an API user may be called root, and may name another user
beside a token), nor from a record that anyone but this master could have written.
"""

from __future__ import annotations

import dataclasses
from typing import Any

#: The field of a load in the job cache that holds the identity; dropped from loads that none of our engines made.
WHO = "saltext_jobs_who"

#: root or the user of the master, and the master's own schedule, reactor and engines.
MASTER = "master"
#: A user who acts as one of these by ``sudo``: limited as long as ``sudo_acl`` is set.
SUDO = "sudo"
#: A user of publisher_acl, by a key file.
KEY = "key"
#: Users of a backend of external_auth, by a token and by a password.
TOKEN, PASSWORD = "token", "password"
#: A minion, by ``peer`` (it had the master publish) and by ``peer_run`` (it called a runner).
PEER, PEER_RUN = "peer", "peer_run"
#: A user of a master above this one; that master limits them.
ABOVE = "above"
_KINDS = (MASTER, SUDO, KEY, TOKEN, PASSWORD, PEER, PEER_RUN, ABOVE)


@dataclasses.dataclass(frozen=True)
class Identity:
    """A user, and how Salt authenticated them."""

    kind: str  # one of the above
    name: str  # as Salt's access lists have it
    # Backends of external_auth: empty if unknown, several if a token may belong to any of them.
    backends: tuple[str, ...] = ()
    at: float = 0.0  # when Salt checked it, in Unix time

    def as_record(self) -> dict[str, Any]:
        return {"kind": self.kind, "name": self.name, "backends": list(self.backends), "at": self.at}

    @classmethod
    def from_record(cls, record: Any) -> Identity | None:
        """Return the identity in a stored record, or None. :raises ValueError: when it is malformed."""
        if not record:
            return None
        try:
            found = cls(record["kind"], record["name"], tuple(record["backends"]), float(record["at"]))
        except (TypeError, KeyError, ValueError) as exc:
            raise ValueError(f"it is no identity: {record!r:.200}") from exc
        if found.kind not in _KINDS or not all(isinstance(text, str) for text in (found.name, *found.backends)):
            raise ValueError(f"it is no identity: {record!r:.200}")
        return found


def are_one(one: Identity, other: Identity) -> bool:
    """Tell whether two identities certainly are the same user."""
    if {one.kind, other.kind} <= {TOKEN, PASSWORD}:
        return one.name == other.name and one.backends == other.backends and len(one.backends) == 1
    return (one.kind, one.name) == (other.kind, other.name)
