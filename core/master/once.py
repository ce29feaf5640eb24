"""
Reads what minions with the executor ``job_once`` (executors/job_once.py) answer about a job, and finds out which have it.

It must never take silence for an answer, nor a missing record for proof that a job was not begun, unless the minion's
records reach back to the job's publish.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from saltext.jobs.core.functions import function_of
from saltext.jobs.core.master.caller import Caller, ask

#: The executor's name. It is also the key of its answers and options.
NAME = "job_once"
#: Functions that the executor does not record.
_PASS = ("saltutil.", "sys.", "job_once.")
#: Part of what a minion without ``cache_jobs`` answers when it is asked for an old return.
_NO_RETURNS = "enable cache_jobs"
_STATES = frozenset({"never", "begun", "interrupted", "ended", "unknown"})


class Record(NamedTuple):
    """A minion's record of a job."""

    state: str  # never, begun, interrupted, ended, or unknown if it cannot read its records
    complete_for: float = 0.0  # for how many seconds it has recorded every job that it began; 0 unless "never"
    at: float = 0.0  # Unix time by the minion's clock at which it last began the job; 0 if it has not


def record_of(answer: Any) -> Record | None:
    """Return the record in an answer of ``saltutil.find_cached_job``; None if the executor is missing."""
    told = answer.get(NAME) if isinstance(answer, Mapping) else None
    state = told.get("state") if isinstance(told, Mapping) else None
    if not isinstance(told, Mapping) or not isinstance(state, str) or state not in _STATES:
        return None
    return Record(state, _number(told.get("recorded_for")), _number(told.get("at")))


def _number(told: Any) -> float:
    """Return what a minion gives as a number that is not negative; 0 if it is none."""
    if not isinstance(told, (int, float)) or isinstance(told, bool) or not math.isfinite(told):
        return 0.0
    return max(0.0, float(told))


def keeps_nothing(answer: Any) -> bool:
    """Tell whether a minion, asked for an old return, answers that it keeps none: it has neither executor nor cache_jobs."""
    return isinstance(answer, str) and _NO_RETURNS in answer


def is_recorded(fun: Any, options: Any) -> bool:
    """Tell whether the executor records a job with these ``options`` beside its function, or functions, and arguments."""
    given = options if isinstance(options, Mapping) else {}
    executors = given.get("module_executors")
    # Not behind an executor that may run the function, nor the last one, which Salt replaces with ``sudo`` (``sudo_user``).
    if executors and not (isinstance(executors, (list, tuple)) and len(executors) > 1 and executors[0] == NAME):
        return False
    wishes = given.get("executor_opts")
    wishes = wishes.get(NAME) if isinstance(wishes, Mapping) else None
    if isinstance(wishes, Mapping) and wishes.get("question"):
        return False
    return not all(name.startswith(_PASS) for name in function_of({"fun": fun}).split(","))


def is_return_of(fun: Any, kept: Mapping[str, Any]) -> bool:
    """Tell whether a minion's kept return belongs to these functions: two masters may have used the same jid."""
    return "fun" not in kept or function_of(kept) == function_of({"fun": fun})


# -- who has it -----------------------------------------------------------------------------------------------------------

#: The outputter of the text that Salt's client returns for a minion that has not answered.
_SILENT = "no_return"

NOTHING_RUNS = "module_executors names job_once, but the minion does not have the file: nothing runs there"
LACKS = (
    "it has not been synced (saltutil.sync_executors), is not configured (module_executors), or was not restarted since"
)


def coverage(opts: Mapping[str, Any], who: Caller, tgt: Any, tgt_type: str, timeout: int) -> dict[str, Any]:
    """
    Ask minions whether they have the executor, and wait ``timeout`` seconds for answers. Blocks.

    :return: asked (the target, its type, and how many minions it matches), has (list of minions), lacks (``{minion: what is
        missing}``), keeps (those that lack it and keep what they return, ``cache_jobs``), silent (list of minions).
    :raises Refused: when ``who`` may not ask them, when the target matches no minion, or the master publishes nothing.
    """
    options = {"timeout": timeout, "full_return": True, "executor_opts": {NAME: {"question": True}}}
    # The executor adds a record to the answer. A proxy runs several functions without executors, so it is asked alone.
    matched, answers = ask(opts, who, tgt, tgt_type, "saltutil.find_cached_job", ["0"], **options)
    given = {minion: full for minion, full in answers.items() if isinstance(full, Mapping)}
    told = {minion: full.get("ret") for minion, full in given.items() if full.get("out") != _SILENT}
    lacks = {minion: lack_of(answer) for minion, answer in told.items() if minion in matched}
    return {
        "asked": {"tgt": tgt, "tgt_type": tgt_type, "minions": len(matched)},
        "has": sorted(minion for minion, lack in lacks.items() if not lack),
        "lacks": {minion: lacks[minion] for minion in sorted(lacks) if lacks[minion]},
        # If the executor is configured and missing, nothing runs on the minion, and the answer is an error text.
        "keeps": sorted(m for m in lacks if lacks[m] and not keeps_nothing(told[m]) and NAME not in str(told[m])),
        "silent": sorted(set(matched) - lacks.keys()),
    }


def lack_of(told: Any) -> str:
    """Return what a minion lacks; an empty string if it has the executor. :param told: its answer to the question."""
    if record_of(told) is not None:
        return ""
    return NOTHING_RUNS if NAME in str(told) and "not available" in str(told) else LACKS
