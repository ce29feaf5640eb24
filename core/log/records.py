"""
What the log tells of: publishes of this master, and returns that it has stored. Pure.

It must never hold more than is needed to know what was done: neither arguments nor what a minion returned. What comes from
outside is packed as text (``core/log/framing.py`` says why).
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from typing import Any, NamedTuple

from saltext.jobs.core.log import framing

_PUBLISHED, _RETURNED = "p", "r"
#: A publish for more minions than have ids of this many bytes refers to the bank ``jobs/minions``.
_MOST = 64 << 10
#: Characters of the longest name of a user.
_LONGEST_USER = 256
#: In place of a jid: all jobs.
EVERY_JOB = "*"


class Published(NamedTuple):
    """
    This master was about to publish a job. It is in the log before the job cache has anything of it.

    * ``functions``: joined by commas.
    * ``origin``: which engine of ours has published it; empty for everybody else.
    * ``minions``: those it is for, ``total`` in number; None where they are too many. Then they are in the bank
      ``jobs/minions``: those of this publish alone if ``whole`` is their ``list_digest``, else others too.
    * ``ends``: the jobs that it ends by a signal, ``EVERY_JOB`` for all that a minion runs.
    * ``work``: the digest of its functions and arguments.
    * ``sent``: False where a load was only stored, and nothing published.
    * ``at``: Unix time.
    """

    jid: str
    functions: str
    user: str
    origin: str
    minions: tuple[str, ...] | None
    total: int
    whole: str
    ends: tuple[str, ...]
    work: str
    sent: bool
    at: float

    def packed(self) -> bytes:
        """Return the record as it is written."""
        return framing.pack([_PUBLISHED, *self])


class Returned(NamedTuple):
    """
    This master has stored a return. ``functions``: as the minion named them. ``retcode``: as it was checked, 0 for success.
    ``first``: whether it was the first one of the minion for this job, which is kept.
    """

    jid: str
    minion: str
    functions: str
    retcode: int
    first: bool
    at: float

    def packed(self) -> bytes:
        """Return the record as it is written."""
        return framing.pack([_RETURNED, self.jid, self.minion, self.functions, str(self.retcode), self.first, self.at])


Record = Published | Returned


def published(
    jid: str,
    functions: str,
    user: str,
    origin: str,
    minions: Collection[str],
    ends: Collection[str],
    work: str,
    sent: bool,
    at: float,
) -> Published:
    """Return the record of a publish: it refers to its minions where they are many."""
    named: tuple[str, ...] | None = tuple(minions)
    whole = ""
    if sum(map(len, minions)) > _MOST:
        whole, named = list_digest(minions), None
    user = user[:_LONGEST_USER]
    return Published(jid, functions, user, origin, named, len(minions), whole, tuple(ends), work, sent, at)


def list_digest(minions: Collection[str]) -> str:
    """Return the digest of a list of minions, whatever its order."""
    text = "/".join(sorted(minions)).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=16).hexdigest()


def read(body: bytes) -> Record | None:
    """
    Return what a record says; None for a kind that a later version has added.

    :raises Exception: of many kinds, where it is none.
    """
    fields: Any = framing.unpack(body)
    kind = fields[0]
    if kind == _RETURNED:
        jid, minion, functions, retcode, first, at = fields[1:7]
        return Returned(jid, minion, functions, int(retcode), first, at)
    if kind == _PUBLISHED:
        record = Published(*fields[1:12])
        minions = None if record.minions is None else tuple(record.minions)
        return record._replace(minions=minions, ends=tuple(record.ends))
    return None
