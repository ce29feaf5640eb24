"""
What a job says about its own replay, in its metadata. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from saltext.jobs.core import lines
from saltext.jobs.core.options import duration
from saltext.jobs.core.retry.entry import Limits
from saltext.jobs.core.windows import find_zone, parse_windows

log = lines.logger(__name__)

#: Longest time to live that a job may ask for, in seconds.
_LONGEST_TTL = 10 * 365 * 86400.0
#: Most characters of a window: whoever may publish a job decides about it, and it is read again and again.
_LONGEST_WINDOW = 1000
_KNOWN = frozenset({"ttl", "max_attempts", "retry_interrupted", "window", "timezone"})


def limits_of(jid: str, metadata: Any) -> Limits:
    """Return what a job says about itself. What is not accepted is named in the log and counts as not said."""
    wish = metadata.get("job_retry") if isinstance(metadata, Mapping) else None
    if wish is None:
        return Limits()
    if isinstance(wish, bool):
        return Limits(off=not wish, given=wish)
    try:
        return _limits(wish)
    except (ValueError, TypeError, AttributeError) as exc:
        log.warning(
            "Job %s: its metadata job_retry is %.500r (%.200s); accepted is true, false, or a mapping with some of ttl "
            "(seconds, or 7d, of at most 10 years), max_attempts (a whole number of at least 1), retry_interrupted (true or "
            "false), window (such as 'Sat,Sun 02:00-05:00', or '' for any time) and timezone (such as 'Europe/Berlin')",
            jid,
            wish,
            exc,
        )
        return Limits()


def _limits(wish: Mapping[str, Any]) -> Limits:
    if not isinstance(wish, Mapping):
        raise ValueError("it is no mapping")
    if unknown := set(wish) - _KNOWN:
        raise ValueError(f"{', '.join(sorted(map(str, unknown)))} is not known")
    ttl = duration(wish["ttl"]) if "ttl" in wish else None
    if ttl is not None and ttl > _LONGEST_TTL:
        raise ValueError(f"its ttl is {ttl:g} s")
    attempts = wish.get("max_attempts")
    if attempts is not None and (isinstance(attempts, bool) or not isinstance(attempts, int) or attempts < 1):
        raise ValueError(f"its max_attempts is {attempts!r}")
    again = wish.get("retry_interrupted")
    if again is not None and not isinstance(again, bool):
        raise ValueError(f"its retry_interrupted is {again!r}")
    window, timezone = wish.get("window"), wish.get("timezone")
    if window:
        window = "; ".join(window) if isinstance(window, (list, tuple)) else window
        if isinstance(window, str) and len(window) > _LONGEST_WINDOW:
            raise ValueError(f"its window has more than {_LONGEST_WINDOW} characters")
        parse_windows(window)
    elif window not in (None, ""):
        raise ValueError(f"its window is {window!r}")
    if timezone:
        find_zone(timezone)
    elif timezone not in (None, ""):
        raise ValueError(f"its timezone is {timezone!r}")
    return Limits(given=True, ttl=ttl, max_attempts=attempts, retry_interrupted=again, window=window, timezone=timezone)
