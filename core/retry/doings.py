"""
What this master has done, as facts for the queue: from records of its log. If its job cache keeps no log, and every minion
is trusted, each event of a publish is made such a record here. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from saltext.jobs.core.log.records import EVERY_JOB
from saltext.jobs.core.log.records import Published as Record
from saltext.jobs.core.master.doings import publish_of
from saltext.jobs.core.retry.capture import NEVER
from saltext.jobs.core.retry.facts import Kill, Published
from saltext.jobs.core.store.records import work_of


def of_record(record: Record, at: float) -> Iterator[Published | Kill]:
    """
    Yield what a publish in the log means for the queue. One of an engine of ours means nothing, unless it is a kill.

    A signal among several functions is left to be read in the job cache: not all that its user wants may be permitted. So is
    one to minions that the log does not name.

    :param at: when it was, in Unix time.
    """
    functions = record.functions.split(",")
    if not record.sent or (NEVER.issuperset(functions) and not record.ends):
        return
    if record.ends and record.minions is not None and len(functions) == 1:
        for jid in record.ends:
            yield Kill("" if jid == EVERY_JOB else jid, frozenset(record.minions), record.user or "somebody", at)
    elif record.ends or not record.origin:
        yield Published(record.jid, at, False, bool(record.ends), record.minions, record.work)


def record_of(jid: str, data: Mapping[str, Any], minions: tuple[str, ...], at: float) -> Record:
    """Return the record that a log would have of a publish, from what its event tells, at ``at`` in Unix time."""
    return publish_of(jid, data, minions, work_of(data), "", True)._replace(at=at)
