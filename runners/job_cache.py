"""
Look after the ``salt_cache`` job cache: search it, see how large it is, copy the file of ``cache: sqlite``.

It works on the storage that ``cache:`` names, even if ``master_job_cache`` is not ``salt_cache``. It must never mark a job
as published, because job retry relies on these marks.
"""

from __future__ import annotations

import fnmatch
import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

# Every salt-run imports this file. What a call needs beyond these, it imports itself.
from saltext.jobs.core import runner
from saltext.jobs.core.engine.names import JOB_RETRY
from saltext.jobs.core.errors import Refused
from saltext.jobs.core.options import kinds

if TYPE_CHECKING:
    from saltext.jobs.core.master import caller
    from saltext.jobs.core.retry.store import RetryStore
    from saltext.jobs.core.store.store import Store

__virtualname__ = "job_cache"

# Salt's loader brings these.
__opts__: Mapping[str, Any]


def __virtual__() -> str:
    return __virtualname__


def _require_no_limit(what: str) -> None:
    """
    Refuse users with limited rights a function that changes or copies the store. Such a function touches the jobs of
    all users, or files of the master, so the right to it would be the right to everything.
    """
    who = _caller()
    if who.peer or who.grants is not None:
        raise Refused(f"{who.name} may not call job_cache.{what}: it is for the command line of the master")


def _require_jobs_here() -> None:
    """:raises Refused: if nothing was found since the master stores its jobs elsewhere."""
    name = __opts__.get("master_job_cache")
    if name != "salt_cache":
        raise Refused(
            f"This knows the jobs of salt_cache, and there are none: master_job_cache is {name!r}, so salt-run "
            "jobs.list_jobs shows what ran"
        )


def _caller() -> caller.Caller:
    from saltext.jobs.core.master import caller

    return caller.caller(__opts__, globals().get("__user__"))


def _store() -> Store:
    from saltext.jobs.core.store.store import store_of

    return store_of(__opts__)


def _queue() -> RetryStore:
    from saltext.jobs.core.retry.store import RetryStore
    from saltext.jobs.core.site import site_of

    return RetryStore(site_of(__opts__))


def _sees() -> Callable[[Mapping[str, Any]], bool]:
    """Return what tells of which jobs the caller may see the arguments."""
    from saltext.jobs.core.master import caller

    return caller.sight(__opts__, globals().get("__user__"))


# ---------------------------------------------------------------------------------------------------------
# search
# ---------------------------------------------------------------------------------------------------------


@runner.verb
def search(
    fun: object = None,
    tgt: object = None,
    metadata: object = None,
    start_time: object = None,
    end_time: object = None,
    minion: object = None,
    user: object = None,
    outcome: object = None,
    limit: object = 20,
    after: object = None,
    kind: object = None,
) -> dict[str, Any]:
    """
    Find jobs, newest first. A job must match all arguments that are given. Functions of the master itself, and questions
    such as ``test.ping``, are left out unless ``kind`` or ``fun`` ask for them.

    With ``cache: sqlite`` jobs are found by an index. Other drivers look at the time in the jid first: give ``start_time``
    if there are many jobs.

    fun
        The function: a glob such as ``state.*``, or several, with commas or as a list.

    tgt
        The target as it was written: globs, as for ``fun``.

    metadata
        A dict: the job's metadata must have at least one of its values.

    start_time
        Published then or later: ``-2h`` for the last two hours (also ``-90s``, ``-15m``, ``-7d``), or a date and time in
        the master's zone such as ``'2026-11-28 02:00'``, or with a zone of its own, ``'2026-11-28T02:00:00Z'``.

    end_time
        Published then or earlier; as ``start_time``.

    minion
        A minion that the job was for, or that has returned: the id, or globs. One id is found by the index, if there is one;
        for globs the list of minions of each job is read.

    user
        The user who published the job: globs, as for ``fun``.

    outcome
        ``returned``, ``failed`` or ``missing``: for at least one minion or, with ``minion``, for one of those.

    limit
        Most jobs to return. Default: 20.

    after
        Go on after this place: ``next`` of the previous search. Jobs published meanwhile do not shift the place.

    kind
        ``jobs``: what ran on minions; ``runners``: what ran on the master (``runner.*``, ``wheel.*``), such as each page of
        the console; ``looks``: questions (``test.ping``, ``saltutil.find_job``, ``running`` and the like); or ``all``.
        Default: ``jobs``; with ``fun``, ``all``.

    Returns ``{"jobs": [...], "next"}``. Each job has ``JID``, ``Function``, ``Arguments``, ``Target``, ``Target-type``,
    ``User``, ``StartTime`` and ``Metadata``, as ``jobs.list_jobs`` shows them, and the counts ``Minions`` (0 if the minions
    of the job are not known), ``Returned``, ``Failed`` and ``Missing``. A batch that has sent to no minion yet has
    ``Unsent``, and none that are missing. ``next`` is None if there are no more jobs. A user
    without the right to ``jobs.list_job`` sees arguments and metadata of their own jobs only, and finds only these by
    metadata.

    CLI Example:

    .. code-block:: bash

        salt-run job_cache.search fun='state.*' minion=web1 start_time=-2h
        salt-run job_cache.search outcome=failed limit=5
        salt-run job_cache.search minion='web*,db1' kind=all
        salt-run job_cache.search user=anna after=20260516120000000000
    """
    from saltext.jobs.core.batch.catalog import Catalog
    from saltext.jobs.core.compat import lacks_key
    from saltext.jobs.core.store import search as searches

    asked = {
        "fun": fun,
        "tgt": tgt,
        "metadata": metadata,
        "start_time": start_time,
        "end_time": end_time,
        "minion": minion,
        "user": user,
        "outcome": outcome,
        "limit": limit,
        "after": after,
        "kind": kind,
    }
    store = _store()
    query = searches.query_of(store, asked)
    found: dict[str, Any] = searches.search(store, query, _sees())
    if any(job["Missing"] for job in found["jobs"]):
        unsent = {batch["jid"] for batch in Catalog(__opts__).active() if batch.get("publishes") == 0}
        for job in found["jobs"]:
            if job["JID"] in unsent:
                job.update(Missing=0, Unsent=True)
    is_one = isinstance(minion, str) and not set("*?[,").intersection(minion)
    if is_one and not found["jobs"] and lacks_key(__opts__, minion):
        runner.note(globals(), f"This master has no key of a minion named {minion}")
    if not found["jobs"]:
        _require_jobs_here()
    return found


