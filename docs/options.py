"""The tables of options for docs/reference/options.md, from the classes in ``core/options/``: ``make docs-tables``."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from saltext.jobs.core.options import engines
from saltext.jobs.core.options.postgresql import CacheOptions, Options

#: Where the options of each class stand in the master's configuration.
SECTIONS: dict[str, type] = {
    "batch_manager": engines.BatchSettings,
    "job_retry": engines.RetrySettings,
    "job_recorder": engines.RecorderSettings,
    "job_notices": engines.NoticesSettings,
    "salt_cache": engines.JobCacheSettings,
    "returner.pgjsonb_bulk": Options,
    "postgresql": CacheOptions,
}


def table(section: str) -> str:
    """Return the table of a section as Markdown: what each option means, and what is accepted."""
    rows = ["| option | default | meaning |", "|---|---|---|"]
    for field in sorted(dataclasses.fields(SECTIONS[section]), key=lambda field: field.name == "metrics_dir"):
        meaning = f"{field.metadata['about']}. Accepted: {field.metadata['kind'].accepts}."
        rows.append(f"| {' | '.join(map(cell, (f'`{field.name}`', shown(field.default), meaning)))} |")
    return "\n".join(rows) + "\n"


def shown(value: Any) -> str:
    """Return a default as it may be written in the configuration; a list without its brackets."""
    if isinstance(value, tuple):
        return ", ".join(f"`{item}`" for item in value) or "none"
    if isinstance(value, float) and value == math.floor(value):
        value = int(value)
    return "none" if value in ("", None) else f"`{value}`"


def cell(text: str) -> str:
    """Return text as it may stand in a cell."""
    return text.replace("``", "`").replace("|", "\\|").replace("['*']", "`['*']`").replace("*.", "\\*.")
