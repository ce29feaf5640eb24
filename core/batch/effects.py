"""
Performs the effects of batches: publishes, questions, kills, look-ups, announcements. Their outcomes become facts.

It holds no policy about minions: the machine decides whether and when one is sent to or asked again. Only a failed look into
the job cache is repeated here until it succeeds. Everything that blocks runs in a thread.
"""

from __future__ import annotations

import contextlib
import json
import math
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any

import salt.utils.args

from saltext.jobs.core import compat, lines
from saltext.jobs.core.batch import facts
from saltext.jobs.core.batch.live import Live, Ports
from saltext.jobs.core.batch.spec import Spec, not_passed
from saltext.jobs.core.batch.summary import announcement
from saltext.jobs.core.delivery import asking
from saltext.jobs.core.delivery.known import Answers, Evidence, Step
from saltext.jobs.core.display.text import counted, some
from saltext.jobs.core.errors import JobCacheError, NoMinionMatched, PublishFailed
from saltext.jobs.core.master import events
from saltext.jobs.core.master.job_cache import BATCH_MARK
from saltext.jobs.core.options.kinds import WINDOW
from saltext.jobs.core.users import WHO

log = lines.logger(__name__)
_quiet = lines.Quiet(log)

#: Seconds before something that failed is tried again, such as a look into the job cache.
RETRY_PAUSE = 5.0
#: Most minions that the reason of a failed check names.
_MOST_TOLD = 5


def perform(ports: Ports, live: Live, effects: Sequence[facts.Effect]) -> None:
    """Start the effects of a batch, in order. Never raises: what fails is repeated, but for a publish."""
    for effect in effects:
        try:
            if isinstance(effect, facts.Announce):
                ports.bus.fire(events.batch_tag(live.jid, effect.kind), announcement(live.batch, effect))
            else:
                ports.loop.spawn_callback(_carry_out, ports, live, effect)
        except Exception:
            log.exception("Batch %s: %s cannot be done", live.jid, type(effect).__name__)


async def _carry_out(ports: Ports, live: Live, effect: facts.Effect) -> None:
    while not live.gone:
        try:
            found = await _EFFECTS[type(effect)](ports, live, effect)
            live.step(found if isinstance(found, facts.Fact) else facts.Done(effect, found))
            return
        except Exception as exc:
            if isinstance(exc, JobCacheError):
                _quiet.error(f"{live.jid} job cache", "Batch %s waits for the job cache: %s", live.jid, exc)
            elif isinstance(exc, PublishFailed):
                _quiet.warning(f"{live.jid} check", "Batch %s: the check of a stage is made again: %s", live.jid, exc)
            else:
                _quiet.error(f"{live.jid} failed", "Batch %s: %s failed", live.jid, type(effect).__name__, exc_info=exc)
            if isinstance(effect, facts.Publish):
                live.step(facts.Published(failure=f"{type(exc).__name__}: {exc}"))
                return
            await compat.sleep(RETRY_PAUSE)


async def _ping(ports: Ports, live: Live, effect: facts.Ping) -> str:
    def told(answers: Collection[str]) -> None:
        live.step(facts.Pinged(tuple(sorted(answers))))

    try:
        await ports.questions.ping(effect.minions, live.batch.spec.gather_job_timeout, told)
    except (PublishFailed, JobCacheError) as exc:
        return "" if isinstance(exc, NoMinionMatched) else str(exc)
    return ""


async def _publish(ports: Ports, live: Live, effect: facts.Publish) -> facts.Fact:
    spec = live.batch.spec
    held = live.batch.holds_publish(ports.clock.now())
    if held:  # paused, stopped, out of its window or unsure of its rights since, as while the disk was full
        return facts.Published(failure=held, certain=True)
    try:
        matched = await ports.publisher.publish(
            spec.fun,
            spec.arg,
            list(effect.minions),
            jid=spec.jid,
            user=spec.user,
            ret=spec.ret,
            kwarg=spec.kwargs,
            options=spec.options,
        )
    except NoMinionMatched:
        matched = frozenset()
    except PublishFailed as exc:
        log.warning("Batch %s: a publish to %s failed: %s", live.jid, counted(len(effect.minions), "minion"), exc)
        return facts.Published(failure=str(exc), certain=exc.certain)
    if not ports.cache.keeps_first_load:
        try:
            await store_load(ports, spec)
        except JobCacheError as exc:
            log.error("Batch %s: its load is not in the job cache: %s", live.jid, exc)
    return facts.Published(tuple(minion for minion in effect.minions if minion not in matched))


