"""
Start, watch and control asynchronous batches.

A batch runs a job on many minions under one jid, a limited number of minions at a time. The ``batch_manager`` engine of
this extension drives it. It goes on when the terminal is closed, and after a restart of the engine or the master.

.. code-block:: bash

    salt-run batch.start 'web*' state.apply batch=10%
    salt-run batch.watch 20260516101112131415

Batches that Salt 3008 runs on its own (``salt --async -b``) are shown and can be stopped too.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

# Every salt-run imports this file. What a call needs beyond these, it imports itself.
from saltext.jobs.core import runner
from saltext.jobs.core.engine.names import BATCH_MANAGER
from saltext.jobs.core.errors import Refused
from saltext.jobs.core.options import kinds

if TYPE_CHECKING:
    from saltext.jobs.core.batch import catalog, summary
    from saltext.jobs.core.batch.permission import CallerRights
    from saltext.jobs.core.batch.spec import Spec
    from saltext.jobs.core.batch.state import Batch
    from saltext.jobs.core.batch.watch import Display

__virtualname__ = "batch"
__func_alias__ = {"list_": "list"}

# Salt's loader brings these.
__opts__: Mapping[str, Any]

#: Seconds to wait for the answer to a request, which is on the disk by then.
_PATIENCE = 30.0
#: What to call once a request is carried out.
_NEXT = {"pause": "resume", **dict.fromkeys(("stop", "resume", "approve"), "watch")}


def __virtual__() -> str:
    return __virtualname__


@runner.verb
def start(tgt: object = None, fun: object = None, *args: object, **options: Any) -> Any:
    """
    Start a batch and return its summary with its ``jid``, as ``batch.status`` does.

    Returns once the engine has accepted the batch durably. All minions run the job under one jid, so ``jobs.lookup_jid``
    shows all returns.

    :param tgt: the target; ``tgt_type`` is its type.
    :param str fun: the execution function.
    :param args: its arguments. Keyword arguments that are not listed below go to the function too. If the name of one is
        listed below, or is close to a listed name, give it in ``kwarg``.
    :param batch: how many minions at a time: a count (``10``), a percentage of the matched minions (``25%``), or a ramp
        (``1,10%,50%``): each stage but the last is a wave that must end before the next begins. Default: ``10%``.
    :param str tgt_type: the kind of target: glob (the default), list, grain, compound, nodegroup, … Every minion of a list
        must be accepted.
    :param batch_wait: seconds for which a minion's slot stays empty after it has ended. Default: 0.
    :param max_failures: stop when more minions than this have failed: a count (0 for the first failure), or a percentage of
        the matched minions (with ``by``, of each group). A minion that never answered does not count as a failure here.
        Default: no limit.
    :param timeout: seconds after which a minion is asked whether it still runs the job; default: the master's ``timeout``.
    :param gather_job_timeout: seconds to wait for answers; default: the master's ``gather_job_timeout``.
    :param max_runtime: seconds for which a minion may run the job. A minion that runs it for longer is told to terminate it,
        and ten seconds later to kill it. It counts as ``timed_out``, which is a failure. Default: no limit.
    :param start_at: when the batch begins: a date and time (``2026-11-28 02:00``), the next time at which it is ``22:00``,
        ``+90m``, or Unix time in seconds. Default: at once.
    :param window: when minions may be sent to: ``Sat,Sun 02:00-05:00``, or several, separated by semicolons or in a list.
        Minions that run the job when a window closes go on. Default: at any time.
    :param str timezone: the zone of ``start_at`` and ``window``, such as ``Europe/Berlin``. Default: the master's.
    :param str by: send to one group of minions after the other: by a grain (``grains:rack``), a pillar key
        (``pillar:ring``) or nodegroups (``nodegroups:[canary,eu,us]``). Groups are sorted by name, or named in order:
        ``grains:rack:[r7,r2]``. ``batch`` is for each group; a group must end within ``max_failures`` before the next
        begins. Minions without the value come last, and after them those whose value the master does not know. Groups by
        a grain or pillar key are shown by number; a user with limited rights needs the right to ``grains.get`` or
        ``pillar.get`` on these minions.
    :param str check: what is checked after each stage and group but the last: an execution function on the minions that
        have just completed (``service.status nginx``), a runner function (``runner:survey.healthy {jid}``), or
        ``approve``: then an operator calls ``batch.approve``. False, an error or no answer halts the batch. Refused if
        the batch has one stage only, or if this master lacks the runner function.
    :param check_timeout: seconds to wait for the answer of a function. Default: 300.
    :param approve_by: the only users and groups that may approve, with commas or as a list: users by name (``anna``) or by
        login (``ldap:anna``), groups as ``%ops``. The user who starts the batch may never approve it. Default: anyone who
        may run its job.
    :param str presence: ``ping`` (the default) pings minions first, and sends to those that answer; ``none`` sends
        straight away, also to minions that are away: these are lost then, since they may begin the job later.
    :param str offline: what becomes of minions that don't answer: ``skip`` (the default) leaves them out, ``fail`` counts
        them as failed, ``queue`` hands them to job_retry when all others have ended, which delivers the job later.
    :param str ret: returners, as ``salt --return``. A user with limited rights may set neither this nor one of
        ``module_executors``, ``executor_opts``, ``ret_config`` and ``ret_kwargs``.
    :param dict metadata: as ``salt --metadata``.
    :param list module_executors: as ``salt --module-executors``.
    :param dict executor_opts: as ``salt --executor-opts``.
    :param str ret_config: as ``salt --return_config``.
    :param dict ret_kwargs: as ``salt --return_kwargs``.
    :param like: the jid of a batch, or of a job in the job cache, to run again. Target, function and options that are not
        given are taken over, except a ``start_at`` that has passed. Arguments are taken over only with the function,
        ``tgt_type`` only with the target. Keyword arguments that are given are added. The target is matched again. A user
        with limited rights needs the right to that job on all its minions, as for ``batch.retry``.
    :param bool preview: start nothing, and return what ``batch.preview`` returns.
    :param list arg: further arguments for the function, for callers that name everything, such as the API.
    :param dict kwarg: further keyword arguments for the function.

    Nothing is started if the input is wrong, if the user may not publish the job to these minions, or if no engine takes
    the batch within ten seconds (45 seconds if the masters share a PostgreSQL database).

    CLI Example:

    .. code-block:: bash

        salt-run batch.start 'web*' state.apply nginx batch=25% max_failures=0
        salt-run batch.start '*' cmd.run 'yum -y update' batch=1,10%,50% max_failures=5% timeout=600 max_runtime=1h
        salt-run batch.start '*' state.apply by='nodegroups:[canary,eu,us]' max_failures=10% check='service.status nginx'
        salt-run batch.start like=20260516101112131415 batch=5
        salt-run batch.start 'db*' state.apply batch=1,1 window='Sat,Sun 02:00-05:00' timezone=Europe/Berlin check=approve
    """
    is_preview = kinds.FLAG.given("preview", options.pop("preview", False))
    spec = _asked("start", tgt, fun, args, options)
    return _preview(spec) if is_preview else _told(_start(spec))


@runner.verb
def preview(tgt: object = None, fun: object = None, *args: object, **options: Any) -> dict[str, Any]:
    """
    Return what ``batch.start`` would do with the same arguments, and start nothing.

    Refused if the input is wrong, or if the user may not publish the job to these minions, as ``batch.start``.

    :return: a dict with total, minions (names, in the order in which they are sent to), fun, arguments, tgt, tgt_type, sizes
        (how many at a time, one for each stage; with groups, those of the first), groups (``[[name, count]]`` in order, or
        None), check (what is checked, without its arguments, or None), check_after (for each check, after how many minions
        it comes), unsure (minions that are left out: the master has no grains and pillar of them), max_in_flight (the limit
        over all batches, or None), options, and how it would go on in a sentence.

    CLI Example:

    .. code-block:: bash

        salt-run batch.preview 'web*' state.apply nginx batch=25%
    """
    return _preview(_asked("preview", tgt, fun, args, options))


@runner.verb
def run(tgt: object = None, fun: object = None, *args: object, **options: Any) -> dict[str, Any]:
    """
    Start a batch, wait until it ends, and return its summary. It takes the arguments of ``batch.start``.

    The summary has a ``verdict``, a sentence that also says how many minions were left out. Its ``retcode`` is 0 if all went
    well; otherwise it is 1, and there is an ``Error``. For orchestration: the ``salt.runner`` state that calls this fails if
    the batch did not succeed, or could not be started. It gets how the batch ended, and ``failures``: minions with their
    reasons.

    CLI Example:

    .. code-block:: bash

        salt-run batch.run 'web*' state.apply nginx batch=25%
    """
    return _told(_follow(_start(_asked("run", tgt, fun, args, options))["jid"], None, None))


@runner.verb
def status(jid: object) -> dict[str, Any]:
    """
    Return the present state of a batch.

    :param str jid: the batch's jid.
    :return: a dict with jid, fun, arguments (words, as they would be typed; those named like a password or a token are
        hidden; those of others only for users who may call ``jobs.list_job``), options (of ``batch.start``, by
        name; None if not given), tgt, tgt_type, user, driver, state (running, paused, stopping, complete, halted), the
        counts total, completed (returned with success), active, pending, failed, lost, offline, queued, killed, timed_out,
        batch_size, stage, stages, sizes (as in ``batch.preview``), halted, halted_reason, stopped_by (a user), killing
        (whether it was stopped with ``kill=True``),
        created, first_sent (when, or None), last_progress, age_seconds, rate (minions per minute since then),
        eta_seconds (an estimate; None until as many minions have returned as run at a time), paused_by (operator, publish,
        permission, approval, window, start or rights; None if it is not paused), paused_reason, opens_at (when it goes on),
        blocked_reason (what it waits for before it sends to more minions: room beside other batches, or signs of life of
        the minions that are left; None if nothing keeps it from that), check (whether one is under way),
        approve (the stage that batch.approve would approve, counted from 1 through all groups, or None), success,
        survivors (minions that still run the job after the last kill), unsure (as in ``batch.preview``), parent (the jid
        of the batch that it retries, or None), retries (of a batch that has ended, but not completed on all minions: the
        jids of those that have retried it, oldest first; and unmended: on how many minions it has not succeeded even so,
        by state: none once it is mended), engine
        (whether the engine that drives it runs; None once the batch has ended), engine_silent_seconds (for how long that
        engine has not answered; None if it does) and engine_master (the
        master of that engine, if there are several). With groups also group, group_number, groups (how many) and by. Times
        are Unix time in seconds.

    CLI Example:

    .. code-block:: bash

        salt-run batch.status 20260516101112131415
    """
    return _catalog().find(kinds.jid(jid)).summary


@runner.verb
def list_active() -> list[catalog.Summary]:
    """
    Return the summaries of all batches that have not ended, oldest first.

    CLI Example:

    .. code-block:: bash

        salt-run batch.list_active
    """
    _tell_of_work_left()
    return _catalog().active()


@runner.verb
def list_(
    limit: object = 20,
    state: object = None,
    fun: object = None,
    user: object = None,
    start_time: object = None,
    end_time: object = None,
) -> list[catalog.Summary]:
    """
    Return the summaries of batches, newest first. Ended ones are kept for ``keep_jobs_seconds``, but for those that Salt
    3008 has run on its own.

    :param int limit: most batches to return.
    :param str state: only batches in this state: running, paused, stopping, complete or halted. Or with this word in
        the table: waiting (for other batches, a window or an approval) or scheduled (for its start); succeeded,
        unsuccessful, or mended (retries have succeeded where it did not).
    :param str fun: only batches of this function: a glob such as ``state.*``, or several, with commas or as a list.
    :param str user: only batches that these users have started: globs, as for ``fun``.
    :param start_time: only batches started then or later: ``-2h`` for the last two hours, or a date and time such as
        ``'2026-11-28 02:00'``.
    :param end_time: only batches started then or earlier; as ``start_time``.

    CLI Example:

    .. code-block:: bash

        salt-run batch.list
        salt-run batch.list limit=5 state=halted
        salt-run batch.list fun='state.*' user=anna start_time=-7d
    """
    from saltext.jobs.core.batch import catalog, summary

    limit = kinds.whole(1).given("limit", limit)
    if state is not None:
        state = kinds.choice(*summary.WORDS, "complete").given("state", state)
    wanted = catalog.chooser(
        state,
        () if fun is None else kinds.NAMES.given("fun", fun),
        () if user is None else kinds.NAMES.given("user", user),
        kinds.MOMENT.given("start_time", start_time),
        kinds.MOMENT.given("end_time", end_time),
    )
    _tell_of_work_left()
    return _catalog().newest(limit, wanted)


@runner.verb
def minions(jid: object, state: object = None) -> catalog.Minions:
    """
    Return ``{minion: {state, since, started, retcode}}`` of a batch, with ``group`` if it has groups. ``since`` is since
    when a minion is in its state, ``started`` when it said that it had begun the job, or else when it was sent to (None if
    it was not). ``seen`` is when an active minion was last seen to run the job. A lost minion has ``why``: what is known of
    it; and ``begun``, if it is known to have begun the job. One that failed because it was away has ``why``, too. ``open``
    is True while the batch has not ended on a minion: it may still send it the job, hand it over, or have its return. A
    minion on which the job was retried has ``retry`` (the jid of the last batch for it) and ``retry_state`` (how that
    stands; waiting: that batch may still send it the job). Times are Unix time in seconds.

    :param str jid: the batch's jid.
    :param str state: only minions in this state: pending, active, completed, failed, lost, offline, queued (job_retry owes
        them the job; ``why`` says how that stands), killed or timed_out.

    CLI Example:

    .. code-block:: bash

        salt-run batch.minions 20260516101112131415 state=failed
    """
    from saltext.jobs.core.batch.member import Outcome

    if state is not None:
        kinds.choice("pending", "active", *(outcome.value for outcome in Outcome)).given("state", state)
    found = _catalog().find(kinds.jid(jid)).minions()
    return {minion: record for minion, record in found.items() if state in (None, record["state"])}


@runner.verb
def failures(jid: object) -> dict[str, Any]:
    """
    Return why minions of a batch did not succeed: minions with the same reason in one group, the largest group first.
    Minions on which a retry has succeeded are left out.

    Reasons count as the same if they differ only in ids, addresses, times and numbers. For a run of states the text has the
    states that failed, with their comments. For anything else it has the output, without the middle if it is long.

    A user needs the right to the batch's job, as for ``batch.retry``, or to ``jobs.list_job``.

    :param str jid: the batch's jid.
    :return: the dict of ``batch.status`` with unsuccessful (how many) and groups: a list of dicts with count, state (failed,
        timed_out, lost, killed, offline or queued), retcode (or None), text (of the first minion) and minions.

    CLI Example:

    .. code-block:: bash

        salt-run batch.failures 20260516101112131415
    """
    from saltext.jobs.core.batch import summary

    return summary.failures(*_with_returns(kinds.jid(jid)))


@runner.verb
def output(jid: object, minion: object) -> dict[str, Any]:
    """
    Return what one minion of a batch returned.

    A user needs the right to the batch's job, as for ``batch.retry``, or to ``jobs.list_job``.

    :param str jid: the batch's jid.
    :param str minion: the minion's id.
    :return: the dict of ``batch.minions`` with return: what the job cache has of it, or None.

    CLI Example:

    .. code-block:: bash

        salt-run batch.output 20260516101112131415 web3
    """
    jid, minion = kinds.jid(jid), kinds.WORD.given("minion", minion)
    _, known, returns = _with_returns(jid)
    if minion not in known:
        raise Refused(f"{minion} is no minion of batch {jid}; salt-run batch.minions {jid} names them")
    ((_, ret),) = returns([minion])
    return {**known[minion], "return": (ret or {}).get("return")}


@runner.verb
def stop(jid: object, kill: object = False) -> bool:
    """
    Stop a batch: nothing more is published, but what was on its way to minions. Returns True once the stop is durable.

    Refused for a batch that has ended or is stopped already; ``kill`` can still be added to a stop. If the engine is
    down, it publishes nothing, and carries out the stop first when it starts.

    :param str jid: the batch's jid.
    :param bool kill: also kill the job on the minions that run it, until they answer that it no longer runs. The summary
        names the minions on which it survives (``survivors``).

    CLI Example:

    .. code-block:: bash

        salt-run batch.stop 20260516101112131415
        salt-run batch.stop 20260516101112131415 kill=True
    """
    from saltext.jobs.core.batch import summary

    jid, kill, rights = kinds.jid(jid), kinds.FLAG.given("kill", kill), _rights()
    found = _found(jid, rights, with_right=kill)
    if found.batch is not None:
        return _request("stop", rights, found.batch, kill=kill)
    over = found.summary["state"] in summary.OVER
    return _done("stop", jid, not over and _stop_native(jid, found.state, kill))


@runner.verb
def pause(jid: object) -> bool:
    """
    Publish nothing more for now; minions that run the job go on. Returns True; refused for a batch that can't be paused.

    CLI Example:

    .. code-block:: bash

        salt-run batch.pause 20260516101112131415
    """
    jid, rights = kinds.jid(jid), _rights()
    rights.require_allowed_peer()
    return _request("pause", rights, _catalog().need(jid))


@runner.verb
def resume(jid: object) -> bool:
    """
    Let a paused batch go on. Returns True; refused for a batch that is not paused.

    Before it sends, the engine checks whether the batch's owner may still publish the job. If not, the batch pauses again
    and says why. Another user, who has the rights, can stop it and run the rest with ``batch.retry which=all``.

    CLI Example:

    .. code-block:: bash

        salt-run batch.resume 20260516101112131415
    """
    from saltext.jobs.core.batch.pace import PausedBy

    jid, rights = kinds.jid(jid), _rights()
    batch = _catalog().need(jid)
    rights.permit_batch(batch.spec)
    if batch.paused and batch.paused.by is not PausedBy.OPERATOR:
        runner.note(globals(), f"It pauses again if this still holds: {batch.paused.reason}")
    return _request("resume", rights, batch)


@runner.verb
def approve(jid: object, stage: object = None) -> bool:
    """
    Approve a stage of a batch (``check=approve``), so that the batch goes on. Returns True; refused if the batch waits
    for no approval.

    With ``approve_by``, only the users it names may approve, whatever their other rights, but never the user who started
    the batch. Without it, anyone who may run its job may approve.

    :param str jid: the batch's jid.
    :param int stage: the stage that is approved, from ``approve`` in ``batch.status``. With it, a late or repeated
        approval does not count for the next stage. Default: the one that the batch waits for now.

    CLI Example:

    .. code-block:: bash

        salt-run batch.approve 20260516101112131415
        salt-run batch.approve 20260516101112131415 stage=1
    """
    jid, rights = kinds.jid(jid), _rights()
    batch = _catalog().need(jid)
    if not batch.finished:
        rights.permit_approval(batch)
    waits = batch.pace.to_approve
    stage = waits if stage is None else kinds.whole().given("stage", stage)
    if waits is not None and stage is not None and stage < waits:
        raise Refused(f"Stage {stage} of batch {jid} is approved; batch.approve {jid} stage={waits} approves the next")
    is_open = waits is not None and stage == waits
    return _request("approve", rights, batch, stage=stage) if is_open else _done("approve", jid, False)


@runner.verb
def wait(jid: object, timeout: object = None) -> dict[str, Any]:
    """
    Wait until a batch has ended, and return its summary, with ``retcode`` 0 if all went well and 1 if not: there, whatever
    its retries have mended since.

    Fails if it has not ended within ``timeout``, or if its engine has been away for a minute; the batch goes on.

    :param str jid: the batch's jid.
    :param timeout: most seconds to wait; default: no limit.

    CLI Example:

    .. code-block:: bash

        salt-run batch.wait 20260516101112131415 timeout=600
    """
    return _told(_follow(kinds.jid(jid), timeout, None))


@runner.verb
def watch(jid: object, timeout: object = None) -> catalog.Summary:
    """
    Show a batch's progress until it ends: a bar on a terminal, lines elsewhere, each failure as it comes, and why it waits.

    The progress goes to standard error, the summary to standard output. The exit status is not zero if the batch did not
    succeed. Ctrl-C ends the watching only: the batch goes on.

    :param str jid: the batch's jid.
    :param timeout: most seconds to watch; default: no limit.

    CLI Example:

    .. code-block:: bash

        salt-run batch.watch 20260516101112131415
    """
    from saltext.jobs.core.batch import watch as watching

    jid, returns = kinds.jid(jid), None
    with contextlib.suppress(Refused):  # who may not see returns sees no reasons
        _, _, returns = _with_returns(jid)
    return _follow(jid, timeout, watching.Display(sys.stderr, returns))


@runner.verb
def retry(jid: object, which: object = "failed") -> Any:
    """
    Start a new batch on the minions on which a batch did not succeed, with the same job and options, but without a
    ``start_at`` that has passed, as ``batch.start like=jid`` does.

    Returns the new batch's summary; its ``parent`` is ``jid``. A batch that still runs goes on beside its retry, which takes
    only minions on which it has ended.

    :param str jid: the batch's jid.
    :param which: failed, timed_out, lost, killed, offline, pending (not sent to), or several of them, with commas or as a
        list; or all. Minions to which job_retry owes the job are never among them; ``job_retry.cancel jid=JID`` takes the
        job back, and makes them offline. Of a minion that a retry of the batch has run the job on, that run counts.

    CLI Example:

    .. code-block:: bash

        salt-run batch.retry 20260516101112131415
        salt-run batch.retry 20260516101112131415 which=failed,killed
    """
    from saltext.jobs.core.batch import starting, summary
    from saltext.jobs.core.display.text import counted

    which = starting.WHICH.given("which", which)
    batches = _catalog()
    batch = batches.need(kinds.jid(jid))
    retries = batches.retries(batch.spec.jid)
    spec = starting.next_batch(__opts__, _rights().who, batch, which, retries)
    started, stands = _start(spec), summary.latest(batch, retries)
    unsent = summary.unmended(stands).get("pending", 0)
    if lost := [name for name in spec.minions if stands[name][1] == "lost"]:
        runner.note(globals(), f"The job may run a second time on {counted(len(lost), 'lost minion')}")
    if not batch.finished:
        runner.note(globals(), f"Batch {batch.spec.jid} {starting.not_ended(batch)}")
    elif unsent and not {"all", "pending"}.intersection(which):
        left = f"left out: {counted(unsent, 'minion')} that it was not sent to; which=pending takes them"
        runner.note(globals(), f"Batch {batch.spec.jid}: {left}")
    return _told(started)


@runner.verb
def stats() -> Any:
    """
    Return the figures of the batch_manager engine, as it writes them for Prometheus (option ``metrics_dir``).

    A dict of figures by name; a figure that differs by state or outcome is itself a dict. Counters (``…_total``) begin
    with the start of the engine. Beside them: ``process`` (of the engine: which one, on which machine, of which master) and
    ``since`` (when it took the lead, Unix time). Refused if no engine runs.

    CLI Example:

    .. code-block:: bash

        salt-run batch.stats
    """
    from saltext.jobs.core.engine import requests

    figures = requests.ask(__opts__, BATCH_MANAGER, {"do": "metrics"})
    return {**requests.leading(__opts__, BATCH_MANAGER), **figures}


@runner.verb
def history() -> Any:
    """
    Return the engine's figures over the last day: a set each minute of the last hour, and each quarter before.
    ``[[Unix time, figures]]``, oldest first, with the figures of ``batch.stats``. They begin with the start of the engine.
    Refused if no engine runs.

    CLI Example:

    .. code-block:: bash

        salt-run batch.history --out=json
    """
    from saltext.jobs.core.engine import requests

    return requests.history(__opts__, BATCH_MANAGER)


@runner.verb
def masters() -> dict[str, Any]:
    """
    Return which masters run the engines, and which master leads each engine: the same at every master of the site.

    Refused where the disk or the database that the masters share cannot be reached.

    :return: a dict with master (this one), site (where what they share is), store (``ok``), store_seconds (how long it took
        to answer) and engines: by name, a dict with leader (a master, or None), process, since (Unix time), epoch,
        beat_seconds (since its last sign of life), lease_seconds (for how long it leads without a renewal; None for a
        lock) and masters: by name, a dict with state (leads, stands by, or not
        known, if it has said nothing for 35 seconds), silent_seconds, host, version (of this extension), salt,
        ahead_seconds (by how much its clock is ahead of the site's) and refused (how often it was kept from acting because
        it could not be sure that it leads).

    CLI Example:

    .. code-block:: bash

        salt-run batch.masters
    """
    from saltext.jobs.core.engine import masters as sites

    return sites.standing(__opts__)


@runner.verb
def doctor() -> dict[str, Any]:
    """
    Return what an operator should know before relying on batches.

    The exit status of ``salt-run`` is 1 if something does not work, or soon will not; it is 0 if all findings are advice.

    :return: a dict with engine (whether it runs), process (its pid, user and host), job_cache (the one that gets the
        returns), returns_proven (whether a return must be in the job cache before it counts), set_aside (jids of batches
        that could not be read), findings (each a dict with code, severity, text and do), and retcode (the exit status).

    CLI Example:

    .. code-block:: bash

        salt-run batch.doctor
    """
    from saltext.jobs.core.batch import doctor as examination

    return examination.examine(__opts__)


def _asked(verb: str, tgt: object, fun: object, args: tuple[object, ...], options: dict[str, Any]) -> Spec:
    """Return the new batch that was asked for, with all that it takes over from another batch or job."""
    from saltext.jobs.core.batch import starting

    like, rights = options.pop("like", None), _rights()
    given = {**options, **{name: value for name, value in {"tgt": tgt, "fun": fun}.items() if value is not None}}
    if like is not None:
        given = starting.asked_again(_before(kinds.jid(like), rights), given)
    if not {"tgt", "fun"} <= given.keys():
        raise Refused(f"batch.{verb} needs tgt and fun, or like; salt-run -d batch.{verb} describes it")
    return starting.new_batch(__opts__, rights.who, args, given)


def _before(jid: str, rights: CallerRights) -> dict[str, Any]:
    from saltext.jobs.core.batch import starting
    from saltext.jobs.core.engine.proof import Returns
    from saltext.jobs.core.master.job_cache import JobCache
    from saltext.jobs.core.master.jobs import minions_of
    from saltext.jobs.core.site import site_of

    batch = _catalog().ours(jid)
    if batch is not None:
        rights.permit_batch(batch.spec)
        return starting.of_batch(batch.spec)
    rights.require_allowed_peer()
    cache = JobCache(__opts__)
    if cache.keeps_first_load:  # it also shows loads that minions have brought: none of these is ever published
        published = [row for row in Returns(site_of(__opts__), cache).publishes(jid) if row.load]
        minions = {minion for row in published for minion in row.minions}
        load = published[0].loaded() if published else {}
        if any(
            minions.difference(row.minions) for row in published if not row.origin
        ):  # parts of a batch of Salt's own
            load |= {"tgt": sorted(minions), "tgt_type": "list"}
    else:
        load = cache.load(jid, to_publish=True)
        minions = set(minions_of(load))
    if not load:
        raise Refused(f"like is {jid}, which is neither a batch nor a job that this master has published")
    rights.permit(load, minions, f"all minions of job {jid}")  # its arguments may be secret
    return starting.of_job(jid, load)


def _preview(spec: Spec) -> dict[str, Any]:
    from saltext.jobs.core.batch import summary
    from saltext.jobs.core.engine.names import JOB_RETRY
    from saltext.jobs.core.options import engine_options, read_settings
    from saltext.jobs.core.options.engines import RetrySettings
    from saltext.jobs.core.retry.reader import limits_of

    ttl = limits_of(spec.jid, spec.options.get("metadata")).ttl if spec.offline == "queue" else 0.0
    if ttl is None:
        given = (each or None for each in engine_options(__opts__, JOB_RETRY))
        ttl = read_settings(RetrySettings, JOB_RETRY, *given).ttl
    return summary.preview(spec, _rights().settings.max_in_flight, ttl)


def _start(spec: Spec) -> Any:
    from saltext.jobs.core.engine import requests
    from saltext.jobs.core.errors import JobCacheError
    from saltext.jobs.core.master.job_cache import JobCache

    try:
        JobCache(__opts__).load(spec.jid)
    except JobCacheError as exc:  # nobody could look up afterwards what ran
        raise Refused(f"Nothing is started, since the job cache cannot be used; see jobs_doctor.run: {exc}") from exc
    return requests.ask(__opts__, BATCH_MANAGER, {"do": "start", "spec": spec.as_dict()})


def _follow(jid: str, timeout: object, display: Display | None) -> catalog.Summary:
    from saltext.jobs.core.batch import summary
    from saltext.jobs.core.batch import watch as watching

    limit = None if timeout is None else kinds.SECONDS.given("timeout", timeout)
    found = watching.follow(jid, lambda: _look(jid), limit, display)
    verdict = summary.verdict(found)
    # ``--out=nested`` prints ``verdict`` last. ``retcode`` makes ``salt-run`` fail, and ``Error`` the salt.runner state.
    return {**found, "verdict": verdict, "retcode": 0} | (
        {} if found.get("success") else {"retcode": 1, "Error": verdict}
    )


def _look(jid: str) -> catalog.Found:
    """Return a batch; once it has ended, not before job_retry, if it runs, has answered what it hands over."""
    from saltext.jobs.core.batch import summary
    from saltext.jobs.core.engine import requests
    from saltext.jobs.core.engine.names import JOB_RETRY

    found = _catalog().find(jid)
    if found.summary["state"] not in summary.OVER or not found.summary.get("queued"):
        return found
    until = time.monotonic() + _PATIENCE
    while requests.is_running(__opts__, JOB_RETRY) and time.monotonic() < until:
        if all(request.get("jid") != jid for request in requests.waiting(__opts__, JOB_RETRY)):
            break
        time.sleep(0.1)
    return _catalog().find(jid)


def _told(found: dict[str, Any]) -> dict[str, Any]:
    """Return a summary; to a step of an orchestration, of which Salt prints each key, only how it stands and what failed."""
    if not runner.is_step():
        return found
    from saltext.jobs.core.batch import summary, tables
    from saltext.jobs.core.errors import JobCacheError

    groups: list[Any] = []
    with contextlib.suppress(Refused, JobCacheError):  # as in watch
        groups = summary.failures(*_with_returns(found["jid"]))["groups"] if found.get("retcode") else []
    return tables.step(found, groups)


def _request(verb: str, rights: CallerRights, batch: Batch, **more: object) -> bool:
    from saltext.jobs.core.engine import requests

    jid = batch.spec.jid
    if batch.finished:
        return _done(verb, jid, False)
    request = {"do": verb, "jid": jid, "user": rights.who.name, **more}
    answer = requests.ask(__opts__, BATCH_MANAGER, request, _PATIENCE, keep=True)
    # Without an engine it is None: nothing is published meanwhile, and an engine that starts takes the request first.
    return True if answer is None else _done(verb, jid, answer)


def _done(verb: str, jid: str, answer: object) -> bool:
    """Return True for a request that is carried out. :raises Refused: with the reason, if it changes nothing."""
    from saltext.jobs.core.batch import summary

    if not answer:
        raise Refused(summary.why_not(verb, _catalog().find(jid).summary))
    runner.note(globals(), f"Next: salt-run batch.{_NEXT[verb]} {jid} (or status, minions)")
    return True


def _stop_native(jid: str, state: Mapping[str, Any], kill: bool) -> bool:
    """Stop a batch of Salt 3008's own: its manager halts it on this event, and nothing else writes its state."""
    import salt.client
    import salt.utils.event

    from saltext.jobs.core.master import events

    with salt.utils.event.get_master_event(__opts__, __opts__["sock_dir"], listen=False) as bus:
        told = bool(bus.fire_event({"jid": jid, "reason": "stop"}, events.batch_tag(jid, "stop")))
    if told and kill and state.get("active"):
        with salt.client.LocalClient(mopts=__opts__) as client:
            client.run_job(sorted(state["active"]), "saltutil.kill_job", [jid], tgt_type="list", listen=False)
    return told


