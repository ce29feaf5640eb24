"""
Which conditions of batches, owed jobs and engines deserve a notice, and what the notice says.

Pure: stdlib only. A notice must never contain the return of a minion or an argument of a job.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

#: The kind that is sent on request; the others are ``NOTICES`` of the options.
TEST = "test"
#: Most minions that a notice names.
NAMED = 20
#: Most characters of a text.
_LONGEST = 2000
#: Most jobs that a text describes, and most characters of a function or a reason in it.
_JOBS, _SHORT = 5, 120
#: States of minions on which a batch did not succeed, worst first.
_WRONG = ("failed", "timed_out", "lost", "killed", "offline", "queued")


@dataclass(frozen=True)
class Condition:
    """
    The state of a batch or an engine.

    :param kind: one of ``NOTICES`` of the options, or empty if there is nothing to report.
    :param text: a sentence for people.
    :param mark: distinguishes conditions of one kind, such as the number of the stage that waits for an approval.
    :param over: whether the condition is final.
    """

    kind: str = ""
    text: str = ""
    mark: str = ""
    over: bool = False

    @property
    def identity(self) -> str:
        """The text that is stored once the condition has been reported."""
        return f"{self.kind} {self.mark}".strip()


@dataclass(frozen=True)
class Seen:
    """The present state of a batch: its summary (``batch.status``) and its minions (``batch.minions``)."""

    summary: Mapping[str, Any]
    minions: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class GivenUp:
    """
    A job of the retry queue that was given up for some minions.

    :param minions: ``{minion: reason}``.
    """

    jid: str
    fun: str
    minions: Mapping[str, str]


def of_batch(found: Mapping[str, Any]) -> Condition:
    """Return the condition of a batch. :param found: its summary."""
    state, by, jid = found["state"], found.get("paused_by"), found["jid"]
    if state in ("stopping", "halted"):  # do not wait for minions in flight: they may run for long
        text = f"Batch {jid} was halted: {found['halted_reason']}. {_counted(found)}"
        return Condition("halted", text, over=state == "halted")
    if state == "complete":
        if found.get("success"):
            return Condition(text=f"Batch {jid} has succeeded. {_counted(found)}", over=True)
        return Condition("failed", f"Batch {jid} has not succeeded. {_counted(found)}", over=True)
    if by == "approval":
        return Condition("approval", f"Batch {jid} waits for an approval. {_counted(found)}", str(found.get("approve")))
    if by in ("publish", "permission"):
        return Condition("paused", f"Batch {jid} is paused: {found['paused_reason']}. {_counted(found)}", by)
    return Condition(text=f"Batch {jid} goes on. {_counted(found)}")


def of_engine(name: str, silent: float) -> Condition:
    """Return the condition of an engine. :param silent: seconds for which it has not answered; 0 if it has."""
    if silent:
        return Condition("engine", f"The {name} engine has not answered for {silent:.0f} s: it hangs or is stopped")
    return Condition(text=f"The {name} engine answers again")


def of_given_up(jobs: Sequence[GivenUp]) -> str:
    """Return the text about jobs that were given up. :param jobs: at least one."""
    told = [
        f"{one.jid} ({_cut(one.fun, _SHORT)}) for {len(one.minions)} minion{'s' if len(one.minions) > 1 else ''}: "
        f"{_cut(next(iter(one.minions.values())), _SHORT)}"
        for one in jobs[:_JOBS]
    ]
    more = f"; and {len(jobs) - _JOBS} more jobs" if len(jobs) > _JOBS else ""
    return f"Owed jobs were given up: {'; '.join(told)}{more}. salt-run job_retry.list state=dead shows all."


def _wrong(minions: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the minions of a batch on which it did not succeed, worst first."""
    states = {minion: record["state"] for minion, record in minions.items() if record.get("state") in _WRONG}
    return sorted(states, key=lambda minion: _WRONG.index(states[minion]))


def written(
    number: str,
    kind: str,
    text: str,
    at: float,
    master: str,
    seen: Seen | None = None,
    console: str = "",
    jobs: Sequence[GivenUp] = (),
) -> dict[str, Any]:
    """
    Return a notice in the form that is sent.

    :param number: the notice's id; a repeated notice has the same.
    :param at: Unix time.
    :param console: the address of the console.
    :param jobs: the jobs that were given up, for a notice about these.
    """
    found: Mapping[str, Any] = seen.summary if seen else {}
    wrong = _wrong(seen.minions) if seen else sorted({minion for one in jobs for minion in one.minions})
    page = "queue" if jobs else f"batches/{quote(str(found['jid']), safe='')}" if found.get("jid") else ""
    address = f"{console.split('#')[0]}#/{page}" if console and page else ""
    names = f" Minions: {', '.join(wrong[:NAMED])}{', …' if len(wrong) > NAMED else ''}." if wrong else ""
    return {
        "id": number,
        "kind": kind,
        "text": f"{_cut(text)}{names}{f' {address}' if address else ''}",
        "time": round(at, 3),
        "master": master,
        **{
            name: _bounded(found.get(name))
            for name in ("jid", "fun", "user", "tgt", "state", "parent")
            if found.get(name)
        },
        **({"counts": {name: found[name] for name in _COUNTS if name in found}} if found else {}),
        **({"jobs": [{"jid": one.jid, "fun": _cut(one.fun, _SHORT)} for one in jobs[:NAMED]]} if jobs else {}),
        **({"minions": wrong[:NAMED], "minions_in_all": len(wrong)} if wrong else {}),
        **({"link": address} if address else {}),
    }


def _bounded(value: Any) -> Any:
    """Return a value of a summary, and cut long lists of names: 200 notices may wait, each with such lists."""
    if isinstance(value, (list, tuple)):
        return [*value[:NAMED], *(["…"] if len(value) > NAMED else [])]
    return _cut(value) if isinstance(value, str) else value


def _cut(text: str, most: int = _LONGEST) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def plain(text: str) -> str:
    """
    Return text for a returner, without characters that are special to a shell, to YAML or to Jinja. The returner for mail
    renders subject and text with Jinja.
    """
    return _UNSAFE.sub("_", text)


_UNSAFE = re.compile(r"[^A-Za-z0-9_.,:;/#%@() -]")
_COUNTS = ("total", "completed", "active", "pending", *_WRONG)


def _counted(found: Mapping[str, Any]) -> str:
    """Return ``36 of 40 minions completed, 3 failed, 1 pending.``"""
    rest: Sequence[str] = [
        f"{found[name]} {name.replace('_', ' ')}" for name in (*_WRONG, "active", "pending") if found.get(name)
    ]
    done = f"{found['completed']} of {found['total']} minions completed"
    return f"{', '.join([done, *rest])}."
