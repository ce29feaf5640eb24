"""
See and control the retry queue, which holds the jobs that minions have missed until they come back.

The ``job_retry`` engine of this extension keeps the queue. This runner reads the queue, and asks the engine for changes.

.. code-block:: bash

    salt-run job_retry.list
    salt-run job_retry.show web1 20260516101112131415
    salt-run job_retry.cancel jid=20260516101112131415
"""

from __future__ import annotations

import collections
import contextlib
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

# Every salt-run imports this file. What a call needs beyond these, it imports itself.
from saltext.jobs.core import runner
from saltext.jobs.core.engine.names import JOB_RETRY
from saltext.jobs.core.errors import EngineAbsent, Refused, SettingsError
from saltext.jobs.core.options import kinds

if TYPE_CHECKING:
    from saltext.jobs.core.master import caller
    from saltext.jobs.core.retry.entry import Entry, Job
    from saltext.jobs.core.retry.queue import Waiting
    from saltext.jobs.core.retry.store import RetryStore

__virtualname__ = JOB_RETRY
__func_alias__ = {"list_": "list"}

# Salt's loader brings these.
__opts__: Mapping[str, Any]

_PURGEABLE = ("held", "expired", "cancelled", "dead")


def __virtual__() -> str:
    return __virtualname__


@runner.verb
def list_(minion: object = None, jid: object = None, state: object = None) -> list[dict[str, Any]]:
    """
    Return the entries of the queue, oldest job first, without the arguments of the jobs.

    minion
        Only entries of this minion.

    jid
        Only entries of this job.

    state
        Only entries in this state, or in these states (a list, or names separated by commas): ``pending``,
        ``claimed``, ``sent``, ``running``, ``held``, ``expired``, ``cancelled``, ``dead``.

    Returns a list of dicts with ``minion``, ``jid``, ``fun``, ``state``, ``reason``, ``attempts`` (count), ``queued_at``
    and ``expires_at`` (Unix time in seconds, as all times here).
    While the job's window is shut, ``waits_for`` names it, and ``opens_at`` is when it opens next; otherwise both are
    None. If ``not_before`` is set, the entry is not tried again before that time. ``paused``: whether the queue is.

    CLI Example:

    .. code-block:: bash

        salt-run job_retry.list
        salt-run job_retry.list minion=web1 state=held,dead
    """
    from saltext.jobs.core.compat import lacks_key
    from saltext.jobs.core.engine import requests
    from saltext.jobs.core.options import is_configured
    from saltext.jobs.core.retry.entry import State
    from saltext.jobs.core.site import site_of

    minion, jid = _pair(minion, jid)
    paused = _tell_of_a_pause()
    _tell_of_work_left()
    driver = requests.leading(__opts__, JOB_RETRY)["engine_master"]
    if driver:
        runner.note(globals(), f"Driven by the master {driver}")
    there = tuple(state.value for state in State if state is not State.DONE)
    states = there if state is None else kinds.some_of(*there).given("state", state)
    waiting = _waiting()
    found = [
        (job.published_at, {**_row(entry, job, waiting), "paused": paused})
        for entry, job in _store().entries(minion, jid)
        if entry.state.value in states
    ]
    if minion is not None and not found and lacks_key(__opts__, minion):
        runner.note(globals(), f"This master has no key of a minion named {minion}")
    lead = site_of(__opts__).lead(JOB_RETRY)
    if lead is None or lead.hangs:
        stands = "delivered" if found else "queued"
        is_named = is_configured(__opts__, JOB_RETRY)
        what, why = ("answers", "; salt-run jobs_doctor.run says why") if is_named else ("is configured", "")
        runner.note(globals(), f"No job_retry engine {what}, so nothing is {stands}{why}")
    return [row for _, row in sorted(found, key=lambda item: (item[0], item[1]["jid"], item[1]["minion"]))]


