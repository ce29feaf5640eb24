"""
What ``salt-run job_retry.*`` shows to people: counts with reasons, then a line for each entry. Those that need an operator
come first. It draws what the runner returns to programs, and changes none of it. Pure: the page knows the time.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from saltext.jobs.core.display.command import published_words
from saltext.jobs.core.display.page import FUNCTION, JID, MINION, STATE, Column, Page, Row, Table
from saltext.jobs.core.display.text import counted, local
from saltext.jobs.core.retry.entry import ENDED, State

#: Most reasons that are shown.
_REASONS = 8
#: What needs an operator.
_STUCK = {State.HELD.value, State.DEAD.value}
#: What goes on only if an operator queues the job again.
_OVER = {state.value for state in ENDED} - _STUCK

_ENTRIES = Table(
    "entry",
    "entries",
    (
        MINION,
        JID,
        STATE,
        FUNCTION,
        Column("TRIES", "attempts", right=True, rank=3),
        Column("QUEUED", "queued_at", rank=1, age=True),
        Column("EXPIRES", lambda one: None if State(one["state"]) in ENDED else one["expires_at"], rank=4, age=True),
    ),
    # What needs an operator comes first, then what is under way, then what waits.
    order=("held", "dead", "expired", "running", "sent", "claimed", "pending", "cancelled", "done"),
)


def entries(found: Sequence[Row], page: Page) -> None:
    """Show ``job_retry.list``."""
    if not found:
        nothing = "There is no such entry." if page.chosen else "No minion is owed a job."
        page.line(f"{nothing} A missed job is queued when its time is up.")
        page.next(f"job_cache.outcome {page.jid}", "job_retry.stats", "job_retry.doctor")
        return
    page.line(_ENTRIES.headline(found))
    reasons = collections.Counter((entry["state"], _why(entry, page)) for entry in found).most_common()
    for (state, why), number in sorted(reasons[:_REASONS], key=lambda item: _ENTRIES.rank(item[0][0])):
        if why:
            page.line(f"  {state} {number:,}: {why}", "    ", 4)
    page.folded(len(reasons), _REASONS, " reasons")
    page.gap()
    page.table(_ENTRIES.columns, _ENTRIES.sorted(found))
    states = {entry["state"] for entry in found}
    # A replay would ignore windows.
    replay = "resume" if found[0]["paused"] else "" if all(entry["waits_for"] for entry in found) else "replay MINION"
    live, stuck = states - _OVER - {State.DEAD.value}, states & _STUCK
    steps = ("retry",) if stuck else (replay,) if live else ()
    page.next("job_retry.show MINION JID", *steps, *("cancel",) * bool(live), *("purge",) * bool(stuck or not live))


def _why(entry: Row, page: Page) -> str:
    if entry.get("waits_for"):
        opens = f", opens {page.when(entry['opens_at'])}" if entry.get("opens_at") else ""
        return f"waits for {entry['waits_for']}{opens}"
    return str(entry.get("reason") or "")


def entry(found: Mapping[str, Any], page: Page) -> None:
    """Show ``job_retry.show``: what is known of an entry, and its history."""
    minion, jid, state = found["minion"], found["jid"], found["state"]
    page.line(f"{minion}  {jid}  {state}  {found['fun']}", "  ")
    told = {**found, "arg": published_words(found.get("arg"))}
    page.facts(told, "minion", "jid", "state", "fun", "history", "paused")
    page.gap()
    at = Column("AT", lambda step: local(step["at"], page.tz))
    page.table((at, STATE, Column("REASON", "reason", 20, names=False)), found.get("history") or ())
    first = "job_retry.resume" if found.get("paused") else f"job_retry.replay {minion}"
    may_have_run = found.get("last_sent_at") or any(step["state"] == "running" for step in found.get("history") or ())
    again = () if may_have_run else (f"job_retry.enqueue {jid} minions={minion}",)  # there it would run twice
    steps = {
        State.HELD.value: (retry := f"job_retry.retry minion={minion} jid={jid}", "job_retry.cancel"),
        State.DEAD.value: (retry, "job_retry.purge state=dead"),
        State.PENDING.value: (first, "job_retry.cancel"),
        **dict.fromkeys(_OVER, (*again, "job_retry.list")),
    }
    page.next(*steps.get("cancelled" if state in _STUCK and "ended_at" in found else state, ("job_retry.list",)))


def coverage(found: Mapping[str, Any], page: Page) -> None:
    """Show ``job_retry.coverage``, with the minions by what they lack."""
    told = found["lacks"]
    page.facts({**found, "lacks": {what: [name for name in told if told[name] == what] for what in {*told.values()}}})


def _told(says: str, none: str = "No entry is in these states.") -> Callable[[int | None, Page], None]:
    other = {None: "The engine does not run: it takes the request when it starts.", 0: none}
    return lambda count, page: page.line(other.get(count) or f"{counted(count or 0, 'entry', 'entries')} {says}")


_ASKED = "the minions are asked first, and get the jobs if they answer"
_AGAIN = f"{_ASKED}; one that has begun the job runs it again"
#: What shows the answers that are a number of entries, by verb.
ANSWERS = {
    "enqueue": _told(
        f"queued: {_AGAIN}",
        "Nothing is queued anew: each minion has returned the job or is owed it already.",
    ),
    "replay": _told(f"waiting: {_ASKED}"),
    "retry": _told(f"tried again: {_AGAIN}"),
    "cancel": _told("cancelled"),
    "purge": _told("forgotten"),
}
