"""What a storage knows of jobs beside loads and returns, to find, count and list them without reading these. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from typing import Any, NamedTuple

from saltext.jobs.core.functions import retcode_of


class JobTally(NamedTuple):
    """Counts of minions: those that a job was for (0 if not known), and those that returned, failed and are missing."""

    minions: int
    returned: int
    failed: int
    missing: int
    # Which of the words returned, failed and missing hold for at least one of the minions that were asked for.
    of_named: frozenset[str] = frozenset()


#: The minions that are asked for: one id, or a function that tells whether an id is meant.
Named = str | Callable[[str], bool]


def tally_of(minions: Set[str], returned: Set[str], failed: Set[str], named: Named | None) -> JobTally:
    """
    Return the tally of a job. ``minions``: those that it was for; empty if that is not known. ``failed``: those of
    ``returned`` that have failed. ``named``: whom ``of_named`` is about.
    """
    missing = minions - returned
    groups = {"returned": returned, "failed": failed, "missing": missing}
    of_named: Iterable[str] = ()
    if isinstance(named, str):
        of_named = (name for name, group in groups.items() if named in group)
    elif named is not None:
        of_named = (name for name, group in groups.items() if any(map(named, group)))
    of_named = frozenset(of_named)
    if minions:  # returns of minions that the job was not for do not count
        returned, failed = returned & minions, failed & minions
    return JobTally(len(minions), len(returned), len(failed), len(missing), of_named)


def has_failed(record: Any) -> bool:
    return isinstance(record, Mapping) and retcode_of(record) != 0


def job_marks(load: Any) -> tuple[str, str]:
    """Return the function and the user of a load; several functions are joined by commas."""
    if not isinstance(load, Mapping):
        return "", ""
    fun, user = load.get("fun"), load.get("user")
    if isinstance(fun, (list, tuple)):
        fun = ",".join(name for name in fun if isinstance(name, str))
    return fun if isinstance(fun, str) else "", user if isinstance(user, str) else ""
