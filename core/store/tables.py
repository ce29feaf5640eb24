"""
What ``salt-run job_cache.*`` shows to people: one line for each job or problem.

It draws what the runner returns; programs get that unchanged. Pure: the time is the page's.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

from saltext.jobs.core.display.command import published_words
from saltext.jobs.core.display.page import ROWS, Column, Page, by_state, headline
from saltext.jobs.core.display.reasons import reasons
from saltext.jobs.core.display.text import counted

#: Most lines of names.
_NAMES = 3
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def search(found: Mapping[str, Any], page: Page) -> None:
    """Show ``job_cache.search``: all jobs that match."""
    jobs = found["jobs"]
    if not jobs:
        page.line("No job was found.")
    else:
        failed, missing = (sum(1 for job in jobs if job[name]) for name in ("Failed", "Missing"))
        page.line(
            f"{counted(len(jobs), 'job')}, newest first: {failed:,} with failures, "
            f"{missing:,} with minions that have not returned"
        )
        page.table(
            (
                Column("JID"),
                Column("FUNCTION", 11, names=False),
                Column("TARGET", 6, rank=3, names=False),
                Column("USER", 5, rank=4),
                Column("RETURNED", right=True),
                Column("FAILED", right=True, rank=1),
                Column("AGE", rank=2),
            ),
            [
                (
                    *(job["JID"], " ".join((job["Function"], *published_words(job["Arguments"])))),
                    *(_words(job["Target"]), job["User"]),
                    *(f"{job['Returned']}/{job['Minions'] or '?'}", job["Failed"], page.age(_begun(job, page))),
                )
                for job in jobs
            ],
        )
    if found.get("next"):
        page.line(f"There are more: search on with after={found['next']}")
    if jobs:
        page.next("job_cache.outcome JID", "jobs.lookup_jid")


def outcome(found: Mapping[str, Any], page: Page) -> None:
    """Show ``job_cache.outcome``: the counts, the minions that are missing or owed it, and those that failed, by reason."""
    command = " ".join((found["fun"] or "?", *found["arguments"]))
    page.line(f"{found['jid']}  {command} on {_words(found['tgt'])}, by {found['user']}", "  ", 4)
    owed, missing = found["owed"], found["missing"]
    page.line(
        f"{counted(found['minions'], 'minion')}: {found['returned']:,} returned, {found['failed']:,} of them failed; "
        f"{len(missing):,} missing, {'-' if owed is None else format(len(owed), ',')} owed it"
    )
    if missing:
        page.names(f"missing, {len(missing):,}:", missing, _NAMES)
    for state in sorted(set(owed.values())) if owed else ():
        names = [minion for minion, its in owed.items() if its == state]
        page.names(f"owed ({state}), {len(names):,}:", names, _NAMES)
    if owed is None:
        page.line("Which minions are owed it is not known: the retry queue cannot be read.")
    reasons(found["groups"], page)
    if owed:
        page.next(f"job_retry.list jid={found['jid']}", "jobs.lookup_jid")
    else:
        page.next(f"jobs.lookup_jid {found['jid']}", "job_cache.search")


def running(found: Mapping[str, Any], page: Page) -> None:
    """Show ``job_cache.running``: what runs, since when, and on how many minions."""
    jobs, silent = found["jobs"], found["silent"]
    kinds = by_state((job["kind"] for job in jobs), ("job", "batch", "replay"))
    page.line(f"{counted(len(jobs), 'job')}{': ' if kinds else ''}{kinds}; {counted(found['asked'], 'minion')} asked")
    shown = jobs[:ROWS]
    if shown:
        page.table(
            (
                Column("JID"),
                Column("KIND"),
                Column("STATE", rank=3),
                Column("ON", right=True),
                Column("SINCE", rank=1),
                Column("FUNCTION", 11, names=False),
                Column("TARGET", 6, rank=4, names=False),
                Column("USER", 5, rank=5),
            ),
            [
                (
                    *(job["jid"], job["kind"], job["state"], len(job["minions"]), page.age(job["since"])),
                    *(" ".join((job["fun"], *job["arguments"])), _words(job["tgt"]), job["user"] or "-"),
                )
                for job in shown
            ],
        )
        page.folded(len(jobs), len(shown))
    if silent:
        page.names(f"did not answer, so it is not known what they run, {len(silent):,}:", silent, _NAMES)
    for what in dict.fromkeys(job["kill"].replace(job["jid"], "JID") for job in jobs):
        page.line(f"To kill one: {what}")
    page.next("job_cache.outcome JID", "batch.list_active")


def minions(found: Mapping[str, Mapping[str, Any]], page: Page) -> None:
    """Show ``job_cache.minions``: those without a result first, then those that failed, then the others, oldest first."""
    words = {minion: one["outcome"] or "never" for minion, one in found.items()}
    order = ("never", "unreadable", "failed", "succeeded")
    if not found:
        page.line("No minion matches.")
        return
    page.line(headline(len(found), "minion", "minions", by_state(words.values(), order)))
    rows = sorted(found, key=lambda minion: (order.index(words[minion]), found[minion]["at"] or 0.0, minion))
    if rows:
        page.table(
            (
                Column("MINION", 16),
                Column("LAST"),
                Column("AGE"),
                Column("FUNCTION", 11, rank=2, names=False),
                Column("JID", rank=1),
                Column("MISSED", rank=3),
            ),
            [
                (
                    *(minion, words[minion], page.age(found[minion]["at"])),
                    " ".join((found[minion]["fun"] or "-", *(found[minion]["arguments"] or ()))),
                    *(found[minion]["jid"] or "-", found[minion]["missed"] or "-"),
                )
                for minion in rows[:ROWS]
            ],
        )
        page.folded(len(rows), ROWS)
        page.next("job_cache.outcome JID", "job_retry.list")


def _words(value: Any) -> str:
    return ",".join(str(word) for word in value) if isinstance(value, (list, tuple)) else str(value)


def _begun(job: Mapping[str, Any], page: Page) -> float | None:
    """Return when a job began, in Unix time. Salt writes ``StartTime`` as ``2026, May 16 10:11:12.131415``."""
    year, _, rest = str(job.get("StartTime")).partition(", ")
    words = rest.split()
    try:
        day = f"{int(year):04}-{_MONTHS.index(words[0]) + 1:02}-{int(words[1]):02}"
        return datetime.datetime.fromisoformat(f"{day} {words[2][:8]}").replace(tzinfo=page.jid_tz).timestamp()
    except (ValueError, IndexError, OverflowError, OSError):
        return None
