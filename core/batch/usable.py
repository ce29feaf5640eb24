"""Checks that the options of batch_manager make sense on this master."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from saltext.jobs.core.batch.minion_data import require_nodegroups
from saltext.jobs.core.engine.names import BATCH_MANAGER
from saltext.jobs.core.errors import SettingsError
from saltext.jobs.core.grouping import parse_by
from saltext.jobs.core.settings import BatchSettings


def check(opts: Mapping[str, Any], settings: BatchSettings) -> None:
    """:raises SettingsError: if ``max_in_flight`` counts by nodegroups that this master does not have."""
    by = settings.max_in_flight.by if settings.max_in_flight else ""
    if by and parse_by(by).kind == "nodegroups":
        try:
            require_nodegroups(opts, parse_by(by).order)
        except ValueError as exc:
            raise SettingsError(f"{BATCH_MANAGER}: max_in_flight has by: {by!r}, but {exc}") from None
