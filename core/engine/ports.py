"""
Through what an engine reaches the world: Salt, the disk, the time, and threads for all that blocks. Each wing adds its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from saltext.jobs.core.engine.loop import Clock, Worker
from saltext.jobs.core.engine.proof import Returns
from saltext.jobs.core.engine.requests import Service
from saltext.jobs.core.master.bus import Bus
from saltext.jobs.core.master.job_cache import JobCache
from saltext.jobs.core.master.publisher import Publisher
from saltext.jobs.core.master.questions import Questions


@dataclass(frozen=True, kw_only=True)
class EnginePorts:
    """``cache`` and ``returns`` are used in ``cache_worker`` only, the engine's store in ``disk_worker``."""

    loop: Any  # the engine's tornado loop
    clock: Clock  # of deadlines
    wall: Callable[[], float]  # returns Unix time, as files have it
    bus: Bus
    publisher: Publisher
    questions: Questions
    cache: JobCache
    returns: Returns
    service: Service
    cache_worker: Worker
    disk_worker: Worker
    acks: bool  # minions say when they begin a job

    def close(self) -> None:
        for port in (self.service, self.bus, self.publisher, self.cache_worker, self.disk_worker):
            port.close()