# ---------------------------------------------------------------------------------------------------------
# outcome
# ---------------------------------------------------------------------------------------------------------


@runner.verb
def outcome(jid: object) -> dict[str, Any]:
    """
    Return what became of a job: how many minions have returned it, which are missing or still owed it, and why minions
    failed. Minions that failed for the same reason are one group; the largest group comes first.

    Two reasons count as the same if they differ only in ids, addresses, times and numbers. For a run of states the text has
    the states that failed, with their comments; for anything else it has the output, without the middle if it is long.
    For a batch, ``batch.failures`` tells more. A user needs the right to the job, or to ``jobs.list_job``.

    jid
        The job's jid.

    Returns a dict with ``jid``, ``fun``, ``arguments``, ``tgt``, ``tgt_type``, ``user``; the counts ``minions`` (0 if the
    minions of the job are not known), ``returned`` and ``failed``; ``missing`` (names of minions that have not returned, and
    of which no batch and no queue knows more); ``owed`` (``{minion: state}``, the minions for which ``job_retry`` keeps the
    job, and the state of the entry; None if its queue cannot be read); and ``groups``, a list of dicts with ``count``,
    ``state`` (also that of ``batch.minions``, or of an entry of the queue that is over), ``retcode`` (or None), ``text`` (of
    the first minion) and ``minions``.

    CLI Example:

    .. code-block:: bash

        salt-run job_cache.outcome 20260516101112131415
    """
    from saltext.jobs.core.master import caller, jobs
    from saltext.jobs.core.master.job_cache import JobCache

    jid, cache = kinds.jid(jid), JobCache(__opts__)
    load = cache.load(jid)
    if not load:
        raise Refused(
            f"There is no job {jid} in the job cache; salt-run job_cache.search shows the jobs that there are"
        )
    who = _caller()
    caller.require_no_peer(who)
    if not caller.sees_all(__opts__, who):
        caller.require_right(__opts__, who, load, jobs.minions_of(load))
    owed, over = _owed(jid)
    return jobs.outcome(cache, jid, load, owed, {**over, **_ended(jid)})


def _owed(jid: str) -> tuple[dict[str, str] | None, dict[str, tuple[str, str]]]:
    """
    Return ``{minion: state}`` of a job's entries in the retry queue, or None if the queue cannot be read; and the states and
    reasons of entries whose job is not delivered any more.
    """
    from saltext.jobs.core.retry.entry import ENDED

    try:
        entries = [entry for entry, _ in _queue().entries(jid=jid)]
    except OSError as exc:
        runner.note(globals(), f"It is not known which minions are owed the job: {exc}")
        return None, {}
    over = {entry.minion: (entry.state.value, entry.reason) for entry in entries if entry.state in ENDED}
    return {entry.minion: entry.state.value for entry in entries if entry.minion not in over}, over


