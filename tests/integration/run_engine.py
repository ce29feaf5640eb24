"""
Run one engine against a real master, in a process of its own, with a trap in it: ``run_engine.py CONFIG ENGINE``.

The master then does not run it itself. The trap is in the environment, ``TRAP="before publish 2"``: the process kills
itself with SIGKILL right before (or after) the second call of that point. ``DROP=5`` loses every fifth return event, and
``CLOCK=3600`` sets the clock forward by an hour while it runs.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import logging
import os
import signal
import sys
import time

import salt.config
import salt.loader

from saltext.jobs.core import batch_shell, batch_store, bus, events, journal, publisher, requests

#: What can be trapped: point -> (class, method).
POINTS = {
    "snapshot": (journal.Journal, "rewrite"),
    "append": (journal.Journal, "append"),
    "sync": (journal.Journal, "sync"),
    "publish": (publisher.Publisher, "publish"),
    "ping": (publisher.Publisher, "ping"),
    "question": (publisher.Publisher, "find_job"),
    "kill": (publisher.Publisher, "kill_job"),
    "state file": (batch_store.BatchStore, "write_native"),
    "index": (batch_store.BatchStore, "converge_index"),
    "request removal": (requests.Inbox, "_finish"),
    "announcement": (bus.Bus, "fire"),
    "end": (batch_store.BatchStore, "end"),
}


def set_trap(when: str, point: str, count: int) -> None:
    """Have this process die at the given call of a point."""
    owner, name = POINTS[point]
    method = getattr(owner, name)
    calls = itertools.count(1)

    def spring(now: str, call: int) -> None:
        if now == when and call == count:
            os.kill(os.getpid(), signal.SIGKILL)

    if inspect.iscoroutinefunction(method):

        @functools.wraps(method)
        async def trapped(*args, **kwargs):
            call = next(calls)
            spring("before", call)
            result = await method(*args, **kwargs)
            spring("after", call)
            return result

    else:

        @functools.wraps(method)
        def trapped(*args, **kwargs):
            call = next(calls)
            spring("before", call)
            result = method(*args, **kwargs)
            spring("after", call)
            return result

    setattr(owner, name, trapped)


def drop_returns(every: int) -> None:
    """Lose one return event of the batch's own job in so many."""
    handle = batch_shell.Manager._handle
    returns = itertools.count(1)

    def deaf(self, tag, data):
        fact = events.fact_of(tag, data)
        ours = isinstance(fact, events.JobReturned) and fact.jid in self.live
        if not (ours and next(returns) % every == 0):
            handle(self, tag, data)

    batch_shell.Manager._handle = deaf


def set_clock(step: float) -> None:
    """Have the clock of this process stand wrong by so many seconds, from three seconds after its start on."""
    true, begun = time.time, time.monotonic()
    time.time = lambda: true() + (step if time.monotonic() - begun > 3 else 0)


def main() -> None:
    config, name = sys.argv[1:]
    logging.basicConfig(force=True, level=logging.INFO, format="%(levelname)s %(message)s")
    opts = salt.config.master_config(config)
    opts["__role"] = "master"
    if os.environ.get("TRAP"):
        when, _, rest = os.environ["TRAP"].partition(" ")
        point, _, count = rest.rpartition(" ")
        set_trap(when, point, int(count))
    if os.environ.get("DROP"):
        drop_returns(int(os.environ["DROP"]))
    if os.environ.get("CLOCK"):
        set_clock(float(os.environ["CLOCK"]))
    utils = salt.loader.utils(opts)
    functions = salt.loader.minion_mods(opts, utils=utils)
    engines = salt.loader.engines(opts, functions, salt.loader.runner(opts, utils=utils), utils)
    engines[f"{name}.start"]()


if __name__ == "__main__":
    main()
