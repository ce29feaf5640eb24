"""
Checks the answers of minions with the executor ``job_once`` about a job (executors/job_once.py).

It must never conclude that such a minion has not begun a job because the job is not recorded.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

#: The executor's name. It is also the key of its answers and options.
NAME = "job_once"
#: Functions that the executor does not record.
_PASS = ("saltutil.", "sys.", "job_once.")
#: Seconds by which the clock of a recorded publish may be wrong.
_SKEW = 5.0
#: Part of the answer of a minion without ``cache_jobs`` that is asked for an old return.
_NO_RETURNS = "enable cache_jobs"
_STATES = frozenset({"never", "begun", "interrupted", "ended", "unknown"})


@dataclass(frozen=True)
class Record:
    """
    A minion's record of a job.

    ``state``: ``never``, ``begun``, ``interrupted``, ``ended``, or ``unknown`` if it cannot read its records.
    ``complete_for``: for how many seconds the minion has recorded every job that it began; 0 unless the state is ``never``.
    """

    state: str
    complete_for: float = 0.0

    def about(self, age: float) -> str:
        """
        Return the state of a job that was first published ``age`` seconds ago: ``unknown`` if the records do not reach
        back.
        """
        return "unknown" if self.state == "never" and self.complete_for <= age + _SKEW else self.state


def record_of(answer: Any) -> Record | None:
    """Return the record in an answer of ``saltutil.find_cached_job``; None if the executor is missing."""
    told = answer.get(NAME) if isinstance(answer, Mapping) else None
    state = told.get("state") if isinstance(told, Mapping) else None
    if not isinstance(told, Mapping) or not isinstance(state, str) or state not in _STATES:
        return None
    seconds = told.get("recorded_for")
    known = isinstance(seconds, (int, float)) and not isinstance(seconds, bool) and math.isfinite(seconds)
    return Record(state, max(0.0, float(seconds)) if known and seconds is not None else 0.0)


def keeps_nothing(answer: Any) -> bool:
    """
    Tell whether a minion says that it keeps no returns, in answer to a request for an old one. A minion with the executor or
    ``cache_jobs`` does not say so.
    """
    return isinstance(answer, str) and _NO_RETURNS in answer


def is_recorded(funs: Iterable[str], options: Any) -> bool:
    """
    Tell whether a minion that has the executor records a job.

    :param options: the options that travel with the job beside function and arguments.
    """
    given = options if isinstance(options, Mapping) else {}
    executors = given.get("module_executors")
    # An executor before job_once may run the function; Salt replaces the last one with ``sudo`` (``sudo_user``).
    if executors and not (isinstance(executors, (list, tuple)) and len(executors) > 1 and executors[0] == NAME):
        return False
    wishes = given.get("executor_opts")
    wishes = wishes.get(NAME) if isinstance(wishes, Mapping) else None
    if isinstance(wishes, Mapping) and wishes.get("question"):
        return False
    return not all(fun.startswith(_PASS) for fun in funs)


def is_return_of(fun: Any, kept: Mapping[str, Any]) -> bool:
    """
    Tell whether a minion's kept return of a jid belongs to these functions: two masters may have used the same jid.

    :param fun: a job's function, or a list of several.
    :param kept: the minion's answer.
    """
    return "fun" not in kept or _named(kept["fun"]) == _named(fun)


def _named(fun: Any) -> str:
    """Return the functions of a job as the executor's records name them."""
    return ",".join(map(str, fun)) if isinstance(fun, (list, tuple)) else str(fun)
