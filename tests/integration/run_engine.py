"""
Run one engine against a real master, in a process of its own, with a trap in it: ``run_engine.py CONFIG ENGINE``.

The master then does not run it itself. The trap is in the environment, ``TRAP="before publish 2"``: the process kills
itself with SIGKILL right before (or after) the second call of that point. ``DROP=5`` loses every fifth return event.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import logging
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import salt.config
import salt.loader

from saltext.jobs.core.batch import store as batch_store
from saltext.jobs.core.engine import feeder, requests
from saltext.jobs.core.ledger import batches
from saltext.jobs.core.master import publisher
from saltext.jobs.core.retry import store as retry_store
from saltext.jobs.core.retry.entry import Kind


class Point(NamedTuple):
    """A function of a class; ``counts`` tells which of its calls are meant."""

    owner: Any
    name: str
    counts: Callable[..., bool] = lambda *args, **kwargs: True


def _stores(is_meant: Callable[[Any], bool]) -> Point:
    """A write of the retry queue, by the record of an entry in it."""

    def counts(_self: Any, changes: Any, *_: Any) -> bool:
        return any(key.kind is Kind.ENTRY and is_meant(changes[key]) for key in changes)

    return Point(retry_store.RetryStore, "write", counts)


#: What can be trapped in each engine.
POINTS = {
    "batch_manager": {
        "answer": Point(requests.Service, "reply"),
        "publish": Point(publisher.Publisher, "publish"),
        "end": Point(
            batch_store.BatchStore,
            "write",
            lambda _self, changes, *_: any(change.kind is batches.Kind.ENDED for change in changes),
        ),
    },
    "job_retry": {
        "answer": Point(
            retry_store.RetryStore, "write", lambda _self, _changes, durable=True, answers=None: bool(answers)
        ),
        "entry": _stores(bool),
        "claim": _stores(lambda record: bool(record) and record["state"] == "claimed"),
        "removal": _stores(lambda record: not record),
        "publish": Point(publisher.Publisher, "publish", lambda *args, **kwargs: not kwargs.get("question")),
    },
}


def set_trap(engine: str, trap: str) -> None:
    """Have this process kill itself at the given call of a point."""
    when, _, rest = trap.partition(" ")
    name, _, count = rest.rpartition(" ")
    point = POINTS[engine][name]
    calls = itertools.count(1)

    def spring(now: str, call: int) -> None:
        if now == when and call == int(count):
            os.kill(os.getpid(), signal.SIGKILL)

    def call_of(args, kwargs) -> int:
        return next(calls) if point.counts(*args, **kwargs) else 0

    def trapped(function):
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def call(*args, **kwargs):
                number_of_call = call_of(args, kwargs)
                spring("before", number_of_call)
                result = await function(*args, **kwargs)
                spring("after", number_of_call)
                return result

        else:

            @functools.wraps(function)
            def call(*args, **kwargs):
                number_of_call = call_of(args, kwargs)
                spring("before", number_of_call)
                result = function(*args, **kwargs)
                spring("after", number_of_call)
                return result

        return call

    setattr(point.owner, point.name, trapped(getattr(point.owner, point.name)))


def drop_returns(every: int) -> None:
    """Lose one return event of the batches' own jobs in so many."""
    wants, returns = feeder.Feeder.wants, itertools.count(1)

    def deaf(self, tag):
        return wants(self, tag) and not ("/ret/" in tag and next(returns) % every == 0)

    feeder.Feeder.wants = deaf


def main() -> None:
    config, name = sys.argv[1:]
    logging.basicConfig(force=True, level=logging.INFO, format="%(levelname)s %(message)s")
    opts = salt.config.master_config(config)
    opts["__role"] = "master"
    if os.environ.get("TRAP"):
        set_trap(name, os.environ["TRAP"])
    if os.environ.get("DROP"):
        drop_returns(int(os.environ["DROP"]))
    utils = salt.loader.utils(opts)
    functions = salt.loader.minion_mods(opts, utils=utils)
    engines = salt.loader.engines(opts, functions, salt.loader.runner(opts, utils=utils), utils)
    engines[f"{name}.start"]()


if __name__ == "__main__":
    main()
