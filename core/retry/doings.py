"""
What this master has done, as facts for the queue: from the records of its log. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator

from saltext.jobs.core.log.records import EVERY_JOB
from saltext.jobs.core.log.records import Published as Record
from saltext.jobs.core.retry.capture import NEVER
from saltext.jobs.core.retry.facts import Kill, Published


def of_record(record: Record, at: float, heard: bool = False) -> Iterator[Published | Kill]:
    """
    Yield what a publish in the log means for the queue. One of an engine of ours means nothing, unless it is a kill.

    A signal among several functions is left to be read in the job cache: not all that its user wants may be permitted. So is
    one to minions that the log does not name.

    :param at: when it was, in Unix time.
    :param heard: whether it was made from an event.
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