def _ended(jid: str) -> dict[str, tuple[str, str]]:
    """Return how a batch stands on minions without success; nothing for another job."""
    from saltext.jobs.core.batch.catalog import Catalog
    from saltext.jobs.core.batch.summary import meaning
    from saltext.jobs.core.retry.store import owed_of

    batches = Catalog(__opts__, owed=functools.partial(owed_of, __opts__))
    try:
        batch = batches.ours(jid)
    except (Refused, OSError) as exc:
        runner.note(globals(), f"It is not known how the batch has ended: {exc}")
        return {}
    found = {} if batch is None else batches.minions(batch)
    return {name: (one["state"], meaning(one)) for name, one in found.items() if one["state"] != "completed"}


# ---------------------------------------------------------------------------------------------------------
# minions
# ---------------------------------------------------------------------------------------------------------


@runner.verb
def minions(
    minion: object = "*", fun: object = None, not_since: object = None, start_time: object = None
) -> dict[str, Any]:
    """
    Return the last result of each accepted minion: when it last ran a function, and how that ended.

    The job cache keeps results for ``keep_jobs_seconds``; older ones are not shown. A user without the right to
    ``jobs.list_job`` sees the arguments of their own jobs only.

    minion
        Only these minions: a glob such as ``web*``, or several, with commas or as a list.

    fun
        The function: globs, as for ``minion``. Default: ``state.apply``.

    not_since
        Only minions that have run no such job that was published since then: ``-7d`` for the last week, or a date and time.

    start_time
        Look only at jobs that were published then or later; as ``not_since``.

    Returns ``{minion: {"outcome", "at", "jid", "fun", "arguments", "retcode", "missed", "missed_state"}}``. ``outcome`` is
    succeeded, failed, or unreadable if the return exists and cannot be read. ``at`` is when the job was published (Unix
    time). ``missed`` is the jid of the newest later job that the minion has not returned, and ``missed_state`` how the
    minion stands if that is a batch, as in ``batch.minions``: ``pending`` if the batch did not send to it. Without a return,
    all else is None.

    CLI Example:

    .. code-block:: bash

        salt-run job_cache.minions 'web*'
        salt-run job_cache.minions fun='state.apply,state.highstate' not_since=-7d
    """
    from saltext.jobs.core.compat import minion_keys
    from saltext.jobs.core.store.search import last_results, query_of

    store = _store()
    globs, edge = kinds.NAMES.given("minion", minion), kinds.MOMENT.given("not_since", not_since)
    query = query_of(store, {"fun": "state.apply" if fun is None else fun, "start_time": start_time})
    wanted = [name for name in minion_keys(__opts__)[0] if any(fnmatch.fnmatchcase(name, glob) for glob in globs)]
    if not wanted:
        _require_jobs_here()
        raise Refused(f"No accepted minion matches {','.join(globs)}; fun=… names a function")
    if fun is None:
        runner.note(globals(), "This is about state.apply; fun='state.*' or fun='*' looks at other functions too")
    found = last_results(store, query, wanted, _sees())
    if not any(one["jid"] for one in found.values()):
        _require_jobs_here()
    stands = {jid: _ended(jid) for jid in {one["missed"] for one in found.values()} if jid}
    for name, one in found.items():
        one["missed_state"] = stands.get(one["missed"], {}).get(name, (None,))[0]
    return {name: one for name, one in found.items() if edge is None or (one["at"] or 0.0) < edge}


# ---------------------------------------------------------------------------------------------------------
# running
# ---------------------------------------------------------------------------------------------------------


@runner.verb
def running(tgt: object = "*", tgt_type: object = "glob", timeout: object = 5) -> dict[str, Any]:
    """
    Return what runs now, as the minions themselves say: jobs, batches and replays, since when, where, and how to kill each.

    The minions are asked, so a user with limited rights needs the right to ``saltutil.running`` on all of them. Questions
    (``test.ping``, ``saltutil.find_job``) are left out. A batch that has not ended has a row even if no minion runs it now.

    tgt
        The minions to ask. Default: all.

    tgt_type
        The kind of target, such as ``list``, ``grain`` or ``compound``.

    timeout
        Seconds to wait for answers.

    Returns ``{"jobs": [...], "asked", "silent"}``: how many minions were asked, and the names of those that did not
    answer. What these run is not known. Each job has ``jid``, ``kind`` (``job``, ``batch``, or ``replay``: delivered
    late, by ``job_retry``), ``fun``, ``arguments``, ``tgt``, ``tgt_type``, ``user``, ``state`` (running; for a batch, its
    state in one word), ``since`` (Unix time: when it was published, a batch started or a replay sent; None if not known),
    ``minions`` and ``kill``, the command that ends it.

    CLI Example:

    .. code-block:: bash

        salt-run job_cache.running
        salt-run job_cache.running 'web*' timeout=10
    """
    from saltext.jobs.core.master import jobs as about_jobs

    tgt, tgt_type = kinds.target(tgt, tgt_type)
    timeout = kinds.SOME_SECONDS.given("timeout", timeout)
    who = _caller()
    answers, silent = about_jobs.ask_what_runs(__opts__, who, tgt, tgt_type, timeout)
    jobs = about_jobs.running(answers, _batches(), _replays())
    return {"jobs": jobs, "asked": len(answers) + len(silent), "silent": silent}


