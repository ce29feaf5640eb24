"""
Loads, returns and events into the PostgreSQL tables of Salt's pgjsonb returner, up to a thousand in one transaction.

.. code-block:: yaml

    job_recorder:
      returners: [pgjsonb_bulk]

    returner.pgjsonb_bulk.host: db.example.com
    returner.pgjsonb_bulk.keep_days: 400

It is for the ``job_recorder`` engine; ``docs/pgjsonb_bulk.md`` describes it. Options that are not set are taken from
``returner.pgjsonb``. Needs psycopg: ``pip install saltext-jobs[postgresql]``.
"""

import time

from saltext.jobs.core.postgresql.options import NAME, read_options
from saltext.jobs.core.postgresql.rows import LOAD, RETURN

try:
    from saltext.jobs.core.postgresql.sink import Sink
except ImportError:  # psycopg is an extra
    Sink = None

__virtualname__ = NAME


def __virtual__():
    if Sink is None:
        return False, "the Python module psycopg is missing: pip install 'saltext-jobs[postgresql]'"
    return __virtualname__


def store_many(records):
    """
    Store records, all or none. A known record changes nothing.

    :param records: a list of dicts: ``kind`` (``load``, ``return`` or ``event``), ``time`` (Unix time at which it was
        taken in), ``data`` (what the job cache or the bus had), and ``jid`` of a load and a return, ``minion`` and
        ``replaces`` (True if it replaces an existing one) of a return, ``tag`` of an event.
    :return: ``{position in the list: reason}`` of the records that it cannot store; all others are stored.
    :raises Exception: when none is stored, or that is unknown. A class named DataError, IntegrityError or ValueError
        says that one of the records cannot be stored; smaller calls show which.
    """
    return _sink().take(records)


def returner(ret):
    """Store one return."""
    _store_one({"kind": RETURN, "jid": ret["jid"], "minion": ret["id"], "time": time.time(), "data": ret})


def save_load(jid, load, minions=None):
    """Store one job's load."""
    _store_one({"kind": LOAD, "jid": jid, "time": time.time(), "data": load})


def _store_one(record):
    for reason in store_many([record]).values():
        raise ValueError(reason)


def _sink():
    if NAME not in __context__:
        __context__[NAME] = Sink(read_options(__opts__), __opts__["id"])
    return __context__[NAME]
