"""Draws why minions have failed: each reason with its minions. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from saltext.jobs.core.display.page import Page
from saltext.jobs.core.display.text import counted

#: Most groups, most lines of a group's text, most lines on the screen for one of them, and most lines of names.
_GROUPS, _LINES, _WRAPPED, _NAMES = 12, 14, 3, 2


def reasons(groups: Sequence[Mapping[str, Any]], page: Page) -> None:
    """Show groups as ``core/reasons.py`` has them, the largest first."""
    for group in groups[:_GROUPS]:
        page.gap()
        code = f" (retcode {group['retcode']})" if group["retcode"] else ""
        page.names(f"{counted(group['count'], 'minion')}, {group['state']}{code}:", group["minions"], _NAMES)
        lines = str(group["text"]).split("\n")
        for line in lines[:_LINES]:
            page.line(f"    {line.strip()}", "      ", _WRAPPED)
        if len(lines) > _LINES:
            page.line(f"    … and {len(lines) - _LINES} more lines")
    if groups:
        page.gap()
    page.folded(len(groups), _GROUPS, " reasons")
