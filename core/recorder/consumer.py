"""
One returner's side of the recorder: reads the spool, delivers, notes what is done, sets aside what is refused.

It works in a Worker of its own, so a returner that hangs delays only itself. It must never note a record as done that the
returner did not take, unless the record is set aside or is for another returner. It must note deliveries at once: a
record comes twice if a crash comes between the delivery and the note. After a restart a returner that can be read
(``get_jid``) is first asked which returns it has; one that takes many at once (``store_many``) ignores records that it
has.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from saltext.jobs.core import compat, lines
from saltext.jobs.core.engine.alarm import Clock
from saltext.jobs.core.engine.worker import Worker
from saltext.jobs.core.quiet import Quiet
from saltext.jobs.core.recorder.bulk import attempts_in_bulk
from saltext.jobs.core.recorder.files import Aside, Progress
from saltext.jobs.core.recorder.pipeline import STOP_AFTER, Attempt, Failure, Pipeline, RefusedRecord, failure_of
from saltext.jobs.core.recorder.record import EVENT, LOAD, RETURN, Record, entry_of, summary_of, taken_at, unpacked
from saltext.jobs.core.recorder.returner import Complained, ReturnerAbsent, ReturnerModule
from saltext.jobs.core.recorder.spool import Reader, Spool

log = lines.logger(__name__)

#: Most records that are delivered at once; as many are held in memory.
_BATCH = 1000
#: How often a returner may refuse a record before it is set aside.
TRIES = 5
#: Bytes of records that wait in memory for one returner; at least one record waits.
_HELD = 8 << 20
#: When this many records above the base are done, the base is noted again.
_REBASE = 1000
#: Seconds between two notes of the base while there is little to do.
_REST = 5.0
#: Seconds between two messages about the same trouble.
_QUIET = 60.0


class Consumer:
    """
    :param loop: the engine's tornado loop.
    :param clock: the engine's clock.
    :param name: the returner's name in statistics and on disk.
    :param module: the returner.
    :param spool: what it reads.
    :param folder: the folder of its own files.
    :param max_bytes: what the records that were set aside may take on the disk.
    :param tries: how often the returner may refuse a record before that is set aside.
    """

    def __init__(
        self,
        loop: Any,
        clock: Clock,
        name: str,
        module: ReturnerModule,
        spool: Spool,
        folder: pathlib.Path,
        max_bytes: int,
        tries: int = TRIES,
    ) -> None:
        self.name, self._loop, self._clock, self._module, self._spool = name, loop, clock, module, spool
        self._worker = Worker(loop)
        self._pipeline = Pipeline(_BATCH, tries)
        self._progress = Progress(folder / "progress", spool.first, spool.next)
        last_done = max(self._progress.done, default=self._progress.base - 1)
        spool.skip_to(last_done + 1)
        self._reader = Reader(spool, max(self._progress.base, spool.first))
        self._doubtful_below = last_done + 1 + _BATCH + _REBASE
        if self._progress.is_new:
            self._doubtful_below = 0
        elif self._progress.is_lost:
            self._doubtful_below = spool.next
        self._aside = Aside(folder / "aside", max_bytes)
        self._payloads: dict[int, bytes] = {}
        self._held = 0
        self._quiet = Quiet(log)
        self._wake: Any = None
        self._is_closed = False
        self._noted_at = float("-inf")
        self._last_told = self._last_drop_told = float("-inf")
        self._told_dropped = self._aside_dropped = 0
        self.delivered = 0

    # -- on the loop --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Deliver until closed."""
        while not self._is_closed:
            try:
                await self._worker.call(self._turn)
            except Exception as exc:
                self._quiet.error("turn", "The recorder failed at %s and goes on", self.name, exc_info=exc)
                await compat.sleep(1.0)
            await self._rest()

    def kick(self) -> None:
        """Wake up: there is something new in the spool."""
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def close(self) -> None:
        self._is_closed = True
        self.kick()
        # A delivery may be under way, and must still be noted: the files close with the process.
        self._worker.close()

    @property
    def base(self) -> int:
        """Every record below this number is done."""
        return self._progress.base

    def stats(self, now: float) -> dict[str, Any]:
        """Return the figures that ``job_recorder.stats`` shows for one returner."""
        pending = self._pipeline.pending
        oldest = self._payloads.get(pending[0]) if pending else None
        return {
            "delivered": self.delivered,
            "queued": len(pending) + max(0, self._spool.next - max(self._reader.next, self._spool.first)),
            "lag": round(max(0.0, now - taken_at(oldest)), 3) if oldest else 0.0,
            "dropped": self.dropped,
            "refused": self._pipeline.parked,
            "set_aside": len(self._aside),
            "trouble": self._pipeline.trouble,
        }

    @property
    def dropped(self) -> int:
        """Records that this returner lost since the start, because the spool was full or damaged."""
        return self._reader.lost + max(0, self._spool.first - self._reader.next) + self._aside_dropped

    def tell_drops(self, now: float) -> None:
        """Log dropped records, at most once a minute."""
        dropped = self.dropped
        if dropped > self._told_dropped and now - self._last_drop_told >= _QUIET:
            self._last_drop_told, before, self._told_dropped = now, self._told_dropped, dropped
            log.critical(
                "%d records for the returner %s are lost (%d in all), since the spool is full (spool_max_bytes) or damaged: "
                "%s",
                dropped - before,
                self.name,
                dropped,
                self._pipeline.trouble or "it is too slow, or the disk is damaged",
            )

    async def set_aside(self, newest: int | None = None) -> list[dict[str, Any]]:
        """Describe the records that were set aside, oldest first; with ``newest``, only that many of the newest."""
        return await self._worker.call(self._about_aside, newest)

    async def aside_names(self) -> list[str]:
        """Return the names of the records that were set aside, oldest first."""
        return await self._worker.call(self._aside.names)

    async def aside_payload(self, name: str) -> bytes | None:
        """Return a record that was set aside; None when it is lost."""
        kept = await self._worker.call(self._aside.read, name)
        return None if kept is None else kept[1]

    async def forget_aside(self, *names: str) -> None:
        """Remove records that went back into the spool."""
        await self._worker.call(self._aside.remove, *names)

    async def _rest(self) -> None:
        due = self._pipeline.due()
        now = self._clock.now()
        if self._has_more() or (due is not None and due <= now):
            return
        self._wake = compat.Future()
        timer = self._loop.call_later(due - now, self.kick) if due is not None else None
        # records that were stored since the check above did not wake this up
        if self._is_closed or self._has_more():
            self.kick()
        await self._wake
        self._wake = None
        if timer is not None:
            self._loop.remove_timeout(timer)

    def _has_more(self) -> bool:
        return self._pipeline.room > 0 and self._held < _HELD and self._reader.next < self._spool.next

    # -- in the Worker's thread ---------------------------------------------------------------------------------------

    def _turn(self) -> None:
        self._fill()
        numbers = self._pipeline.round(self._clock.now())
        if numbers:
            was_in_trouble = self._pipeline.trouble
            attempts = self._deliver_many(numbers) if self._takes_many() else self._deliver_all(numbers)
            for refused in self._pipeline.settle(attempts, self._clock.now()):
                self._put_aside(refused)
            self._tell(was_in_trouble)
        self._note_base()

    def _fill(self) -> None:
        if self._held >= _HELD:
            return
        for number, payload in self._reader.read(self._pipeline.room, _HELD - self._held):
            if number in self._progress.done:
                continue
            self._payloads[number] = payload
            self._held += len(payload)
            self._pipeline.take(number, len(payload), in_doubt=number < self._doubtful_below)

    def _deliver_all(self, numbers: Iterable[int]) -> list[Attempt]:
        attempts: list[Attempt] = []
        holders: dict[str, frozenset[str]] = {}
        in_a_row = 0
        for number in numbers:
            failure = self._deliver(number, holders)
            attempts.append(Attempt(number, failure))
            if failure is None:
                in_a_row = 0
                self._done(number)
                continue
            in_a_row += not failure.is_fault
            if in_a_row >= STOP_AFTER:
                break
        return attempts

    def _takes_many(self) -> bool:
        try:
            return self._module.takes_many
        except Exception:  # A returner that cannot be loaded fails when it gets a record.
            return False

    def _deliver_many(self, numbers: Sequence[int]) -> list[Attempt]:
        return list(attempts_in_bulk(numbers, self._hand_over_many))

    def _hand_over_many(self, numbers: Sequence[int]) -> Failure | Mapping[int, Failure]:
        """Hand over records in one call, and note the taken ones at once."""
        refused: dict[int, Failure] = {}
        given: list[int] = []
        entries: list[dict[str, Any]] = []
        for number in numbers:
            try:
                record = unpacked(self._payloads[number])
            except Exception as exc:  # Salt and msgpack raise many kinds for an invalid record.
                refused[number] = Failure(f"it cannot be read: {exc}"[:1000], is_fault=True)
                continue
            if record.to in ("", self.name):
                given.append(number)
                entries.append(entry_of(record, taken_at(self._payloads[number])))
        try:
            reasons = self._module.store_many(entries) if entries else {}
        except Exception as exc:  # A returner raises whatever its client library raises.
            return _failure(exc)
        refused.update((given[position], Failure(reason, is_fault=True)) for position, reason in reasons.items())
        self.delivered += len(given) - len(reasons)
        self._done(*(number for number in numbers if number not in refused))
        return refused

    def _done(self, *numbers: int) -> None:
        self._progress.mark(*numbers)
        for number in numbers:
            self._held -= len(self._payloads.pop(number))

    def _deliver(self, number: int, holders: dict[str, frozenset[str]]) -> Failure | None:
        try:
            record = unpacked(self._payloads[number])
            if record.to not in ("", self.name):
                return None
            if not (self._pipeline.is_in_doubt(number) and self._has(record, holders)):
                self._hand_over(record)
            self.delivered += 1
        except Exception as exc:  # A returner raises whatever its client library raises.
            return _failure(exc)
        return None

    def _hand_over(self, record: Record) -> None:
        if record.kind == LOAD:
            self._module.store_load(record.jid, record.body)
        elif record.kind == EVENT:
            self._module.store_event(record.body["tag"], record.body["data"])
        else:
            self._module.store_return(record.body)

    def _has(self, record: Record, holders: dict[str, frozenset[str]]) -> bool:
        """Whether the returner has the record; False if it cannot tell."""
        if record.kind != RETURN or record.is_correction or not self._module.has("get_jid"):
            return False
        if record.jid not in holders:
            holders[record.jid] = frozenset(self._module.returns(record.jid))
        return record.minion in holders[record.jid]

    def _put_aside(self, refused: RefusedRecord) -> None:
        payload = self._payloads[refused.number]
        about = {"reason": refused.reason, "tries": refused.tries, "time": self._clock.now(), **summary_of(payload)}
        try:
            self._aside_dropped += self._aside.add(refused.number, about, payload)
        except OSError as exc:
            self._quiet.error("aside", "A record that %s refuses cannot be set aside yet: %s", self.name, exc)
            self._pipeline.take(refused.number, len(payload))
            return
        self._quiet.error(
            "refused",
            "The returner %s refused a record %d times; it is set aside: %s",
            self.name,
            refused.tries,
            refused.reason,
        )
        self._done(refused.number)

    def _about_aside(self, newest: int | None) -> list[dict[str, Any]]:
        names = self._aside.names()
        found = ((name, self._aside.read(name)) for name in (names[-newest:] if newest else names))
        return [{"name": name, **kept[0]} for name, kept in found if kept is not None]

    def _note_base(self) -> None:
        now = self._clock.now()
        is_time = self._is_idle() and now - self._noted_at >= _REST
        if len(self._progress.done) < _REBASE and not is_time:
            return
        base = min(self._pipeline.pending, default=self._reader.next)
        if base > self._progress.base:
            self._noted_at = now
            self._progress.rebase(base, self._progress.done)

    def _is_idle(self) -> bool:
        return not self._pipeline.pending and self._reader.next >= self._spool.next

    def _tell(self, was_in_trouble: str | None) -> None:
        trouble, now = self._pipeline.trouble, self._clock.now()
        if trouble and now - self._last_told >= _QUIET:
            self._last_told = now
            log.warning("The returner %s takes nothing; its records wait in the spool: %s", self.name, trouble)
        elif was_in_trouble and not trouble:
            self._last_told = float("-inf")
            log.info("The returner %s takes records again", self.name)


def _failure(exc: Exception) -> Failure:
    if isinstance(exc, ReturnerAbsent):
        return Failure(str(exc), is_fault=False)
    return failure_of(exc.__cause__ if isinstance(exc, Complained) and exc.__cause__ else exc)
