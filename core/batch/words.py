"""
A batch in words for people: its state in one word, why it was halted, why a request changes nothing, and why minions did
not succeed.

Pure: it is handed summaries, and one return at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from saltext.jobs.core.batch.gates import HELD, PausedBy
from saltext.jobs.core.reasons import Reasons, text_of

#: The outcomes without success, worst first.
BAD = ("failed", "timed_out", "lost", "killed", "offline")
#: What a minion's state means, if its name does not say it.
MEANINGS = {
    "timed_out": "ran longer than max_runtime",
    "lost": "gave neither a return nor a sign that it runs the job",
    "killed": "by an operator",
    "offline": "not there",
    "active": "sent to, or running it",
    "pending": "not sent to yet",
}
#: The same of a lost minion that is known to have begun the job.
_BEGUN = "began the job, and gave neither a return nor a sign that it still runs it"

#: The words that ``word`` returns: they tell people the state of a batch.
WORDS = ("running", "paused", "waiting", "scheduled", "stopping", "halted", "unsuccessful", "succeeded")


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
        return "succeeded" if has_succeeded(found) else "unsuccessful"
    if state != "paused" or by is None or by in HELD:
        return state
    return "scheduled" if by == PausedBy.START else "waiting"


def meaning(record: Mapping[str, Any]) -> str:
    """Return what a minion's state means; empty if its name says it. :param record: as ``batch.minions`` has it."""
    return _BEGUN if record.get("begun") else MEANINGS.get(record["state"], "")


def has_succeeded(found: Mapping[str, Any]) -> bool:
    """Return whether an ended batch has succeeded. Our summary says so; for a native batch it is worked out."""
    return bool(found.get("success", not found["halted"] and not found["failed"]))


def why_halted(found: Mapping[str, Any]) -> str:
    """Return in words why a batch was halted; empty where it was not. :param found: its summary."""
    reason, by = str(found.get("halted_reason") or ""), found.get("stopped_by")
    if reason == "stop":
        return f"stopped by {by}" if by else "stopped by batch.stop"
    budget, _, group = reason.partition(" in group ")
    if budget == "max_failures":
        return f"more minions failed than max_failures allows{f' in group {group}' if group else ''}"
    return reason


def verdict(found: Mapping[str, Any]) -> tuple[bool, str]:
    """
    Return whether an ended batch has succeeded, and a sentence about it, with how many minions were left out.

    :param found: the summary of a batch of ours or of a native batch.
    """
    if has_succeeded(found):
        left_out = f"; {found['offline']} not there and left out" if found.get("offline") else ""
        return True, f"Batch {found['jid']}: {found['completed']} of {found['total']} minions completed{left_out}"
    names = ("failed", "lost", "timed_out", "offline", "killed", "pending")
    wrong = ", ".join(f"{found[name]} {name}" for name in names if found.get(name))
    why = why_halted(found)
    reason = f" ({why})" if why else ""
    return (
        False,
        f"Batch {found['jid']} is {word(found)}{reason}: {wrong or 'nothing ran'} of {found['total']} minions",
    )


def why_not(verb: str, found: Mapping[str, Any]) -> str:
    """
    Return why a request is not carried out.

    :param verb: stop, pause, resume or approve.
    :param found: the batch's summary.
    """
    batch, state = f"Batch {found['jid']}", found["state"]
    if state in ("complete", "halted"):
        return f"{batch} has ended ({word(found)}): there is nothing to {verb}"
    if state == "stopping":
        runs = f", and still runs on {found['active']} minions" if found.get("active") else ""
        more = "; with kill=True its job is ended there" if verb == "stop" and runs else ""
        return f"{batch} is stopped already{runs}{more}"
    if verb == "approve":
        waits = found.get("approve")
        return f"{batch} is {word(found)} and waits for " + (
            "no approval" if waits is None else f"the approval of stage={waits}, not of another one"
        )
    reason = f": {found['paused_reason']}" if found.get("paused_reason") else ""
    if verb == "pause":
        return f"{batch} is paused already{reason}"
    if verb == "resume":
        steps = f"; salt-run batch.approve {found['jid']} lets it go on" if found.get("approve") is not None else ""
        return f"{batch} is not paused by an operator: it is {word(found)}{reason}{steps}"
    return f"{batch} cannot be stopped: Salt's own manager could not be told"


#: Why a minion failed, if its return cannot be read.
_RETURN_GONE = "its return cannot be read: the minion was away, or the job cache no longer has it"
#: The fields about the batch itself in the result of ``failures``.
_ABOUT = (
    *("jid", "fun", "arguments", "tgt", "tgt_type", "user", "state", "success", "halted", "halted_reason", "driver"),
    *("total", "completed", "active", "pending", "failed", "lost", "offline", "killed", "timed_out", "handed_over"),
)

#: Yields (minion, its return or None) for some minions.
Returns = Callable[[Iterable[str]], Iterator[tuple[str, Mapping[str, Any] | None]]]


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
        reasons.add(minion, state, retcode, without if ret is None else text_of(ret))
    return {
        **{name: found[name] for name in _ABOUT if name in found},
        "unsuccessful": len(wanted),
        "groups": reasons.groups(),
    }
