"""
Looks at the state of batches, owed jobs and engines, and puts notices of what has changed into the outbox.

It reads the batches and the retry queue, and no event, which can be lost or forged. What was reported and the notices that
follow are kept in one transaction, on the disk, so a crash loses none.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import salt.payload

from saltext.jobs.core import compat, lines
from saltext.jobs.core.engine.loop import Worker
from saltext.jobs.core.engine.names import JOB_RECORDER
from saltext.jobs.core.ledger.outbox import Key, Row
from saltext.jobs.core.ledger.tables import META, Tables
from saltext.jobs.core.lines import Quiet
from saltext.jobs.core.recorder.consumer import Consumer
from saltext.jobs.core.recorder.notices import TEST, Reported
from saltext.jobs.core.recorder.recipients import NOTICE

log = lines.logger(__name__)

#: Seconds from one turn to the next.
_TURN = 1.0
#: A pause is at least _TIMES times as long as the look took, for the sake of a large fleet; but at most _LONGEST seconds,
#: since a look also takes long where the database or the machine stands still.
_TIMES, _LONGEST = 50.0, 300.0
#: Most notices that wait for one target; beyond it the oldest are dropped.
MOST = 200
#: The name under which the engine keeps what was reported.
_REPORTED = "reported"
#: The row of a test in the outbox of a target.
_TEST = Key(NOTICE, TEST)


#: Takes the present state of something into what was reported, at a Unix time. It blocks, and raises if it cannot be read.
Look: TypeAlias = Callable[[float], None]


def known_of(tables: Tables) -> dict[str, Any] | None:
    """Return what was reported before; None if that is not known. :raises OSError:"""
    body = META.get(tables, JOB_RECORDER, _REPORTED)
    try:
        return None if body is None else dict(salt.payload.loads(body))
    except Exception as exc:  # msgpack raises many kinds
        log.error("What was reported before cannot be read, so it may be reported again, or not at all: %s", exc)
        return None


class Watch:
    """
    Puts notices into the outboxes of ``targets``, and notes in the ``tables`` what was ``reported``. ``looks``: by what they
    look at, with the seconds between two of them.
    """

    def __init__(
        self, looks: Mapping[str, tuple[Look, float]], reported: Reported, targets: Sequence[Consumer], tables: Tables
    ) -> None:
        self._looks, self._reported, self.targets, self._tables = looks, reported, targets, tables
        self._quiet = Quiet(log)
        self._due = dict.fromkeys(self._looks, 0.0)  # when to look next, by what time.monotonic() says
        self._kept, self._rows = b"", list[Row]()
        self.is_closed = False

    async def run(self, worker: Worker) -> None:
        """Look until closed. :param worker: the thread to look in."""
        while not self.is_closed:
            try:
                await worker.call(self._turn)
            except Exception as exc:
                if not self.is_closed:
                    told = None if isinstance(exc, OSError) else exc
                    self._quiet.error("turn", "Notices cannot be kept, so none are sent: %s", exc, exc_info=told)
            await compat.sleep(_TURN)

    # -- in the Worker's thread ---------------------------------------------------------------------------------------

    def test(self) -> None:
        """Send a test notice: a user wants to see whether notices arrive. :raises OSError:"""
        for target in self.targets:
            target.outbox.drop([_TEST])  # one that was refused for good must not keep the next one away
        self._reported.take_test(time.time())
        self._keep()

    def _turn(self) -> None:
        for what, (look, pause) in self._looks.items():
            begun = time.monotonic()
            if begun < self._due[what]:
                continue
            try:
                look(time.time())
                pause = max(pause, min((time.monotonic() - begun) * _TIMES, _LONGEST))
            except Exception as exc:
                told = None if isinstance(exc, OSError) else exc
                self._quiet.error(what, "No notices are sent about %s now: %s", what, exc, exc_info=told)
            self._due[what] = time.monotonic() + pause
        self._keep()

    def _keep(self) -> None:
        """Keep what was reported, and the notices about it. :raises OSError: if it fails; the next call keeps them."""
        for notice in self._reported.written():
            # at most one test waits for a target, so that tests push out no notice
            key = _TEST if notice["kind"] == TEST else Key(NOTICE, notice["id"])
            self._rows.append(Row(key, notice["time"], body=salt.payload.dumps(notice)))
        known: bytes = salt.payload.dumps(self._reported.record())
        if known == self._kept and not self._rows:
            return
        gone = self._tables.together(lambda: self._write(known), durable=True)
        self._kept, self._rows = known, []
        for target, count in zip(self.targets, gone, strict=True):
            target.lose(count)

    def _write(self, known: bytes) -> list[int]:
        META.keep(self._tables, JOB_RECORDER, _REPORTED, known)
        return [target.outbox.push(self._rows, MOST) for target in self.targets]  # each checks that this process leads
