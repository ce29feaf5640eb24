"""
What ``salt-run job_notices.*`` shows to people. It draws what the runner returns; programs get that unchanged. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from saltext.jobs.core.display.page import Column, Page, Row

_TARGETS = (
    Column("TARGET", "name", 8),
    Column("SENT", "sent", right=True),
    Column("WAITING", "waiting", right=True),
    Column("FAILED TRIES", "failures", right=True, rank=2),
    Column("DROPPED", "dropped", right=True, rank=3),
    Column("LAST ARRIVED", "delivered", rank=1, age=True),
)


def stats(found: Mapping[str, Row], page: Page) -> None:
    """Show ``job_notices.stats``: a line for each target."""
    page.table(_TARGETS, [{**one, "name": name} for name, one in found.items()])
    for name, one in found.items():
        if one["trouble"]:
            page.line(f"{name}: {one['trouble']}", "  ", 4)
    page.next("job_notices.doctor", "job_notices.test")
