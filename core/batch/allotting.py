"""
Divides minions among batches (``max_in_flight``, ``exclusive``): tells ``sharing.py`` what happens, reads the groups of
minions, and hands batches what they are allotted. It holds no policy: ``sharing.py`` decides who gets what, and when.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable
from typing import Any

from saltext.jobs.core import lines
from saltext.jobs.core.batch.live import Live
from saltext.jobs.core.batch.ports import Ports
from saltext.jobs.core.batch.sharing import Sharing
from saltext.jobs.core.settings import BatchSettings

log = lines.logger(__name__)

#: Seconds before a failed read of minions' groups is repeated.
RETRY_PAUSE = 5.0
#: Shortest pause in seconds between two checks of whether freed slots have been gathered for long enough.
_LOOK_AGAIN = 0.05


class Allotting:
    """
    :param ports: the ports to the world.
    :param settings: the engine's options.
    :param live: returns the batch of a jid; None if there is none, or if it has ended.
    :param sharing: decides who gets what.
    """

    def __init__(
        self,
        ports: Ports,
        settings: BatchSettings,
        live: Callable[[str], Live | None],
        sharing: type[Sharing] = Sharing,
    ) -> None:
        self._ports, self._live = ports, live
        self.sharing = sharing(settings.max_in_flight, settings.publish_window)
        self._timer: Any = None
        self._unread = collections.deque[Live]()  # batches whose minions' groups are to be read
        self._reading = False
        self._told: set[str] = set()  # jids of batches whose wait for their groups was logged

    def enter(self, live: Live, others: Iterable[Live]) -> None:
        """Take in a batch. The first one that shares brings in the ``others``, all batches that have not ended."""
        shares = self.sharing.is_shared(live.batch)
        if shares and not self.sharing.active:
            for other in others:
                self._enter(other)
        if shares or self.sharing.active:
            self._enter(live)

    def _enter(self, live: Live) -> None:
        self.sharing.enter(live.batch)
        if self.sharing.limit.by:
            self._read_lanes(live)

    def _read_lanes(self, live: Live) -> None:
        self._unread.append(live)
        if not self._reading:
            self._reading = True
            self._ports.loop.spawn_callback(self._find_lanes)

    async def _find_lanes(self) -> None:
        """
        Read the groups of batches' minions. A batch sends to no minion before that. What is read for one batch counts
        for all that wait with it, so an engine that starts with many batches reads each minion's data once.
        """
        lanes: dict[str, str] = {}
        while self._unread:
            live = self._unread.popleft()
            minions = live.batch.spec.minions
            missing = [minion for minion in minions if minion not in lanes]
            try:
                if missing and not live.gone:
                    lanes.update(
                        await self._ports.rights_worker.call(self._ports.lanes, self.sharing.limit.by, missing)
                    )
            except Exception as exc:  # a driver, or a matcher of Salt's, may raise anything
                if live.jid not in self._told:
                    log.error("Batch %s waits, since the groups of its minions cannot be read: %s", live.jid, exc)
                self._told.add(live.jid)
                self._ports.loop.call_later(RETRY_PAUSE, self._read_lanes, live)
                continue
            self._told.discard(live.jid)
            if not live.gone:
                self.sharing.know(live.jid, {minion: lanes[minion] for minion in minions})
                self._plan()
        self._reading = False

    def note_completeness(self, complete: bool) -> None:
        """Note whether all batches that have not ended were taken in. Until they are, nothing is allotted."""
        self.sharing.note_completeness(complete)
        self._plan()

    def leave(self, jid: str) -> None:
        """A batch has ended."""
        if self.sharing.active:
            self.sharing.leave(jid)
            self._plan()

    def stepped(self, live: Live) -> None:
        """A batch has taken a fact."""
        if self.sharing.active:
            self.sharing.stepped(live.batch, self._ports.clock.now())
            self._plan()

    def close(self) -> None:
        """Stop allotting."""
        self._stop()

    def _plan(self) -> None:
        """Set the time of the next allotment, if it would tell a batch anything new."""
        if self._timer is not None and not self.sharing.urgent:
            return
        wait = self.sharing.wait(self._ports.clock.now())
        if wait is not None:
            self._stop()
            self._timer = self._ports.loop.call_later(wait, self._look)

    def _look(self) -> None:
        self._timer = None
        wait = self.sharing.wait(self._ports.clock.now())
        if wait:
            self._timer = self._ports.loop.call_later(max(wait / 2, _LOOK_AGAIN), self._look)
        elif wait is not None:
            self._allot()

    def _allot(self) -> None:
        for jid, fact in self.sharing.round():
            live = self._live(jid)
            if live is not None:
                live.step(fact)
        self._plan()

    def _stop(self) -> None:
        if self._timer is not None:
            self._ports.loop.remove_timeout(self._timer)
            self._timer = None
