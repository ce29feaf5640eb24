"""
Looks in the job cache for loads and returns that were not recorded: after a start, and when the bus lost events.

It must never hurry: what comes live goes first, so each job is one step, and none begins while the intake is full. It runs
as often as it is asked for, once at a time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from saltext.jobs.core import compat
from saltext.jobs.core.engine.worker import Worker
from saltext.jobs.core.ids import is_plain
from saltext.jobs.core.master.events import retcode_of
from saltext.jobs.core.master.returner import ReturnerModule
from saltext.jobs.core.recorder.files import Known, Seen
from saltext.jobs.core.recorder.intake import Intake

log = logging.getLogger(__name__)

#: Seconds before the next attempt after the job cache failed.
_RETRY = 30.0
#: Seconds between two looks at whether the intake has room.
_WAIT = 0.1


class CatchUp:
    """
    :param loop: the engine's tornado loop.
    :param intake: where what is found goes.
    :param seen: what was recorded before.
    :param disk: the Worker that uses ``seen``.
    :param job_cache: where to look; used by this class alone.
    :param look_back: seconds; jobs that were published earlier are not looked at.
    """

    def __init__(
        self, loop: Any, intake: Intake, seen: Seen, disk: Worker, job_cache: ReturnerModule, look_back: float
    ) -> None:
        self._loop, self._intake, self._seen, self._disk = loop, intake, seen, disk
        self._cache, self._look_back = job_cache, look_back
        self._worker = Worker(loop)
        self._is_wanted = self._is_running = self._is_closed = False
        #: Returns that were found so since the start.
        self.found = 0

    def begin(self) -> None:
        """Look, now or after the look that is under way."""
        self._is_wanted = True
        if not self._is_running and self._look_back > 0:
            self._is_running = True
            self._loop.spawn_callback(self._run)

    def close(self) -> None:
        self._is_closed = True
        self._worker.close()

    async def _run(self) -> None:
        while self._is_wanted and not self._is_closed:
            self._is_wanted = False
            try:
                await self._look()
            except Exception as exc:  # A returner raises whatever its client library raises.
                log.error("The job cache cannot be searched, trying again: %s: %s", type(exc).__name__, exc)
                self._is_wanted = True
                await compat.sleep(_RETRY)
        self._is_running = False

    async def _look(self) -> None:
        before = self.found
        # What this process took in is in the intake's own memory, unless that is long ago.
        self._intake.known = await self._disk.call(self._seen.load)
        jobs = await self._worker.call(self._cache.jids_since, time.time() - self._look_back)
        for jid, fun in jobs.items():
            if is_plain(jid) and (not fun or self._intake.wants(fun)):
                await self._look_at(jid, fun)
        if self.found > before:
            log.info("%d returns that were not seen on the bus were found in the job cache", self.found - before)

    async def _look_at(self, jid: str, fun: str) -> None:
        while not self._intake.has_room:
            await compat.sleep(_WAIT)
        self._intake.announce(jid)
        missing = await self._worker.call(self._missing, jid, fun, self._intake.known)
        for minion, data in missing.items():
            if self._intake.wants(data["fun"]) and not self._intake.has(jid, minion):
                self._intake.accept(jid, minion, data)
                self.found += 1

    def _missing(self, jid: str, fun: str, known: Known) -> dict[str, dict[str, Any]]:
        """Return ``{minion: return}`` of what was not recorded before this process began; in the Worker's thread."""
        returns = self._cache.returns(jid)
        missing = {
            minion: data
            for minion, data in returns.items()
            if is_plain(minion) and isinstance(data, Mapping) and not known.has(jid, minion)
        }
        load = self._cache.load(jid) if missing else {}
        return {minion: rebuilt(jid, minion, data, load, fun) for minion, data in missing.items()}


def rebuilt(jid: str, minion: str, data: Mapping[str, Any], load: Mapping[str, Any], fun: str = "") -> dict[str, Any]:
    """Return a return in the form in which its event carried it, from what a job cache keeps of it and its load."""
    return {
        "cmd": "_return",
        "fun": load.get("fun", fun),
        "fun_args": load.get("arg", []),
        "retcode": 0,
        "success": retcode_of(data) == 0,
        **data,
        "id": minion,
        "jid": jid,
    }
