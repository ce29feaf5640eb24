"""
An engine's place among those of all masters: it waits for the lead, has it, and hands it over.

To hand over, the leader publishes nothing more, waits a moment for what is under way, makes durable what it knows, and gives
up the lead. The next leader takes over as after a death, with the same doubts. The request for the hand-over stays where it
is, and the next leader answers it. So an answer means that the engine is led.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from saltext.jobs.core import compat, lines
from saltext.jobs.core.engine import masters
from saltext.jobs.core.engine.requests import BEAT
from saltext.jobs.core.engine.service import Verb
from saltext.jobs.core.master import events
from saltext.jobs.core.metrics import Metric, of_lead
from saltext.jobs.core.site import Lease, Site

log = lines.logger(__name__)

#: Seconds for which a hand-over waits for what is under way; the next leader finds what takes longer.
SETTLE = 1.0
#: Seconds for which a process that has handed over leaves the lead to others.
STEP_BACK = 5.0


class Seat:
    """
    :param opts: the master's options.
    :param engine: the engine's name.
    :param site: what the masters have in common.
    :param lease: the lead, for this process.
    :param fire: puts an event on this master's bus: (tag, data).
    :param steady: returns seconds that only rise; ``wall``: Unix time.
    """

    def __init__(
        self,
        opts: Mapping[str, Any],
        engine: str,
        site: Site,
        lease: Lease,
        fire: Callable[[str, dict[str, Any]], None],
        steady: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.lease = lease
        self._opts, self._engine, self._site, self._fire = opts, engine, site, fire
        self._steady, self._wall = steady, wall
        self._master = str(opts.get("id") or "")
        self._folder = site.folder(engine)  # without the lease: a master that does not lead writes there too
        self._changes, self._epoch = masters.Changes(), 0
        self._refused_before = -1  # by former processes of this master; not known yet
        self._said_at = -math.inf
        self._is_up, self._took = True, 0.0
        #: Whether this process is handing over, or has.
        self.is_handing = False

    @property
    def refused(self) -> int:
        """How often this master's engine was kept from doing something because it did not lead, or could not tell."""
        return max(0, self._refused_before) + self.lease.refused

    def take(self) -> bool:
        """
        Take the lead if no process has it, and tell whether this process has it now; if not, say that it stands by.

        :raises OSError, StateError: as the lease does.
        """
        if not self.lease.take():
            self.say()
            return False
        with contextlib.suppress(OSError):
            self._after_taking()
        self.say(at_once=True)
        return True

    def _after_taking(self) -> None:
        before, leader = self.lease.predecessor, self.lease.leader
        changes = masters.changes_of(self._folder)
        self._changes = changes
        if before is None or leader is None or before.master == leader.master:
            return
        is_handed = changes.handed == before.epoch
        kind = "handed_over" if is_handed else "taken_over"
        if is_handed:
            log.info("The %s engine takes the lead that process %s hands over", self._engine, before)
        else:
            log.warning("The %s engine takes over from process %s", self._engine, before)
        self._changes = masters.Changes(changes.takeovers + (not is_handed), changes.hand_overs + is_handed)
        masters.count(self._site.folder(self._engine, self.lease), self._changes)
        data = {"engine": self._engine, "master": leader.master, "former": before.master, "epoch": leader.epoch}
        try:
            self._fire(events.lead_tag(self._engine, kind), data)
        except Exception as exc:  # Salt's client raises many kinds
            log.debug("The bus was not told who leads the %s engine: %s", self._engine, exc)

    def beat(self) -> None:
        """Say that this process, which leads, is alive. :raises OSError: as the lease does."""
        began = self._steady()
        try:
            self.lease.beat()
        except OSError:
            self._is_up = False
            raise
        self._is_up, self._took = True, self._steady() - began
        self.say(at_once=True)

    def say(self, at_once: bool = False, ends: bool = False) -> None:
        """Say that the engine is there, or that its process ends; unless ``at_once``, only every ``BEAT`` seconds."""
        began = self._steady()
        if not at_once and began - self._said_at < BEAT:
            return
        self._said_at = began
        try:
            if self._refused_before < 0:
                known = masters.masters_of(self._site, self._engine)
                self._refused_before = sum(master.refused for master in known if master.name == self._master)
            masters.say(self._opts, self._folder, self.refused, self._wall, ends)
            self._is_up, self._took = True, self._steady() - began
            if self.lease.leader is None:
                self._changes, leader = masters.changes_of(self._folder), self._site.leader(self._engine)
                self._epoch = leader.epoch if leader is not None else 0
        except OSError as exc:
            self._is_up = False
            log.debug("The %s engine cannot say that it is there: %s", self._engine, exc)

    def metrics(self) -> list[Metric]:
        """Return the figures of the lead."""
        leads = self.lease.leader is not None
        return of_lead(
            self._engine,
            leads=leads,
            since=(self.lease.epoch if leads else self._epoch) / 1e6,
            left=self.lease.left if leads else None,
            takeovers=self._changes.takeovers,
            hand_overs=self._changes.hand_overs,
            refused=self.refused,
            is_up=self._is_up,
            took=self._took,
        )

    # -- handing over -------------------------------------------------------------------------------------------------

    def hand_over(self, loop: Any, settle: Callable[[], Awaitable[None]]) -> Verb:
        """
        Return the verb with which an operator asks for a hand-over.

        :param loop: the engine's tornado loop, which is stopped.
        :param settle: begins nothing more, and returns when what was under way is durable.
        """

        async def verb(request: Mapping[str, Any]) -> dict[str, Any]:
            if request.get("epoch") != self.lease.epoch:  # it was asked of a former leader
                return {"master": self._master, "epoch": self.lease.epoch}
            if not self.is_handing:
                self._begin(str(request.get("user")))
                loop.call_later(SETTLE, loop.stop)
                await settle()
                loop.stop()
            never: dict[str, Any] = await compat.Future()  # the next leader answers
            return never

        return verb

    def _begin(self, user: str) -> None:
        """:raises ValueError: if no other master could take over. :raises OSError: if that cannot be told."""
        self.lease.check()
        others = masters.standing_by(self._site, self._engine, self._master)
        if not others:
            raise ValueError("no other master stands by")
        led = self._site.folder(self._engine, self.lease)
        masters.count(led, self._changes._replace(handed=self.lease.epoch))
        self.is_handing = True
        log.info("The %s engine hands over to %s, as %s wants it", self._engine, " or ".join(others), user)

    def step_back(self, seconds: float = STEP_BACK, pause: float = 0.1) -> bool:
        """After a release, wait until another process leads. Returns whether one does."""
        self.say(at_once=True, ends=True)  # until it is started anew, it could not lead
        until = self._steady() + seconds
        while self._steady() < until:
            with contextlib.suppress(OSError):
                leader = self._site.leader(self._engine)
                if leader is not None and leader.epoch != self.lease.epoch:
                    return True
            time.sleep(pause)
        return False