def _batches() -> dict[str, dict[str, Any]]:
    from saltext.jobs.core.batch.catalog import Catalog
    from saltext.jobs.core.batch.summary import word

    names = ("fun", "arguments", "tgt", "tgt_type", "user")
    return {
        found["jid"]: {**{name: found.get(name) for name in names}, "state": word(found), "since": found["created"]}
        for found in Catalog(__opts__, _sees()).active()
    }


def _replays() -> dict[str, dict[str, Any]]:
    """Return the replays under way in the retry queue, by jid, and since when."""
    from saltext.jobs.core.retry.entry import State

    found: dict[str, dict[str, Any]] = {}
    try:
        for entry, _ in _queue().entries():
            if entry.state in (State.SENT, State.RUNNING):
                replay = found.setdefault(entry.jid, {"kind": "replay", "since": entry.sent_at})
                replay["since"] = min((at for at in (replay["since"], entry.sent_at) if at), default=None)
    except OSError as exc:
        runner.note(globals(), f"It is not known which jobs are replays: {exc}")
    return found


# ---------------------------------------------------------------------------------------------------------
# stats
# ---------------------------------------------------------------------------------------------------------


@runner.verb
def stats() -> dict[str, Any]:
    """
    Return how many jobs and returns there are, and the oldest and the newest job. With sqlite ``bytes`` is the size of the
    file, and ``free_bytes`` is the part of it that is free.

    CLI Example:

    .. code-block:: bash

        salt-run job_cache.stats
    """
    from saltext.jobs.core.store import doctor as examination

    return examination.figures_of(_store())


@runner.verb
def doctor() -> dict[str, Any]:
    """
    Return what an operator should know before relying on the job cache.

    It checks whether the driver answers, and whether publishes of this master are recorded; the owner and rights of files,
    and the free space on the disk; files that were set aside; and, with ``cache: sqlite``, the whole file, which takes some
    seconds for each GB. It changes nothing.

    Returns ``{"job_cache", "driver", "usable", "jobs", "findings", "retcode"}``: ``master_job_cache``, the driver, whether
    it answers, the number of jobs, a dict with code, severity, text and do for each thing that may need a change, and the
    exit status: 1 if something does not work, or soon will not; 0 if all findings are advice.

    CLI Example:

    .. code-block:: bash

        salt-run job_cache.doctor
    """
    from saltext.jobs.core.store import doctor as examination

    return examination.examine(_store(), __opts__)


# ---------------------------------------------------------------------------------------------------------
# the file of cache: sqlite
# ---------------------------------------------------------------------------------------------------------


@runner.verb
def backup(path: object) -> dict[str, Any]:
    """
    Copy the master's database of SQLite as it is at this moment. The master goes on meanwhile.

    That is ``cache.sqlite`` with ``cache: sqlite``, and otherwise ``saltext_jobs/jobs.sqlite``, without the jobs. To go back
    to a copy, stop the master, remove the files ``-wal`` and ``-shm`` beside the database, put the copy in its place, owned
    by the user that the master runs as, and start the master.

    path
        The path of the copy, which must not exist.

    Returns ``{"path", "bytes"}``.

    CLI Example:

    .. code-block:: bash

        salt-run job_cache.backup /var/backups/salt/cache.sqlite
    """
    from saltext.jobs.core.sqlite import recovery

    _require_no_limit("backup")
    return recovery.backup(_store().site, path)


@runner.verb
def recover(path: object) -> dict[str, Any]:
    """
    Copy the readable records of a damaged database of SQLite into the one in use.

    The master sets a damaged file aside and begins a new one. What stands on damaged pages is left out. Records in the file
    in use are not changed. The damaged file stays where it is; remove it when you no longer need it.

    path
        The file, ``<cachedir>/cache.sqlite.damaged-<time>``, or ``<cachedir>/saltext_jobs/jobs.sqlite.damaged-<time>`` with
        another ``cache`` than sqlite: that has the retry queue, and no jobs.

    Returns ``{"read", "written"}``: the records that could be read, and those of them that were missing in the file in use.

    The job_retry engine then takes up entries of its queue that are new to it.

    CLI Example:

    .. code-block:: bash

        salt-run job_cache.recover /var/cache/salt/master/cache.sqlite.damaged-20260516120000
    """
    from saltext.jobs.core.engine import requests
    from saltext.jobs.core.sqlite import recovery

    _require_no_limit("recover")
    done = recovery.recover(_store().site, path)
    if requests.is_running(__opts__, JOB_RETRY):  # an engine that starts later reads the whole queue
        requests.leave(__opts__, JOB_RETRY, {"do": "take_up"})
    return done
