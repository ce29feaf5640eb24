"""
Performs the effects of batches: publishes, questions, kills, look-ups, announcements. Their outcomes become facts.

It holds no policy about minions: the machine decides whether and when a minion is sent to or asked again. A failed look
into the job cache is repeated here until it succeeds. Everything that blocks runs in a thread.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from saltext.jobs.core import compat, lines
from saltext.jobs.core.batch import facts
from saltext.jobs.core.batch.live import Live
from saltext.jobs.core.batch.machine import Batch
from saltext.jobs.core.batch.minion_data import MinionDataUnreadable
from saltext.jobs.core.batch.plan import not_passed
from saltext.jobs.core.batch.ports import Ports
from saltext.jobs.core.batch.spec import Spec
from saltext.jobs.core.batch.summary import announcement
from saltext.jobs.core.engine.names import JOB_RETRY
from saltext.jobs.core.errors import JobCacheError, NoMinionMatched, PublishFailed
from saltext.jobs.core.functions import runs_states
from saltext.jobs.core.master import events, once
from saltext.jobs.core.master.identity import WHO
from saltext.jobs.core.master.job_cache import BATCH_MARK, load_of
from saltext.jobs.core.master.questions import Found
from saltext.jobs.core.options.kinds import WINDOW

log = lines.logger(__name__)

#: Shortest pause in seconds between two progress events of a batch.
PROGRESS_PAUSE = 1.0
#: Seconds before something that failed is tried again, such as a look into the job cache.
RETRY_PAUSE = 5.0
#: Most minions that the reason of a failed check names.
_MOST_TOLD = 5


class Effects:
    """
    :param ports: the ports to the world.
    """

    def __init__(self, ports: Ports) -> None:
        self._ports = ports

    def perform(self, live: Live, effects: Sequence[facts.Effect]) -> None:
        """Start the effects of a batch, in order. Never raises: what fails is repeated, but for a publish."""
        for effect in effects:
            if type(effect) not in _AT_ONCE:
                self._ports.loop.spawn_callback(self._carry_out, live, effect)
                continue
            try:
                _AT_ONCE[type(effect)](self, live, effect)
            except Exception:
                log.exception("Batch %s: %s cannot be done", live.jid, type(effect).__name__)

    async def _carry_out(self, live: Live, effect: facts.Effect) -> None:
        try:
            await _IN_TIME[type(effect)](self, live, effect)
        except Exception as exc:
            reason = f"{type(exc).__name__}: {exc}"
            log.exception("Batch %s: %s failed", live.jid, type(effect).__name__)
            if isinstance(effect, facts.Publish):
                live.step(facts.PublishFailed(reason, certain=False))
                return
            await compat.sleep(RETRY_PAUSE)
            if not live.gone:
                self.perform(live, [effect])

    # -- events -------------------------------------------------------------------------------------------------------

    def _announce(self, live: Live, effect: facts.Announce) -> None:
        self._ports.bus.fire(events.batch_tag(live.jid, effect.kind), announcement(live.batch, effect))

    def plan_progress(self, live: Live) -> None:
        """Announce a batch's progress soon, unless an announcement is due already."""
        if live.progress_timer is None and not live.batch.finished:
            wait = max(0.0, live.progress_at + PROGRESS_PAUSE - self._ports.clock.now())
            live.progress_timer = self._ports.loop.call_later(wait, self._report_progress, live)

    def _report_progress(self, live: Live) -> None:
        live.progress_timer, live.progress_at = None, self._ports.clock.now()
        if not live.batch.finished:
            self._announce(live, facts.Announce("progress"))

    # -- minions ------------------------------------------------------------------------------------------------------

    async def _ping(self, live: Live, effect: facts.Ping) -> None:
        def told(answers: Collection[str]) -> None:
            live.step(facts.Seen(tuple(sorted(answers))))

        try:
            await self._ports.questions.ping(effect.minions, live.batch.spec.gather_job_timeout, told)
        except NoMinionMatched:
            pass
        except (PublishFailed, JobCacheError) as exc:
            live.step(facts.PingFailed(str(exc)))
            return
        live.step(facts.Pinged())

    async def _publish(self, live: Live, effect: facts.Publish) -> None:
        spec = live.batch.spec
        await self._keep_load(live, before=True)
        held = live.batch.holds_publish(self._ports.wall())
        if held:  # paused, stopped or out of its window since the decision, e.g. while the disk was full
            live.step(facts.PublishFailed(held, certain=True))
            return
        try:
            matched = await self._ports.publisher.publish(
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
            log.warning("Batch %s: a publish to %d minions failed: %s", live.jid, len(effect.minions), exc)
            live.step(facts.PublishFailed(str(exc), exc.certain))
            return
        await self._keep_load(live, before=False)
        live.step(facts.Published(tuple(minion for minion in effect.minions if minion not in matched)))

    async def _keep_load(self, live: Live, before: bool) -> None:
        """
        Have the job cache keep a load with the batch's own target, not the loads of its publishes. A job cache that
        keeps the first load of a jid, as ours does, gets it before a publish. One that keeps the last load gets it
        after each publish.
        """
        if before == self._ports.cache.keeps_first_load and not (before and live.load_kept):
            try:
                await self.store_load(live.batch.spec, live.is_new)
                live.load_kept = True
            except JobCacheError as exc:
                log.error("Batch %s: its load is not in the job cache: %s", live.jid, exc)

    async def store_load(self, spec: Spec, is_new: bool) -> None:
        """Have the job cache keep a batch's load; ``is_new``: it has none of this jid yet. :raises JobCacheError:"""
        load = load_of(
            spec.jid, spec.fun, spec.arg, spec.kwargs, spec.tgt, spec.tgt_type, spec.user, spec.ret, kept_options(spec)
        )
        load[BATCH_MARK] = True
        if spec.owner:
            load[WHO] = dict(spec.owner)
        await self._ports.cache_worker.call(self._ports.cache.keep_load, spec.jid, load, spec.minions, is_new)

    async def _probe(self, live: Live, effect: facts.Probe) -> None:
        def told(said: Found) -> None:
            live.step(facts.Probed(tuple(sorted(said.running)), tuple(sorted(said.idle))))

        minions, timeout = effect.minions, live.batch.spec.gather_job_timeout
        try:
            said = await self._ports.questions.find_job(live.jid, minions, timeout, told=told, records=False)
        except NoMinionMatched:
            live.step(facts.Probed(silent=minions))
            return
        except (PublishFailed, JobCacheError) as exc:
            log.warning("Batch %s: %d minions could not be asked: %s", live.jid, len(minions), exc)
            live.step(facts.Probed(unasked=minions))
            return
        live.step(facts.Probed(silent=tuple(minion for minion in minions if minion in said.silent)))

    async def _ask_records(self, live: Live, effect: facts.AskRecords) -> None:
        def told(said: Found) -> None:
            # Minions that have answered need not wait for the others.
            self._ports.loop.spawn_callback(self._take_records, live, said)

        minions, timeout = effect.minions, live.batch.spec.gather_job_timeout
        try:
            said = await self._ports.questions.find_job(live.jid, minions, timeout, told=told, doubted=minions)
        except (NoMinionMatched, PublishFailed, JobCacheError) as exc:
            log.info("Batch %s: what %d minions have on record is not known: %s", live.jid, len(minions), exc)
            live.step(facts.Probed(unasked=minions))
            return
        await self._take_records(live, said)

    async def _take_records(self, live: Live, said: Found) -> None:
        # One that applies other states may keep the job in a queue of its own (``queue=True``), where ``find_job`` does
        # not look. It begins once they have ended.
        if waiting := said.applying if runs_states(live.batch.spec.fun) else frozenset():
            live.step(facts.Probed(running=tuple(sorted(waiting))))
            said = dataclasses.replace(said, running=said.running - waiting, idle=said.idle - waiting)
        await self._store_kept(live, said)
        live.step(
            facts.Recorded(tuple(sorted(said.answered)), tuple(sorted(said.silent)), self._never(live.batch, said))
        )

    def _never(self, batch: Batch, said: Found) -> tuple[str, ...]:
        """Return the minions whose records say that the job has not begun there."""
        if batch.started is None or not once.is_recorded([batch.spec.fun], batch.spec.options):
            return ()
        age, known = self._ports.clock.now() - batch.started, said.idle & said.records.keys()
        return tuple(sorted(minion for minion in known if said.records[minion].about(age) == "never"))

    async def _store_kept(self, live: Live, said: Found) -> None:
        spec = live.batch.spec
        try:
            others = [minion for minion, data in said.ran.items() if not once.is_return_of(spec.fun, data)]
            for minion in others:
                log.warning("Batch %s: %s has run another function under its jid, for another master", live.jid, minion)
            returns = {minion: data for minion, data in said.ran.items() if minion not in others}
            if returns:
                await self._ports.cache_worker.call(self._ports.cache.store_kept, live.jid, spec.fun, returns)
        except JobCacheError as exc:
            log.info("Batch %s: returns that minions have kept cannot be stored: %s", live.jid, exc)
            live.step(facts.Probed(unasked=tuple(sorted(said.ran))))

    async def _kill(self, live: Live, effect: facts.Kill) -> None:
        publisher = self._ports.publisher
        try:
            await publisher.kill_job(live.jid, effect.minions, kill_jid=publisher.new_jid(), gently=effect.gently)
        except PublishFailed as exc:
            log.warning("Batch %s: a kill on %d minions failed: %s", live.jid, len(effect.minions), exc)
        live.step(facts.KillSent(effect.minions, effect.gently))

    # -- rights -------------------------------------------------------------------------------------------------------

    async def _check_rights(self, live: Live, effect: facts.CheckRights) -> None:
        lacking = self._ports.permission.lacking
        try:
            reason = await self._ports.rights_worker.call(lacking, live.batch.spec, effect.minions)
        except Exception as exc:  # An eauth module may raise any exception of its client library.
            log.error("Batch %s waits, since it is not known whether its owner may still run it: %s", live.jid, exc)
            live.step(facts.RightsChecked(effect.question, trouble=f"{type(exc).__name__}: {exc}"))
            return
        if reason:
            log.warning("Batch %s pauses: %s", live.jid, reason)
        live.step(facts.RightsChecked(effect.question, reason))

    # -- checks between stages ----------------------------------------------------------------------------------------

    async def _check(self, live: Live, effect: facts.Check) -> None:
        ask = self._ask_runner if live.batch.spec.check["kind"] == "runner" else self._ask_minions
        reason = await ask(live, effect)
        if reason:
            log.warning("Batch %s: the check of stage %d was not passed: %s", live.jid, effect.stage + 1, reason)
        live.step(facts.Checked(effect.stage, not reason, reason))

    async def _ask_runner(self, live: Live, effect: facts.Check) -> str:
        """Return why the runner function stops the batch; empty if it does not."""
        spec, check = live.batch.spec, live.batch.spec.check
        words = [word.replace("{jid}", live.jid).replace("{stage}", str(effect.stage + 1)) for word in check["arg"]]
        limits = await self._ports.rights_worker.call(self._ports.permission.limits, spec)
        value, success = await self._ports.runner(check["fun"], words, spec.check_timeout, limits)
        if success is not True:
            error = str(value or "").strip().splitlines()[-1:]  # the last line of a traceback
            return ": ".join([str(success), *(line[:200] for line in error)])
        return not_passed(value)

    async def _ask_minions(self, live: Live, effect: facts.Check) -> str:
        """Return why the minions' returns of the function stop the batch; empty if they do not."""
        spec, check = live.batch.spec, live.batch.spec.check
        if not effect.minions:
            return "no minion of the stage has completed, so there is none to ask"
        try:
            answers = await self._ports.questions.call(
                check["fun"], check["arg"], check["kwargs"], effect.minions, spec.check_timeout, spec.user
            )
        except PublishFailed as exc:
            return f"it could not be published: {exc}"
        except JobCacheError as exc:
            return f"its answers could not be read: {exc}"
        wrong = {
            minion: reason
            for minion in effect.minions
            if (reason := _reason(minion, answers.given, answers.failed, spec.check_timeout))
        }
        told = [f"{minion}: {reason}" for minion, reason in wrong.items()]
        return ", ".join(told[:_MOST_TOLD]) + (f", and {len(told) - _MOST_TOLD} more" if len(told) > _MOST_TOLD else "")

    # -- the job cache and the retry queue ----------------------------------------------------------------------------

    def look_for_returns(self, live: Live) -> None:
        """Look for the returns of all minions of which one would change anything."""
        self._ports.loop.spawn_callback(self._find_returns, live)

    async def _find_returns(self, live: Live) -> None:
        while not live.gone:
            try:
                found = await self._ports.cache_worker.call(self._ports.returns.of, live.jid, live.batch.unsettled())
            except JobCacheError as exc:
                log.error("Batch %s waits for the job cache: %s", live.jid, exc)
                await compat.sleep(RETRY_PAUSE)
            else:
                for minion, retcode in found.items():
                    live.step(facts.Returned(minion, retcode))
                return

    async def _look_up(self, live: Live, effect: facts.LookUp) -> None:
        """Look for returns, and repeat that until it succeeds: no minion is given up because of a failed look."""
        told = False
        while not live.gone:
            try:
                found = await self._ports.cache_worker.call(self._ports.returns.of, live.jid, effect.minions)
                restarted = await self._restarted(live, [name for name in effect.minions if name not in found])
            except (JobCacheError, MinionDataUnreadable) as exc:
                if not told:
                    log.error("Batch %s waits for the job cache: %s", live.jid, exc)
                told = True
                await compat.sleep(RETRY_PAUSE)
            else:
                for minion in restarted:
                    live.step(facts.Started(minion))
                live.step(facts.LookedUp(effect.minions, tuple(found.items())))
                return

    async def _restarted(self, live: Live, minions: Iterable[str]) -> Collection[str]:
        """Return the minions that would be sent the job again, but may have forgotten that they received it."""
        # File times follow the wall clock, which may have been set since. Doubting too many minions does no harm.
        ahead = min(0.0, self._ports.wall() - self._ports.clock.now())
        since = {minion: sent + ahead for minion, sent in live.batch.rely_on_memory(minions).items()}
        return await self._ports.cache_worker.call(self._ports.restarted, since) if since else ()

    def _queue(self, _live: Live, _effect: facts.Queue) -> None:
        self._ports.bus.fire(events.wake_tag(JOB_RETRY), {})


def kept_options(spec: Spec) -> Mapping[str, Any]:
    """
    Return the options of a batch's job as the job cache gets them: they tell the retry queue the batch's window, unless the
    job names a valid one itself.
    """
    metadata = spec.options.get("metadata") or {}
    wish = metadata.get("job_retry") if isinstance(metadata, Mapping) else None
    given = wish if isinstance(wish, Mapping) else {}
    if not spec.window or spec.offline != "queue" or _is_window(given.get("window")):
        return spec.options
    limits = {**given, "window": spec.window, "timezone": spec.timezone}
    return {**spec.options, "metadata": {**metadata, "job_retry": limits}}


def _is_window(value: Any) -> bool:
    try:
        WINDOW.read(value)
    except (ValueError, TypeError, AttributeError):
        return False
    return True


def _reason(minion: str, given: Mapping[str, Any], failed: Mapping[str, int], timeout: float) -> str:
    if minion not in given:
        return f"no answer within {timeout:g} s"
    return not_passed(given[minion], failed.get(minion, 0))


#: Effects that ``perform`` calls directly, and effects that it spawns as coroutines.
_AT_ONCE: dict[type, Callable[[Effects, Live, Any], None]] = {
    facts.Announce: Effects._announce,
    facts.Queue: Effects._queue,
}
_IN_TIME: dict[type, Callable[[Effects, Live, Any], Any]] = {
    facts.Ping: Effects._ping,
    facts.Publish: Effects._publish,
    facts.LookUp: Effects._look_up,
    facts.Probe: Effects._probe,
    facts.AskRecords: Effects._ask_records,
    facts.Kill: Effects._kill,
    facts.CheckRights: Effects._check_rights,
    facts.Check: Effects._check,
}
