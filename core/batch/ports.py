"""
The ports of the batch_manager engine's shell: Salt, the disk, the time, and threads for everything that blocks.

It must never decide anything. ``engines/batch_manager.py`` wires it, and tests wire it with stand-ins.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any

from saltext.jobs.core.batch.permission import Permission
from saltext.jobs.core.batch.store import BatchStore
from saltext.jobs.core.engine.alarm import Clock
from saltext.jobs.core.engine.requests import Inbox
from saltext.jobs.core.engine.worker import Worker
from saltext.jobs.core.master.bus import Bus
from saltext.jobs.core.master.job_cache import JobCache
from saltext.jobs.core.master.publisher import Publisher
from saltext.jobs.core.master.questions import Questions
from saltext.jobs.core.site import Log


@dataclasses.dataclass(frozen=True)
class Ports:
    """
    * ``loop``: the engine's tornado loop. ``clock``: the time of deadlines. ``wall``: returns Unix time, as files have it.
    * ``log``: reads the logs of the masters; None if the job cache keeps none.
    * ``cache`` is used in ``cache_worker`` only; ``queue`` in ``queue_worker``; ``permission`` and ``lanes`` in
      ``rights_worker``.
    * ``runner``: calls a runner function, as ``RunnerCalls``.
    * ``queue``: sends the retry queue's engine a request; returns the answer or raises CommandExecutionError.
    * ``can_queue``: whether that engine runs.
    * ``lanes``: takes what to group by, and minions; returns the group of each, ``{minion: name}``.
    * ``master_age``: for how many seconds the master has been running.
    * ``restarted``: returns the minions of ``{minion: Unix time}`` whose processes may have started since; it blocks.
    * ``acks``: whether minions say when they begin a job.
    * ``keep``: seconds for which ended batches are kept; 0 for ever.
    * ``is_takeover``: whether the engine before this one was, or may have been, another master's, which may have ended.
    * ``history``: the history of the database that keeps the journals, as in ``facts.Recovered``; empty if they are files.
    """

    loop: Any
    clock: Clock
    wall: Callable[[], float]
    bus: Bus
    publisher: Publisher
    questions: Questions
    cache: JobCache
    log: Log | None
    store: BatchStore
    inbox: Inbox
    cache_worker: Worker
    disk_worker: Worker
    runner: Callable[[str, Sequence[str], float, Mapping[str, Any]], Awaitable[tuple[Any, bool | str]]]
    queue: Callable[[Mapping[str, Any]], Any]
    can_queue: Callable[[], bool]
    queue_worker: Worker
    permission: Permission
    lanes: Callable[[str, Sequence[str]], Mapping[str, str]]
    rights_worker: Worker
    master_age: Callable[[], float]
    restarted: Callable[[Mapping[str, float]], Collection[str]]
    acks: bool
    keep: float
    is_takeover: bool = True
    history: str = ""

    def close(self) -> None:
        """Release sockets and threads."""
        self.bus.close()
        self.publisher.close()
        self.cache_worker.close()
        self.disk_worker.close()
        self.queue_worker.close()
        self.rights_worker.close()
