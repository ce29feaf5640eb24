"""
One recipient's side of the recorder: takes what it is to get from the log and the outbox, hands that on, and notes how far
it is and what was refused.

It works in a Worker of its own, so a recipient that hangs delays only itself. It must never note a record as done that the
recipient did not take, unless the record is among the dead letters, is not wanted, or cannot be read any more. The place and
the rows of the outbox are kept in one transaction after each round; so after a crash the records of one round come again. If
the recipient does not know what it has, they are kept after each record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from salt.exceptions import SaltCacheError

from saltext.jobs.core import compat, lines
from saltext.jobs.core.disk.lease import Lease
from saltext.jobs.core.engine.alarm import Clock
from saltext.jobs.core.engine.names import JOB_RECORDER
from saltext.jobs.core.engine.worker import Worker
from saltext.jobs.core.ledger import outbox
from saltext.jobs.core.ledger.outbox import Counts, Key, Place, Row
from saltext.jobs.core.ledger.tables import Tables
from saltext.jobs.core.quiet import Quiet
from saltext.jobs.core.recorder.pipeline import Attempt, Pipeline, Refused, attempts_of
from saltext.jobs.core.recorder.reading import Reading
from saltext.jobs.core.recorder.recipients import Recipient

log = lines.logger(__name__)

#: Records that are read ahead, and of these, rows of the outbox.
_AHEAD, _ROWS = 1000, 100
TRIES = 5
#: Most refused records that are tried again, and most dead letters; beyond it records become dead letters, or the oldest go.
PARKED, DEAD = 1000, 10_000
#: Seconds between two looks while there is nothing to do, and after an error.
_LOOK, _AGAIN = 0.5, 1.0
#: Seconds between two counts of what waits, and the most that is counted.
_COUNT, _COUNTED = 5.0, 100_000


def reader_of(name: str) -> str:
    """Return how the database names the reader for a recipient."""
    return f"{JOB_RECORDER} {name}"


class Consumer:
    """
    :param loop: the engine's tornado loop.
    :param clock: the engine's clock.
    :param name: the recipient's name in statistics.
    :param tables: the database.
    :param lease: that of the engine's process.
    :param reading: what the recipient gets of the log; None if it gets rows of the outbox only.
    :param tries: how often a record may be refused before it is a dead letter.
    :param longest: most seconds before the next try while the recipient takes nothing.
    """

    def __init__(
        self,
        loop: Any,
        clock: Clock,
        name: str,
        recipient: Recipient,
        tables: Tables,
        lease: Lease | None = None,
        reading: Reading | None = None,
        tries: int = TRIES,
        longest: float = 10.0,
    ) -> None:
        self.name, self._loop, self._clock, self._recipient = name, loop, clock, recipient
        self._tables, self._lease, self._reading, self.reader = tables, lease, reading, reader_of(name)
        self._worker, self._pipeline, self._quiet = Worker(loop), Pipeline(_AHEAD, tries, longest), Quiet(log)
        self._rows: dict[Key, Row] = {}  # what the pipeline has
        self._stored: set[Key] = set()  # of these, what has a row in the outbox
        self._changes: dict[Key, Row | None] = {}  # of rows, since the last transaction
        self._kept: Place | None = None
        self._is_closed = False
        self._counts, self._later = Counts(0, 0, 0), 0
        self._counted_at = self._told_at = float("-inf")
        self._away: str | None = None
        self._lost = self._told_lost = 0
        #: How often it has looked for records since the start.
        self.looks = 0
        #: Records that the recipient has got since the start.
        self.delivered = 0

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

    @property
    def is_ready(self) -> bool:
        """Whether it knows how far it is."""
        return self._reading is None or self._reading.has_begun

    def stats(self, now: float) -> dict[str, Any]:
        """Return the figures that ``job_recorder.stats`` shows for one recipient."""
        at_hand, counts = list(self._rows.values()), self._counts
        waiting = len(at_hand) - len(self._stored) + counts.fresh + counts.parked
        return {
            "delivered": self.delivered,
            "queued": max(len(at_hand), waiting) + self._later,
            "lag": round(max(0.0, now - min((row.at for row in at_hand), default=now)), 3),
            "dropped": self.lost,
            "refused": counts.parked,
            "set_aside": counts.dead,
            "trouble": self._pipeline.trouble or self._away,
        }

    @property
    def lost(self) -> int:
        """How many records the recipient will never get, since the start."""
        return self._lost + (self._reading.lost if self._reading is not None else 0)

    def lose(self, count: int) -> None:
        """Count records that it will never get, since too many waited."""
        self._lost += count

    def recount(self) -> None:
        """Count its rows anew: somebody else has changed them."""
        self._counted_at = float("-inf")

    def tell_lost(self) -> None:
        """Log what the recipient will never get, if there is more of it."""
        if self.lost > self._told_lost:
            lost, self._told_lost = self.lost - self._told_lost, self.lost
            log.critical(
                "%d records for %s are lost (%d in all): it was away or slow for longer than they are kept",
                lost,
                self.name,
                self._told_lost,
            )

    def _pause(self) -> float:
        due, has_more = self._pipeline.due(), self._reading is not None and self._reading.has_more
        if due is not None and due <= self._clock.now():
            return 0.0
        return 0.0 if has_more and self._pipeline.room else _LOOK

    # -- in the Worker's thread ---------------------------------------------------------------------------------------

    def _turn(self) -> None:
        self._keep()
        if self._reading is not None:
            for row, in_doubt in self._reading.take(self._pipeline.room, self._rows):
                self._rows[row.key] = row
                self._pipeline.take(row.key, in_doubt=in_doubt)
        self._take_rows()
        keys = self._pipeline.round(self._clock.now())
        if keys:
            self._round(keys)
        self._keep()
        self._count()
        self.looks += 1

    def _take_rows(self) -> None:
        """Take rows that are due: what was refused, notices, dead letters that are tried again, and what the log lacked."""
        most = min(_ROWS, self._pipeline.room) + len(self._stored)
        for row in outbox.ready(self._tables, self.reader, self._clock.now(), most):
            if row.key in self._stored or (row.tries and not self._pipeline.room_for_refused):
                continue
            if row.key not in self._rows:
                self._pipeline.take(row.key, row.tries, in_doubt=True)
            self._rows[row.key] = row
            self._stored.add(row.key)
            self.recount()

    def _round(self, keys: Sequence[Key]) -> None:
        was_in_trouble, parcels, attempts = self._pipeline.trouble, dict[Key, Sequence[Any]](), list[Attempt]()
        for key, parcel in self._recipient.read([self._rows[key] for key in keys]).items():
            if parcel:
                parcels[key] = parcel
                continue
            self._lost += parcel is None
            self._pipeline.drop(key)
            self._done(key)
        if not parcels:
            return
        for attempt in attempts_of(
            list(parcels),
            lambda part: self._recipient.hand_over(
                {key: parcels[key] for key in part}, any(map(self._pipeline.is_in_doubt, part))
            ),
            self._recipient.at_once,
        ):
            attempts.append(attempt)
            if attempt.failure is None:
                self.delivered += len(parcels[attempt.key])
                self._done(attempt.key)
                if not self._recipient.knows and not self._is_kept():
                    break
        for refused in self._pipeline.settle(attempts, self._clock.now()):
            self._refused(refused)
        self._tell(was_in_trouble)

    def _done(self, key: Key) -> None:
        del self._rows[key]
        if key in self._stored:
            self._stored.discard(key)
            self._changes[key] = None

    def _refused(self, refused: Refused) -> None:
        key, due = refused.key, refused.due
        why = refused.reason.encode("utf-8", "replace").decode().replace("\0", "")  # PostgreSQL takes nothing else
        if due is None or self._counts.parked >= PARKED:
            due = None
            self._quiet.error(
                "refused", "%s refused a record %d times; it is set aside: %s", self.name, refused.tries, why
            )
        self._changes[key] = self._rows.pop(key)._replace(tries=refused.tries, due=due, why=why)
        self._counts = self._counts._replace(parked=self._counts.parked + (due is not None and key not in self._stored))
        self._stored.discard(key)

    def _keep(self) -> None:
        """Note the place and the rows, in one transaction. :raises OSError:"""
        place = None
        if self._reading is not None:
            place = self._reading.place(lambda key: key in self._rows and key not in self._stored)
        if not self._changes and place in (None, self._kept):
            return
        outbox.keep(self._tables, self.reader, self._changes, place, self._lease)
        self._kept = place or self._kept
        if self._changes:
            self._changes.clear()
            self.recount()

    def _is_kept(self) -> bool:
        try:
            self._keep()
        except OSError as exc:
            self._quiet.error("keep", "It cannot be noted that %s has records: %s", self.name, exc)
            return False
        return True

    def _count(self) -> None:
        now = self._clock.now()
        if now - self._counted_at < _COUNT:
            return
        self._counted_at = now
        self._later = 0 if self._reading is None else self._reading.later(_COUNTED)
        self._counts = outbox.counts(self._tables, self.reader)
        if self._counts.dead > DEAD:
            self._lost += outbox.trim_dead(self._tables, self.reader, DEAD, self._lease)
            self.recount()

    def _tell(self, was_in_trouble: str | None) -> None:
        trouble, now = self._pipeline.trouble, self._clock.now()
        if trouble and now - self._told_at >= self._quiet.pause:
            self._told_at = now
            log.warning("%s takes nothing; its records wait: %s", self.name, trouble)
        elif was_in_trouble and not trouble:
            self._told_at = float("-inf")
            log.info("%s takes records again", self.name)
