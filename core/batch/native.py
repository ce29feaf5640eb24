"""
Batches of Salt 3008's own manager or its CLI as seen from outside, and what that manager is shown of ours.

Pure: it is handed the contents of their state files, after ``store.py`` has checked the form.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from saltext.jobs.core.batch.spec import Spec
from saltext.jobs.core.batch.summary import DRIVER
from saltext.jobs.core.display.command import published_words


def view(spec: Spec, created: float) -> dict[str, Any]:
    """
    Return what Salt 3008 is shown of a batch, in the form of its ``.batch.p``.

    It names no minion and says that the batch is halted. So Salt's manager, at its start or on a forged event, finds nothing
    to publish, to time out or to announce. The real state is in the journal, which our runner reads.

    :param created: Unix time.
    """
    return {
        "jid": spec.jid,
        "fun": spec.fun,
        "arg": [],
        "kwargs": {},
        "tgt": spec.tgt,
        "tgt_type": spec.tgt_type,
        "all_minions": [],
        "pending": [],
        "active": {},
        "done": {},
        "failed": {},
        "wait": [],
        "batch_size": spec.sizes[-1],
        "batch_wait": spec.batch_wait,
        "failhard": spec.failhard,
        "timeout": spec.timeout,
        "gather_job_timeout": spec.gather_job_timeout,
        "ret": spec.ret,
        "user": spec.user,
        "driver": DRIVER,
        "created": created,
        "last_progress": created,
        "halted": True,
        "halted_reason": "driven by the batch_manager engine of saltext-jobs: see salt-run batch.status",
    }


_COUNTS = {
    "total": "all_minions",
    "completed": "done",
    "active": "active",
    "pending": "pending",
    "failed": "failed",
}


def summary(state: Mapping[str, Any], now: float) -> dict[str, Any]:
    """Return the summary of a batch that Salt 3008's own manager or its CLI drives, from its state file."""
    halted, reason = bool(state.get("halted")), state.get("halted_reason")
    numbers = {name: len(state.get(key) or ()) for name, key in _COUNTS.items()}
    over = not numbers["pending"] and not numbers["active"]
    progress = state.get("last_progress")
    return {
        **{key: state.get(key) for key in ("jid", "fun", "tgt", "tgt_type")},
        "arguments": published_words(state.get("arg")),
        **numbers,
        "lost": 0,
        "offline": 0,
        "killed": 0,
        "timed_out": 0,
        "state": "halted" if halted else "complete" if over else "running",
        "batch_size": state.get("batch_size"),
        "halted": halted,
        "halted_reason": reason,
        "driver": state.get("driver"),
        "user": state.get("user"),
        "created": state.get("created"),
        "last_progress": progress,
        "age_seconds": max(0.0, now - progress) if progress else None,
    }


def minions(state: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the minions of a batch of Salt's own in the form of ``summary.minions``."""
    result: dict[str, dict[str, Any]] = {}
    for minion in state.get("pending") or ():
        result[minion] = {"state": "pending", "since": state.get("created"), "retcode": None}
    for minion, since in (state.get("active") or {}).items():
        result[minion] = {"state": "active", "since": since, "retcode": None}
    for minion, data in (state.get("done") or {}).items():
        code = data.get("retcode") if isinstance(data, Mapping) else None
        result[minion] = {"state": "failed" if code else "completed", "since": None, "retcode": code}
    for minion in state.get("failed") or {}:
        result[minion] = {"state": "failed", "since": None, "retcode": None}
    return {minion: result[minion] for minion in sorted(result)}
