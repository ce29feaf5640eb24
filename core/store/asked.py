"""What an operator asks for in words, as a ``Query`` of ``core/store/search.py``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from saltext.jobs.core import arguments
from saltext.jobs.core.errors import Refused
from saltext.jobs.core.ids import jid_at
from saltext.jobs.core.options import duration
from saltext.jobs.core.store.search import OUTCOMES, Query
from saltext.jobs.core.store.store import Store
from saltext.jobs.core.windows import parse_moment


def query_of(store: Store, asked: Mapping[str, Any], now: float) -> Query:
    """
    :param asked: the arguments of ``job_cache.search``, all of them; None where one was not given.
    :param now: Unix time.
    :raises Refused: for what is not accepted, naming it.
    """
    minion, outcome, after = asked["minion"], asked["outcome"], asked["after"]
    key = None if minion is None else store.key_of(arguments.minion(minion))
    if minion is not None and key is None:
        raise Refused(f"minion is {minion!r}, which the driver {store.driver.name} cannot take as a key")
    return Query(
        functions=_patterns("search_function", asked["search_function"]),
        targets=_patterns("search_target", asked["search_target"]),
        users=_patterns("user", asked["user"]),
        minion=key,
        start=_moment("start_time", asked["start_time"], now),
        end=_moment("end_time", asked["end_time"], now),
        outcome=None if outcome is None else arguments.choice("outcome", outcome, OUTCOMES),
        metadata=arguments.mapping("search_metadata", asked["search_metadata"]),
        limit=arguments.whole("limit", asked["limit"], 1),
        after=None if after is None else arguments.word("after", after),
    )


def _patterns(name: str, value: Any) -> tuple[str, ...]:
    return () if value is None else arguments.names(name, value)


def _moment(name: str, value: Any, now: float) -> float | None:
    """Return the Unix time of what an operator wrote; None for None."""
    if value is None:
        return None
    text = str(value).strip()
    try:
        found = now - duration(text[1:]) if text.startswith("-") else parse_moment(text, None)
        jid_at(found)  # jids have a time from the year 1 to 9999
    except (ValueError, OverflowError, OSError):
        raise Refused(
            f"{name} is {value!r}; accepted is a time ago such as -90s, -15m, -2h or -7d, or a date and time such as "
            "'2026-11-28 02:00' or '2026-11-28T02:00:00+01:00'"
        ) from None
    return found
