"""
Store loads, returns and events in the PostgreSQL tables of Salt's pgjsonb returner, up to a thousand in one transaction.

.. code-block:: yaml

    job_recorder:
      returners: [pgjsonb_bulk]

    returner.pgjsonb_bulk.host: db.example.com
    returner.pgjsonb_bulk.keep_days: 400

It is for the ``job_recorder`` engine, and for events by Salt's ``event_return: pgjsonb_bulk``; ``docs/pgjsonb_bulk.md``
describes it. Options that are not set are taken from ``returner.pgjsonb``. Needs psycopg:
``pip install saltext-jobs[postgresql]``.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

# Salt 3008 imports this file in every salt-run. What a call needs beyond these, it imports itself.
if TYPE_CHECKING:
    from saltext.jobs.core.postgresql.sink import Sink

__virtualname__ = "pgjsonb_bulk"

# Salt's loader brings these.
__context__: MutableMapping[str, Any]
__opts__: Mapping[str, Any]


def __virtual__() -> str | tuple[bool, str]:
    if importlib.util.find_spec("psycopg") is None:
        return False, "the Python module psycopg is missing: pip install 'saltext-jobs[postgresql]'"
    return __virtualname__


def store_many(records: Sequence[Mapping[str, Any]]) -> dict[int, str]:
    """
    Store records in one transaction. A known record changes nothing.

    :param records: a list of dicts: ``kind`` (``load``, ``return`` or ``event``), ``time`` (Unix time at which it was
        published, returned or heard), ``data`` (what the job cache or the bus had), and ``jid`` of a load and a return,
        ``minion`` of a return, ``tag`` of an event.
    :return: ``{position in the list: reason}`` of the records that it cannot store; all others are stored.
    :raises Exception: when none is stored, or that is unknown. A class named DataError, IntegrityError or ValueError
        says that one of the records cannot be stored; smaller calls show which.
    """
    return _sink().take(records)


def returner(ret: Mapping[str, Any]) -> None:
    """Store one return."""
    from saltext.jobs.core.postgresql.sink import RETURN

    _store_one({"kind": RETURN, "jid": ret["jid"], "minion": ret["id"], "time": time.time(), "data": ret})


def save_load(jid: str, load: Mapping[str, Any], minions: Any = None) -> None:
    """Store one job's load."""
    from saltext.jobs.core.postgresql.sink import LOAD

    _store_one({"kind": LOAD, "jid": jid, "time": time.time(), "data": load})


def event_return(events: Sequence[Mapping[str, Any]]) -> None:
    """Store events, without secrets. Their time is now: each gets one of its own."""
    from saltext.jobs.core.master.secrets import event_for_history
    from saltext.jobs.core.postgresql.sink import EVENT

    now = time.time()
    records = [
        {"kind": EVENT, "tag": event["tag"], "time": now + number / 1e6, "data": event_for_history(event["data"])}
        for number, event in enumerate(events)
    ]
    for reason in _refused(records):
        raise ValueError(reason)


def _refused(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Store records, and return why some are refused: a bad one, such as with a tag that is too long, keeps out no other."""
    try:
        return list(store_many(records).values())
    except Exception as exc:
        if not {"DataError", "IntegrityError", "ValueError"}.intersection(kind.__name__ for kind in type(exc).__mro__):
            raise
        if len(records) == 1:
            return [str(exc)]
    middle = len(records) // 2
    return [*_refused(records[:middle]), *_refused(records[middle:])]


def _store_one(record: Mapping[str, Any]) -> None:
    for reason in store_many([record]).values():
        raise ValueError(reason)


def _sink() -> Sink:
    from saltext.jobs.core.options.postgresql import read_options
    from saltext.jobs.core.postgresql.sink import Sink

    if __virtualname__ not in __context__:
        __context__[__virtualname__] = Sink(read_options(__opts__), __opts__["id"])
    sink: Sink = __context__[__virtualname__]
    return sink
