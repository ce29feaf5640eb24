"""
The tag vocabulary: turns bus events into typed facts, and makes the tags of what we announce.

All tags are spelled here (only the executor and the reactor's files, which stand alone, spell their own). The fields of
an event or of a return are checked here, once for all engines. It must never trust an event: if the id in the payload does
not match that in the tag, or could not be a path component, there is no fact.

What we announce (payloads are flat dicts with the fields that are named here; Salt adds ``_stamp``):

``salt/batch/<jid>/*``
    each event below: ``jid``, ``fun``, ``user`` (the batch's owner), the counts of ``batch.status``: ``total``,
    ``completed``, ``active``, ``pending``, ``failed``, ``lost``, ``offline``, ``queued``, ``killed``, ``timed_out``; its
    state as ``status``, and ``group`` if the batch has groups
``salt/batch/<jid>/new``
    ``tgt``, ``tgt_type``, ``batch_size``
``salt/batch/<jid>/progress``
    ``blocked_reason``, ``stage`` (counted from 1) and ``batch_size``, as in ``batch.status``.
    At most one event a second for each batch, and one when the last minion of a halted batch has ended.
``salt/batch/<jid>/paused``
    ``reason``, ``paused_by`` (a code for the reason); ``opens_at`` if it waits for its window (Unix time, or
    None if that is not known)
``salt/batch/<jid>/resumed``
    ``reason`` if its window has opened or its start time has come, or ``user`` if a user has resumed it
``salt/batch/<jid>/check``, ``checked``
    ``stage`` (counted from 1 through all groups), ``kind`` (function, runner, approve), ``fun`` (that of the check),
    ``arg``, ``kwargs`` (values named like a secret are hidden).
    The first says that a check between stages has begun, or that the batch waits for an approval; the second, that it was
    passed. ``user`` has approved it, if it was an approval
``salt/batch/<jid>/complete``, ``halted``
    ``halted_reason``, ``success``, ``stopped_by``
``salt/job_retry/<minion>/<jid>/queued|sent|done|held|expired|cancelled|dead``
    ``minion``, ``jid``, ``fun``, ``attempts``, ``reason``
``salt/jobs_engine/<engine>/taken_over``
    ``engine``, ``master`` (which leads now), ``former`` (the master that led before), ``epoch``: another master leads the
    engine, because the former leader was stopped, died, froze or was cut off. The event is on the bus of the new leader
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from saltext.jobs.core.functions import function_of, retcode_of
from saltext.jobs.core.ids import is_plain

JOB = "salt/job/"
MINION = "salt/minion/"
BEACON = "salt/beacon/"
PRESENCE = "salt/presence/change"
#: The state of a minion's key has changed: accepted, rejected, deleted.
KEY = "salt/key"
#: The beats of the engines.
OURS = "saltext/jobs/"


class JobReturned(NamedTuple):
    """A minion has returned a job (``salt/job/<jid>/ret/<minion>``). The return itself is left out on purpose."""

    jid: str
    minion: str
    fun: str
    retcode: int


class JobStarted(NamedTuple):
    """A minion has begun a job that was published with ``start_event`` (``salt/job/<jid>/start/<minion>``)."""

    jid: str
    minion: str


class MinionStarted(NamedTuple):
    """A minion process has started (``salt/minion/<id>/start``). It has forgotten the jids that it has seen."""

    minion: str


class PresenceChanged(NamedTuple):
    """Minions were seen by the master's connection poll (``salt/presence/change``)."""

    new: tuple[str, ...]


BusFact = JobReturned | JobStarted | MinionStarted | PresenceChanged


def parts_of_job(tag: str) -> tuple[str, str, str] | None:
    """Return (jid, kind, minion) of a ``salt/job/<jid>/<kind>[/<minion>]`` tag, empty where missing; None for others."""
    if not tag.startswith(JOB):
        return None
    jid, _, rest = tag[len(JOB) :].partition("/")
    kind, _, minion = rest.partition("/")
    return jid, kind, minion


def beacon_of(tag: str) -> str | None:
    """Return the minion of a ``salt/beacon/<minion>/…`` tag, or None."""
    if not tag.startswith(BEACON):
        return None
    minion = tag[len(BEACON) :].partition("/")[0]
    return minion if is_plain(minion) else None


def started_by(tag: str) -> str | None:
    """Return the minion of a ``salt/minion/<minion>/start`` tag, or None."""
    return tag[len(MINION) : -len("/start")] if tag.startswith(MINION) and tag.endswith("/start") else None


def fact_of(tag: str, data: Any) -> BusFact | None:
    """Return the fact in an event, or None if there is none or the event is not consistent."""
    if not isinstance(data, Mapping):
        return None
    if tag == PRESENCE:
        new = data.get("new")
        return PresenceChanged(tuple(filter(is_plain, new if isinstance(new, (list, tuple, set)) else ())))
    jid, kind, minion = parts_of_job(tag) or ("", "", started_by(tag) or "")
    if not is_plain(minion) or data.get("id") != minion:
        return None
    if not kind:
        return MinionStarted(minion)
    if not is_plain(jid):
        return None
    if kind == "ret" and data.get("jid") == jid:
        return JobReturned(jid, minion, function_of(data), retcode_of(data))
    return JobStarted(jid, minion) if kind == "start" else None


def batch_tag(jid: str, kind: str) -> str:
    """Return the tag of a batch's event; ``kind`` is one of those in this module's docstring."""
    return f"salt/batch/{jid}/{kind}"


def retry_tag(minion: str, jid: str, kind: str) -> str:
    """Return the tag of the retry queue's event about one entry."""
    return f"salt/job_retry/{minion}/{jid}/{kind}"


def taken_over_tag(engine: str) -> str:
    """Return the tag of the event that another master leads an engine now."""
    return f"salt/jobs_engine/{engine}/taken_over"


def beat_tag(engine: str, name: str) -> str:
    """Return the tag of an engine's own beat, which shows the engine and others that it is heard. ``name`` is secret."""
    return f"{OURS}{engine}/beat/{name}"
