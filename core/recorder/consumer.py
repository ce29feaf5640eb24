"""
One recipient's side of the recorder: takes what it is to get from the outbox, hands that on, and notes what it has and what
it refused.

It works in a Worker of its own, so a recipient that hangs delays only itself. It must never remove a row that the recipient
did not take, unless the record is a dead letter, is not wanted, or cannot be read any more. Rows are removed in one
transaction after each round, whose records come again after a crash; after each record, if the recipient does not know what
it has.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from salt.exceptions import SaltCacheError

from saltext.jobs.core import compat, lines
from saltext.jobs.core.engine.loop import Clock, Worker
from saltext.jobs.core.ledger.outbox import Counts, Key, Outbox, Row
from saltext.jobs.core.lines import Quiet
from saltext.jobs.core.recorder.pipeline import Attempt, Pipeline, Refusal, attempts_of
from saltext.jobs.core.recorder.reading import Reading
from saltext.jobs.core.recorder.recipients import Recipient, ToReturner

log = lines.logger(__name__)

#: Rows that wait in the outbox before more is read from the log, and rows of a round beyond these, for refused records.
_AHEAD, _REFUSED = 1000, 100
TRIES = 5
#: Most refused records that are tried again (further ones become dead letters); most dead letters (the oldest go).
PARKED, DEAD = 1000, 10_000
#: Seconds to the next look while there is something to do; each look that finds nothing doubles them, up to the longest. And
#: seconds after an error, and the most that a round takes if records go one by one.
_LOOK, _LONGEST_LOOK, _AGAIN, _ROUND = 0.5, 2.0, 1.0, 5.0
#: Most records of the log that are counted as waiting, and how many times as long as a count took until the next one.
_COUNTED, _SPARING = 100_000, 50.0


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
        self._new = self._reading.new if self._reading is not None else set[Key]()
        self._worker, self._pipeline, self._quiet = Worker(loop), Pipeline(tries, longest), Quiet(log)
        self._changes: dict[Key, Row | None] = {}  # of the outbox, since the last transaction
        self._is_closed = False
        self._wait = _LOOK
        self._counts, self._later, self._count_at = Counts(), 0, 0.0
        self._away: str | None = None
        # Since the start: how often it has looked, how many records the recipient has got, and how many it will never get.
        self.looks = self.delivered = self.lost = 0

    # -- on the loop --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Deliver until closed."""
        while not self._is_closed:
            try:
                pause = await self._worker.call(self._turn)
                self._away = None
            except Exception as exc:
                if self._is_closed:
                    return
                pause, self._away = _AGAIN, f"{type(exc).__name__}: {exc}"
                told = None if isinstance(exc, (OSError, SaltCacheError)) else exc
                self._quiet.error("turn", "%s gets nothing now: %s", self.name, exc, exc_info=told)
            await compat.sleep(pause)

    def close(self) -> None:
        self._is_closed = True
        self._worker.close()

    def stats(self, now: float) -> dict[str, Any]:
        """Return the row of ``job_recorder.stats`` about this recipient. ``now``: Unix time."""
        counts, since = self._counts, self._reading.gap_since if self._reading is not None else None
        oldest = min(at for at in (now, since, counts.oldest) if at is not None)
        return {
            "delivered": self.delivered,
            "queued": counts.fresh + counts.parked + self._later,
            "lag": round(now - oldest, 3),
            "dropped": self.lost,
            "refused": counts.parked,
            "set_aside": counts.dead,
            "trouble": self._pipeline.trouble or self._away,
        }

    def lose(self, count: int) -> None:
        """Tell that it will never get some records."""
        self.lost += count
        if count:
            self._quiet.critical(
                "lost",
                "%d records for %s are lost (%d in all): it was away or slow for longer than they are kept",
                count,
                self.name,
                self.lost,
            )

    # -- in the Worker's thread ---------------------------------------------------------------------------------------

    def _turn(self) -> float:
        """Hand over what is due, and return the seconds to the next turn."""
        done, has_more = 0, True
        self._count()
        self._keep()
        if self._clock.now() >= self._pipeline.not_before:
            done, has_more = self._deliver()
        self.looks += 1
        self._wait = _LOOK if done or has_more else min(2.0 * self._wait, _LONGEST_LOOK)
        return 0.0 if done and has_more else self._wait

    def _deliver(self) -> tuple[int, bool]:
        """Return of how many rows the outcome is known now, and whether there are more."""
        has_more = False
        if self._reading is not None:
            if (room := _AHEAD - self._counts.fresh) > 0:
                self.lose(self._reading.take(room))
            has_more = self._reading.has_more
        rows = {row.key: row for row in self.outbox.ready(self._clock.now(), _AHEAD + _REFUSED)}
        done = self._round(rows)
        self._keep()
        return done, has_more or done < len(rows)

    def _round(self, rows: Mapping[Key, Row]) -> int:
        tries, was_in_trouble = {key: row.tries for key, row in rows.items()}, self._pipeline.trouble
        found = self._recipient.read([rows[key] for key in self._pipeline.round(tries)])
        parcels = {key: parcel for key, parcel in found.items() if parcel}
        gone = [key for key in found if key not in parcels]
        self.lose(sum(found[key] is None for key in gone))
        self._changes.update(dict.fromkeys(gone))
        at_once, knows = self._recipient.at_once, self._recipient.knows
        attempts, until = list[Attempt](), time.monotonic() + _ROUND
        for key, failure in attempts_of(list(parcels), lambda keys: self._hand_over(keys, parcels), at_once):
            attempts.append((key, failure))
            if failure is None:
                self.delivered += len(parcels[key])
                self._changes[key] = None
                if not knows:
                    self._keep()
            if not at_once and time.monotonic() > until:
                break
        self._new.difference_update(gone, (key for key, _ in attempts))
        refused = self._pipeline.settle(attempts, tries, self._clock.now())
        for key, refusal in refused.items():
            self._refused(rows[key], refusal)
        if self._pipeline.trouble:
            self._quiet.warning("trouble", "%s takes nothing; its records wait: %s", self.name, self._pipeline.trouble)
        elif was_in_trouble:
            log.info("%s takes records again", self.name)
        return len(gone) + len(refused) + sum(failure is None for _, failure in attempts)

    def _hand_over(self, keys: Sequence[Key], parcels: Mapping[Key, Sequence[Any]]) -> Mapping[Key, str]:
        return self._recipient.hand_over({key: parcels[key] for key in keys}, not self._new.issuperset(keys))

    def _refused(self, row: Row, refusal: Refusal) -> None:
        why = refusal.why.encode("utf-8", "replace").decode().replace("\0", "")  # else PostgreSQL refuses it
        due = refusal.due if self._counts.parked < PARKED else None
        if due is None:
            self._quiet.error(
                "refused", "%s refused a record %d times; it is set aside: %s", self.name, refusal.tries, why
            )
        self._changes[row.key] = row._replace(tries=refusal.tries, due=due, why=why)
        is_new = due is not None and refusal.tries == 1
        self._counts = self._counts._replace(parked=self._counts.parked + is_new)

    def _keep(self) -> None:
        """Note in the outbox what has changed. :raises OSError:"""
        if self._changes:
            self.outbox.keep(self._changes)
            self._changes.clear()

    def _count(self) -> None:
        self._counts, begun = self.outbox.counts(), time.monotonic()
        if self._reading is not None and begun >= self._count_at:
            self._later = self._reading.later(_COUNTED)
            self._count_at = begun + _SPARING * (time.monotonic() - begun)
        if self._counts.dead > DEAD:
            self.lose(self.outbox.trim_dead(DEAD))
