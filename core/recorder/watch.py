"""
Looks at the state of batches, owed jobs and engines, and puts notices of what has changed into the outbox.

An event on the bus is only a hint to look. What is reported was read from the batches and the retry queue. What was reported
and the notices that follow from it are kept in one transaction, on the disk, so a crash loses none.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import salt.payload

from saltext.jobs.core import compat, lines
from saltext.jobs.core.disk.lease import Lease
from saltext.jobs.core.engine.worker import Worker
from saltext.jobs.core.ledger import outbox
from saltext.jobs.core.ledger.outbox import Key, Row
from saltext.jobs.core.ledger.tables import Tables
from saltext.jobs.core.lines import Quiet
from saltext.jobs.core.recorder.consumer import Consumer
from saltext.jobs.core.recorder.notices import TEST, GivenUp, Reported, Seen
from saltext.jobs.core.recorder.reading import reader_of
from saltext.jobs.core.recorder.recipients import NOTICE

log = lines.logger(__name__)

#: Seconds between two looks: at what events tell of, at the engines' signs of life, at the retry queue (each look reads all
#: of it), and at everything without any event.
_SOON, _ENGINES, _QUEUE, _ANYWAY = 1.0, 5.0, 15.0, 300.0
#: Seconds after an event within which what it tells of is written down: the last look must come after that.
_WRITTEN = 3.0
#: Most notices that wait for one target; beyond it the oldest are dropped.
MOST = 200
#: Events of a batch after which there may be something to report.
_TELLING = frozenset(("check", "checked", "paused", "resumed", "halted", "complete"))
#: The row with what was reported, and the reader that it is of.
_KNOWN, _WATCHER = Key("record", ""), reader_of("notices:")


class Sights(NamedTuple):
    """
    What the watch looks at; all of it blocks, and raises if it cannot be read.

    * ``jids``: the jids of all batches; ``look``: how a batch stands, None if it is damaged.
    * ``given_up``: the owed jobs that were given up, by jid.
    * ``silent``: for how many seconds each engine has not answered, 0 if it has.
    """

    jids: Callable[[], list[str]]
    look: Callable[[str], Seen | None]
    given_up: Callable[[], Mapping[str, GivenUp]]
    silent: Callable[[], Mapping[str, float]]


def known_of(tables: Tables) -> dict[str, Any] | None:
    """Return what was reported before; None if that is not known. :raises OSError:"""
    for row in outbox.ready(tables, _WATCHER, 0.0, 1):
        try:
            return dict(salt.payload.loads(row.body or b""))
        except Exception as exc:  # msgpack raises many kinds
            log.error("What was reported before cannot be read, so it may be reported again, or not at all: %s", exc)
    return None


class Watch:
    """
    A bus.Listener.

    :param reported: what was reported before.
    :param targets: those that get the notices.
    """

    def __init__(
        self, sights: Sights, reported: Reported, targets: Sequence[Consumer], tables: Tables, lease: Lease | None
    ) -> None:
        self._sights, self._reported, self.targets = sights, reported, targets
        self._tables, self._lease, self._quiet = tables, lease, Quiet(log)
        # when it looked last at something, and when an event told of that last
        self._looked, self._told = dict[str, float](), dict[str, float]()
        self._kept, self._rows = b"", list[Row]()
        self.is_closed = False

    # -- on the loop --------------------------------------------------------------------------------------------------

    def wants(self, tag: str) -> bool:
        last = tag.rpartition("/")[2]
        return (
            last in _TELLING if tag.startswith("salt/batch/") else tag.startswith("salt/job_retry/") and last == "dead"
        )

    def handle(self, tag: str, data: Any) -> None:
        """Look soon at what an event tells of."""
        self._told["queue" if tag.startswith("salt/job_retry/") else "batches"] = time.monotonic()

    def on_gap(self) -> None:
        """Look at everything soon."""
        self._told = dict.fromkeys(("batches", "queue"), time.monotonic())

    async def run(self, worker: Worker) -> None:
        """Look until closed. :param worker: the thread to look in."""
        while not self.is_closed:
            try:
                await worker.call(self._turn)
            except Exception as exc:
                if not self.is_closed:
                    told = None if isinstance(exc, OSError) else exc
                    self._quiet.error("turn", "Notices cannot be kept, so none are sent: %s", exc, exc_info=told)
            await compat.sleep(_SOON)

    # -- in the Worker's thread ---------------------------------------------------------------------------------------

    def test(self) -> None:
        """Send a test notice: a user wants to see whether notices arrive. :raises OSError:"""
        self._reported.take_test(time.time())
        self._keep()

    def _turn(self) -> None:
        if self._is_due("batches", _SOON):
            try:
                jids = self._sights.jids()
                seen = {jid: found for jid in self._reported.to_read(jids) if (found := self._sights.look(jid))}
                self._reported.take_batches(seen, jids, time.time())
            except Exception as exc:
                self._quiet.error(
                    "look", "The state of batches cannot be read, so no notices are sent about them", exc_info=exc
                )
        if self._is_due("queue", _QUEUE):
            try:
                self._reported.take_given_up(self._sights.given_up(), time.time())
            except Exception as exc:
                self._quiet.error("queue", "The retry queue cannot be read, so no notices are sent about it: %s", exc)
        if self._is_due("engines", _ENGINES, anyway=_ENGINES):
            for name, silent in self._sights.silent().items():
                self._reported.take_engine(name, silent, time.time())
        self._keep()

    def _is_due(self, what: str, least: float, anyway: float = _ANYWAY) -> bool:
        """Tell whether to look at something now, and note that."""
        now, looked = time.monotonic(), self._looked.get(what, -math.inf)
        is_told = looked < self._told.get(what, -math.inf) + _WRITTEN
        if now - looked < (least if is_told else anyway):
            return False
        self._looked[what] = now
        return True

    def _keep(self) -> None:
        """Keep what was reported, and the notices that follow from it. :raises OSError: then they are kept later."""
        for notice in self._reported.written():
            # at most one test waits for a target, so that tests push out no notice
            key = Key(NOTICE, TEST if notice["kind"] == TEST else notice["id"])
            self._rows.append(Row(key, notice["time"], body=salt.payload.dumps(notice)))
        known: bytes = salt.payload.dumps(self._reported.record())
        if known == self._kept and not self._rows:
            return
        row, readers = Row(_KNOWN, 0.0, body=known), {target.reader: target for target in self.targets}
        gone = outbox.report(self._tables, _WATCHER, row, list(readers), self._rows, MOST, self._lease)
        self._kept, self._rows = known, []
        for reader, count in gone.items():
            readers[reader].lost += count
            readers[reader].recount()
