"""
Start, watch and control asynchronous batches.

A batch runs a job on many minions, on at most so many of them at a time, under one jid. The ``batch_manager`` engine of
this extension drives it; it goes on when the terminal is closed, and after a restart of the engine or the master.

.. code-block:: bash

    salt-run batch.start 'web*' state.apply batch=10%
    salt-run batch.watch 20260516101112131415

Batches that Salt 3008 runs on its own (``salt --async -b``) are shown and can be stopped too.

.. versionadded:: 0.1.0
"""

import logging
import sys
import time

import salt.client
import salt.utils.args
import salt.utils.event
import salt.utils.jid
import salt.utils.minions
import salt.utils.user
from salt.exceptions import CommandExecutionError, SaltInvocationError

from saltext.jobs.core.batch import summary as batch_summary
from saltext.jobs.core.batch.flight import Outcome
from saltext.jobs.core.batch.spec import OFFLINE, PRESENCE, Spec, failures_allowed, sizes_of
from saltext.jobs.core.batch.store import BatchStore
from saltext.jobs.core.batch.watch import Display
from saltext.jobs.core.engine import requests
from saltext.jobs.core.engine.names import BATCH_MANAGER as ENGINE
from saltext.jobs.core.errors import SettingsError, StateError
from saltext.jobs.core.ids import is_plain
from saltext.jobs.core.master import events
from saltext.jobs.core.master.access import Access
from saltext.jobs.core.settings import BatchSettings, duration, read_settings

log = logging.getLogger(__name__)

__virtualname__ = "batch"
__func_alias__ = {"list_": "list"}

#: Seconds that a stop waits for its confirmation: a publish under way is awaited.
_STOP_PATIENCE = 30.0
#: Least seconds between two looks at a batch.
_POLL = 0.25
_STATES = ("running", "paused", "stopping", "complete", "halted")
_OVER = ("complete", "halted")
_RETRIABLE = {
    "failed": {"failed"},
    "lost": {"lost"},
    "offline": {"offline"},
    "all": {"failed", "lost", "offline", "killed", "pending"},
}


def __virtual__():
    return __virtualname__


def start(
    tgt,
    fun,
    *args,
    batch="10%",
    tgt_type="glob",
    batch_wait=0,
    failhard=False,
    max_failures=None,
    min_executed=0,
    timeout=None,
    gather_job_timeout=None,
    presence="ping",
    offline="skip",
    ret="",
    metadata=None,
    module_executors=None,
    executor_opts=None,
    ret_config=None,
    ret_kwargs=None,
    kwarg=None,
    **kwargs,
):
    """
    Start a batch and return its summary, as ``batch.status`` does; it has the ``jid``.

    Returns once the engine has accepted the batch durably. All minions run it under the one jid, so that
    ``jobs.lookup_jid`` shows all returns.

    :param tgt: the target, of the type that ``tgt_type`` says.
    :param str fun: the execution function.
    :param args: its arguments. Keyword arguments that are not named below go to the function; those whose names collide
        with one are given in ``kwarg``.
    :param batch: how many minions at a time: a count (``10``), a percentage of the matched minions (``25%``), or a ramp
        (``1,10%,50%``): each stage but the last is a wave that must end before the next begins.
    :param str tgt_type: the kind of target: glob, list, grain, compound, nodegroup, …
    :param batch_wait: seconds for which a minion's slot stays empty after it has ended.
    :param bool failhard: stop at the first failure.
    :param max_failures: stop when more minions than this have failed: a count, or a percentage of all matched ones. A
        minion that never answered is no failure here.
    :param int min_executed: …but not before so many have ended.
    :param timeout: seconds after which a minion is asked whether it still runs the job; default: the master's ``timeout``.
    :param gather_job_timeout: seconds to wait for answers; default: the master's ``gather_job_timeout``.
    :param str presence: ``ping`` asks all minions first who is there, ``none`` sends straight away.
    :param str offline: what becomes of minions that don't answer: ``skip`` leaves them out, ``fail`` counts them as failed,
        ``queue`` hands them to job_retry, which delivers the job later.
    :param str ret: returners, as ``salt --return``.
    :param dict metadata: as ``salt --metadata``.
    :param list module_executors: as ``salt --module-executors``.
    :param dict executor_opts: as ``salt --executor-opts``.
    :param str ret_config: as ``salt --return_config``.
    :param dict ret_kwargs: as ``salt --return_kwargs``.
    :param dict kwarg: further keyword arguments for the function.
    :raises SaltInvocationError: for bad input; nothing is started.
    :raises CommandExecutionError: when no engine takes the batch within ten seconds; it is withdrawn. Also when an access
        list says that the user may not publish the function to these minions (``batch_manager: {check_acl: True}``).

    CLI Example:

    .. code-block:: bash

        salt-run batch.start 'web*' state.apply nginx batch=25% failhard=True
        salt-run batch.start '*' cmd.run 'yum -y update' batch=1,10%,50% max_failures=5% timeout=600
    """
    options = {
        "metadata": metadata,
        "module_executors": module_executors,
        "executor_opts": executor_opts,
        "ret_config": ret_config,
        "ret_kwargs": ret_kwargs,
    }
    kwargs = {name: value for name, value in kwargs.items() if not name.startswith("__")}
    spec = _spec(
        tgt=tgt,
        fun=fun,
        arg=args,
        kwargs={**kwargs, **_mapping("kwarg", kwarg)},
        batch=batch,
        tgt_type=tgt_type,
        options={name: value for name, value in options.items() if value is not None},
        ret=ret or "",
        batch_wait=_seconds("batch_wait", batch_wait),
        failhard=_flag("failhard", failhard),
        max_failures=max_failures,
        min_executed=_count("min_executed", min_executed),
        timeout=_seconds("timeout", __opts__["timeout"] if timeout is None else timeout, above=0),
        gather_job_timeout=_seconds(
            "gather_job_timeout",
            __opts__["gather_job_timeout"] if gather_job_timeout is None else gather_job_timeout,
            above=0,
        ),
        presence=_choice("presence", presence, PRESENCE),
        offline=_choice("offline", offline, OFFLINE),
    )
    return _start(spec)


