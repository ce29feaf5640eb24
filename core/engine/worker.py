"""
One thread beside an engine's loop, for calls that may block: the job cache, and all else that waits for a disk or a server.

There is only one thread, so calls need no lock and keep their order. They must never touch the engine's state.
"""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from saltext.jobs.core import compat

T = TypeVar("T")


class Worker:
    """``loop``: the engine's tornado loop, to which results return."""

    def __init__(self, loop: Any) -> None:
        self._loop = loop
        self._executor = concurrent.futures.ThreadPoolExecutor(max_workers=1)

    async def call(self, function: Callable[..., T], *args: Any) -> T:
        """Run ``function(*args)`` in the thread, after all earlier calls, and return or raise what it does."""
        result: Any = compat.Future()

        def finish(done: concurrent.futures.Future[T]) -> None:
            if result.done():
                return
            error = done.exception()
            if error is not None:
                result.set_exception(error)
            else:
                result.set_result(done.result())

        running = self._executor.submit(function, *args)
        running.add_done_callback(lambda done: self._loop.add_callback(finish, done))
        value: T = await result
        return value

    def close(self, patience: float = 1.0) -> None:
        """Drop calls that have not begun, and wait for a running one, for at most ``patience`` seconds."""
        self._executor.shutdown(wait=False, cancel_futures=True)
        waiting = threading.Thread(target=self._executor.shutdown, daemon=True)
        waiting.start()
        waiting.join(patience)
