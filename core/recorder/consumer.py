"""
One returner's side of the recorder: reads the log after its place, hands on, and notes how far it is and what was refused.

It works in a Worker of its own, so a returner that hangs delays only itself. It must never note a record as done that the
returner did not take, unless the record is among the dead letters, is not wanted, or cannot be read any more. The place and
the rows of the outbox are kept in one transaction after each round; so after a crash the records of one round come again. A
returner that can be read (``get_jid``) is first asked which returns it has; one that takes many at once (``store_many``)
ignores records that it has; for any other the place is kept after each record.
"""

from __future__ import annotations

import collections
import time
from collections.abc import Mapping, Sequence
from typing import Any

from salt.exceptions import SaltCacheError

from saltext.jobs.core import compat, lines
from saltext.jobs.core.disk.lease import Lease
from saltext.jobs.core.engine.alarm import Clock
from saltext.jobs.core.engine.names import JOB_RECORDER
from saltext.jobs.core.engine.worker import Worker
from saltext.jobs.core.ids import jid_time
from saltext.jobs.core.ledger import outbox
from saltext.jobs.core.ledger.outbox import Key, Place, Row
from saltext.jobs.core.ledger.tables import Tables
from saltext.jobs.core.log import records
from saltext.jobs.core.quiet import Quiet
from saltext.jobs.core.recorder.bulk import attempts_in_bulk
from saltext.jobs.core.recorder.choice import Recent
from saltext.jobs.core.recorder.pipeline import STOP_AFTER, Attempt, Failure, Pipeline, Refused, failure_of
from saltext.jobs.core.recorder.record import EVENT, LOAD, RETURN, Record, entry_of, event_in, rebuilt
from saltext.jobs.core.recorder.returner import Complained, ReturnerAbsent, ReturnerModule
from saltext.jobs.core.recorder.source import Source

log = lines.logger(__name__)

#: Records that are read ahead, and how many of the first ones after a start may have been delivered before.
_AHEAD, _DOUBTFUL = 1000, 2000
#: Returns that are looked up at once, and bytes after which a round has enough.
_LOOKED_UP, _BYTES = 25, 8 << 20
#: Rows of the outbox that are read ahead.
_ROWS = 100
#: How often a returner may refuse a record before that is a dead letter, and most dead letters; beyond it the oldest go.
TRIES, DEAD = 5, 10_000
#: Seconds between two looks at the log while there is nothing to do, and after an error.
_LOOK, _AGAIN = 0.5, 1.0
#: Seconds after which the job cache has what the log has, if it is elsewhere.
_SETTLED = 1.0
#: Seconds between two counts of what waits, and the most that is counted.
_COUNT, _COUNTED = 5.0, 100_000
#: Least number of jobs whose load this returner has, as it is remembered.
_LOADS = 20_000


def reader_of(name: str) -> str:
    """Return how the database names the reader for a returner."""
    return f"{JOB_RECORDER} {name}"


