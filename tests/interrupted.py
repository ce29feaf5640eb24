"""Ctrl-C, pressed in a process of its own: one that comes a moment too early or too late must not end pytest."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from typing import Any

from tests.waiting import stretched, wait_for

FORK = multiprocessing.get_context("fork")


def interrupted(work: Callable[[], Any], ready: Callable[[], Any]) -> str:
    """
    Run ``work()`` in a forked process, and press Ctrl-C there once ``ready()`` is true here.

    :returns: what it raised, with the name of its class, or the text of what it returned.
    """
    answers = FORK.SimpleQueue()

    def run() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a suite in the background may ignore it
        try:
            answers.put(str(work()))
        except BaseException as exc:
            answers.put(f"{type(exc).__name__}: {exc}")

    process = FORK.Process(target=run)
    process.start()
    try:
        wait_for(ready, what="the moment for Ctrl-C has come")
        os.kill(process.pid, signal.SIGINT)
        process.join(stretched(60))
        assert process.exitcode == 0
        return answers.get()
    finally:
        process.kill()
        process.join()