def run(*args, **kwargs):
    """
    Start a batch, wait until it ends, and return its summary, with ``retcode`` 0 if all went well, and else 1 and ``Error``.

    For orchestration: the ``salt.runner`` state that calls it fails if the batch did not succeed, or could not be started.
    Takes what ``batch.start`` takes.

    :raises CommandExecutionError: when the batch cannot be started.

    CLI Example:

    .. code-block:: bash

        salt-run batch.run 'web*' state.apply nginx batch=25%
    """
    try:
        started = start(*args, **kwargs)
    except (
        TypeError
    ) as exc:  # SaltInvocationError is one, and Salt takes a runner that raises it for one that went well
        raise CommandExecutionError(str(exc)) from exc
    return wait(started["jid"])


def status(jid):
    """
    Return how a batch stands at this moment, or None for a jid that never was a batch.

    :param str jid: the batch's jid.
    :return: a dict with jid, fun, tgt, tgt_type, user, driver, state (running, paused, stopping, complete, halted), the
        counts total, completed (returned with success), active, pending, failed, lost, offline and killed, batch_size,
        stage, halted, halted_reason, created, last_progress, age_seconds, rate (minions per minute), eta_seconds, success,
        survivors of a kill, and parent where it is a retry. Times are Unix time in seconds.

    CLI Example:

    .. code-block:: bash

        salt-run batch.status 20260516101112131415
    """
    found = _find(jid)
    return found[0] if found else None


def list_active():
    """
    Return the summaries of all batches that have not ended, oldest first.

    CLI Example:

    .. code-block:: bash

        salt-run batch.list_active
    """
    store = BatchStore(__opts__)
    ours = [_summary_of(store, jid) for jid in store.open_jids()]
    foreign = [_native_summary(store, jid) for jid in store.native_jids()]
    active = [found for found in ours + foreign if found and found["state"] not in _OVER]
    return sorted(active, key=lambda found: str(found["jid"]))


def list_(limit=20, state=None):
    """
    Return the summaries of batches, ended ones too, newest first. They are kept for ``keep_jobs_seconds``.

    :param int limit: how many at the most.
    :param str state: only those in this state: running, paused, stopping, complete or halted.

    CLI Example:

    .. code-block:: bash

        salt-run batch.list
        salt-run batch.list limit=5 state=halted
    """
    limit = _count("limit", limit)
    if state is not None:
        _choice("state", state, _STATES)
    store = BatchStore(__opts__)
    foreign = {str(found["jid"]): found for found in _native_summaries(store, limit, state)}
    result = []
    for jid in sorted({*store.open_jids(), *store.ended_jids(), *foreign}, reverse=True):
        if len(result) == limit:
            break
        found = foreign.get(jid) or _summary_of(store, jid)
        if found and state in (None, found["state"]):
            result.append(found)
    return result


