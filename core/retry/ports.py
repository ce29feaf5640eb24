"""
What the engine reaches the world through. engines/job_retry.py wires the real ones; a test or a benchmark brings its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from saltext.jobs.core.engine.alarm import Clock
from saltext.jobs.core.log.checkpoints import Position
from saltext.jobs.core.log.reader import Reader
from saltext.jobs.core.master.bus import Listener
from saltext.jobs.core.master.job_cache import JobCache
from saltext.jobs.core.master.publisher import Publisher
from saltext.jobs.core.master.questions import Questions
from saltext.jobs.core.retry.reader import JobReader
from saltext.jobs.core.retry.store import RetryStore


class EventBus(Protocol):
    """A subscription to the master's event bus, as core/master/bus.py has it."""

    def listen(self, listener: Listener, on_ready: Callable[[], None]) -> None:
        """Subscribe; ``on_ready`` is called once the bus is heard."""

    def fire(self, tag: str, data: dict[str, Any]) -> None:
        """Put an event on the bus."""

    gaps: int

    @property
    def lag(self) -> float:
        """Seconds by which the loop was late at most within the last minute."""

    def close(self) -> None:
        """Unsubscribe."""


@dataclass(frozen=True)
class Ports:
    """
    ``cache`` and ``reader`` block and are used in one thread, ``store`` in another.

    ``acks``: whether minions say when they begin a job. ``wall``: Unix time as the clock on the wall has it.
    """

    bus: EventBus
    publisher: Publisher
    questions: Questions
    cache: JobCache
    reader: JobReader
    store: RetryStore
    clock: Clock
    acks: bool
    #: A reader of this master's log from a place in it on, or from its end; None where its job cache keeps none.
    log: Callable[[Position | None], Reader] | None = None
    wall: Callable[[], float] = time.time