def _rights() -> CallerRights:
    from saltext.jobs.core.batch.permission import CallerRights
    from saltext.jobs.core.master import caller

    return CallerRights(__opts__, caller.caller(__opts__, globals().get("__user__")))


def _found(jid: str, rights: CallerRights, with_right: bool) -> catalog.Found:
    """
    Return a batch, also one of Salt 3008's own. :raises Refused: if there is none, or if the caller may control none; with
    ``with_right`` also if they may not run its job.
    """
    from saltext.jobs.core.master.caller import require_right

    rights.require_allowed_peer()
    found = _catalog().find(jid)
    if with_right and found.batch is not None:
        rights.permit_batch(found.batch.spec)
    elif with_right:
        require_right(__opts__, rights.who, found.state, found.state.get("all_minions") or ())
    return found


def _with_returns(jid: str) -> tuple[catalog.Summary, catalog.Minions, summary.Returns]:
    """Return the summary of a batch, its minions, and what reads their returns. :raises Refused: if the caller may not."""
    from saltext.jobs.core.master.caller import sees_all
    from saltext.jobs.core.master.job_cache import JobCache

    rights, cache = _rights(), JobCache(__opts__)
    found = _found(jid, rights, with_right=not sees_all(__opts__, rights.who))
    return found.summary, found.minions(), lambda names: cache.each_return(jid, names)


def _tell_of_work_left() -> None:
    """Note batches in the file that was used before ``cache:`` was changed: they stand still."""
    from saltext.jobs.core.batch.catalog import left_open

    place, jids = left_open(__opts__)
    if jids:
        runner.note(globals(), f"Batches that have not ended: {len(jids)} more in {place}; see jobs_doctor.run")


def _catalog() -> catalog.Catalog:
    from saltext.jobs.core.batch.catalog import Catalog
    from saltext.jobs.core.master import caller
    from saltext.jobs.core.retry.store import owed_of

    sight = caller.sight(__opts__, globals().get("__user__"))
    return Catalog(__opts__, sight, lambda jid: owed_of(__opts__, jid))