def minions(jid, state=None):
    """
    Return ``{minion: {state, since, retcode}}`` of a batch, or None for a jid that never was one.

    :param str jid: the batch's jid.
    :param str state: only those that are pending, active, completed, failed, lost, offline or killed.

    CLI Example:

    .. code-block:: bash

        salt-run batch.minions 20260516101112131415 state=failed
    """
    if state is not None:
        _choice("state", state, ("pending", "active", *(outcome.value for outcome in Outcome)))
    found = _find(jid)
    if not found:
        return None
    return {minion: record for minion, record in found[1].items() if state in (None, record["state"])}


def stop(jid, kill=False):
    """
    Stop a batch: nothing more is published. Returns True once that is certain and survives a crash.

    Returns False, and changes nothing, for a batch that is unknown or has ended, and for one that is stopped already
    unless ``kill`` is new.

    :param str jid: the batch's jid.
    :param bool kill: also kill the job on the minions that run it, until they say that it is gone; those on which it
        survives are in the summary.

    CLI Example:

    .. code-block:: bash

        salt-run batch.stop 20260516101112131415
        salt-run batch.stop 20260516101112131415 kill=True
    """
    kill = _flag("kill", kill)
    store = BatchStore(__opts__)
    batch = _read(store, jid)
    if batch is None:
        return _stop_native(store, jid, kill)
    return _request("stop", batch, jid, kill=kill)


def pause(jid):
    """
    Publish nothing more for now; what runs goes on. Returns False for a batch that can't be paused.

    CLI Example:

    .. code-block:: bash

        salt-run batch.pause 20260516101112131415
    """
    return _request("pause", _read(BatchStore(__opts__), jid), jid)


def resume(jid):
    """
    Let a paused batch go on. Returns False for a batch that is not paused.

    CLI Example:

    .. code-block:: bash

        salt-run batch.resume 20260516101112131415
    """
    return _request("resume", _read(BatchStore(__opts__), jid), jid)


def wait(jid, timeout=None):
    """
    Wait until a batch has ended, and return its summary, with ``retcode`` 0 if all went well and 1 if not.

    :param str jid: the batch's jid.
    :param timeout: seconds to wait at the most; default: no limit.
    :raises CommandExecutionError: when it has not ended by then; it goes on.

    CLI Example:

    .. code-block:: bash

        salt-run batch.wait 20260516101112131415 timeout=600
    """
    return _follow(jid, timeout, None)


def watch(jid, timeout=None):
    """
    Show a batch's progress until it ends: a bar on a terminal, lines elsewhere, and each failure as it comes.

    Returns the summary; the exit status is not zero if the batch did not succeed.

    :param str jid: the batch's jid.
    :param timeout: seconds to watch at the most; default: no limit.

    CLI Example:

    .. code-block:: bash

        salt-run batch.watch 20260516101112131415
    """
    return _follow(jid, timeout, Display(sys.stdout))


def retry(jid, which="failed"):
    """
    Start a new batch over the minions on which a batch did not succeed, with the same job and options.

    Returns the new batch's summary; its ``parent`` is ``jid``.

    :param str jid: the batch's jid.
    :param str which: failed, lost, offline, or all: whatever is not completed, as soon as the batch has ended.

    CLI Example:

    .. code-block:: bash

        salt-run batch.retry 20260516101112131415
        salt-run batch.retry 20260516101112131415 which=all
    """
    _choice("which", which, tuple(_RETRIABLE))
    batch = _read(BatchStore(__opts__), jid)
    if batch is None:
        raise SaltInvocationError(f"{jid} is no batch of the batch_manager engine, so it can't be retried")
    states = _RETRIABLE[which] - ({"pending"} if not batch.finished else set())
    records = batch_summary.minions(batch)
    chosen = tuple(minion for minion, record in records.items() if record["state"] in states)
    if not chosen:
        raise SaltInvocationError(f"No minion of batch {jid} is {which if which != 'all' else 'unsuccessful'}")
    user = _user()
    if read_settings(BatchSettings, ENGINE, __opts__.get(ENGINE)).check_acl:
        _check_access(user, batch.spec.fun, batch.spec.arg, batch.spec.kwargs, chosen)
    data = batch.spec.as_dict()
    data.update(
        jid=_new_jid(),
        tgt=list(chosen),
        tgt_type="list",
        minions=chosen,
        sizes=sizes_of(data["batch"], len(chosen)),
        user=user,
        parent=jid,
    )
    return _start(Spec.from_dict(data))


