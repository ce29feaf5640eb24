"""
Performs what the retry queue wants done: stores, look-ups, questions, publishes, announcements. Each reports back as a fact.

It holds no policy: what is tried again, and when, the machine says. What may block runs in a thread.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from saltext.jobs.core import lines
from saltext.jobs.core.engine.answers import KeptAnswers
from saltext.jobs.core.errors import JobCacheError, LaterVersion, NoMinionMatched, PublishFailed
from saltext.jobs.core.master import events, once
from saltext.jobs.core.master.questions import Found
from saltext.jobs.core.retry import facts
from saltext.jobs.core.retry.entry import Job
from saltext.jobs.core.retry.knowledge import Said
from saltext.jobs.core.retry.load import expression_of, narrowed
from saltext.jobs.core.retry.machine import Retry
from saltext.jobs.core.retry.ports import Ports
from saltext.jobs.core.retry.writer import Writer
from saltext.jobs.core.windows import next_opening

log = lines.logger(__name__)

#: What a minion's record of a job says, as the machine has it.
_SAID = {"never": Said.NEVER, "interrupted": Said.INTERRUPTED}
#: Seconds for which answers to a ping are gathered into one sign of life.
_HEARD = 0.1
#: Seconds for which key events are gathered into one look at the keys.
KEYS_PAUSE = 1.0


@dataclass(frozen=True)
class Context:
    """
    What effects are performed with.

    ``loads`` has the loads of the jobs that the machine knows, by jid; ``owner`` is this master's id; ``shared`` tells
    whether other masters use the same store; ``compound`` whether this master can publish to a compound target; ``timeout``
    is for how many seconds the answers of minions are waited for; ``step`` takes a fact.
    """

    loop: Any
    ports: Ports
    machine: Retry
    loads: dict[str, dict[str, Any]]
    writer: Writer
    owner: str
    shared: bool
    compound: bool
    timeout: float
    step: Callable[[facts.Fact], Any]


class Effects:
    """
    :param context: what effects are performed with.
    """

    def __init__(self, context: Context) -> None:
        self._with, self._step = context, context.step
        self._keys_asked = False
        cache = context.ports.cache
        # An answer that is not the minion's own could end what the minion is owed, or have it run a job twice.
        self._kept = None if cache.unproven else KeptAnswers(cache, context.ports.cache_worker)

    def perform(self, effect: facts.Effect) -> None:
        """Begin what is to be done. What cannot even be begun is logged, and does not keep the next from being done."""
        try:
            PERFORM[type(effect)](self, effect)
        except Exception:
            log.exception("An effect could not be performed: %s", type(effect).__name__)

    # -- the store ----------------------------------------------------------------------------------------------------

    def _save(self, effect: facts.Save) -> None:
        for jid in effect.jobs:
            job = self._with.machine.jobs.get(jid)
            if job is None:
                self._with.writer.put_job(jid, None)
                if not self._with.machine.knows(jid):
                    self._with.loads.pop(jid, None)
            else:
                self._with.writer.put_job(jid, self._snapshot(job))
        if effect.entries:
            self._with.writer.put_entries(effect.entries)
        for jid in effect.notes:
            note = self._with.machine.notes.get(jid)
            self._with.writer.put_note(self._with.owner, jid, None if note is None else note.as_record())

    def save_all(self) -> None:
        """Store all that the machine knows once more."""
        machine = self._with.machine
        entries = tuple((entry.minion, entry.jid) for entry in machine.entries())
        self._save(facts.Save(entries, tuple(machine.jobs), tuple(machine.notes)))

    def _snapshot(self, job: Job) -> dict[str, Any]:
        return {
            "owner": self._with.owner,
            "published_at": job.published_at,
            "load": self._with.loads[job.jid],
            "minions": self._with.machine.minions_of(job.jid),
        }

    # -- the job cache ------------------------------------------------------------------------------------------------

    def _read(self, effect: facts.Read) -> None:
        async def read() -> None:
            try:
                reader = self._with.ports.reader
                fact, load = await self._with.ports.cache_worker.call(reader.read, effect.jid, effect.publishes)
                if await self._is_others(effect.jid):
                    fact = facts.JobRead(effect.jid, None)
            except Exception as exc:
                _complain(exc)
                self._step(facts.Unreadable(effect.jid))
                return
            if fact.job is not None:
                self._with.loads.setdefault(effect.jid, load)
                # The record has the time of the clock on the wall, which may have been set since this engine started.
                ahead = self._with.ports.clock.now() - self._with.ports.wall()
                job = dataclasses.replace(fact.job, published_at=fact.job.published_at + ahead)
                fact = dataclasses.replace(fact, job=job)
            self._step(fact)

        self._with.loop.spawn_callback(read)

    async def _is_others(self, jid: str) -> bool:
        """Tell whether another master that shares our store keeps a job."""
        if not self._with.shared:
            return False
        try:
            snapshot = await self._with.ports.store_worker.call(self._with.ports.store.snapshot, jid)
        except LaterVersion:
            return True  # whoever has written it keeps it
        return bool(snapshot) and snapshot.get("owner") != self._with.owner

    def _look_up(self, effect: facts.LookUp) -> None:
        async def look_up() -> None:
            try:
                reader, jid, minions = self._with.ports.reader, effect.jid, effect.minions
                if effect.only_returns:
                    fact = await self._with.ports.cache_worker.call(reader.look_for_returns, jid, minions)
                else:
                    fact = await self._with.ports.cache_worker.call(
                        reader.look_up, jid, minions, self._with.loads[jid], effect.publish, effect.askers
                    )
            except Exception as exc:
                _complain(exc)
                self._step(facts.Unreadable(effect.jid, effect.minions))
            else:
                self._step(fact)

        self._with.loop.spawn_callback(look_up)

    # -- minions ------------------------------------------------------------------------------------------------------

    def _ask(self, effect: facts.Ask) -> None:
        jid, left = effect.jid, set(effect.minions)
        job = self._with.machine.queue.jobs.get(jid)
        # A proxy runs several functions without a record (Salt's ``metaproxy``): of those it would say that it never began.
        doubted = effect.doubted if job is not None and len(job.funs) == 1 else ()

        def told(said: Found) -> None:
            # Those that have answered need not wait for the others.
            left.difference_update(said.answered)
            self._with.loop.spawn_callback(self._tell_asked, jid, said, True)

        async def ask() -> None:
            questions, expression = self._with.ports.questions, self._expression(jid)
            try:
                said = await questions.find_either(
                    jid, effect.minions, self._with.timeout, expression, self._kept, told, doubted
                )
            except Exception as exc:  # whatever it is: who asked waits for an outcome
                log.warning("%d minions could not be asked about job %s: %s", len(left), jid, exc)
                self._step(facts.Asked(jid, unasked=frozenset(left)))
            else:
                await self._tell_asked(jid, said, False)

        self._with.loop.spawn_callback(ask)

    async def _tell_asked(self, jid: str, said: Found, more: bool) -> None:
        try:
            others = self._others(jid, said.ran)
            ran = await self._store_returns(jid, {m: kept for m, kept in said.ran.items() if m not in others})
            records = {**self._said(jid, said.records), **dict.fromkeys(others, Said.INTERRUPTED)}
        except Exception:  # whatever it is: who asked waits for an outcome
            log.exception("What minions say of job %s cannot be used", jid)
            self._step(facts.Asked(jid, unasked=said.answered | said.silent, more=more))
            return
        self._step(
            facts.Asked(
                jid,
                said.running,
                ran,
                said.idle | others,
                said.silent,
                frozenset(said.ran) - ran - others,  # one whose return cannot be stored now is asked again
                said.unmatched,
                said.unproven,
                records,
                said.free,
                more,
            )
        )

    def _others(self, jid: str, returns: Mapping[str, Any]) -> frozenset[str]:
        """Return the minions that have run something else under the jid of a job: they would not run the job under it."""
        load = self._with.loads.get(jid, {})
        others = frozenset(m for m, kept in returns.items() if load and not once.is_return_of(load.get("fun"), kept))
        if others:
            log.warning("%s has run another function under the jid of job %s, for another master", sorted(others), jid)
        return others

    def _said(self, jid: str, records: Mapping[str, once.Record]) -> dict[str, Said]:
        """Return what the records of minions tell about a job; nothing where they would not have it."""
        job, load = self._with.machine.queue.jobs.get(jid), self._with.loads.get(jid)
        if job is None or load is None or not once.is_recorded(job.funs, load.get("kwargs")):
            return {}
        age = self._with.ports.clock.now() - job.published_at
        return {minion: _SAID.get(record.about(age), Said.NOT_SURE) for minion, record in records.items()}

    def _expression(self, jid: str) -> str | None:
        """Return the job's own target, where a minion may no longer match it."""
        try:
            return expression_of(self._with.loads[jid])
        except (KeyError, ValueError):
            return None

    def _inquire(self, effect: facts.Inquire) -> None:
        async def inquire() -> None:
            try:
                questions, timeout = self._with.ports.questions, self._with.timeout
                running = await questions.find_running(effect.minions, timeout, self._kept)
            except Exception as exc:  # whatever it is: who asked waits for an outcome
                log.warning("%d minions could not be asked which jobs they run: %s", len(effect.minions), exc)
                self._step(facts.Surveyed(effect.number, unasked=frozenset(effect.minions)))
            else:
                self._step(facts.Surveyed(effect.number, running))

        self._with.loop.spawn_callback(inquire)

    async def _store_returns(self, jid: str, returns: Mapping[str, Any]) -> frozenset[str]:
        if not returns:
            return frozenset()
        try:
            load = self._with.loads[jid]
            return await self._with.ports.cache_worker.call(self._with.ports.reader.store_returns, jid, load, returns)
        except (JobCacheError, KeyError) as exc:
            _complain(exc)
            return frozenset()

    def _claim(self, effect: facts.Claim) -> None:
        claims = self._with.machine.claims_of(effect.jid)
        self._with.writer.claim(effect.jid, claims, lambda: self._step(facts.Claimed(effect.jid, effect.minions)))

    def _publish(self, effect: facts.Publish) -> None:
        async def publish() -> None:
            load = self._with.loads[effect.jid]
            options = load.get("kwargs")
            try:
                tgt, tgt_type = narrowed(load, effect.minions, effect.named)
                if not self._with.compound:  # each has said itself that the job's target matches it
                    tgt, tgt_type = list(effect.minions), "list"
            except ValueError as exc:
                self._step(facts.Refused(effect.jid, str(exc)))
                return
            try:
                matched = await self._with.ports.publisher.publish(
                    load["fun"],
                    load.get("arg") or [],
                    tgt,
                    tgt_type,
                    jid=effect.jid,
                    user=load.get("user"),
                    ret=load.get("ret") or "",
                    options=options if isinstance(options, Mapping) else None,
                    once=self._wishes(effect),
                    natively=not effect.recorded,
                )
            except PublishFailed as exc:
                log.warning("Job %s could not be replayed to %d minions: %s", effect.jid, len(effect.minions), exc)
                if isinstance(exc, NoMinionMatched):
                    self._step(facts.Sent(effect.jid, effect.minions, missed=frozenset(effect.minions)))
                else:
                    self._step(facts.SendFailed(effect.jid, effect.minions, str(exc), exc.certain, exc.forbidden))
            else:
                log.info("Replayed job %s to %d minions", effect.jid, len(effect.minions))
                self._step(facts.Sent(effect.jid, effect.minions, frozenset(effect.minions) - matched))
            await self._keep_load(effect.jid, load)

        self._with.loop.spawn_callback(publish)

    def _wishes(self, effect: facts.Publish) -> dict[str, Any]:
        """Return what minions with records are told: how long the job may be sent again, and whether it is to run again."""
        job = self._with.machine.queue.jobs.get(effect.jid)
        keep = {} if job is None else {"keep": self._with.machine.capture.ttl_of(job)}
        return {**keep, "rerun": True} if effect.rerun else keep

    async def _keep_load(self, jid: str, load: Mapping[str, Any]) -> None:
        """Where publishing overwrites the load in the job cache, put the original one back."""
        if self._with.ports.cache.keeps_first_load:
            return
        minions = self._with.machine.minions_of(jid)
        try:
            await self._with.ports.cache_worker.call(self._with.ports.cache.keep_load, jid, load, minions)
        except JobCacheError as exc:
            log.warning("The job cache shows the replay of job %s and not the job itself: %s", jid, exc)

    def _ping(self, effect: facts.Ping) -> None:
        asked, there = frozenset(effect.minions), list[str]()

        def tell() -> None:
            minions = tuple(there)
            there.clear()
            self._step(facts.SignOfLife(minions, facts.Sign.ANSWER))

        def heard(minion: str, _value: Any) -> None:
            # Nobody waits for those that do not answer.
            if minion in asked:
                if not there:
                    self._with.loop.call_later(_HEARD, tell)
                there.append(minion)

        async def ping() -> None:
            try:
                await self._with.ports.questions.ping(list(asked), "list", self._with.timeout, told=heard)
            except PublishFailed as exc:
                log.warning("Minions with a queue could not be pinged: %s", exc)

        self._with.loop.spawn_callback(ping)

    # -- keys ---------------------------------------------------------------------------------------------------------

    def _check_keys(self, effect: facts.CheckKeys) -> None:
        self._look_at_keys(lambda reader: reader.check_keys(effect.minions))

    def _vet(self, effect: facts.Vet) -> None:
        self._look_at_keys(lambda reader: facts.Vetted(effect.jid, reader.strangers_among(effect.minions)))

    def _look_at_keys(self, look: Callable[[Any], Any]) -> None:
        """Tell the machine what ``look`` finds with the reader."""

        async def find() -> None:
            try:
                fact = await self._with.ports.cache_worker.call(look, self._with.ports.reader)
            except Exception as exc:
                log.warning("The keys cannot be read now: %s", exc)
            else:
                self._step(fact)

        self._with.loop.spawn_callback(find)

    def check_keys_soon(self) -> None:
        """Look at the keys, after an event about one."""
        # The event may be forged: the keys themselves are looked at, once for many events.
        if not self._keys_asked and self._with.machine.backlogs:
            self._keys_asked = True
            self._with.loop.call_later(KEYS_PAUSE, self._check_keys_now)

    def _check_keys_now(self) -> None:
        self._keys_asked = False
        self._check_keys(facts.CheckKeys(tuple(self._with.machine.backlogs)))

    # -- windows ------------------------------------------------------------------------------------------------------

    def _find_opening(self, effect: facts.FindOpening) -> None:
        """Windows go by the clock on the wall, deadlines by one that nobody sets: the answer is in the latter's time."""
        wall, window, timezone = self._with.ports.wall(), effect.window, effect.timezone
        try:
            found = next_opening(None, window, timezone, wall)
        except ValueError as exc:
            log.error("Jobs with the window %r wait, since nobody can tell when it opens: %s", window, exc)
            answer = facts.OpeningFound(window, timezone, None)
        else:
            shift = self._with.ports.clock.now() - wall
            closes = None if found.closes is None else found.closes + shift
            answer = facts.OpeningFound(window, timezone, found.opens + shift, closes)
        self._with.loop.add_callback(self._step, answer)

    # -- the bus and the log ------------------------------------------------------------------------------------------

    def _announce(self, effect: facts.Announce) -> None:
        payload = {
            "minion": effect.minion,
            "jid": effect.jid,
            "fun": effect.fun,
            "attempts": effect.attempts,
            "reason": effect.reason,
        }
        self._with.ports.bus.fire(events.retry_tag(effect.minion, effect.jid, effect.kind), payload)

    def _warn(self, effect: facts.Warn) -> None:
        log.warning("%s", effect.message)


def _complain(exc: BaseException) -> None:
    log.warning("The job cache cannot be used now, and is tried again: %s", exc)


PERFORM: dict[type, Callable[[Effects, Any], None]] = {
    facts.Save: Effects._save,
    facts.Read: Effects._read,
    facts.LookUp: Effects._look_up,
    facts.Ask: Effects._ask,
    facts.Inquire: Effects._inquire,
    facts.Claim: Effects._claim,
    facts.Publish: Effects._publish,
    facts.Ping: Effects._ping,
    facts.CheckKeys: Effects._check_keys,
    facts.Vet: Effects._vet,
    facts.FindOpening: Effects._find_opening,
    facts.Announce: Effects._announce,
    facts.Warn: Effects._warn,
}