async def store_load(ports: Ports, spec: Spec) -> None:
    """
    Have the job cache keep a load with the batch's own target, not the loads of its publishes: before the first one if it
    keeps the first load of a jid, as ours does; after each publish if it keeps the last. :raises JobCacheError:
    """
    load = {  # in the form in which a client would publish it
        "cmd": "publish",
        **{name: getattr(spec, name) for name in ("jid", "fun", "tgt", "tgt_type", "ret", "user")},
        "arg": salt.utils.args.condition_input(list(spec.arg), dict(spec.kwargs)),
        "kwargs": {name: value for name, value in kept_options(spec).items() if value is not None},
        BATCH_MARK: True,
        **({WHO: dict(spec.owner)} if spec.owner else {}),
    }
    await ports.cache_worker.call(ports.cache.keep_load, spec.jid, load, spec.minions)


async def _ask(ports: Ports, live: Live, effect: facts.Ask) -> Answers:
    async def take(answers: Awaitable[Answers]) -> None:
        live.step(facts.Done(effect, await answers))

    def told(answers: Awaitable[Answers]) -> None:
        ports.loop.spawn_callback(take, answers)

    minions, spec = effect.minions, live.batch.spec
    about = asking.About(live.jid, spec.fun, spec.options, live.batch.created)
    # The first time a minion may still be about to begin, so what its records say does not matter yet.
    doubted = [minion for minion in minions if live.batch.members[minion].idle]
    try:
        return await asking.ask(ports, about, minions, spec.gather_job_timeout, told, doubted=doubted)
    except (PublishFailed, JobCacheError) as exc:
        log.warning("Batch %s: %s could not be asked: %s", live.jid, counted(len(minions), "minion"), exc)
        return Answers({Evidence.UNASKED: frozenset(minions)})


async def _kill(ports: Ports, live: Live, effect: facts.Kill) -> tuple[str, ...]:
    def told(reached: tuple[str, ...]) -> None:
        live.step(facts.Done(effect, reached))

    timeout = live.batch.spec.gather_job_timeout
    try:
        await ports.questions.kill_job(live.jid, effect.minions, timeout, told, effect.gently)
    except (PublishFailed, JobCacheError) as exc:
        log.warning("Batch %s: a kill on %s failed: %s", live.jid, counted(len(effect.minions), "minion"), exc)
    return ()


async def _check_rights(ports: Ports, live: Live, effect: facts.CheckRights) -> tuple[str, str]:
    try:
        reason = await ports.rights_worker.call(ports.permission.lacking, live.batch.spec, effect.minions)
    except Exception as exc:  # an eauth module may raise any exception of its client library
        log.error("Batch %s waits, since it is not known whether its owner may still run it: %s", live.jid, exc)
        return "", f"{type(exc).__name__}: {exc}"
    if reason:
        log.warning("Batch %s pauses: %s", live.jid, reason)
    return reason, ""


async def _check(ports: Ports, live: Live, effect: facts.Check) -> str:
    ask = _ask_runner if live.batch.spec.check["kind"] == "runner" else _ask_minions
    if reason := await ask(ports, live, effect):
        log.warning("Batch %s: the check of stage %d was not passed: %s", live.jid, effect.stage + 1, reason)
    return reason


async def _ask_runner(ports: Ports, live: Live, effect: facts.Check) -> str:
    """Return why the runner function stops the batch; empty if it does not."""
    spec, check = live.batch.spec, live.batch.spec.check
    words = [word.replace("{jid}", live.jid).replace("{stage}", str(effect.stage + 1)) for word in check["arg"]]
    limits = await ports.rights_worker.call(ports.permission.limits, spec)
    value, success = await ports.runner(check["fun"], words, spec.check_timeout, limits)
    if success is not True:
        error = str(value or "").strip().splitlines()[-1:]  # the last line of a traceback
        return ": ".join([str(success), *(line[:200] for line in error)])
    return not_passed(value)


async def _ask_minions(ports: Ports, live: Live, effect: facts.Check) -> str:
    """Return why minions' returns stop the batch; empty if they do not. :raises PublishFailed: if it must be repeated."""
    spec, check = live.batch.spec, live.batch.spec.check
    if not effect.minions:
        return "no minion of the stage has completed, so there is none to ask"
    try:
        answers = await ports.questions.call(
            check["fun"], check["arg"], check["kwargs"], effect.minions, spec.check_timeout, spec.user
        )
    except PublishFailed as exc:
        if exc.forbidden or isinstance(exc, NoMinionMatched):
            return f"it could not be published: {exc}"
        raise
    told = []
    for minion in effect.minions:
        reason = f"no answer within {spec.check_timeout:g} s"
        if minion in answers.given:
            reason = not_passed(answers.given[minion], answers.failed.get(minion, 0))
        told += [f"{minion}: {reason}"] if reason else []
    return some(told, _MOST_TOLD)


