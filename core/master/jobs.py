"""
What the runner ``job_cache`` tells of jobs beyond their records: what became of a job (which minions have returned,
have failed and why, are missing, or are owed it), and what runs at this moment, as each minion says of itself. Blocks.

It must never take a minion's silence for an answer.
"""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from saltext.jobs.core.display.command import published_words
from saltext.jobs.core.functions import LOOKING, function_of, kind_of, retcode_of
from saltext.jobs.core.ids import is_plain, jid_time
from saltext.jobs.core.master.caller import Caller, ask, require_no_peer
from saltext.jobs.core.master.job_cache import JobCache
from saltext.jobs.core.reasons import Reasons, text_of

# -- what became of one -------------------------------------------------------------------------------------------------

#: The reason for a minion whose return exists, but cannot be read.
UNREADABLE = "its return cannot be read: see the master's log"


def minions_of(load: Mapping[str, Any]) -> list[str]:
    """Return the minions that a job was for, as far as its load tells."""
    found = load.get("Minions")
    return [name for name in found if isinstance(name, str)] if isinstance(found, (list, tuple)) else []


def outcome(
    cache: JobCache,
    jid: str,
    load: Mapping[str, Any],
    owed: Mapping[str, str] | None,
    ended: Mapping[str, tuple[str, str]],
) -> dict[str, Any]:
    """
    Return the result of ``job_cache.outcome``. All returns are read, a few at a time.

    :param owed: the states of the job's entries in the retry queue, by minion; None if it cannot be read.
    :param ended: of a batch, how its job has ended on minions without success: the state, and what that means.
    :raises JobCacheError: if the cache cannot be read.
    """
    minions = minions_of(load)
    reasons, silent, failed = Reasons(), list[str](), 0
    for minion, ret in cache.each_return(jid, minions):
        if ret is None:
            silent.append(minion)
        elif not ret:
            reasons.add(minion, "returned", None, UNREADABLE)
        elif code := retcode_of(ret):
            failed += 1
            reasons.add(minion, "failed", code, text_of(ret))
    missing = [minion for minion in silent if minion not in (owed or {})]
    for minion in ended.keys() & missing:
        state, meaning = ended[minion]
        reasons.add(minion, state, None, meaning)
    return {
        "jid": jid,
        "fun": function_of(load),
        "arguments": published_words(load.get("arg")),
        "tgt": load.get("tgt"),
        "tgt_type": load.get("tgt_type"),
        "user": load.get("user"),
        "minions": len(minions),
        "returned": len(minions) - len(silent),
        "failed": failed,
        "missing": sorted(set(missing) - ended.keys()),
        "owed": None if owed is None else {minion: owed[minion] for minion in sorted(silent) if minion in owed},
        "groups": reasons.groups(),
    }


# -- what runs now ------------------------------------------------------------------------------------------------------

#: Most jobs of one minion that are shown.
_MOST = 200
#: ``{jid: fields}``: what else is known of jobs, which replaces what minions say.
Known = Mapping[str, Mapping[str, Any]]


def ask_what_runs(
    opts: Mapping[str, Any], who: Caller, tgt: Any, tgt_type: str, timeout: float
) -> tuple[dict[str, Any], list[str]]:
    """
    Ask minions what they run. Return ({minion: answer}, minions that did not answer within ``timeout`` seconds). Blocks.

    :raises Refused: when ``who`` may not ask them, when the target matches no minion, or the master publishes nothing.
    """
    require_no_peer(who)
    matched, answers = ask(opts, who, tgt, tgt_type, "saltutil.running", timeout=timeout)
    given = {minion: answers[minion] for minion in matched if isinstance(answers.get(minion), list)}
    return given, sorted(set(matched) - given.keys())


def running(answers: Mapping[str, Iterable[Any]], batches: Known, replays: Known) -> list[dict[str, Any]]:
    """
    Return what runs, a dict for each job; the one on most minions comes first. See ``job_cache.running``. If minions name
    different functions or arguments under one jid, each of these gets a row, so one answer changes nothing of another.

    :param answers: what each minion says. Questions, and what does not have the form of a job, are skipped.
    :param batches: the batches that have not ended: each has a row, even if no minion runs it at this moment.
    :param replays: what the retry queue has under way.
    """
    found: dict[tuple[Any, ...], dict[str, Any]] = {
        (jid,): {"jid": jid, "kind": "batch", **about, "minions": [], "kill": f"salt-run batch.stop {jid} kill=True"}
        for jid, about in batches.items()
    }
    for minion, jobs in answers.items():
        for job in itertools.islice(jobs, _MOST):
            if not isinstance(job, Mapping):
                continue
            jid, fun = job.get("jid"), function_of(job)
            if not isinstance(jid, str) or not is_plain(jid) or not fun or kind_of(fun) == LOOKING:
                continue
            said = {**_said(jid, fun, job), **replays.get(jid, {})}
            row = found.setdefault((jid,) if jid in batches else (jid, said["fun"], *said["arguments"]), said)
            if minion not in row["minions"][-1:]:
                row["minions"].append(minion)
    for row in found.values():
        row["minions"].sort()
    return sorted(found.values(), key=lambda row: (-len(row["minions"]), row["jid"]))


def _said(jid: str, fun: str, job: Mapping[str, Any]) -> dict[str, Any]:
    tgt = job.get("tgt")
    told = {name: value if isinstance(value := job.get(name), str) else None for name in ("tgt_type", "user")}
    return {
        "jid": jid,
        "kind": "job",
        "fun": fun,
        "arguments": published_words(job.get("arg")),
        "tgt": tgt if isinstance(tgt, (str, list)) else None,
        **told,
        "state": "running",
        "since": jid_time(jid),
        "minions": [],
        "kill": f"salt '*' saltutil.kill_job {shlex.quote(jid)}",
    }
