"""
What the engine reaches the world through. ``ports_of`` has those of a master; tests and benchmarks bring their own.
"""

from __future__ import annotations

import pathlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from saltext.jobs.core import compat
from saltext.jobs.core.disk import files
from saltext.jobs.core.disk.lease import no_fence
from saltext.jobs.core.engine.alarm import Clock
from saltext.jobs.core.engine.names import JOB_RETRY
from saltext.jobs.core.engine.requests import Inbox, engine_dir
from saltext.jobs.core.engine.worker import Worker
from saltext.jobs.core.log.checkpoints import Position
from saltext.jobs.core.log.masters import LogOfAll
from saltext.jobs.core.log.segments import folder_of
from saltext.jobs.core.master.bus import Bus
from saltext.jobs.core.master.job_cache import JobCache
from saltext.jobs.core.master.publisher import Publisher
from saltext.jobs.core.master.questions import Questions
from saltext.jobs.core.retry.checkpoint import CHECKPOINT, Checkpoint
from saltext.jobs.core.retry.owner import settle_owner
from saltext.jobs.core.retry.reader import JobReader
from saltext.jobs.core.retry.store import RetryStore


@dataclass(frozen=True)
class Ports:
    """
    ``cache`` and ``reader`` block and are used in ``cache_worker`` only, ``store`` in ``store_worker`` only.

    ``acks``: whether minions say when they begin a job. ``log``: a reader of the masters' logs from places in them on, or
    from their ends; None where the job cache keeps none. ``owner``: the name under which entries are stored. ``folder``: the
    engine's own. ``wall``: Unix time as the clock on the wall has it.
    """

    bus: Bus
    publisher: Publisher
    questions: Questions
    cache: JobCache
    reader: JobReader
    store: RetryStore
    cache_worker: Worker
    store_worker: Worker
    clock: Clock
    acks: bool
    inbox: Inbox
    checkpoint: Checkpoint
    owner: str
    folder: pathlib.Path
    log: Callable[[Mapping[str, Position]], LogOfAll] | None = None
    wall: Callable[[], float] = time.time

    @property
    def paused(self) -> pathlib.Path:
        """The file whose presence pauses the replays."""
        return self.folder / "paused"

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
    trust: bool = False,
    fence: Callable[[], None] = no_fence,
    **others: Any,
) -> Ports:
    """
    Return the ports of an engine whose state is in its folder, and whose threads are real.

    :param fence: raises OSError where this process must not act any more, or it is not known whether it may.
    :param others: bus, publisher and questions, and whatever is not to be as it is in a master.
    :raises LaterVersion: when a later version of this extension has driven the queue so far.
    """
    folder, clock = engine_dir(opts, JOB_RETRY), others.pop("clock", None) or Clock()
    files.private_dir(folder)
    made = {
        "cache": cache,
        "reader": JobReader(opts, cache, trust),
        "store": RetryStore(opts, fence=fence),
        "cache_worker": Worker(loop),
        "store_worker": Worker(loop),
        "clock": clock,
        "acks": compat.HAS_START_EVENT,
        "inbox": Inbox(opts, JOB_RETRY, fence),
        "checkpoint": Checkpoint(folder / CHECKPOINT, folder_of(opts["cachedir"], opts["id"]).parent),
        "owner": settle_owner(opts),
        "folder": folder,
    }
    return Ports(**{**made, **others})
