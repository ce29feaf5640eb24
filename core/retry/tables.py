"""
What ``salt-run job_retry.*`` shows to people: counts with reasons, then a line for each entry. Those that need an operator
come first.

It draws what the runner returns to programs, and changes none of it. Pure: the page knows the time.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from typing import Any

from saltext.jobs.core.display import moments
from saltext.jobs.core.display.page import ROWS, Column, Page, by_state
from saltext.jobs.core.display.text import counted, target
from saltext.jobs.core.retry.entry import State

#: What needs an operator comes first, then what is under way, then what waits.
_ORDER = tuple(
    state.value
    for state in (
        *(State.HELD, State.DEAD, State.EXPIRED, State.RUNNING, State.SENT, State.CLAIMED),
        *(State.PENDING, State.CANCELLED, State.DONE),
    )
)
#: Most reasons that are shown for one state.
_REASONS = 3

_COLUMNS = (
    Column("MINION", 16),
    Column("JID"),
    Column("STATE"),
    Column("FUNCTION", 11, rank=2),
    Column("TRIES", right=True, rank=3),
    Column("QUEUED", rank=1),
    Column("EXPIRES", rank=4),
)


def entries(found: Sequence[Mapping[str, Any]], page: Page) -> None:
    """Show ``job_retry.list``."""
    if not found:
        page.line("No such entry: no minion is owed a job.")
        page.next("job_retry.stats", "job_retry.doctor")
        return
    jobs, minions = {entry["jid"] for entry in found}, {entry["minion"] for entry in found}
    page.line(
        f"{counted(len(found), 'entry', 'entries')}: {counted(len(jobs), 'job')}, {counted(len(minions), 'minion')}"
    )
    _states(found, page)
    page.gap()
    rows = sorted(found, key=lambda entry: _rank(entry["state"]))[:ROWS]
    page.table(
        _COLUMNS,
        [
            (
                *(entry["minion"], entry["jid"], entry["state"], entry["fun"], entry["attempts"]),
                *(page.age(entry["queued_at"]), page.age(entry["expires_at"])),
            )
            for entry in rows
        ],
    )
    left = collections.Counter(entry["state"] for entry in found)
    left.subtract(entry["state"] for entry in rows)
    page.folded(len(found), len(rows), f" ({by_state(left.elements(), _ORDER)})")
    page.next("job_retry.show MINION JID", *_steps({entry["state"] for entry in found}))


def _steps(states: set[str]) -> list[str]:
    if states & {State.HELD.value, State.DEAD.value}:
        return ["job_retry.retry", "job_retry.cancel", "job_retry.purge"]
    return ["job_retry.replay MINION", "job_retry.cancel"]


def _states(found: Sequence[Mapping[str, Any]], page: Page) -> None:
    """Say how many are in each state, and why."""
    reasons = collections.defaultdict[str, collections.Counter[str]](collections.Counter)
    for entry in found:
        reasons[entry["state"]][_why(entry, page)] += 1
    for state in sorted(reasons, key=_rank):
        told = reasons[state].most_common(_REASONS)
        many = len(reasons[state]) > 1
        texts = [f"{why} ({number:,})" if many and why else why for why, number in told]
        rest = len(reasons[state]) - len(told)
        texts += [f"{counted(rest, 'other reason')}"] if rest > 0 else []
        why = "; ".join(text for text in texts if text)
        page.line(f"  {state} {reasons[state].total():,}" + (f": {why}" if why else ""), "    ", 6)


def _why(entry: Mapping[str, Any], page: Page) -> str:
    if entry.get("waits_for"):
        opens = f", opens {page.when(entry['opens_at'])}" if entry.get("opens_at") else ""
        return f"waits for {entry['waits_for']}{opens}"
    return str(entry.get("reason") or "")


def _rank(state: str) -> int:
    return _ORDER.index(state) if state in _ORDER else len(_ORDER)


def entry(found: Mapping[str, Any], page: Page) -> None:
    """Show ``job_retry.show``."""
    minion, jid = found["minion"], found["jid"]
    page.line(f"{minion}  {jid}  {found['state']}  {found['fun']}", "  ")
    why = _why(found, page)
    told = {
        "why": why or None,
        "arguments": found.get("arg") or None,
        "target": f"{found.get('tgt')} ({found.get('tgt_type')})",
        "published": f"{page.when(found.get('published_at'))} by {found.get('user')}",
        "queued": page.when(found["queued_at"]) + (f" by {found['asked_for_by']}" if found.get("asked_for_by") else ""),
        "expires": page.when(found["expires_at"]),
        "last sent": page.when(found["last_sent_at"]) if found.get("last_sent_at") else None,
        "not before": page.when(found["not_before"]) if found.get("not_before") else None,
        "tries": f"{found['attempts']}; {found.get('unreceived_tries')} more that the minion did not confirm",
        "returner": found.get("ret") or None,
        "metadata": found.get("metadata") or None,
    }
    for name, value in told.items():
        if value is not None:
            page.line(f"  {name}: {value}", "    ", 6)
    page.gap()
    page.table(
        (Column("AT"), Column("STATE"), Column("REASON", 20, names=False)),
        [(moments.local(step["at"], page.tz), step["state"], step["reason"]) for step in found.get("history") or ()],
    )
    page.next(*_steps_of(minion, jid, found["state"]))


def _steps_of(minion: str, jid: str, state: str) -> list[str]:
    if state in (State.HELD.value, State.DEAD.value):
        return [f"job_retry.retry minion={minion} jid={jid}", "cancel"]
    if state == State.PENDING.value:
        return [f"job_retry.replay {minion}", "cancel"]
    return ["job_retry.list"]


def coverage(found: Mapping[str, Any], page: Page) -> None:
    """Show ``job_retry.coverage``: who has the executor, and what others lack."""
    asked, has, lacks, silent = found["asked"], found["has"], found["lacks"], found["silent"]
    asked_line = f"{counted(asked['minions'], 'minion')} asked ({target(asked['tgt'], asked['tgt_type'])})"
    page.line(f"{asked_line}: {len(has):,} have job_once, {len(lacks):,} do not")
    reasons = collections.defaultdict[str, list[str]](list)
    for minion, what in lacks.items():
        reasons[str(what)].append(minion)
    for what, minions in sorted(reasons.items(), key=lambda item: -len(item[1]))[:ROWS]:
        page.names(f"lacks it ({what}), {len(minions):,}:", minions, 6)
    for name, minions in (("said nothing", silent), ("has it", has)):
        if minions:
            page.names(f"{name}, {len(minions):,}:", minions, 2)