@runner.verb
def show(minion: object = None, jid: object = None) -> dict[str, Any]:
    """
    Return everything about one entry: what ``job_retry.list`` shows, the job with its arguments, and its history. A user
    without the right to ``jobs.list_job`` sees the arguments of their own jobs only.

    After the minion has returned the job, the entry is not in the queue any more. It is shown as ``done``, without the job's
    arguments, for as long as the job cache keeps the job: when it was delivered, at which attempt, and when it ended. So is
    a job for which the queue had no room, as ``dead``.

    CLI Example:

    .. code-block:: bash

        salt-run job_retry.show web1 20260516101112131415
    """
    from saltext.jobs.core.display.command import HIDDEN, shown
    from saltext.jobs.core.master import caller

    minion, jid = _pair(minion, jid)
    if minion is None or jid is None:
        named = {"minion": minion, "jid": jid}
        missing = " and ".join(name for name, value in named.items() if value is None)
        given = "".join(f" {name}={value}" for name, value in named.items() if value is not None)
        beside = f" beside{given}" if given else ""
        raise Refused(f"job_retry.show needs {missing}{beside}; salt-run job_retry.list{given} shows what is queued")
    paused = _tell_of_a_pause()
    for entry, job in _store().entries(minion, jid):
        load = job.load
        sees = caller.sight(__opts__, globals().get("__user__"))(load)
        return {
            **_row(entry, job, _waiting()),
            "paused": paused,
            "asked_for_by": entry.asker.name if entry.asker else None,
            "arg": shown(load.get("arg")) if sees else [HIDDEN],
            "tgt": load.get("tgt"),
            "tgt_type": load.get("tgt_type"),
            "user": load.get("user"),
            "ret": load.get("ret"),
            "metadata": shown((load.get("kwargs") or {}).get("metadata")) if sees else None,
            "published_at": job.published_at,
            "last_sent_at": entry.sent_at,
            "unreceived_tries": entry.counts.tries,
            "history": [{"at": at, "state": state, "reason": reason} for at, state, reason in entry.history],
        }
    done = _store().done(jid, minion, None).get(minion)
    if done is None:
        raise Refused(
            f"{minion} is not owed job {jid}, and has not got it from the queue; salt-run job_retry.list shows what is"
        )
    names = ("minion", "jid", "fun", "state", "attempts", "queued_at", "expires_at")
    history = [dict(zip(("at", "state", "reason"), step, strict=True)) for step in done["history"]]
    told = {"last_sent_at": done.get("sent_at"), "reason": history[-1]["reason"], "ended_at": history[-1]["at"]}
    return {**{name: done[name] for name in names}, **told, "history": history}


@runner.verb
def stats() -> dict[str, Any]:
    """
    Return figures about the queue.

    Returns a dict with ``entries``, ``jobs`` and ``minions`` (counts), ``states`` and ``functions`` (counts of entries by
    name), ``oldest`` (when the oldest entry was queued, Unix time in seconds), ``paused``, ``engine`` (whether it runs),
    ``engine_silent_seconds`` (for how long it has not answered; None if it does), ``process`` (which one, and of which
    master), ``since`` (when it took the lead) and ``engine_master`` (if a site has several masters, the one whose engine
    drives the queue).
    ``outside_window`` counts the entries that wait for a window; ``opens_at`` is when the first of these windows opens.
    ``metrics`` are the engine's figures since its start, as it writes them for Prometheus (option ``metrics_dir``); None
    if the engine does not answer.

    CLI Example:

    .. code-block:: bash

        salt-run job_retry.stats
    """
    from saltext.jobs.core.engine import requests

    waiting = _waiting()
    rows = [_row(entry, job, waiting) for entry, job in _store().entries()]
    return {
        "entries": len(rows),
        "jobs": len({row["jid"] for row in rows}),
        "minions": len({row["minion"] for row in rows}),
        "states": dict(collections.Counter(row["state"] for row in rows)),
        "functions": dict(collections.Counter(row["fun"] for row in rows)),
        "oldest": min((row["queued_at"] for row in rows), default=None),
        "outside_window": sum(row["waits_for"] is not None for row in rows),
        "opens_at": min((row["opens_at"] for row in rows if row["opens_at"] is not None), default=None),
        "paused": _is_paused(),
        **requests.leading(__opts__, JOB_RETRY),
        "metrics": _metrics(),
    }


def _metrics() -> Any:
    from saltext.jobs.core.engine import requests

    if not requests.is_running(__opts__, JOB_RETRY):
        return None
    try:
        return requests.ask(__opts__, JOB_RETRY, {"do": "metrics"})
    except EngineAbsent as exc:
        runner.note(globals(), str(exc))
        return None


@runner.verb
def history() -> Any:
    """
    Return the engine's figures of the last day: a set each minute of the last hour, and each quarter before.
    ``[[Unix time, figures]]``, oldest first. The figures are the ``metrics`` of ``job_retry.stats``, and begin when the
    engine starts. Refused if no engine runs.

    CLI Example:

    .. code-block:: bash

        salt-run job_retry.history --out=json
    """
    from saltext.jobs.core.engine import requests

    return requests.history(__opts__, JOB_RETRY)