class Consumer:
    """
    :param loop: the engine's tornado loop.
    :param clock: the engine's clock.
    :param name: the returner's name in statistics and in the database.
    :param module: the returner.
    :param source: what the records of the log are about; used by this consumer alone.
    :param tables: the database of the log.
    :param lease: that of the engine's process.
    :param look_back: seconds; when the log lacks records, jobs that were published earlier are not looked at.
    :param tries: how often the returner may refuse a record before that is a dead letter.
    """

    def __init__(
        self,
        loop: Any,
        clock: Clock,
        name: str,
        module: ReturnerModule,
        source: Source,
        tables: Tables,
        lease: Lease | None = None,
        look_back: float = 3600.0,
        tries: int = TRIES,
    ) -> None:
        self.name, self._loop, self._clock, self._module, self._source = name, loop, clock, module, source
        self._tables, self._lease, self._look_back, self.reader = tables, lease, look_back, reader_of(name)
        self._worker, self._pipeline, self._quiet = Worker(loop), Pipeline(_AHEAD, tries), Quiet(log)
        self._letters: dict[Key, Row] = {}  # all that the pipeline has
        self._stored: set[Key] = set()  # of these, what has a row in the outbox
        self._fresh: set[Key] = set()  # of these, what was never refused
        self._changes: dict[Key, Row | None] = {}  # of rows, since the last transaction
        self._order: collections.deque[tuple[int, Key]] = collections.deque()  # those from the log, by their places
        self._loads = Recent(_LOADS)
        self._log = self._gap = ""
        self._read_to = self._gaps = self._doubtful = 0
        self._settled = 0.0 if source.writes_together else _SETTLED
        self._kept: Place | None = None
        self._has_more = self._waits = self._is_closed = False
        self._later = self._rows = 0
        self._counted_at = self._told_at = float("-inf")
        self._away: str | None = None
        self._told_lost = 0
        #: How often it has looked at the log since the start.
        self.looks = 0
        #: Records that the returner has got, and that it never will, since the start; and how many dead letters there are.
        self.delivered = self.lost = self.dead = 0

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
                self._quiet.error("turn", "Nothing is recorded in %s now: %s", self.name, exc, exc_info=told)
                await compat.sleep(_AGAIN)

    def close(self) -> None:
        self._is_closed = True
        self._worker.close()

    @property
    def is_ready(self) -> bool:
        """Whether it knows how far it is: a new returner gets what comes after that."""
        return self._kept is not None

    def stats(self, now: float) -> dict[str, Any]:
        """Return the figures that ``job_recorder.stats`` shows for one returner."""
        letters = list(self._letters.values())
        return {
            "delivered": self.delivered,
            "queued": len(letters) + self._later + max(0, self._rows - len(self._fresh)),
            "lag": round(max(0.0, now - min((row.at for row in letters), default=now)), 3),
            "dropped": self.lost,
            "refused": self._pipeline.parked,
            "set_aside": self.dead,
            "trouble": self._pipeline.trouble or self._away,
        }

    def tell_lost(self) -> None:
        """Log what the returner will never get, if there is more of it."""
        if self.lost > self._told_lost:
            lost, self._told_lost = self.lost - self._told_lost, self.lost
            log.critical(
                "%d records for the returner %s are lost (%d in all): it was away or slow for longer than the log or the "
                "job cache keeps them",
                lost,
                self.name,
                self.lost,
            )

    def _pause(self) -> float:
        due, now = self._pipeline.due(), self._clock.now()
        if due is not None and due <= now:
            return 0.0
        return 0.0 if self._has_more and self._pipeline.room else _LOOK

    # -- in the Worker's thread: what comes --------------------------------------------------------------------------

    def _turn(self) -> None:
        if self._kept is None:
            self._begin()
        if not self._gap:
            self._keep()
        self._take_from_log()
        if self._gap and not self._waits:  # before the place is noted
            self._mend()
        self._take_rows()
        keys = self._pipeline.round(self._clock.now())
        if keys:
            self._round(keys)
        self._keep()
        self._count()
        self.looks += 1

    def _begin(self) -> None:
        state, known = outbox.state(self._tables), outbox.place_of(self._tables, self.reader)
        if known is None:  # a new returner gets what comes from now on
            known = Place(state.last, state.gaps)
            outbox.keep(self._tables, self.reader, {}, known, self._lease)
        else:
            self._doubtful = _DOUBTFUL
        for row in outbox.parked(self._tables, self.reader, _AHEAD):
            self._letters[row.key] = row
            self._stored.add(row.key)
            self._pipeline.park(row.key, row.tries, row.due or 0.0)
        self._rows, self.dead = outbox.counts(self._tables, self.reader)
        self._log, self._read_to, self._gaps, self._kept = state.name, known.place, known.gaps, known

    def _take_from_log(self) -> None:
        found = outbox.after(self._tables, self._read_to, self._pipeline.room) if self._pipeline.room else []
        # after the records: it covers what was removed, or could not be written, before they were read
        state = outbox.state(self._tables)
        if state.name != self._log:
            self._log, self._read_to, self._gap, self._has_more = state.name, state.removed, "it is a new one", True
            self._order.clear()
            return
        if self._read_to < state.removed:
            # in PostgreSQL places have gaps
            self.lost += 1 if self._tables.is_far else state.removed - self._read_to
            self._read_to = state.removed
        if state.gaps != self._gaps:
            self._gap = "a record could not be written"
        self._has_more, self._waits = bool(found) and len(found) >= self._pipeline.room, False
        for place, jid, minion, body in found:
            before, self._read_to = self._read_to, place
            if body == b"":
                continue
            try:
                record = records.read(jid, minion, body or b"")
            except Exception:  # msgpack raises many kinds
                self._gap = "a record could not be written, or this version cannot read it"
                continue
            if record.at > time.time() - self._settled:
                self._read_to, self._has_more, self._waits = before, False, True
                break
            if isinstance(record, records.Published):
                key = Key(LOAD, record.jid)
                is_new = record.jid not in self._loads
            else:
                key = Key(RETURN, record.jid, record.minion)
                is_new = True
            if is_new and record.listed and key not in self._letters:
                self._order.append((place, key))
                self._take(Row(key, record.at), in_doubt=self._doubtful > 0)
                self._doubtful -= 1

    def _take_rows(self) -> None:
        """Take what nobody has tried: events, dead letters that are tried again, and what the log lacked."""
        if self._fresh or not self._pipeline.room:
            return
        for row in outbox.fresh(self._tables, self.reader, min(_ROWS, self._pipeline.room)):
            if row.key not in self._letters:
                self._take(row, in_doubt=True)
            self._letters[row.key] = row
            self._stored.add(row.key)
            self._fresh.add(row.key)

    def _take(self, row: Row, in_doubt: bool) -> None:
        self._letters[row.key] = row
        self._pipeline.take(row.key, in_doubt)

    def _mend(self) -> None:
        """The log lacks records: put into the outbox what the job cache has, and the returner has not."""
        can_ask = self._module.has("get_jid")
        if not can_ask and not self._module.takes_many:
            log.error(
                "Returns may be missing in %s, which cannot be asked: the log lacks records, %s", self.name, self._gap
            )
        else:
            log.error("Looking in the job cache for what %s lacks: the log lacks records, %s", self.name, self._gap)
            for jid in self._source.young(self._look_back):
                if self._source.job(jid).is_wanted:
                    held = frozenset(self._module.returns(jid)) if can_ask else frozenset()
                    at, minions = jid_time(jid) or 0.0, self._source.minions(jid)
                    rows = [Row(Key(RETURN, jid, minion), at) for minion in minions if minion not in held]
                    outbox.add(self._tables, [self.reader], [Row(Key(LOAD, jid), at), *rows], self._lease)
        self._gaps, self._gap = outbox.state(self._tables).gaps, ""

    # -- handing on ---------------------------------------------------------------------------------------------------

    def _round(self, keys: Sequence[Key]) -> None:
        was_in_trouble, found = self._pipeline.trouble, self._read(keys)
        if not found:
            return
        attempts = self._hand_over_many(found) if self._takes_many() else self._hand_over_each(found)
        for refused in self._pipeline.settle(attempts, self._clock.now()):
            self._refused(refused)
        self._tell(was_in_trouble)

    def _read(self, keys: Sequence[Key]) -> dict[Key, list[Record]]:
        """Return the records to hand over for the first of some keys, as many as memory allows. Drop what is not wanted."""
        found: dict[Key, list[Record]] = {}
        size = 0
        for start in range(0, len(keys), _LOOKED_UP):
            part = keys[start : start + _LOOKED_UP]
            returns = self._source.returns(key for key in part if key.kind == RETURN)
            for key in part:
                wanted = self._records_of(key, returns.get(key, (None, 0))[0])
                if wanted:
                    found[key] = wanted
                    size += len(self._letters[key].body or b"")
                    continue
                self.lost += wanted is None
                self._pipeline.drop(key)
                self._done(key)
            size += sum(of for _, of in returns.values())
            if size >= _BYTES:
                break
        return found

    def _records_of(self, key: Key, data: Mapping[str, Any] | None) -> list[Record] | None:
        """Return the records to hand over; none if they are not wanted, None if they cannot be read any more."""
        kind, jid, minion = key
        at = self._letters[key].at
        if kind == EVENT:
            try:
                return [event_in(self._letters[key])]
            except Exception as exc:  # Salt and msgpack raise many kinds
                self._quiet.error("event", "An event for %s cannot be read: %s", self.name, exc)
                return None
        job = self._source.job(jid)
        if not job.is_wanted:
            return []
        load = self._source.load(jid) if kind == LOAD or not (job.is_published or jid in self._loads) else {}
        loads = [Record(LOAD, jid, "", at, load)] if load else []
        if kind == LOAD:
            return loads or None
        return None if data is None else [*loads, Record(RETURN, jid, minion, at, rebuilt(jid, minion, data, *job[:2]))]

    def _takes_many(self) -> bool:
        try:
            return self._module.takes_many
        except Exception:  # A returner that cannot be loaded fails when it gets a record.
            return False

    def _hand_over_many(self, found: Mapping[Key, Sequence[Record]]) -> list[Attempt]:
        def take(keys: Sequence[Key]) -> Failure | Mapping[Key, Failure]:
            handed = [(key, record) for key in keys for record in found[key]]
            try:
                reasons = self._module.store_many([entry_of(record) for _, record in handed])
            except Exception as exc:  # A returner raises whatever its client library raises.
                return _failure(exc)
            refused = {handed[position][0]: Failure(reason, is_fault=True) for position, reason in reasons.items()}
            for key in keys:
                if key not in refused:
                    self._done(key, found[key])
            return refused

        return list(attempts_in_bulk(list(found), take))

    def _hand_over_each(self, found: Mapping[Key, Sequence[Record]]) -> list[Attempt]:
        attempts: list[Attempt] = []
        holders: dict[str, frozenset[str]] = {}
        in_a_row = 0
        for key, records_ in found.items():
            failure = self._deliver(key, records_, holders)
            attempts.append(Attempt(key, failure))
            in_a_row = 0 if failure is None else in_a_row + (not failure.is_fault)
            if in_a_row >= STOP_AFTER:
                break
            if failure is None:
                self._done(key, records_)
                if not self._can_ask() and not self._is_kept():
                    break
        return attempts

    def _deliver(self, key: Key, found: Sequence[Record], holders: dict[str, frozenset[str]]) -> Failure | None:
        try:
            if self._pipeline.is_in_doubt(key) and key.kind == RETURN and self._can_ask():
                if key.jid not in holders:
                    holders[key.jid] = frozenset(self._module.returns(key.jid))
                if key.minion in holders[key.jid]:
                    return None
            for record in found:
                self._hand_over(record)
        except Exception as exc:  # A returner raises whatever its client library raises.
            return _failure(exc)
        return None

    def _hand_over(self, record: Record) -> None:
        if record.kind == LOAD:
            self._module.store_load(record.jid, record.data)
        elif record.kind == EVENT:
            self._module.store_event(record.tag, record.data)
        else:
            self._module.store_return(record.data)

    def _can_ask(self) -> bool:
        return self._module.has("get_jid")

    # -- noting it ----------------------------------------------------------------------------------------------------

    def _done(self, key: Key, handed: Sequence[Record] = ()) -> None:
        self._letters.pop(key)
        self._fresh.discard(key)
        self.delivered += len(handed)
        for record in handed:
            if record.kind == LOAD:
                self._loads.add(record.jid)
        if key in self._stored:
            self._stored.discard(key)
            self._changes[key] = None

    def _refused(self, refused: Refused) -> None:
        key = refused.key
        why = refused.reason.encode("utf-8", "replace").decode().replace("\0", "")  # PostgreSQL takes nothing else
        self._letters[key] = self._letters[key]._replace(tries=refused.tries, due=refused.due, why=why)
        self._changes[key] = self._letters[key]
        self._fresh.discard(key)
        self._stored.add(key)
        if refused.due is None:
            self._stored.discard(key)
            self._letters.pop(key)
            self.dead += 1
            self._quiet.error(
                "refused",
                "The returner %s refused a record %d times; it is set aside: %s",
                self.name,
                refused.tries,
                why,
            )

    def _keep(self) -> None:
        """Note the place and the rows, in one transaction. :raises OSError:"""
        while self._order and (self._order[0][1] not in self._letters or self._order[0][1] in self._stored):
            self._order.popleft()
        place = Place(self._order[0][0] - 1 if self._order else self._read_to, self._gaps)
        if not self._changes and place == self._kept:
            return
        outbox.keep(self._tables, self.reader, self._changes, place, self._lease)
        self._kept = place
        self._changes.clear()
        if self.dead > DEAD:
            self.lost += outbox.trim_dead(self._tables, self.reader, DEAD, self._lease)
            self.dead = min(self.dead, DEAD)

    def _is_kept(self) -> bool:
        try:
            self._keep()
        except OSError as exc:
            self._quiet.error("keep", "It cannot be noted that %s has records: %s", self.name, exc)
            return False
        return True

    def _count(self) -> None:
        now = self._clock.now()
        if now - self._counted_at >= _COUNT or (self._later + self._rows and not self._letters):
            self._counted_at = now
            self._later = outbox.count_after(self._tables, self._read_to, _COUNTED) if self._has_more else 0
            self._rows, self.dead = outbox.counts(self._tables, self.reader)

    def _tell(self, was_in_trouble: str | None) -> None:
        trouble, now = self._pipeline.trouble, self._clock.now()
        if trouble and now - self._told_at >= self._quiet.pause:
            self._told_at = now
            log.warning("The returner %s takes nothing; its records wait: %s", self.name, trouble)
        elif was_in_trouble and not trouble:
            self._told_at = float("-inf")
            log.info("The returner %s takes records again", self.name)


def _failure(exc: Exception) -> Failure:
    if isinstance(exc, ReturnerAbsent):
        return Failure(str(exc), is_fault=False)
    return failure_of(exc.__cause__ if isinstance(exc, Complained) and exc.__cause__ else exc)
