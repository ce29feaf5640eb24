"""
A batch in words for people: its state in one word, why it was halted, why it does not go on, why a request changes nothing,
and why minions did not succeed.

Pure: it is handed summaries, and one return at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from saltext.jobs.core.batch.gates import HELD, PausedBy
from saltext.jobs.core.display.moments import span
from saltext.jobs.core.reasons import Reasons, text_of

#: The states of a batch that has ended.
OVER = ("complete", "halted")
#: The outcomes without success, worst first; and those that count as failures (``max_failures``).
BAD = ("failed", "timed_out", "lost", "killed", "offline", "queued")
FAILED = BAD[:3]
#: What a minion's state means, if its name does not say it.
_MEANINGS = {
    "timed_out": "ran longer than max_runtime",
    "lost": "may have run it: gave neither a return nor a sign that it runs the job",
    "killed": "by an operator",
    "offline": "not there",
    "queued": "owed by job_retry",
    "active": "sent to, or running it",
    "pending": "not sent to yet",
}
#: The same of a lost minion that is known to have begun the job.
_BEGUN = "began it, and may have ended it: gave neither a return nor a sign that it still runs the job"
#: Why a minion failed, if its return cannot be read.
_RETURN_GONE = "its return cannot be read: the minion was away, or the job cache no longer has it"

#: The words that ``word`` returns: they tell people the state of a batch.
WORDS = ("running", "paused", "waiting", "scheduled", "stopping", "halted", "unsuccessful", "succeeded")

#: Yields (minion, its return or None) for some minions.
Returns = Callable[[Iterable[str]], Iterator[tuple[str, Mapping[str, Any] | None]]]


def word(found: Mapping[str, Any]) -> str:
    """
    Return the state of a batch in one word for people. The state ``complete`` does not tell whether all went well, nor
    does ``paused`` tell whether an operator has to act; the word does.

    :param found: the summary of a batch of ours or of a native batch.
    """
    state, by = str(found["state"]), found.get("paused_by")
    if state == "running" and found.get("blocked_reason") and not found.get("active"):
        return "waiting"
    if state == "complete":
        return "succeeded" if _has_succeeded(found) else "unsuccessful"
    if state != "paused" or by is None or by in HELD:
        return state
    return "scheduled" if by == PausedBy.START else "waiting"


def meaning(record: Mapping[str, Any]) -> str:
    """Return what a minion's state means; empty if its name says it. :param record: as ``batch.minions`` has it."""
    return record.get("why") or (_BEGUN if record.get("begun") else _MEANINGS.get(record["state"], ""))


def _has_succeeded(found: Mapping[str, Any]) -> bool:
    """Return whether an ended batch has succeeded. Our summary says so; for a native batch it is worked out."""
    return bool(found.get("success", not found["halted"] and not found["failed"]))


def why_halted(found: Mapping[str, Any]) -> str:
    """Return in words why a batch was halted; empty where it was not. :param found: its summary."""
    reason, by = str(found.get("halted_reason") or ""), found.get("stopped_by")
    if reason == "stop":
        return f"stopped by {by}" if by else "stopped by batch.stop"
    more = "more minions failed than max_failures allows"
    return f"{more}{reason.removeprefix('max_failures')}" if reason.startswith("max_failures") else reason


def engine_trouble(found: Mapping[str, Any]) -> str | None:
    """Return why a batch does not go on, if that is because of its engine; else None. :param found: its summary."""
    if found.get("engine") is False:
        return "no batch_manager engine runs, so nothing goes on: see jobs_doctor.run"
    silent = found.get("engine_silent_seconds")
    return f"the engine has not answered for {span(silent)}; see jobs_doctor.run" if silent else None


def verdict(found: Mapping[str, Any]) -> tuple[bool, str]:
    """
    Return whether an ended batch has succeeded, and a sentence about it, with how many minions were left out.

    :param found: the summary of a batch of ours or of a native batch.
    """
    batch, total = f"Batch {found['jid']}", found["total"]
    if _has_succeeded(found):
        left_out = f"; {found['offline']} not there and left out" if found.get("offline") else ""
        return True, f"{batch}: {found['completed']} of {total} minions completed{left_out}"
    wrong = ", ".join(f"{found[name]} {name}" for name in (*BAD, "pending") if found.get(name))
    why = f" ({why_halted(found)})" if why_halted(found) else ""
    return False, f"{batch} is {word(found)}{why}: {wrong or 'nothing ran'} of {total} minions"


def why_not(verb: str, found: Mapping[str, Any]) -> str:
    """
    Return why a request is not carried out.

    :param verb: stop, pause, resume or approve.
    :param found: the batch's summary.
    """
    jid, state = found["jid"], found["state"]
    told = f"Batch {jid} is {word(found)}" + (f": {found['paused_reason']}" if found.get("paused_reason") else "")
    if found.get("approve") is not None and state not in OVER:
        return f"{told}; salt-run batch.approve {jid} stage={found['approve']} lets it go on"
    if verb == "stop" and state == "stopping" and found.get("active"):
        return f"{told}, and still runs on {found['active']} minions; with kill=True its job is ended there"
    return f"{told}; there is nothing to {verb}"


def failures(found: Mapping[str, Any], minions: Mapping[str, Mapping[str, Any]], returns: Returns) -> dict[str, Any]:
    """
    Return the result of ``batch.failures``.

    :param found: the summary of a batch.
    :param minions: as ``batch.minions`` returns them.
    """
    wanted = {minion: record for minion, record in minions.items() if record["state"] in BAD}
    reasons = Reasons()
    for minion, ret in returns(wanted):
        state, retcode = str(wanted[minion]["state"]), wanted[minion]["retcode"]
        without = meaning(wanted[minion]) or _RETURN_GONE
        reasons.add(minion, state, retcode, text_of(ret) if ret else without)
    return {**found, "unsuccessful": len(wanted), "groups": reasons.groups()}