@runner.verb
def doctor() -> dict[str, Any]:
    """
    Return what an operator should know before relying on the queue.

    The exit status of ``salt-run`` is 1 if something does not work or will soon fail, and 0 if all findings are advice.

    :return: a dict with engine (whether it runs), process (its pid, user and host), findings (each a dict with code,
        severity, text and do; faults first), faults (how many of them are more than advice), and retcode (the exit
        status).

    CLI Example:

    .. code-block:: bash

        salt-run job_retry.doctor
    """
    from saltext.jobs.core.retry import doctor as examination

    return examination.examine(__opts__)


@runner.verb
def coverage(tgt: object = "*", tgt_type: object = "glob", timeout: object = None) -> dict[str, Any]:
    """
    Return which minions have the executor ``job_once``, which runs each job at most once even if the minion crashes. The
    minions are asked, so a user with limited rights needs the right to ``saltutil.find_cached_job`` on them.

    tgt, tgt_type
        The minions to ask, by default all. The master resolves the target, and asks each matched minion by its name.

    timeout
        Seconds to wait for answers, by default the master's ``timeout``.

    :return: a dict with asked (``tgt``, ``tgt_type``, and how many ``minions`` they match), has (minions with the
        executor), lacks (``{minion: what is missing there}``), keeps (minions that lack the executor but have
        ``cache_jobs``) and silent (minions that did not answer).

    CLI Example:

    .. code-block:: bash

        salt-run job_retry.coverage
        salt-run job_retry.coverage 'web*'
        salt-run job_retry.coverage 'L@web1,web2 or G@os:Debian' tgt_type=compound
    """
    from saltext.jobs.core.master import caller, once

    who = _caller()
    caller.require_no_peer(who)
    tgt, tgt_type = kinds.target(tgt, tgt_type)
    seconds = kinds.SOME_SECONDS.given("timeout", __opts__["timeout"] if timeout is None else timeout)
    return once.coverage(__opts__, who, tgt, tgt_type, max(1, round(seconds)))


@runner.verb
def enqueue(jid: object, minions: object = None) -> Any:
    """
    Put a job from the job cache into the queue by hand, whatever its function, and return the number of new entries. Refused
    if one of its functions ends other jobs, or asks about them.

    jid
        The job; this master must have published it.

    minions
        The minions that should get the job: a list, or names separated by commas. Default: all minions to which it was
        published and that have not returned it. A minion that has returned the job never gets it again. One that has begun
        it, or may have, runs it again: look at the minion, and name only those that are to run it. Refused if a
        batch has not ended on one of them, or if one has got the job from a ``batch.retry``.

    CLI Example:

    .. code-block:: bash

        salt-run job_retry.enqueue 20260516101112131415
        salt-run job_retry.enqueue 20260516101112131415 minions=web1,web2
    """
    from saltext.jobs.core.display.text import some
    from saltext.jobs.core.master import caller
    from saltext.jobs.core.master.job_cache import JobCache
    from saltext.jobs.core.retry.entry import State

    jid, named = kinds.jid(jid), None if minions is None else list(kinds.minions(minions))
    who, load = _caller(), JobCache(__opts__).load(jid, to_publish=True)
    if not load:
        raise Refused(f"Job {jid} is not in the job cache as one that this master has published")
    if who.grants is not None:
        caller.require_right(__opts__, who, load, named or load.get("Minions") or (), f"all minions of job {jid}")
    _refuse_for_batch(jid, named)
    _tell_of_a_pause()
    count = _ask({"do": "enqueue", "jid": jid, "minions": named}, who)
    full = _store().done(jid, state=State.DEAD)
    if count is not None and (refused := sorted(full if named is None else full.keys() & named)):
        told = f"{some(refused, 10)}: not queued, {full[refused[0]]['history'][-1][2]}; salt-run job_retry.doctor says more"
        if count == 0:
            raise Refused(told)
        runner.note(globals(), told)
    return count


@runner.verb
def replay(minion: object) -> Any:
    """
    Deliver now the jobs that a minion is owed, as if it had just shown a sign of life, and also outside their windows.
    Returns the number of waiting entries. Refused if there are none.

    If the minion does not answer, its entries wait for its next sign of life. Five minutes later their windows count again.

    CLI Example:

    .. code-block:: bash

        salt-run job_retry.replay web1
    """
    from saltext.jobs.core.display.text import counted, span
    from saltext.jobs.core.retry.entry import URGENT

    minion, waiting = kinds.minion(minion), _waiting()
    if _is_paused():
        raise Refused("The queue is paused, so nothing is delivered; salt-run job_retry.resume lets it go on")
    early = sum(waiting.of(*found)[0] is not None for found in _store().entries(minion))
    count = _some(_ask({"do": "replay", "minion": minion}, keep=False), "waits for delivery", minion=minion)
    if early:
        outside = f"{counted(early, 'entry', 'entries')} outside the window of the job"
        runner.note(globals(), f"{outside}, which does not count for {span(URGENT)}")
    return count