async def _look_up(ports: Ports, live: Live, effect: facts.LookUp) -> dict[str, int]:
    """Look for returns. It is repeated until it succeeds: no minion is given up because of a failed look."""
    found = await ports.cache_worker.call(ports.returns.of, live.jid, effect.minions)
    # Those that would be sent the job again may have forgotten that they received it. File times follow the wall clock,
    # which may have been set since; to doubt too many minions does no harm.
    flights, ahead = live.batch.flights, min(0.0, live.ahead)
    last = [minion for minion in flights.at(effect.minions, Step.LOOKING_AGAIN) if flights[minion].relies_on_memory]
    since = {minion: (flights[minion].sent_at or 0.0) + ahead for minion in last if minion not in found}
    for minion in await ports.cache_worker.call(ports.restarted, since) if since else ():
        live.step(facts.Started(minion))
    return found


def kept_options(spec: Spec) -> Mapping[str, Any]:
    """Return a batch's options for the job cache: they tell the retry queue its window, unless the job names a valid one."""
    metadata = spec.options.get("metadata") or {}
    wish = metadata.get("job_retry") if isinstance(metadata, Mapping) else None
    given = wish if isinstance(wish, Mapping) else {}
    if not spec.window or spec.offline != "queue":
        return spec.options
    with contextlib.suppress(ValueError, TypeError, AttributeError):
        WINDOW.read(given.get("window"))
        return spec.options
    limits = {**given, "window": spec.window, "timezone": spec.timezone}
    return {**spec.options, "metadata": {**metadata, "job_retry": limits}}


_EFFECTS: dict[type, Callable[[Ports, Live, Any], Awaitable[Any]]] = {
    facts.Ping: _ping,
    facts.Publish: _publish,
    facts.LookUp: _look_up,
    facts.Ask: _ask,
    facts.Kill: _kill,
    facts.CheckRights: _check_rights,
    facts.Check: _check,
    facts.Close: lambda _ports, live, _effect: live.end(live),
}


# -- a runner function --------------------------------------------------------------------------------------------------

#: The process runs Salt's own runner client. What the runner starts must not hold the pipes open: it gets none of them. The
#: request comes on standard input, since any user of the machine can read a command line.
_CHILD = """
import json, os, signal, sys
signal.alarm(int(sys.argv[1]))
asked = json.loads(sys.stdin.buffer.read())
answer, sys.stderr = os.dup(1), os.fdopen(os.dup(2), "w", 1, errors="backslashreplace")
for stream in range(3):
    os.dup2(os.open(os.devnull, os.O_RDWR), stream)
import salt.config, salt.runner, salt.utils.args
opts = salt.config.master_config(asked["conf_file"])
if asked["limits"]:
    from saltext.jobs.core.master import caller
    caller.act_for(asked["limits"])
arg, kwarg = salt.utils.args.parse_input(asked["words"], condition=False)
client = salt.runner.RunnerClient(opts)
if asked["fun"] in client.functions:
    found = client.cmd(asked["fun"], arg, kwarg=kwarg, print_event=False, full_return=True)
    found = found if isinstance(found, dict) else {"return": found}
    told = found.get("return"), found.get("success") is not False or "it failed"
else:
    told = None, "this master has no such runner function: " + client.functions.missing_fun_string(asked["fun"])
os.write(answer, json.dumps(told, default=repr).encode())
os._exit(0)
"""


async def call_runner(
    opts: Mapping[str, Any],
    loop: Any,
    fun: str,
    words: Sequence[str],
    timeout: float,
    on_behalf: Mapping[str, Any] | None = None,
    python: str = sys.executable,
) -> tuple[Any, bool | str]:
    """
    Call a runner function of this master. Returns its value, and True or the reason why it did not succeed.

    A runner blocks, may hang, and has a loop of its own. So it runs in a process, which is killed after ``timeout`` seconds.

    :param on_behalf: the limits on our own runners there, as ``Caller.limits``; empty for no limits.
    """
    conf_file = str(opts.get("conf_file") or "/etc/salt/master")
    asked = {"conf_file": conf_file, "limits": dict(on_behalf or {}), "fun": fun, "words": list(words)}
    # If the engine dies, the process ends by itself, a little later than the engine would have killed it.
    command = [python, "-c", _CHILD, str(math.ceil(timeout) + 5)]
    answer: Any = compat.Future()

    def call() -> None:
        loop.add_callback(answer.set_result, _run(command, json.dumps(asked).encode(), timeout))

    threading.Thread(target=call, daemon=True).start()
    told: tuple[Any, bool | str] = await answer
    return told


def _run(command: Sequence[str], given: bytes, timeout: float) -> tuple[Any, bool | str]:
    try:
        done = subprocess.run(command, input=given, capture_output=True, timeout=timeout, check=False, cwd="/")
        if done.stdout:
            value, success = json.loads(done.stdout)
            return value, success
        said = [line.strip() for line in done.stderr.decode(errors="replace").split("\n") if line.strip()]
        return None, f"it cannot be called: exit status {done.returncode}, {said[-1] if said else 'it said nothing'}"
    except subprocess.TimeoutExpired:
        return None, f"no answer within {timeout:g} s"
    except (OSError, ValueError, TypeError) as exc:
        return None, f"it cannot be called: {exc}"
