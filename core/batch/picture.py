"""
The picture of our batches that Salt 3008 and its tools see: a state file each, and the index of active batches.

It must never be read back: the truth is in the journals. Salt 3008's manager changes the index without a lock, so all of
this is put right again and again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from saltext.jobs.core.batch.live import Live
from saltext.jobs.core.batch.ports import Ports
from saltext.jobs.core.batch.summary import native_view

log = logging.getLogger(__name__)


class Picture:
    """
    :param ports: what is worked with.
    """

    def __init__(self, ports: Ports) -> None:
        self._ports = ports

    def show(self, live: Live) -> None:
        """Write a batch's state file. :raises OSError:"""
        now = self._ports.clock.now()
        live.stamp = self._ports.store.write_native(live.jid, native_view(live.batch, now))
        live.shown_at = now

    def show_quietly(self, live: Live) -> None:
        """Write a batch's state file; where that cannot be, say so and leave it for later."""
        try:
            self.show(live)
        except OSError as exc:
            log.error("The state file of batch %s cannot be written: %s", live.jid, exc)

    def put_right(self, live: Live) -> None:
        """Write a batch's state file if somebody else has, or before Salt 3008 takes the batch for a dead one."""
        foreign = live.stamp is not None and live.stamp != self._ports.store.native_stamp(live.jid)
        spec = live.batch.spec
        patience = self._ports.patience(spec.timeout, spec.gather_job_timeout)
        if foreign or self._ports.clock.now() - live.shown_at > patience / 2:
            self.show_quietly(live)

    def converge_index(self, active: Iterable[str], closed: Iterable[str]) -> None:
        """Have ``active`` in the index and ``closed`` out of it."""
        try:
            self._ports.store.converge_index(active, closed)
        except OSError as exc:
            log.error("The index of active batches cannot be written: %s", exc)
