"""
What ``salt-run job_recorder.*`` shows to people: a line for each returner, or for each record that was set aside.

It draws what the runner returns; programs get that unchanged. Pure: the time is the page's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from saltext.jobs.core.display import moments
from saltext.jobs.core.display.page import ROWS, Column, Page
from saltext.jobs.core.display.text import counted

_UNITS = ("B", "kB", "MB", "GB", "TB")


def stats(found: Mapping[str, Any], page: Page) -> None:
    """Show ``job_recorder.stats``."""
    returners: Mapping[str, Mapping[str, Any]] = found["returners"]
    page.line(
        f"{counted(found['recorded'], 'return')} and {counted(found['events'], 'event')} taken in since the engine started; "
        f"{found['found_in_job_cache']:,} found in the job cache; spool {_size(found['spool_bytes'])}"
    )
    wrong = {
        "not written yet": found["unwritten"],
        "events dropped": found["events_dropped"],
        "gaps on the bus": found["bus_gaps"],
        "seconds that the engine was late": found["loop_lag"] if found["loop_lag"] >= 1 else 0,
    }
    if any(wrong.values()):
        page.line("; ".join(f"{name}: {value}" for name, value in wrong.items() if value))
    page.table(
        (
            Column("RETURNER", 8),
            Column("DELIVERED", right=True),
            Column("QUEUED", right=True),
            Column("LAG", rank=1),
            Column("DROPPED", right=True, rank=2),
            Column("REFUSED", right=True, rank=4),
            Column("SET ASIDE", right=True, rank=3),
        ),
        [
            (
                *(name, one["delivered"], one["queued"], moments.span(one["lag"])),
                *(one["dropped"], one["refused"], one["set_aside"]),
            )
            for name, one in returners.items()
        ],
    )
    for name, one in returners.items():
        if one.get("trouble"):
            page.line(f"{name}: {one['trouble']}", "  ", 4)
    if any(one["set_aside"] for one in returners.values()):
        page.next("job_recorder.set_aside", "job_recorder.redeliver")
    else:
        page.next("job_recorder.doctor")


def set_aside(found: Mapping[str, Sequence[Mapping[str, Any]]], page: Page) -> None:
    """Show ``job_recorder.set_aside``: the newest of each returner."""
    if not any(found.values()):
        page.line("Nothing was set aside.")
        return
    for name, records in found.items():
        page.gap()
        page.line(f"{name}: {counted(len(records), 'record')}")
        shown = records[-ROWS:]
        page.table(
            (
                Column("NAME", 12),
                Column("KIND", rank=2),
                Column("WHAT", 12),
                Column("AGE", rank=1),
                Column("REASON", 10, rank=3, names=False),
            ),
            [
                (record["name"], record["kind"], _what(record), page.age(record["time"]), record["reason"])
                for record in shown
            ],
        )
        page.folded(len(records), len(shown), " that are older")
    page.next("job_recorder.redeliver RETURNER names=NAME")


def redelivered(found: Mapping[str, int], page: Page) -> None:
    """Show ``job_recorder.redeliver``."""
    for name, number in found.items():
        page.line(f"{name}: {counted(number, 'record')} put back into its queue")
    page.next("job_recorder.stats")


def _what(record: Mapping[str, Any]) -> str:
    return str(record.get("tag") or " ".join(str(record[name]) for name in ("jid", "minion") if record.get(name)))


def _size(value: float) -> str:
    unit = 0
    while value >= 1000 and unit < len(_UNITS) - 1:
        value, unit = value / 1000, unit + 1
    return f"{value:.0f} {_UNITS[unit]}" if value >= 10 or not unit else f"{value:.1f} {_UNITS[unit]}"
