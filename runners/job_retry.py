"""
Look at and control the retry queue: jobs that minions missed and get when they are back.

The ``job_retry`` engine of this extension keeps the queue; this runner reads it, and asks the engine for every change.

.. code-block:: bash

    salt-run job_retry.list
    salt-run job_retry.show web1 20260516101112131415
    salt-run job_retry.cancel jid=20260516101112131415

.. versionadded:: 0.1.0
"""

import collections
import datetime
import logging

from salt.exceptions import CommandExecutionError, SaltInvocationError

from saltext.jobs.core.engine import requests
from saltext.jobs.core.engine.names import JOB_RETRY
from saltext.jobs.core.errors import StateError
from saltext.jobs.core.ids import is_plain
from saltext.jobs.core.retry.entry import State
from saltext.jobs.core.retry.store import RetryStore

log = logging.getLogger(__name__)

__virtualname__ = "job_retry"
__func_alias__ = {"list_": "list"}

_STATES = tuple(state.value for state in State if state is not State.DONE)
_PURGEABLE = ("held", "expired", "cancelled", "dead")


def __virtual__():
    return __virtualname__


def list_(minion=None, jid=None, state=None):
    """
    Return the entries of the queue, oldest job first, without the arguments of the jobs.

    minion
        Only those of this minion.

    jid
        Only those of this job.

    state
        Only those in this state, or in one of these (a list, or names with commas between them): ``pending``,
        ``claimed``, ``sent``, ``running``, ``held``, ``expired``, ``cancelled``, ``dead``.

    Returns a list of dicts with ``minion``, ``jid``, ``fun``, ``state``, ``reason``, ``attempts`` (count), ``queued_at``
    and ``expires_at`` (ISO 8601, UTC) and ``owner`` (the master that has published the job).

    CLI Example:

    .. code-block:: bash

        salt-run job_retry.list
        salt-run job_retry.list minion=web1 state=held,dead
    """
    states = _states(state, _STATES) if state is not None else _STATES
    found = [
        (snapshot["published_at"], _row(entry, snapshot))
        for entry, snapshot in _entries(_minion(minion), _jid(jid))
        if entry.state.value in states
    ]
    return [row for _, row in sorted(found, key=lambda item: (item[0], item[1]["jid"], item[1]["minion"]))]


def show(minion, jid):
    """
    Return everything about one entry: what ``job_retry.list`` shows, the job with its arguments, and its history.

    CLI Example:

    .. code-block:: bash

        salt-run job_retry.show web1 20260516101112131415
    """
    minion, jid = _minion(minion), _jid(jid)
    for entry, snapshot in _entries(minion, jid):
        load = snapshot["load"]
        return {
            **_row(entry, snapshot),
            "arg": load.get("arg"),
            "tgt": load.get("tgt"),
            "tgt_type": load.get("tgt_type"),
            "user": load.get("user"),
            "ret": load.get("ret"),
            "metadata": (load.get("kwargs") or {}).get("metadata"),
            "published_at": _iso(snapshot["published_at"]),
            "last_sent_at": _iso(entry.sent_at),
            "not_before": _iso(entry.next_at or None),
            "unreceived_tries": entry.tries,
            "history": [{"at": _iso(at), "state": state, "reason": reason} for at, state, reason in entry.history],
        }
    raise CommandExecutionError(f"{minion} has no entry for job {jid}; job_retry.list shows those that there are")


def stats():
    """
    Return what is in the queue in figures.

    Returns a dict with ``entries``, ``jobs`` and ``minions`` (counts), ``states``, ``functions`` and ``owners`` (counts of
    entries by name), ``oldest`` (when the oldest entry was queued, ISO 8601, UTC), ``paused`` and ``engine`` (whether it
    runs on this master).

    CLI Example:

    .. code-block:: bash

        salt-run job_retry.stats
    """
    states, functions, owners = collections.Counter(), collections.Counter(), collections.Counter()
    minions, jobs, oldest = set(), set(), None
    for entry, snapshot in _entries(None, None):
        states[entry.state.value] += 1
        functions[_fun(snapshot)] += 1
        owners[snapshot["owner"]] += 1
        minions.add(entry.minion)
        jobs.add(entry.jid)
        oldest = entry.queued_at if oldest is None else min(oldest, entry.queued_at)
    return {
        "entries": sum(states.values()),
        "jobs": len(jobs),
        "minions": len(minions),
        "states": dict(states),
        "functions": dict(functions),
        "owners": dict(owners),
        "oldest": _iso(oldest),
        "paused": (requests.engine_dir(__opts__, JOB_RETRY) / "paused").exists(),
        "engine": requests.is_running(__opts__, JOB_RETRY),
    }


def enqueue(jid, minions=None):
    """
    Put a job from the job cache into the queue by hand, whatever its function, and return the number of new entries.

    jid
        The job; this master must have published it.

    minions
        The minions that are to get it, as a list or with commas between them. Default: those that it was published to
        and that have not returned it. One that has returned it never gets it again.

    CLI Example:

    .. code-block:: bash

        salt-run job_retry.enqueue 20260516101112131415
        salt-run job_retry.enqueue 20260516101112131415 minions=web1,web2
    """
    named = None if minions is None else [_minion(name) for name in _names(minions)]
    return _ask({"do": "enqueue", "jid": _jid(jid, needed=True), "minions": named})


