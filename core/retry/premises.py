"""
What must hold before a retry queue can be kept: usable options, and a job cache that tells what this master has published.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from saltext.jobs.core.engine.names import JOB_RETRY
from saltext.jobs.core.errors import SettingsError
from saltext.jobs.core.master.job_cache import KEEP_MINIONS, OURS
from saltext.jobs.core.settings import RetrySettings, read_settings
from saltext.jobs.core.windows import longest_break, parse_windows


def settings_of(opts: Mapping[str, Any], *sources: Any) -> RetrySettings:
    """
    Return the engine's options.

    :param opts: the master's options.
    :param sources: as for ``read_settings``.
    :raises SettingsError: when the engine cannot start with these, and why.
    """
    settings = read_settings(RetrySettings, JOB_RETRY, *sources)
    cache = opts.get("master_job_cache")
    if cache != OURS and not settings.trust_job_cache:
        raise SettingsError(
            f"master_job_cache is {cache!r}; accepted is {OURS}, which alone tells what this master has published, or any "
            "other where job_retry has trust_job_cache: True because every accepted minion is trusted"
        )
    if not opts.get("job_cache", True) and not opts.get("ext_job_cache"):
        raise SettingsError("job_cache is False; accepted is True, since without returns nobody knows what has run")
    return settings


def doubts_about(opts: Mapping[str, Any], settings: RetrySettings) -> list[str]:
    """Return what may keep jobs from being delivered, with options that are accepted."""
    found, cache = [], opts.get("master_job_cache")
    if cache not in KEEP_MINIONS:
        found.append(
            f"of Salt's job caches only {', '.join(sorted(KEEP_MINIONS))} keep for which minions a job is; if {cache} does "
            "not, nothing is ever queued"
        )
    if settings.window and longest_break(parse_windows(settings.window)) >= settings.ttl:
        found.append(
            f"a job is owed for {settings.ttl:.0f} s (ttl), and the window {settings.window!r} stays shut for longer: jobs "
            "will expire before it opens"
        )
    return found
