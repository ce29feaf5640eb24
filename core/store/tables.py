"""
What ``salt-run job_cache.*`` shows to people: one line for each job or minion. It draws what the runner returns; programs
get that unchanged. Pure: the time is the page's.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from saltext.jobs.core.display.command import published_words
from saltext.jobs.core.display.page import FUNCTION, JID, MINION, TARGET, USER, Column, Page, Row, Table, reasons
from saltext.jobs.core.display.text import counted
from saltext.jobs.core.ids import jid_time

#: Most lines of names.
_NAMES = 3

_FOUND = (
    JID,
    FUNCTION,
    TARGET,
    USER,
    Column("RETURNED", lambda job: f"{job['Returned']}/{job['Minions'] or '?'}", right=True),
    Column("FAILED", "Failed", right=True, rank=1),
    Column("AGE", lambda job: jid_time(job["jid"]), rank=2, age=True),
)
_RUNNING = Table(
    "job",
    "jobs",
    (
        JID,
        Column("KIND", "kind"),
        Column("STATE", "state", rank=3),
        Column("ON", lambda job: len(job["minions"]), right=True),
        Column("SINCE", "since", rank=1, age=True),
        FUNCTION,
        TARGET,
        USER,
    ),
    "state",
    ("running",),
)
_MISSED = Column("MISSED", lambda row: " ".join(row[name] for name in ("missed", "missed_state") if row[name]), rank=1)
_LAST = Table(
    "minion",
    "minions",
    (MINION, Column("LAST", "last"), Column("AGE", "at", age=True), replace(FUNCTION, rank=2), JID, _MISSED),
    "last",
    ("never", "unreadable", "failed", "succeeded"),
)


def search(found: Mapping[str, Any], page: Page) -> None:
    """Show ``job_cache.search``: all jobs that match."""
    jobs = found["jobs"]
    failed, missing = (sum(1 for job in jobs if job[name]) for name in ("Failed", "Missing"))
    many = f"{counted(len(jobs), 'job')}, newest first: {failed:,} with failures"
    page.line(f"{many}, {missing:,} with minions that have not returned" if jobs else "No job was found.")
    names = {"jid": "JID", "fun": "Function", "tgt": "Target", "user": "User"}  # of other rows, and of jobs.list_jobs
    rows = [{**job, **{name: job[its] for name, its in names.items()}} for job in jobs]
    page.table(_FOUND, [{**row, "arguments": published_words(row["Arguments"])} for row in rows], len(rows))
    if found.get("next"):
        page.line(f"There are more: search on with after={found['next']}")
    if jobs:
        page.next("job_cache.outcome JID", "jobs.lookup_jid")


def outcome(found: Mapping[str, Any], page: Page) -> None:
    """Show ``job_cache.outcome``: the counts, the minions that are missing or queued, and those that failed, by reason."""
    page.head(found)
    owed, missing = found["owed"], found["missing"]
    others = collections.Counter(group["state"] for group in found["groups"] for _ in group["minions"])
    page.line(
        f"{counted(found['minions'], 'minion')}: {found['returned']:,} returned, {found['failed']:,} of them failed; "
        f"{len(missing):,} missing, {'-' if owed is None else format(len(owed), ',')} queued"
        + "".join(f", {others[state]:,} {state}" for state in sorted(others.keys() - {"failed", "returned"}))
    )
    if missing:
        page.names(f"missing, {len(missing):,}:", missing, _NAMES)
    for state in sorted(set(owed.values())) if owed else ():
        names = [minion for minion, its in owed.items() if its == state]
        page.names(f"queued ({state}), {len(names):,}:", names, _NAMES)
    reasons(found["groups"], page)
    steps = ("job_retry.list jid=", "jobs.lookup_jid") if owed else ("jobs.lookup_jid ", "job_cache.search")
    page.next(f"{steps[0]}{found['jid']}", steps[1])


def running(found: Mapping[str, Any], page: Page) -> None:
    """Show ``job_cache.running``: what runs, since when, and on how many minions."""
    jobs, silent = found["jobs"], found["silent"]
    page.listing(_RUNNING, jobs, f"; {counted(found['asked'], 'minion')} asked")
    if silent:
        page.names(f"did not answer, so it is not known what they run, {len(silent):,}:", silent, _NAMES)
    for what in dict.fromkeys(job["kill"].replace(job["jid"], "JID") for job in jobs):
        page.line(f"To kill one: {what}")
    page.next("job_cache.outcome JID", "batch.list_active")


def minions(found: Mapping[str, Row], page: Page) -> None:
    """Show ``job_cache.minions``: those without a result first, then those that failed, then the others, oldest first."""
    if not found:
        page.line("No minion matches.")
        return
    rows = [{**one, "minion": minion, "last": one["outcome"] or "never"} for minion, one in sorted(found.items())]
    page.listing(_LAST, _LAST.sorted(sorted(rows, key=lambda row: row["at"] or 0.0)))
    page.next("job_cache.outcome JID", "job_retry.list")