@runner.verb
def retry(minion: object = None, jid: object = None) -> Any:
    """
    Try held or dead entries again, and return their number. Refused if there are none.

    A held job may have begun, and it is not known how far it got: look at the minion before you run the job again. The
    entry then waits for its minion and its window, like any other entry; ``job_retry.replay`` delivers the job now.

    minion, jid
        Only entries of this minion, of this job, or both. At least one is needed, in any order.

    CLI Example:

    .. code-block:: bash

        salt-run job_retry.retry minion=web1
        salt-run job_retry.retry minion=web1 jid=20260516101112131415
    """
    from saltext.jobs.core.engine import requests
    from saltext.jobs.core.master import caller
    from saltext.jobs.core.retry.entry import State

    selection, who = _selection(minion, jid), _caller()
    entries = list(_store().entries(selection["minion"], selection["jid"]))
    if not (entries or requests.is_running(__opts__, JOB_RETRY)):  # an engine that runs knows better
        return _some(0, "is held or dead", **selection)
    for entry, job in entries:
        if who.grants is not None:
            caller.require_right(__opts__, who, job.load, [entry.minion], "all minions of these entries")
        if entry.state is State.DEAD:
            _refuse_for_batch(entry.jid, [entry.minion])
    _tell_of_a_pause()
    return _some(_ask({"do": "retry", **selection}, who), "is held or dead", **selection)


@runner.verb
def cancel(minion: object = None, jid: object = None) -> Any:
    """
    Cancel entries, so that their jobs are not delivered, and return their number. Refused if there are none. A job that was
    published a moment ago is cancelled for the minions that have not returned it yet: they are not owed it later.

    An entry whose job is being delivered is cancelled too, but its minion may already run the job: kill it there with
    ``saltutil.kill_job``.

    minion, jid
        Only entries of this minion, of this job, or both. At least one is needed.

    CLI Example:

    .. code-block:: bash

        salt-run job_retry.cancel jid=20260516101112131415
    """
    selection = _selection(minion, jid)
    return _some(_ask({"do": "cancel", **selection}), "can be cancelled", **selection)


@runner.verb
def purge(state: object = None) -> Any:
    """
    Remove the entries in these states, and return their number. With an entry it is forgotten whether its job has begun.

    state
        ``held``, ``expired``, ``cancelled`` or ``dead``, or several of them (a list, or names separated by commas).

    CLI Example:

    .. code-block:: bash

        salt-run job_retry.purge state=expired,cancelled
    """
    return _ask({"do": "purge", "states": list(kinds.some_of(*_PURGEABLE).given("state", state))})


@runner.verb
def pause() -> Any:
    """
    Stop all deliveries until ``job_retry.resume``. Jobs are still queued. The pause survives a restart of the master.

    Refused if the queue is paused already.

    CLI Example:

    .. code-block:: bash

        salt-run job_retry.pause
    """
    if _is_paused() or (paused := _ask({"do": "pause"})) is False:
        raise Refused("The queue is paused; there is nothing to pause")
    runner.note(globals(), "Next: salt-run job_retry.resume (or list, stats)")
    return paused


@runner.verb
def resume() -> Any:
    """
    Deliver again after ``job_retry.pause``. Refused if the queue is not paused.

    CLI Example:

    .. code-block:: bash

        salt-run job_retry.resume
    """
    resumed = _ask({"do": "resume"})
    if resumed is False:
        raise Refused("The queue is not paused; there is nothing to resume")
    runner.note(globals(), "Next: salt-run job_retry.list (or replay MINION)")
    return resumed


def _caller() -> caller.Caller:
    from saltext.jobs.core.master import caller

    return caller.caller(__opts__, globals().get("__user__"))


def _ask(request: dict[str, Any], who: caller.Caller | None = None, keep: bool = True) -> Any:
    from saltext.jobs.core.engine import requests
    from saltext.jobs.core.master import caller

    who = who or _caller()
    caller.require_no_peer(who)
    if request["do"] in ("enqueue", "retry"):
        request["asker"] = who.owner()
    return requests.ask(__opts__, JOB_RETRY, {**request, "user": who.name}, keep=keep)


