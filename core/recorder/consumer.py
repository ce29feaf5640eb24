"""
One returner's side of the recorder: reads the spool, delivers, notes what is done, sets aside what is refused.

All of it happens in a Worker of its own, so that a returner that hangs holds up itself alone. It must never note a record
as done that the returner did not take, and note nothing late: between the delivery and the note lies the one moment in
which a crash makes a record come twice. After a restart a returner that can be read (``get_jid``) is asked first.
"""

from __future__ import annotations

import logging
import pathlib
import time
from collections.abc import Iterable
from typing import Any

from saltext.jobs.core import compat
from saltext.jobs.core.disk.spool import Reader, Spool
from saltext.jobs.core.engine.worker import Worker
from saltext.jobs.core.master.returner import Complained, ReturnerAbsent, ReturnerModule
from saltext.jobs.core.recorder.files import Aside, Progress
from saltext.jobs.core.recorder.intake import LOAD, Record, taken_at, unpacked
from saltext.jobs.core.recorder.lane import STOP_AFTER, Attempt, Failure, Lane, Refused, failure_of
from saltext.jobs.core.settings import RecorderSettings

log = logging.getLogger(__name__)

#: Bytes of records that are read at a time.
_READ = 8 << 20
#: Seconds between two messages about the same trouble.
_QUIET = 60.0


