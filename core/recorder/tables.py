"""
What ``salt-run job_recorder.*`` shows to people: a line for each returner, or for each record that was set aside. It draws
what the runner returns; programs get that unchanged. Pure: the time is the page's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from saltext.jobs.core.display import moments
from saltext.jobs.core.display.facts import facts
from saltext.jobs.core.display.page import ROWS, Column, Page, Row
from saltext.jobs.core.display.text import counted

_RETURNERS = (
    Column("RETURNER", "name", 8),
    Column("DELIVERED", "delivered", right=True),
    Column("QUEUED", "queued", right=True),
    Column("LAG", lambda one: moments.span(one["lag"]), rank=1),
    Column("DROPPED", "dropped", right=True, rank=2),
    Column("REFUSED", "refused", right=True, rank=4),
    Column("SET ASIDE", "set_aside", right=True, rank=3),
)
_RECORDS = (
    Column("NAME", "name", 12),
    Column("KIND", "kind", rank=2),
    Column("WHAT", lambda one: f"{one['jid']} {one['minion']}", 12),
    Column("AGE", "time", rank=1, age=True),
    Column("REASON", "reason", 10, rank=3, names=False),
)


def stats(found: Mapping[str, Any], page: Page) -> None:
    """Show ``job_recorder.stats``."""
    returners: Mapping[str, Row] = found["returners"]
    page.table(_RETURNERS, [{**one, "name": name} for name, one in returners.items()])
    for name, one in returners.items():
        if one.get("trouble"):
            page.line(f"{name}: {one['trouble']}", "  ", 4)
    facts({name: value for name, value in found.items() if name != "returners" and value}, page)
    if any(one["set_aside"] for one in returners.values()):
        page.next("job_recorder.set_aside", "job_recorder.redeliver")
    else:
        page.next("job_recorder.doctor")


def set_aside(found: Mapping[str, Sequence[Row]], page: Page) -> None:
    """Show ``job_recorder.set_aside``: the newest of each returner."""
    if not any(found.values()):
        page.line("Nothing was set aside.")
        return
    for name, records in found.items():
        page.gap()
        page.line(f"{name}: {counted(len(records), 'record')}")
        page.table(_RECORDS, records[-ROWS:])
        page.folded(len(records), ROWS, " that are older")
    page.next("job_recorder.redeliver RETURNER names=NAME")