def _refuse_for_batch(jid: str, named: list[str] | None) -> None:
    """:raises Refused: if a running batch may still send its job to some of these minions, or a retry of it has done so."""
    from saltext.jobs.core.batch import summary
    from saltext.jobs.core.batch.catalog import Catalog

    batches = Catalog(__opts__)
    batch = batches.ours(jid)
    if batch is None:
        return
    names = batch.spec.minions if named is None else sorted(set(named).intersection(batch.spec.minions))
    before = summary.minions(batch)
    if left := [name for name in names if "open" in before[name]]:
        raise Refused(
            f"Job {jid} belongs to a batch that has not ended on {len(left)} of these minions: name only minions that have "
            "ended it, or wait until the batch has ended"
        )
    stands = summary.latest(batch, batches.retries(jid))
    for name in names:
        if before[name]["retcode"] is None and (later := stands[name][0]) != jid:
            raise Refused(f"{name} is in batch {later}, which retries job {jid} on it: name only other minions")


def _some(count: Any, what: str, minion: str | None = None, jid: str | None = None) -> Any:
    """Return how many entries were found. :raises Refused: if there are none."""
    if count == 0:
        named = {"minion": minion, "jid": jid}
        chosen = " ".join(f"{name}={value}" for name, value in named.items() if value is not None)
        raise Refused(f"No entry of {chosen} {what}; salt-run job_retry.list {chosen} shows what is queued")
    return count


def _is_paused() -> bool:
    """Tell whether the queue is paused, or will be once the engine has read the waiting requests."""
    from saltext.jobs.core.engine import requests

    paused = _store().is_paused()
    for request in requests.waiting(__opts__, JOB_RETRY):
        paused = {"pause": True, "resume": False}.get(str(request.get("do")), paused)
    return paused


def _tell_of_a_pause() -> bool:
    paused = _is_paused()
    if paused:
        runner.note(globals(), "The queue is paused: nothing is delivered until job_retry.resume")
    return paused


def _tell_of_work_left() -> None:
    """Note entries in the file that was used before ``cache:`` was changed: they stand still."""
    from saltext.jobs.core.retry.store import RetryStore
    from saltext.jobs.core.site import left_by, site_of

    with contextlib.suppress(Exception):  # a file that cannot be read has nothing that could go on
        if other := left_by(__opts__):
            tables = site_of(other)
            entries = sum(entry.state.value not in _PURGEABLE for entry, _ in RetryStore(tables).entries())
            if entries:
                runner.note(
                    globals(), f"Jobs that are owed to minions: {entries} more in {tables.place}; see jobs_doctor.run"
                )


def _store() -> RetryStore:
    from saltext.jobs.core.retry.store import RetryStore
    from saltext.jobs.core.site import site_of

    return RetryStore(site_of(__opts__))


def _waiting() -> Waiting:
    from saltext.jobs.core.options import engine_options, read_settings
    from saltext.jobs.core.options.engines import RetrySettings
    from saltext.jobs.core.retry.queue import Waiting

    try:
        settings = read_settings(
            RetrySettings, JOB_RETRY, *(given or None for given in engine_options(__opts__, JOB_RETRY))
        )
    except SettingsError:
        settings = RetrySettings()  # no engine runs with invalid options, but its queue can still be read
    return Waiting(settings, time.time())


def _row(entry: Entry, job: Job, waiting: Waiting) -> dict[str, Any]:
    waits_for, opens = waiting.of(entry, job)
    return {
        "minion": entry.minion,
        "jid": entry.jid,
        "fun": ",".join(job.funs),
        "state": entry.state.value,
        "reason": entry.reason,
        "attempts": entry.counts.attempts,
        "queued_at": entry.queued,
        "expires_at": entry.expires_at,
        "waits_for": waits_for,
        "opens_at": opens,
        "not_before": entry.next_at or None,
    }


def _pair(minion: object, jid: object) -> tuple[str | None, str | None]:
    """Return the minion and the jid, in whichever order they were given; None for one that was not."""
    from saltext.jobs.core.ids import jid_time

    names = None if minion is None else kinds.minion(minion), None if jid is None else kinds.jid(jid)
    times = [name is not None and jid_time(name) is not None for name in names]
    return names[::-1] if times == [True, False] else names


def _selection(minion: object, jid: object) -> dict[str, str | None]:
    if minion is None and jid is None:
        raise Refused("Name a minion, a jid, or both")
    return dict(zip(("minion", "jid"), _pair(minion, jid), strict=True))
