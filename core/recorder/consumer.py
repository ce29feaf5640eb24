"""
One recipient's side of the recorder. What a returner is to get of the log becomes rows of its outbox, together with the
place up to which the log was read; then what is due in the outbox is handed over, and removed.

It works in a Worker of its own, so a recipient that hangs delays only itself. It must never remove a row that the recipient
did not take, unless the record is a dead letter, is not wanted, or cannot be read any more. Rows are removed in one
transaction after each round, whose records come again after a crash; after each record, if the recipient does not know what
it has. If the log lacks records, the job cache is read once, and what the returner may not have becomes rows before the
place moves on.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from salt.exceptions import SaltCacheError

from saltext.jobs.core import compat, lines
from saltext.jobs.core.disk.lease import Lease
from saltext.jobs.core.engine.loop import Worker
from saltext.jobs.core.engine.names import JOB_RECORDER
from saltext.jobs.core.ids import jid_time
from saltext.jobs.core.ledger.log import AWAY, RESTARTED, News, Position, Reader, count_after
from saltext.jobs.core.ledger.outbox import Counts, Key, Outbox, Row
from saltext.jobs.core.ledger.tables import Tables
from saltext.jobs.core.lines import Quiet
from saltext.jobs.core.recorder.pipeline import Attempt, Pipeline, Refusal, attempts_of
from saltext.jobs.core.recorder.recipients import LOAD, RETURN, Recipient, ToReturner

log = lines.logger(__name__)

#: Rows that wait in the outbox before more is read from the log, and rows of a round beyond these, for refused records.
_AHEAD, _REFUSED = 1000, 100
#: Most refused records that are tried again (further ones become dead letters); most dead letters (the oldest go).
PARKED, DEAD = 1000, 10_000
#: Seconds to the next look while there is something to do; each look that finds nothing doubles them, up to the longest. And
#: seconds after an error, and the most that a round takes if records go one by one.
_LOOK, _LONGEST_LOOK, _AGAIN, _ROUND = 0.5, 2.0, 1.0, 5.0
#: Most records of the log that are counted as waiting, and how many times as long as a count took until the next one.
_COUNTED, _SPARING = 100_000, 50.0
#: Seconds: when the log lacks records, jobs that were published earlier are not looked at.
_LOOK_BACK = 3600.0


def outbox_of(tables: Tables, name: str, lease: Lease | None = None) -> Outbox:
    """Return the outbox of a recipient, given its name in statistics."""
    return Outbox(tables, f"{JOB_RECORDER} {name}", lease)


class Consumer:
    """
    One recipient, ``name`` in statistics: a returner gets records of the log; people get rows of the outbox only. What the
    ``pipeline`` gives up is a dead letter.
    """

    def __init__(
        self, loop: Any, name: str, recipient: Recipient, outbox: Outbox, pipeline: Pipeline | None = None
    ) -> None:
        self.name, self.outbox, self._recipient, self._pipeline = name, outbox, recipient, pipeline or Pipeline()
        self._reading = Reading(name, recipient, outbox) if isinstance(recipient, ToReturner) else None
        self._new = self._reading.new if self._reading is not None else set[Key]()
        self._worker, self._quiet = Worker(loop), Quiet(log)
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

    def stats(self) -> dict[str, Any]:
        """Return the row of ``job_recorder.stats`` about this recipient."""
        now, counts, since = time.time(), self._counts, self._reading.gap_since if self._reading is not None else None
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
                "%d records for %s are lost (%d in all): they are kept no more, or could not be stored",
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
        if time.monotonic() >= self._pipeline.not_before:
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
        rows = {row.key: row for row in self.outbox.ready(time.time(), _AHEAD + _REFUSED)}
        oldest = min((row.at for row in rows.values() if not row.tries), default=None)
        self._counts = self._counts._replace(oldest=oldest)  # the recipient may hang from here on
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
        refused = self._pipeline.settle(attempts, tries, time.monotonic())
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
        due = None if refusal.pause is None or self._counts.parked >= PARKED else time.time() + refusal.pause
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


# -- from the log into the outbox ----------------------------------------------------------------------------------------


class Reading:
    """``name``: that of the returner. ``recipient``: the returner, with the job cache."""

    def __init__(self, name: str, recipient: ToReturner, outbox: Outbox) -> None:
        self._name, self._recipient, self._outbox = name, recipient, outbox
        self._log: Reader | None = None  # before it is known how far the returner is
        self._place: Position | None = None  # what is before it is in the outbox, or was
        self._news: News | None = None  # what was read after it
        # What comes now was not delivered before: by an earlier engine, or as what the log lacked.
        self._is_sure = False
        self._quiet = Quiet(log)
        self.new = set[Key]()  # rows that the returner surely has not
        self.has_more = False  # there is more to take now
        self.gap_since: float | None = None  # the Unix time since when the log lacks records that the outbox has not

    def take(self, most: int) -> int:
        """
        Move the next records into the outbox, at most ``most``. Returns how many are lost: the log removed them before they
        were read. :raises Exception: if the log or the job cache cannot be read, or a returner that is asked fails.
        """
        self._log = self._log or self._begun()
        if self._news is None:
            self._news = self._log.read(most)
            if self._news.gap and not (self._recipient.store.writes_together and self._news.gap in (AWAY, RESTARTED)):
                self.gap_since = time.time()
                self._tell(self._news.gap)
        news, lacks_since = self._news, self.gap_since if self._recipient.knows else None
        if lacks_since is not None:
            if abs(time.time() - lacks_since) < self._recipient.late:
                return 0
            self._mend()
        listed = [record for record in news.records if record.listed]
        rows = [Row(Key(RETURN if one.minion else LOAD, one.jid, one.minion), one.at) for one in listed]
        if news.position != self._place:
            self._outbox.add(rows, news.position)
        self._news, self._place, self.has_more, self.gap_since = None, news.position, news.more, None
        if self._is_sure:
            self.new.update(row.key for row in rows)
        self._is_sure = (self._is_sure or not news.more) and lacks_since is None
        return news.lost

    def later(self, most: int) -> int:
        """Return how many records are still to be read, at most ``most``."""
        return count_after(self._outbox.tables, self._place.offset, most) if self._place else 0

    def _begun(self) -> Reader:
        self._place = self._outbox.cursor()
        found = Reader(self._outbox.tables, self._place)
        if self._place is None:  # a new returner gets what comes from now on
            self._place = found.read().position
            self._outbox.add([], self._place)
        return found

    def _tell(self, gap: str) -> None:
        if self._recipient.knows:
            log.error("Looking in the job cache for what %s lacks: the log lacks records, %s", self._name, gap)
            return
        self._quiet.error(
            "gap", "Returns may be missing in %s, which cannot be asked: the log lacks records, %s", self._name, gap
        )

    def _mend(self) -> None:
        """Put into the outbox what the job cache has, and the returner has not."""
        returner = self._recipient.returner
        for jid, minions in self._recipient.young(_LOOK_BACK):
            held = returner.returns(jid) if returner.has("get_jid") else ()
            at, missing = jid_time(jid) or 0.0, [minion for minion in minions if minion not in held]
            self._outbox.add([Row(Key(LOAD, jid), at), *(Row(Key(RETURN, jid, minion), at) for minion in missing)])
