"""
The ports of the engine to the world. ``ports_of`` makes those of a master; tests and benchmarks bring their own.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from saltext.jobs.core import compat
from saltext.jobs.core.boot import since_boot
from saltext.jobs.core.disk.lease import Lease
from saltext.jobs.core.engine.alarm import Clock
from saltext.jobs.core.engine.names import JOB_RETRY
from saltext.jobs.core.engine.requests import Inbox
from saltext.jobs.core.engine.returns import Returns
from saltext.jobs.core.engine.worker import Worker
from saltext.jobs.core.ledger.log import Position
from saltext.jobs.core.master.bus import Bus
from saltext.jobs.core.master.job_cache import JobCache
from saltext.jobs.core.master.publisher import Publisher
from saltext.jobs.core.master.questions import Questions
from saltext.jobs.core.retry.reader import JobReader
from saltext.jobs.core.retry.store import RetryStore
from saltext.jobs.core.site import Log, site_of


@dataclass(frozen=True)
class Ports:
    """
    ``cache`` and ``reader`` block and are used in ``cache_worker`` only, ``store`` in ``store_worker`` only.

    ``acks``: whether minions say when they begin a job. ``log``: makes a reader of the masters' logs that begins at the
    given places. ``wall``: returns Unix time by the wall clock. ``restart``: ends the engine's process, which
    Salt starts anew.
    """

    bus: Bus
    publisher: Publisher
    questions: Questions
    cache: JobCache
    returns: Returns
    reader: JobReader
    store: RetryStore
    cache_worker: Worker
    store_worker: Worker
    clock: Clock
    acks: bool
    inbox: Inbox
    log: Callable[[Position | None], Log]
    wall: Callable[[], float] = time.time
    restart: Callable[[], object] = sys.exit

    def close(self) -> None:
        """Release sockets and threads."""
        self.bus.close()
        self.publisher.close()
        self.cache_worker.close()
        self.store_worker.close()


def ports_of(
    opts: Mapping[str, Any],
    loop: Any,
    cache: JobCache,
    lease: Lease | None = None,
    **others: Any,
) -> Ports:
    """
    Return the ports of an engine whose threads are real.

    :param lease: the lease of the engine's process; None if no other can lead.
    :param others: bus, publisher and questions, and any port that is to replace one made here.
    """
    site = site_of(opts)
    returns = Returns(site.tables, cache)
    made = {
        "cache": cache,
        "returns": returns,
        "reader": JobReader(opts, returns),
        "store": RetryStore(site.tables, lease),
        "cache_worker": Worker(loop),
        "store_worker": Worker(loop),
        "clock": Clock(steady=since_boot),
        "acks": compat.HAS_START_EVENT,
        "inbox": Inbox(opts, JOB_RETRY, lease),
        "log": site.log,
    }
    return Ports(**{**made, **others})