class Consumer:
    """
    :param loop: the engine's tornado loop.
    :param name: what the returner is called in statistics and on disk.
    :param module: the returner.
    :param spool: what it reads.
    :param folder: where its own files are.
    """

    def __init__(
        self,
        loop: Any,
        name: str,
        module: ReturnerModule,
        spool: Spool,
        folder: pathlib.Path,
        settings: RecorderSettings,
    ) -> None:
        self.name, self._loop, self._module, self._spool = name, loop, module, spool
        self._worker = Worker(loop)
        self._lane = Lane(settings.max_batch)
        self._progress = Progress(folder / "progress", spool.next)
        spool.skip_to(max((self._progress.base, *self._progress.done)))
        self._reader = Reader(spool, max(self._progress.base, spool.first))
        self._doubtful_below = self._progress.base + settings.max_batch
        self._aside = Aside(folder / "aside", settings.spool_max_bytes)
        self._payloads: dict[int, bytes] = {}
        self._wake: Any = None
        self._is_closed = False
        self._last_told = self._last_drop_told = 0.0
        self._told_dropped = self._aside_dropped = 0
        self.delivered = 0

    # -- on the loop --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Deliver until closed."""
        while not self._is_closed:
            try:
                await self._worker.call(self._turn)
            except Exception:
                log.exception("The recorder stumbled over %s and goes on", self.name)
                await compat.sleep(1.0)
            await self._rest()

    def kick(self) -> None:
        """There is something new in the spool."""
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def close(self) -> None:
        self._is_closed = True
        self.kick()
        # It may be in the middle of a delivery and note it yet: its files close with the process.
        self._worker.close()

    @property
    def base(self) -> int:
        """Every record below this number is done."""
        return self._progress.base

    def stats(self, now: float) -> dict[str, Any]:
        """Return the figures that ``job_recorder.stats`` shows for one returner."""
        pending = self._lane.pending
        oldest = self._payloads.get(pending[0]) if pending else None
        behind = self._reader.behind + sum(len(payload) for payload in list(self._payloads.values()))
        return {
            "delivered": self.delivered,
            "queued": len(pending) + max(0, self._spool.next - max(self._reader.next, self._spool.first)),
            "spooled_bytes": behind,
            "lag": round(max(0.0, now - taken_at(oldest)), 3) if oldest else 0.0,
            "dropped": self.dropped,
            "set_aside": len(self._aside),
            "trouble": self._lane.trouble,
        }

    @property
    def dropped(self) -> int:
        """Records that the bounds of the spool took from this returner since the start."""
        return self._reader.lost + max(0, self._spool.first - self._reader.next) + self._aside_dropped

    def tell_drops(self, now: float) -> None:
        """Say so in the log when records were dropped, once a minute at most."""
        dropped = self.dropped
        if dropped > self._told_dropped and now - self._last_drop_told >= _QUIET:
            self._last_drop_told, before, self._told_dropped = now, self._told_dropped, dropped
            log.critical(
                "%d records for the returner %s were dropped since spool_max_bytes is reached (%d in all); "
                "it is down or too slow: %s",
                dropped - before,
                self.name,
                dropped,
                self._lane.trouble or "too slow",
            )

    async def set_aside(self) -> list[tuple[str, dict[str, Any]]]:
        """Return (name, entry) of what was set aside, oldest first."""
        return await self._worker.call(lambda: list(self._aside.entries()))

    async def forget_aside(self, names: Iterable[str]) -> None:
        """Remove entries that went back into the spool."""
        await self._worker.call(self._aside.remove, *names)

    async def _rest(self) -> None:
        due = self._lane.due()
        now = time.time()
        has_more = self._lane.room > 0 and self._reader.next < self._spool.next
        if has_more or (due is not None and due <= now):
            return
        self._wake = compat.Future()
        timer = self._loop.call_later(due - now, self.kick) if due is not None else None
        # What was stored since the question above was asked has not kicked.
        if self._is_closed or (self._lane.room > 0 and self._reader.next < self._spool.next):
            self.kick()
        await self._wake
        self._wake = None
        if timer is not None:
            self._loop.remove_timeout(timer)

    # -- in the Worker's thread ---------------------------------------------------------------------------------------

    def _turn(self) -> None:
        self._fill()
        numbers = self._lane.round(time.time())
        if numbers:
            was_in_trouble = self._lane.trouble
            attempts = self._deliver_all(numbers)
            for refused in self._lane.settle(attempts, time.time()):
                self._put_aside(refused)
            self._tell(was_in_trouble)
        self._note_base()

    def _fill(self) -> None:
        for number, payload in self._reader.read(self._lane.room, _READ):
            if number in self._progress.done:
                continue
            self._payloads[number] = payload
            self._lane.take([number], in_doubt=number < self._doubtful_below and not self._progress.is_new)

    def _deliver_all(self, numbers: Iterable[int]) -> list[Attempt]:
        attempts: list[Attempt] = []
        holders: dict[str, frozenset[str]] = {}
        in_a_row = 0
        for number in numbers:
            failure = self._deliver(number, holders)
            attempts.append(Attempt(number, failure))
            if failure is None:
                in_a_row = 0
                self._progress.mark(number)
                self._payloads.pop(number, None)
                continue
            in_a_row += not failure.is_fault
            if in_a_row >= STOP_AFTER:
                break
        return attempts

    def _deliver(self, number: int, holders: dict[str, frozenset[str]]) -> Failure | None:
        try:
            record = unpacked(self._payloads[number])
            if record.to not in ("", self.name):
                return None
            if not (self._lane.is_in_doubt(number) and self._has(record, holders)):
                self._hand_over(record)
            self.delivered += 1
        except Exception as exc:  # A returner raises whatever its client library raises.
            if isinstance(exc, ReturnerAbsent):
                return Failure(str(exc), is_fault=False)
            return failure_of(exc.__cause__ if isinstance(exc, Complained) and exc.__cause__ else exc)
        return None

    def _hand_over(self, record: Record) -> None:
        if record.kind == LOAD:
            self._module.store_load(record.jid, record.body)
        else:
            self._module.store_return(record.body)

    def _has(self, record: Record, holders: dict[str, frozenset[str]]) -> bool:
        """Whether the returner has the record; False where it can't tell."""
        if record.kind == LOAD or not self._module.has("get_jid"):
            return False
        if record.jid not in holders:
            holders[record.jid] = frozenset(self._module.returns(record.jid))
        return record.minion in holders[record.jid]

    def _put_aside(self, refused: Refused) -> None:
        payload = self._payloads[refused.number]
        entry = {"reason": refused.reason, "tries": refused.tries, "time": time.time(), "payload": payload}
        try:
            self._aside_dropped += self._aside.add(refused.number, entry)
        except OSError as exc:
            log.error("A record that %s refuses cannot be set aside yet: %s", self.name, exc)
            self._lane.take([refused.number])
            return
        del self._payloads[refused.number]
        self._progress.mark(refused.number)
        log.error(
            "The returner %s refused a record %d times; it is set aside: %s", self.name, refused.tries, refused.reason
        )

    def _note_base(self) -> None:
        pending = self._lane.pending
        if self._progress.done and (not pending or len(self._progress.done) >= 1000):
            self._progress.rebase(min(pending, default=self._reader.next), self._progress.done)

    def _tell(self, was_in_trouble: str | None) -> None:
        trouble, now = self._lane.trouble, time.time()
        if trouble and now - self._last_told >= _QUIET:
            self._last_told = now
            log.warning("The returner %s takes nothing; its records wait in the spool: %s", self.name, trouble)
        elif was_in_trouble and not trouble:
            self._last_told = 0.0
            log.info("The returner %s takes records again", self.name)
