"""
Turns the records of this master's log into facts for the queue. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator

from saltext.jobs.core.log.records import EVERY_JOB
from saltext.jobs.core.log.records import Published as Record
from saltext.jobs.core.retry.capture import NEVER
from saltext.jobs.core.retry.facts import Kill, Published


def of_record(record: Record, at: float, heard: bool = False) -> Iterator[Published | Kill]:
    """
    Yield what a publish in the log means for the queue. Publishes of this extension's engines mean nothing, except kills.

    Two kinds of signals are left to be read in the job cache: one among several functions, because its user may not be
    permitted all of them, and one to minions that the log does not name.

    :param at: the Unix time of the publish.
    :param heard: whether the record was made from an event.
    """
    functions = record.functions.split(",")
    if not record.sent or (NEVER.issuperset(functions) and not record.ends):
        return
    if record.ends and record.minions is not None and len(functions) == 1:
        for jid in record.ends:
            ended, user = "" if jid == EVERY_JOB else jid, record.user or "somebody"
            yield Kill(ended, frozenset(record.minions), user, at, record.jid)
    elif record.ends or not record.origin:
        yield Published(record.jid, at, False, bool(record.ends), record.minions, record.work, heard)
