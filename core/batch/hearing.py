"""
Returns of batches that run, from what the bus tells to what counts: the job cache is asked whether it has them.

It holds no policy: when it is asked, and for whom, is in ``core/master/hearsay.py``. Where the job cache is no better
evidence than the event, a return that was heard counts as it is.
"""

from __future__ import annotations

from saltext.jobs.core import lines
from saltext.jobs.core.batch import facts
from saltext.jobs.core.batch.live import Live
from saltext.jobs.core.batch.ports import Ports
from saltext.jobs.core.engine.alarm import Alarm
from saltext.jobs.core.errors import JobCacheError
from saltext.jobs.core.master.events import JobReturned
from saltext.jobs.core.master.hearsay import Hearsay
from saltext.jobs.core.quiet import Quiet

log = lines.logger(__name__)

#: Seconds before a job cache that failed is asked again.
RETRY_PAUSE = 5.0


class Hearing:
    """
    :param ports: what is worked with.
    """

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._of: dict[Live, tuple[Hearsay, Alarm]] = {}
        self._quiet = Quiet(log)

    def take(self, live: Live, heard: JobReturned) -> None:
        """Take a return of a minion whose return the batch waits for."""
        if self._ports.cache.unproven:
            if heard.fun in ("", live.batch.spec.fun):
                live.step(facts.Returned(heard.minion, heard.retcode))
            else:
                self._quiet.error(
                    live.jid,
                    "Batch %s: %s has run %s under its jid; that counts for nothing",
                    live.jid,
                    heard.minion,
                    heard.fun,
                )
            return
        if live not in self._of:
            alarm = Alarm(self._ports.loop, self._ports.clock, lambda: self._begin(live))
            self._of[live] = (Hearsay(), alarm)
        hearsay, alarm = self._of[live]
        hearsay.heard(heard.minion, self._ports.clock.now())
        alarm.set(hearsay.next_due)

    def forget(self, live: Live) -> list[str]:
        """Look for no return of a batch any more, and return the minions that were still to be looked for."""
        if live not in self._of:
            return []
        hearsay, alarm = self._of.pop(live)
        alarm.close()
        return hearsay.minions()

    def close(self) -> None:
        """Look for nothing any more. What was heard is in the job cache, and found at the next start."""
        for live in list(self._of):
            self.forget(live)

    def _begin(self, live: Live) -> None:
        self._ports.loop.spawn_callback(self._look, live, *self._of[live])

    async def _look(self, live: Live, hearsay: Hearsay, alarm: Alarm) -> None:
        ports, began = self._ports, self._ports.clock.now()
        asked = hearsay.take(began)
        wanted = [minion for minion in asked if live.batch.wants_return(minion)]
        try:
            found = await ports.cache_worker.call(ports.cache.returned, live.jid, wanted) if wanted else {}
        except Exception as exc:
            told = None if isinstance(exc, JobCacheError) else exc
            self._quiet.error(live.jid, "Batch %s waits for the job cache: %s", live.jid, exc, exc_info=told)
            hearsay.failed(asked, ports.clock.now() + RETRY_PAUSE)
        else:
            now = ports.clock.now()
            over = found.keys() | set(asked).difference(wanted)
            doubted = hearsay.looked(asked, over, now, now - began)
            if doubted:
                self._quiet.warning(
                    live.jid,
                    "Batch %s: the bus tells of returns that the job cache does not have, which count for nothing: %s",
                    live.jid,
                    ", ".join(doubted[:5]) + (" …" if len(doubted) > 5 else ""),
                )
            if found:
                live.step(facts.LookedUp((), tuple(found.items())))
        if live in self._of:
            alarm.set(hearsay.next_due)
