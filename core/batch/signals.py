"""
Operators' signals to the jobs of batches, such as ``saltutil.kill_job``. Batches are told on which minions a signal
ends their jobs.

The log names the minions of a signal before any of them has got it. A minion's answer to the signal proves more: that
the job ran there, and got the signal. This counts even if the batch had given the minion up, or did not know that it
had begun.

It must never take a signal among several functions, because its user may not be permitted all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from saltext.jobs.core import compat, lines
from saltext.jobs.core.batch import facts
from saltext.jobs.core.batch.live import Live
from saltext.jobs.core.batch.ports import Ports
from saltext.jobs.core.errors import JobCacheError
from saltext.jobs.core.functions import HARMLESS, KILLS
from saltext.jobs.core.log.records import EVERY_JOB, Published, Returned

log = lines.logger(__name__)

#: How often the job cache may lack the minions of a signal, and seconds before each further look.
_LOOKS, _LOOK_PAUSE = 5, 1.0
#: Seconds for which answers are gathered.
_GATHER = 0.5
#: What ``saltutil.signal_job`` returns where it has sent a signal. ``kill_all_jobs`` returns a list of these.
_SENT = re.compile(r"Signal ([0-9]+) sent to job (\S+) at pid ")


class Signals:
    """
    :param ports: the ports to the world.
    :param live: the batches that have not ended, by jid.
    """

    def __init__(self, ports: Ports, live: Mapping[str, Live]) -> None:
        self._ports, self._live = ports, live
        self._unnamed = 0  # signals whose minions are being read
        self._answers: dict[str, set[str]] = {}  # {jid of a signal: minions whose answers are to be read}
        self._reads = False

    def published(self, record: Published) -> None:
        """The log has a publish: tell the batches whose jobs it ends. Those of our engines have an origin."""
        if record.origin or not record.sent or record.functions not in KILLS:
            return
        for live in [live for live in self._live.values() if live.jid in record.ends or EVERY_JOB in record.ends]:
            every_job = live.jid not in record.ends
            if record.minions is None:
                self._unnamed += 1
                self._ports.loop.spawn_callback(self._read_minions, live, record.jid, every_job)
            else:
                _tell(live, filter(live.batch.wants_signal, record.minions), every_job)

    def returned(self, record: Returned) -> None:
        """The log has a return: if it answers a signal and may change anything, soon read what it says."""
        if record.functions in KILLS and any(live.batch.wants_answer(record.minion) for live in self._live.values()):
            self._answers.setdefault(record.jid, set()).add(record.minion)
            if not self._reads:
                self._reads = True
                self._ports.loop.spawn_callback(self._read_answers)

    async def settle(self) -> None:
        """Return once it is known which minions the signals so far are for."""
        while self._unnamed:
            await compat.sleep(_GATHER)

    async def _read_minions(self, live: Live, jid: str, every_job: bool) -> None:
        """Take a signal to so many minions that the log does not name them."""
        try:
            minions = await self._minions_of(live, jid)
        finally:
            self._unnamed -= 1
        _tell(live, filter(live.batch.wants_signal, minions), every_job)

    async def _minions_of(self, live: Live, jid: str) -> Iterable[str]:
        """Return the minions of a signal. The job cache gets them a moment after the log."""
        looks = 0
        while looks < _LOOKS and not live.gone:
            try:
                load = await self._ports.cache_worker.call(self._ports.cache.published_load, jid)
            except JobCacheError as exc:
                log.info("Batch %s: the minions that the signal %s is for cannot be read now: %s", live.jid, jid, exc)
            else:
                if load.get("Minions"):
                    return tuple(load["Minions"])
                looks += 1
            await compat.sleep(_LOOK_PAUSE)
        return ()

    async def _read_answers(self) -> None:
        try:
            while self._answers and self._live:
                await compat.sleep(_GATHER)
                waiting, self._answers = self._answers, {}
                for jid, minions in waiting.items():
                    await self._take_answers(jid, minions)
        finally:
            self._reads = False

    async def _take_answers(self, jid: str, minions: set[str]) -> None:
        try:
            answers = await self._ports.cache_worker.call(self._ports.cache.answers, jid, minions)
        except JobCacheError as exc:
            log.info("What minions have answered to the signal %s cannot be read now: %s", jid, exc)
            self._answers.setdefault(jid, set()).update(minions)
            return
        ended = {minion: _ended_by(answer) for minion, (answer, _) in answers.items()}
        for live in list(self._live.values()):
            _tell(live, (each for each in ended if live.jid in ended[each] and live.batch.wants_answer(each)))


def _tell(live: Live, minions: Iterable[str], every_job: bool = False) -> None:
    if named := tuple(minions):
        live.step(facts.Signalled(named, every_job))


def _ended_by(answer: Any) -> set[str]:
    """Return the jobs that have got a signal that ends them, by a minion's answer, which may be anything."""
    said = answer if isinstance(answer, (list, tuple)) else [answer]
    found = [_SENT.match(line) for line in said if isinstance(line, str)]
    return {match[2] for match in found if match and match[1] not in HARMLESS}
