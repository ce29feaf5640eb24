"""
One recipient's side of the recorder: takes what it is to get from the log and the outbox, hands that on, and notes how far
it is and what was refused.

It works in a Worker of its own, so a recipient that hangs delays only itself. It must never note a record as done that the
recipient did not take, unless the record is a dead letter, is not wanted, or cannot be read any more. Place and outbox are
kept in one transaction after each round, whose records come again after a crash; after each record, if the recipient does
not know what it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from salt.exceptions import SaltCacheError

from saltext.jobs.core import compat, lines
from saltext.jobs.core.engine.alarm import Clock
from saltext.jobs.core.engine.worker import Worker
from saltext.jobs.core.ledger.log import Position
from saltext.jobs.core.ledger.outbox import Counts, Key, Outbox, Row
from saltext.jobs.core.lines import Quiet
from saltext.jobs.core.recorder.pipeline import Attempt, Item, Pipeline, attempts_of
from saltext.jobs.core.recorder.reading import Reading
from saltext.jobs.core.recorder.recipients import Recipient, ToReturner

log = lines.logger(__name__)

#: Records that are read ahead, and of these, rows of the outbox.
_AHEAD, _ROWS = 1000, 100
TRIES = 5
#: Most refused records that are tried again (further ones become dead letters); most dead letters (the oldest go).
PARKED, DEAD = 1000, 10_000
#: Seconds to the next look while there is something to do; each look that finds nothing doubles them, up to the longest. And
#: seconds after an error.
_LOOK, _LONGEST_LOOK, _AGAIN = 0.5, 2.0, 1.0
#: Seconds between two counts of what waits, and the most that is counted.
_COUNT, _COUNTED = 5.0, 100_000


class Consumer:
    """
    One recipient, ``name`` in statistics: a returner gets records of the log; people get rows of the outbox only. After
    ``tries`` refusals a record is a dead letter. ``longest``: seconds to the next try while the recipient takes nothing.
    """

    def __init__(
        self,
        loop: Any,
        clock: Clock,
        name: str,
        recipient: Recipient,
        outbox: Outbox,
        tries: int = TRIES,
        longest: float = 10.0,
    ) -> None:
        self.name, self.outbox, self._clock, self._recipient = name, outbox, clock, recipient
        self._reading = Reading(name, recipient, outbox) if isinstance(recipient, ToReturner) else None
        self._worker, self._pipeline, self._quiet = Worker(loop), Pipeline(_AHEAD, tries, longest), Quiet(log)
        self._changes: dict[Key, Row | None] = {}  # of the outbox, since the last transaction
        self._kept: Position | None = None
        self._is_closed = self._gets_on = False
        self._wait = _LOOK
        self._counts, self._later, self._counted_at = Counts(0, 0, 0), 0, float("-inf")
        self._away: str | None = None
        self._told_lost = 0
        # Since the start: how often it has looked, how many records the recipient has got, and how many it will never get.
        self.looks = self.delivered = self.lost = 0

    # -- on the loop --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Deliver until closed."""
        while not self._is_closed:
            try:
                await self._worker.call(self._turn)
                self._away = None
                await compat.sleep(self._pause())
            except Exception as exc:
                if self._is_closed:
                    return
                self._away = f"{type(exc).__name__}: {exc}"
                told = None if isinstance(exc, (OSError, SaltCacheError)) else exc
                self._quiet.error("turn", "%s gets nothing now: %s", self.name, exc, exc_info=told)
                await compat.sleep(_AGAIN)

    def close(self) -> None:
        self._is_closed = True
        self._worker.close()

    def stats(self, now: float) -> dict[str, Any]:
        """Return the row of ``job_recorder.stats`` about this recipient. ``now``: Unix time."""
        at_hand, counts = list(self._pipeline.waiting.values()), self._counts
        since = self._reading.gap_since if self._reading is not None else None
        oldest = min([now if since is None else since, *(item.at for item in at_hand)])
        waiting = sum(item.place is not None for item in at_hand) + counts.fresh + counts.parked
        return {
            "delivered": self.delivered,
            "queued": max(len(at_hand), waiting) + self._later,
            "lag": round(max(0.0, now - oldest), 3),
            "dropped": self.lost,
            "refused": counts.parked,
            "set_aside": counts.dead,
            "trouble": self._pipeline.trouble or self._away,
        }

    def recount(self) -> None:
        """Count its rows anew: they have changed."""
        self._counted_at = float("-inf")

    def _pause(self) -> float:
        waiting = bool(self._pipeline.waiting)
        is_idle = not (waiting or self._gets_on)
        self._wait = min(2.0 * self._wait, _LONGEST_LOOK) if is_idle else _LOOK
        more = self._reading is not None and self._reading.has_more and self._pipeline.room
        return 0.0 if more or (self._gets_on and waiting) else self._wait

    # -- in the Worker's thread ---------------------------------------------------------------------------------------

    def _turn(self) -> None:
        try:
            self._keep()
            if self._reading is not None:
                found, lost = self._reading.take(self._pipeline.room)
                self.lost += lost
                for item in found:
                    self._pipeline.take(item)
            self._take_rows()
            had = len(self._pipeline.waiting)
            self._round(self._pipeline.round(self._clock.now()))
            self._gets_on = len(self._pipeline.waiting) < had
            self._keep()
        finally:
            self._count()
        self.looks += 1

    def _take_rows(self) -> None:
        """
        Take rows that are due: what was refused, notices, dead letters that are tried again, and what the log lacked. Rows
        that are at hand and no longer due are dropped: others may have removed them.
        """
        waiting = self._pipeline.waiting
        at_hand = {item.key for item in waiting.values() if item.place is None}
        rows = self.outbox.ready(self._clock.now(), min(_ROWS, self._pipeline.room) + len(at_hand))
        for key in at_hand - {row.key for row in rows}:
            del waiting[key]
        for row in rows:
            if row.key in waiting:
                waiting[row.key].place = None
            elif not row.tries or self._pipeline.room_for_refused:
                self._pipeline.take(Item(row.key, row.tries, True, row.at, body=row.body))
                self.recount()

    def _round(self, items: Sequence[Item]) -> None:
        parcels, attempts, was_in_trouble = dict[Key, Sequence[Any]](), list[Attempt](), self._pipeline.trouble
        for key, parcel in self._recipient.read(items).items():
            if parcel:
                parcels[key] = parcel
            else:
                self.lost += parcel is None
                self._done(key)
        if not parcels:
            return
        for attempt in attempts_of(
            [item for item in items if item.key in parcels],
            lambda part: self._recipient.hand_over(
                {item.key: parcels[item.key] for item in part}, any(item.in_doubt for item in part)
            ),
            self._recipient.at_once,
        ):
            attempts.append(attempt)
            item, failure = attempt
            if failure is None:
                self.delivered += len(parcels[item.key])
                self._done(item.key)
                if not self._recipient.knows:
                    self._owe_earlier(item.place)
                    self._keep()
        for item in self._pipeline.settle(attempts, self._clock.now()):
            self._refused(item)
        if self._pipeline.trouble:
            self._quiet.warning("trouble", "%s takes nothing; its records wait: %s", self.name, self._pipeline.trouble)
        elif was_in_trouble:
            log.info("%s takes records again", self.name)

    def _done(self, key: Key) -> None:
        if self._pipeline.waiting.pop(key).place is None:
            self._changes[key] = None

    def _owe_earlier(self, place: int | None) -> None:
        """Have the outbox take over what waits before a place, so that what came after it does not come again."""
        for item in self._pipeline.waiting.values():
            if item.place is not None:
                if place is None or item.place > place:
                    return
                self._changes[item.key], item.place = Row(item.key, item.at), None

    def _refused(self, item: Item) -> None:
        why = item.why.encode("utf-8", "replace").decode().replace("\0", "")  # else PostgreSQL refuses it
        due = item.due if self._counts.parked < PARKED else None
        if due is None:
            self._quiet.error(
                "refused", "%s refused a record %d times; it is set aside: %s", self.name, item.tries, why
            )
        self._changes[item.key] = Row(item.key, item.at, item.tries, due, why, item.body)
        is_new = due is not None and item.tries == 1
        self._counts = self._counts._replace(parked=self._counts.parked + is_new)

    def _keep(self) -> None:
        """Note the place and the rows, in one transaction. :raises OSError:"""
        place = None if self._reading is None else self._reading.place(self._pipeline.waiting.values())
        if not self._changes and place in (None, self._kept):
            return
        self.outbox.keep(self._changes, place)
        self._kept = place or self._kept
        if self._changes:
            self._changes.clear()
            self.recount()

    def _count(self) -> None:
        now = self._clock.now()
        if now - self._counted_at < _COUNT:
            return
        self._counted_at = now
        self._later = 0 if self._reading is None else self._reading.later(_COUNTED)
        self._counts = self.outbox.counts()
        if self._counts.dead > DEAD:
            self.lost += self.outbox.trim_dead(DEAD)
            self.recount()
        if self.lost > self._told_lost:
            lost, self._told_lost = self.lost - self._told_lost, self.lost
            log.critical(
                "%d records for %s are lost (%d in all): it was away or slow for longer than they are kept",
                lost,
                self.name,
                self.lost,
            )
