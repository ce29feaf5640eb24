"""
Run one engine against a real master, in a process of its own, with a trap in it: ``run_engine.py CONFIG ENGINE``.

The master then does not run it itself. The trap is in the environment, ``TRAP="before publish 2"``: the process kills
itself with SIGKILL right before (or after) the second call of that point. ``STOP`` is the same with SIGSTOP: the process
stands still there until it gets SIGCONT. ``DROP=5`` loses every fifth return event.
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
from saltext.jobs.core.ledger import folder
from saltext.jobs.core.master import bus, publisher, questions
from saltext.jobs.core.retry import checkpoint
from saltext.jobs.core.retry import reader as retry_jobs
from saltext.jobs.core.retry import store as retry_store
from saltext.jobs.core.retry.entry import Kind


class Point(NamedTuple):
    """Functions of a class or a module, by their names; ``counts`` tells which of their calls are meant."""

    owner: Any
    name: str
    counts: Callable[..., bool] = lambda *args, **kwargs: True


def _stored(kind: Kind, is_meant: Callable[[Any], bool]) -> Point:
    """A write of the retry queue, by a record in it."""
    return Point(
        retry_store.RetryStore,
        "write",
        lambda _self, changes, *_args: any(key.kind is kind and is_meant(changes[key]) for key in changes),
    )


def _question(function: str) -> Point:
    """What the batch manager asks minions by a function."""
    return Point(
        publisher.Publisher, "publish", lambda _self, fun, *_args, **given: given.get("question") and fun == function
    )


#: What can be trapped in each engine.
POINTS = {
    "batch_manager": {
        "snapshot": Point(folder.Journal, "finish_rewrite"),
        "append": Point(folder.Journal, "append"),
        "sync": Point(folder.Journal, "sync"),
        "publish": Point(publisher.Publisher, "publish"),
        "ping": _question("test.ping"),
        "question": _question("saltutil.find_job"),
        "kill": Point(publisher.Publisher, "kill_job"),
        "state file": Point(batch_store.BatchStore, "write_native"),
        "request removal": Point(requests.Inbox, "answer"),
        "queueing": Point(requests, "ask"),  # the retry queue is asked for nothing else
        "announcement": Point(bus.Bus, "fire", lambda self, tag, data: tag.startswith("salt/batch/")),
        "end": Point(batch_store.BatchStore, "end"),
    },
    "job_retry": {
        "reading": Point(retry_jobs.JobReader, "read"),
        "look": Point(retry_jobs.JobReader, "look_up"),
        # Minions are asked about one job, or at once about all of theirs.
        "question": Point(questions.Questions, "find_either find_running"),
        "snapshot": _stored(Kind.JOB, bool),
        "entry": _stored(Kind.ENTRY, bool),
        "claim": _stored(Kind.ENTRY, lambda record: bool(record) and record["state"] == "claimed"),
        "entry removal": _stored(Kind.ENTRY, lambda record: not record),
        "publish": Point(publisher.Publisher, "publish", lambda *args, **kwargs: not kwargs.get("question")),
        "checkpoint": Point(checkpoint.Checkpoint, "write"),
        "request removal": Point(requests.Inbox, "answer"),
        "announcement": Point(bus.Bus, "fire", lambda self, tag, data: tag.startswith("salt/job_retry/")),
    },
}


def set_trap(engine: str, trap: str, number: int) -> None:
    """Have this process send itself a signal at the given call of a point."""
    when, _, rest = trap.partition(" ")
    name, _, count = rest.rpartition(" ")
    point = POINTS[engine][name]
    calls = itertools.count(1)

    def spring(now: str, call: int) -> None:
        if now == when and call == int(count):
            os.kill(os.getpid(), number)

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

    for each in point.name.split():
        setattr(point.owner, each, trapped(getattr(point.owner, each)))


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
    for variable, number in (("TRAP", signal.SIGKILL), ("STOP", signal.SIGSTOP)):
        if os.environ.get(variable):
            set_trap(name, os.environ[variable], number)
    if os.environ.get("DROP"):
        drop_returns(int(os.environ["DROP"]))
    utils = salt.loader.utils(opts)
    functions = salt.loader.minion_mods(opts, utils=utils)
    engines = salt.loader.engines(opts, functions, salt.loader.runner(opts, utils=utils), utils)
    engines[f"{name}.start"]()


if __name__ == "__main__":
    main()
