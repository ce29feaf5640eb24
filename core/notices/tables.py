"""
What ``salt-run job_notices.*`` shows to people. It draws what the runner returns; programs get that unchanged. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from saltext.jobs.core.display import facts, moments
from saltext.jobs.core.display.page import Column, Page


def stats(found: Mapping[str, Mapping[str, Any]], page: Page) -> None:
    """Show ``job_notices.stats``: a line for each target."""
    page.table(
        (
            Column("TARGET", 8),
            Column("SENT", right=True),
            Column("WAITING", right=True),
            Column("FAILED TRIES", right=True, rank=2),
            Column("DROPPED", right=True, rank=3),
            Column("LAST ARRIVED", rank=1),
        ),
        [
            (
                *(name, one["sent"], one["waiting"], one["failures"], one["dropped"]),
                moments.ago(one["delivered"], page.now) if one["delivered"] else "never",
            )
            for name, one in found.items()
        ],
    )
    for name, one in found.items():
        if one["trouble"]:
            page.line(f"{name}: {one['trouble']}", "  ", 4)
    page.next("job_notices.doctor", "test")


def doctor(found: Mapping[str, Any], page: Page) -> None:
    """Show ``job_notices.doctor``: the targets, when each last got a notice, and each finding."""
    told = {
        name: f"{found['waiting'][name]} wait, last arrived {page.when(at) if at else 'never'}"
        for name, at in found["delivered"].items()
    }
    rest = {name: value for name, value in found.items() if name not in ("targets", "waiting", "delivered")}
    facts.doctor({**rest, "targets": told}, page)