# -- starting ----------------------------------------------------------------------------------------------------------


def _spec(*, tgt, fun, arg, kwargs, batch, tgt_type, max_failures, **rest):
    if not isinstance(fun, str) or "." not in fun.strip("."):
        raise SaltInvocationError(f"fun is {fun!r}; accepted is the name of an execution function, such as test.ping")
    matched = _match(tgt, tgt_type)
    try:
        sizes = sizes_of(batch, len(matched))
        allowed = failures_allowed(max_failures, len(matched))
        settings = read_settings(BatchSettings, ENGINE, __opts__.get(ENGINE))
    except (ValueError, SettingsError) as exc:
        raise SaltInvocationError(str(exc)) from exc
    user = _user()
    if settings.check_acl:
        _check_access(user, fun, arg, kwargs, matched)
    return Spec(
        jid=_new_jid(),
        fun=fun,
        arg=tuple(arg),
        kwargs=kwargs,
        tgt=tgt,
        tgt_type=tgt_type,
        minions=matched,
        batch=str(batch),
        sizes=sizes,
        user=user,
        failures_allowed=allowed,
        publish_window=settings.publish_window,
        publish_retries=settings.publish_retries,
        publish_backoff=settings.publish_backoff,
        probe_attempts=settings.probe_attempts,
        kill_attempts=settings.kill_attempts,
        **rest,
    )


def _match(tgt, tgt_type):
    """Return the accepted minions that a target matches, sorted, as publishing to it would find them."""
    if tgt_type == "list" and isinstance(tgt, str):
        tgt = [name.strip() for name in tgt.split(",")]
    checker = salt.utils.minions.CkMinions(__opts__)
    try:
        matched = checker.check_minions(tgt, tgt_type).get("minions") or []
    except Exception as exc:  # the matcher raises whatever it stumbles over
        raise SaltInvocationError(f"The target {tgt!r} of type {tgt_type!r} can't be matched: {exc}") from exc
    found = tuple(sorted(minion for minion in matched if is_plain(minion)))
    if not found:
        raise SaltInvocationError(f"The target {tgt!r} of type {tgt_type!r} matches no accepted minion")
    return found


def _check_access(user, fun, arg, kwargs, matched):
    """Refuse what the user could not publish: a permission on this runner is none on every function."""
    access = Access(__opts__)
    if not access.governs(user):
        return
    load = {"user": user, "fun": fun, "arg": salt.utils.args.condition_input(list(arg), kwargs)}
    denied = access.denials(load, matched)
    if denied:
        names = ", ".join(sorted(denied)[:5]) + (", …" if len(denied) > 5 else "")
        raise CommandExecutionError(f"{user} may not publish {fun} to {len(denied)} of these minions: {names}")


def _start(spec):
    return requests.ask(__opts__, ENGINE, {"do": "start", "spec": spec.as_dict()})


def _new_jid():
    return salt.utils.jid.gen_jid(__opts__)


def _user():
    """Return who called this runner; Salt says UNKNOWN where it was called in-process."""
    user = globals().get("__user__")
    return salt.utils.user.get_specific_user() if user in (None, "", "UNKNOWN") else user


# -- reading -----------------------------------------------------------------------------------------------------------


def _read(store, jid):
    """Return a batch of ours, or None."""
    try:
        return store.read(str(jid))
    except StateError as exc:
        raise CommandExecutionError(f"{exc}; the batch_manager engine sets it aside when it starts") from exc


def _find(jid):
    """Return (summary, minions) of a batch, ours or native, or None."""
    store, now = BatchStore(__opts__), time.time()
    batch = _read(store, jid)
    if batch is not None:
        return batch_summary.summary(batch, now), batch_summary.minions(batch)
    state = store.read_native(str(jid))
    return (batch_summary.native_summary(state, now), batch_summary.native_minions(state)) if state else None


