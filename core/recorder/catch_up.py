"""
Looks in the job cache for loads and returns that were not recorded: after a start, now and then, when records may have
been lost.

It must never hurry, because live events go first: each job is one step, and no step begins until the intake has room.
One job that cannot be read must not stop the others.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from saltext.jobs.core import compat, lines
from saltext.jobs.core.engine.worker import Worker
from saltext.jobs.core.ids import is_plain
from saltext.jobs.core.master.events import retcode_of
from saltext.jobs.core.quiet import Quiet
from saltext.jobs.core.recorder.files import Seen
from saltext.jobs.core.recorder.intake import Intake
from saltext.jobs.core.recorder.returner import ReturnerModule

log = lines.logger(__name__)

#: Seconds before the next attempt after the job cache failed.
_RETRY = 30.0
#: Jobs in a row that cannot be read, after which the job cache itself counts as unreadable.
_GIVE_UP = 20
#: Seconds between two looks at whether the intake has room.
_WAIT = 0.1


class CatchUp:
    """
    :param loop: the engine's tornado loop.
    :param intake: takes what is found.
    :param seen: what was recorded before.
    :param disk: the Worker that uses ``seen``.
    :param job_cache: where to look; used by this class alone.
    :param is_exact: whether the job cache returns exactly what was stored, so that two versions can be compared.
    :param look_back: seconds; jobs that were published earlier are not looked at.
    """

    def __init__(
        self,
        loop: Any,
        intake: Intake,
        seen: Seen,
        disk: Worker,
        job_cache: ReturnerModule,
        is_exact: bool,
        look_back: float,
    ) -> None:
        self._loop, self._intake, self._seen, self._disk = loop, intake, seen, disk
        self._cache, self._is_exact, self._look_back = job_cache, is_exact, look_back
        self._worker = Worker(loop)
        self._quiet = Quiet(log)
        self._is_wanted = self._is_running = self._is_closed = False
        #: Returns found in this way since the start.
        self.found = 0

    def begin(self) -> None:
        """Look at all jobs that are young enough, now or after the look that is under way."""
        self._is_wanted = self._look_back > 0
        if self._is_wanted and not self._is_running:
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
                self._quiet.error(
                    "search", "The job cache cannot be searched, trying again: %s: %s", type(exc).__name__, exc
                )
                self._is_wanted = True
                await compat.sleep(_RETRY)
        self._is_running = False

    async def _look(self) -> None:
        before = self.found
        # The intake itself remembers what this process has taken in recently.
        self._intake.known = await self._disk.call(self._seen.load)
        # jids contain the wall clock's time, so only that clock counts here
        jobs = await self._worker.call(self._cache.jids_since, time.time() - self._look_back)
        failed = 0
        for jid, fun in jobs.items():
            if fun and not self._intake.wants(fun):
                continue
            try:
                await self._look_at(jid)
                failed = 0
            except Exception as exc:
                failed += 1
                self._quiet.error(
                    "job", "Job %s cannot be read from the job cache: %s: %s", jid, type(exc).__name__, exc
                )
                if failed >= _GIVE_UP:
                    raise
        if self.found > before:
            log.info("%d returns that were not seen on the bus were found in the job cache", self.found - before)

    async def _look_at(self, jid: str) -> None:
        if not is_plain(jid):
            return
        while not self._intake.has_room:
            await compat.sleep(_WAIT)
        load, missing = await self._worker.call(self._read, jid)
        if load and not self._intake.wants(load.get("fun")):
            return
        self._intake.announce(jid)
        for minion, data in missing.items():
            if self._is_recorded(jid, minion, data):
                continue  # it came over the bus while the job cache was read
            self.found += self._intake.reconcile(jid, minion, rebuilt(jid, minion, data, load))

    def _read(self, jid: str) -> tuple[dict[str, Any], dict[str, Mapping[str, Any]]]:
        """
        Return a job's load, if it is needed, and ``{minion: return}`` of the returns that are not recorded; in the
        Worker's thread.
        """
        missing = {
            minion: data
            for minion, data in self._cache.returns(jid).items()
            if is_plain(minion) and isinstance(data, Mapping) and not self._is_recorded(jid, minion, data)
        }
        return self._cache.load(jid) if missing else {}, missing

    def _is_recorded(self, jid: str, minion: str, data: Mapping[str, Any]) -> bool:
        try:
            has_said_so = self._intake.has_content(jid, minion, data)
            return has_said_so or (not self._is_exact and self._intake.has(jid, minion))
        except Exception as exc:  # Salt and msgpack raise many kinds for data that cannot be packed.
            self._quiet.error(minion, "The return of job %s by %s cannot be recorded: %s", jid, minion, exc)
            return True


def rebuilt(jid: str, minion: str, data: Mapping[str, Any], load: Mapping[str, Any]) -> dict[str, Any]:
    """Rebuild the data of a return's event from the return in the job cache and the job's load."""
    return {
        "cmd": "_return",
        "fun": load.get("fun", ""),
        "fun_args": load.get("arg", []),
        "retcode": 0,
        "success": retcode_of(data) == 0,
        **data,
        "id": minion,
        "jid": jid,
    }