def replay(minion):
    """
    Deliver what a minion is owed now, as if it had just shown a sign of life. Returns the number of entries that wait.

    CLI Example:

    .. code-block:: bash

        salt-run job_retry.replay web1
    """
    return _ask({"do": "replay", "minion": _minion(minion, needed=True)}, keep=False)


def retry(minion=None, jid=None):
    """
    Let entries that are held or dead be tried again, and return their number.

    A held job was begun, and nobody knows how far it got: look before you run it again.

    minion, jid
        Those of this minion, of this job, or both. At least one is needed.

    CLI Example:

    .. code-block:: bash

        salt-run job_retry.retry minion=web1
        salt-run job_retry.retry minion=web1 jid=20260516101112131415
    """
    return _ask({"do": "retry", **_selection(minion, jid)})


def cancel(minion=None, jid=None):
    """
    Let entries not be delivered, and return their number.

    An entry that is under way is cancelled too, but its minion may have the job already: kill it there with
    ``saltutil.kill_job``.

    minion, jid
        Those of this minion, of this job, or both. At least one is needed.

    CLI Example:

    .. code-block:: bash

        salt-run job_retry.cancel jid=20260516101112131415
    """
    return _ask({"do": "cancel", **_selection(minion, jid)})


def purge(state):
    """
    Forget the entries in some states, and return their number.

    state
        ``held``, ``expired``, ``cancelled`` or ``dead``, or several of them (a list, or with commas between them).

    CLI Example:

    .. code-block:: bash

        salt-run job_retry.purge state=expired,cancelled
    """
    return _ask({"do": "purge", "states": list(_states(state, _PURGEABLE))})


def pause():
    """
    Replay nothing until ``job_retry.resume``; jobs go on being queued. A pause outlives a restart of the master.

    Returns whether that is new.

    CLI Example:

    .. code-block:: bash

        salt-run job_retry.pause
    """
    return _ask({"do": "pause"})


def resume():
    """
    Go on after ``job_retry.pause``. Returns whether it was paused.

    CLI Example:

    .. code-block:: bash

        salt-run job_retry.resume
    """
    return _ask({"do": "resume"})


def adopt(owner):
    """
    Take over the entries of a master that is gone, and return their number.

    For masters that share one cache. Refused while that master shows a sign of life.

    owner
        The id of the master that is gone, as ``job_retry.list`` names it.

    CLI Example:

    .. code-block:: bash

        salt-run job_retry.adopt old_master_master
    """
    if not isinstance(owner, str) or not is_plain(owner):
        raise SaltInvocationError(f"{owner!r} is not the id of a master")
    return _ask({"do": "adopt", "owner": owner}, keep=False)


def _ask(request, keep=True):
    return requests.ask(__opts__, JOB_RETRY, request, keep=keep)


def _entries(minion, jid):
    store = RetryStore(__opts__, read_only=True)
    try:
        snapshots = [(jid, store.snapshot(jid))] if jid else store.snapshots()
        for name, snapshot in snapshots:
            if snapshot:
                for entry in store.entries(name, snapshot, minion):
                    yield entry, snapshot
    except StateError as exc:
        raise CommandExecutionError(f"The retry queue cannot be read: {exc}") from exc


def _row(entry, snapshot):
    return {
        "minion": entry.minion,
        "jid": entry.jid,
        "fun": _fun(snapshot),
        "state": entry.state.value,
        "reason": entry.reason,
        "attempts": entry.attempts,
        "queued_at": _iso(entry.queued_at),
        "expires_at": _iso(entry.expires_at),
        "owner": snapshot["owner"],
    }


def _fun(snapshot):
    fun = snapshot["load"].get("fun")
    return ",".join(fun) if isinstance(fun, (list, tuple)) else str(fun)


def _iso(at):
    if at is None:
        return None
    return datetime.datetime.fromtimestamp(at, datetime.timezone.utc).isoformat(timespec="seconds")


def _minion(name, needed=False):
    if name is None and not needed:
        return None
    if not is_plain(name):
        raise SaltInvocationError(f"{name!r} is not a minion id")
    return name


def _jid(jid, needed=False):
    # The command line makes a number of it.
    jid = str(jid) if isinstance(jid, int) and not isinstance(jid, bool) else jid
    if jid is None and not needed:
        return None
    if not is_plain(jid):
        raise SaltInvocationError(f"{jid!r} is not a jid")
    return jid


def _selection(minion, jid):
    if minion is None and jid is None:
        raise SaltInvocationError("Name a minion, a jid, or both")
    return {"minion": _minion(minion), "jid": _jid(jid)}


def _names(value):
    if isinstance(value, str):
        return [name.strip() for name in value.split(",") if name.strip()]
    if isinstance(value, (list, tuple)):
        return list(value)
    raise SaltInvocationError(f"{value!r} is not a list of names")


def _states(value, accepted):
    names = _names(value)
    unknown = [name for name in names if name not in accepted]
    if unknown or not names:
        raise SaltInvocationError(f"state is {value!r}; accepted are {', '.join(accepted)}")
    return tuple(names)