def _summary_of(store, jid):
    """Return a summary for a list, in which a damaged batch is left out."""
    try:
        batch = store.read(jid)
    except StateError as exc:
        log.error("Left out: %s", exc)
        return None
    return batch_summary.summary(batch, time.time()) if batch is not None else None


def _native_summary(store, jid):
    state = store.read_native(str(jid))
    return batch_summary.native_summary(state, time.time()) if state else None


def _native_summaries(store, limit, state):
    """Return the summaries of native batches; all that match are looked at when a state is asked for."""
    states = store.native_states(limit if state is None else sys.maxsize)
    return [batch_summary.native_summary(found, time.time()) for found in states]


def _follow(jid, timeout, display):
    deadline = None if timeout is None else time.monotonic() + _seconds("timeout", timeout)
    while True:
        began = time.monotonic()
        found = _find(jid)
        if not found:
            raise SaltInvocationError(f"{jid} is no batch")
        if display:
            display.show(*found)
        if found[0]["state"] in _OVER:
            break
        if deadline is not None and time.monotonic() >= deadline:
            raise CommandExecutionError(f"Batch {jid} has not ended within {timeout} s; it goes on")
        # A look at a large batch is not free: spend a tenth of the time on it at most.
        time.sleep(max(_POLL, 9 * (time.monotonic() - began)))
    if display:
        display.end()
    return _with_retcode(found[0])


def _with_retcode(found):
    """
    Add what makes callers fail when a batch did not succeed: ``retcode`` for ``salt-run``, and ``Error`` for the
    salt.runner state (``salt.states.saltmod.runner``).
    """
    good = found.get("success", not found["halted"] and not found["failed"])
    if good:
        return {**found, "retcode": 0}
    wrong = [f"{found[name]} {name}" for name in ("failed", "lost", "offline", "killed", "pending") if found.get(name)]
    reason = f" ({found['halted_reason']})" if found["halted_reason"] else ""
    error = f"Batch {found['jid']} is {found['state']}{reason}: {', '.join(wrong)} of {found['total']} minions"
    return {**found, "retcode": 1, "Error": error}


# -- requests ----------------------------------------------------------------------------------------------------------


def _request(kind, batch, jid, **more):
    if batch is None or batch.finished:
        return False
    answer = requests.ask(
        __opts__, ENGINE, {"do": kind, "jid": str(jid), "user": _user(), **more}, _STOP_PATIENCE, keep=True
    )
    # With no engine nothing is published, and the request is the first thing that it will see.
    return True if answer is None else answer


def _stop_native(store, jid, kill):
    """Stop a batch of Salt 3008's own: its manager halts it on this event, and only it writes its state."""
    state = store.read_native(str(jid))
    if state is None or batch_summary.native_summary(state, time.time())["state"] in _OVER:
        return False
    with salt.utils.event.get_master_event(__opts__, __opts__["sock_dir"], listen=False) as bus:
        told = bool(bus.fire_event({"jid": jid, "reason": "stop"}, events.batch_tag(jid, "stop")))
    if told and kill and state.get("active"):
        with salt.client.LocalClient(mopts=__opts__) as client:
            client.run_job(sorted(state["active"]), "saltutil.kill_job", [jid], tgt_type="list", listen=False)
    return told


# -- input -------------------------------------------------------------------------------------------------------------


def _seconds(name, value, above=None):
    try:
        result = duration(value)
        if above is not None and result <= above:
            raise ValueError(value)
    except ValueError:
        raise SaltInvocationError(f"{name} is {value!r}; accepted is a number of seconds, or 90s, 15m, 12h") from None
    return result


def _count(name, value):
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise SaltInvocationError(f"{name} is {value!r}; accepted is a whole number of at least 0")
    return value


def _flag(name, value):
    if not isinstance(value, bool):
        raise SaltInvocationError(f"{name} is {value!r}; accepted is True or False")
    return value


def _choice(name, value, accepted):
    if value not in accepted:
        raise SaltInvocationError(f"{name} is {value!r}; accepted is one of {', '.join(accepted)}")
    return value


def _mapping(name, value):
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise SaltInvocationError(f"{name} is {value!r}; accepted is a mapping")
    return value
