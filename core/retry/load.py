"""
What a job's load says about its replay: the metadata say for how long and when, the target says to which minions. Pure.

A job is published again to those that missed it and that its target still matches. Grains, pillar and addresses change; ids
do not. So a target by id is not checked again, and any other target is published as a compound target with the ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from saltext.jobs.core import lines
from saltext.jobs.core.ids import as_compound
from saltext.jobs.core.options.engines import RetrySettings
from saltext.jobs.core.options.kinds import TIMEZONE, WINDOW, seconds, whole
from saltext.jobs.core.retry.entry import Entry, Job, Limits, State
from saltext.jobs.core.retry.queue import Hours, hours_of
from saltext.jobs.core.windows import next_opening

log = lines.logger(__name__)

#: Longest time to live that a job may ask for, in seconds.
_LONGEST_TTL = 10 * 365 * 86400.0
#: Types of targets for which only a minion's id counts.
_BY_ID = frozenset({"glob", "pcre", "list"})
#: Letters in a compound target, by type.
_LETTERS = {
    "grain": "G",
    "grain_pcre": "P",
    "pillar": "I",
    "pillar_pcre": "J",
    "ipcidr": "S",
    "range": "R",
    "nodegroup": "N",
}
_DELIMITED = frozenset("GPIJ")


def limits_of(jid: str, metadata: Any, is_known: bool = False) -> Limits:
    """Return what a job says about its replay. Invalid parts of it are ignored, and logged unless it ``is_known``."""
    wish = metadata.get("job_retry") if isinstance(metadata, Mapping) else None
    if wish is None:
        return Limits()
    if isinstance(wish, bool):
        return Limits(off=not wish, given=wish)
    valid, wrong = _limits(wish) if isinstance(wish, Mapping) else ({}, ["it is no mapping"])
    if wrong and not is_known:
        log.warning(
            "Job %s: its metadata job_retry is %.500r (%.500s); accepted is true, false, or a mapping with some of ttl "
            "(seconds, or 7d, of at most 10 years), max_attempts (a whole number of at least 1), window (such as 'Sat,Sun "
            "02:00-05:00', or '' for any time) and timezone (such as 'Europe/Berlin')",
            jid,
            wish,
            "; ".join(wrong),
        )
    return Limits(given=isinstance(wish, Mapping), **valid)


def _limits(wish: Mapping[Any, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the valid limits, and what is wrong with the others."""
    valid: dict[str, Any] = {}
    wrong = [f"{name!s:.50} is not known" for name in wish if name not in _READ]
    for name, read in _READ.items():
        if (value := wish.get(name)) is not None:
            try:
                valid[name] = read(value)
            except (ValueError, TypeError, AttributeError) as exc:
                wrong.append(f"{name}: {exc!s:.200}")
    return valid, wrong


#: What a job may say, and how it is read: as the option of that name.
_READ: Mapping[str, Callable[[Any], Any]] = {
    "ttl": seconds(maximum=_LONGEST_TTL).read,
    "max_attempts": whole(1).read,
    "window": WINDOW.read,
    "timezone": TIMEZONE.read,
}


def is_by_id(load: Mapping[str, Any]) -> bool:
    """Tell whether only the ids of minions decide which of them a job's target matches."""
    return str(load.get("tgt_type") or "glob") in _BY_ID


def expression_of(load: Mapping[str, Any]) -> str | None:
    """Return a job's target for use in a compound one, None if it goes by ids. :raises ValueError: if it cannot be used."""
    if is_by_id(load):
        return None
    kind, tgt = str(load["tgt_type"]), load.get("tgt")
    if kind == "compound":
        words = tgt.split() if isinstance(tgt, str) else [str(word) for word in tgt or ()]
        if not words or any(not word or word.split() != [word] for word in words):
            raise ValueError(f"its target {tgt!r} cannot be published again")
        return f"( {' '.join(words)} )"
    letter = _LETTERS.get(kind)
    if letter is None or not isinstance(tgt, str):
        raise ValueError(f"its target {tgt!r} of the type {kind} cannot be narrowed to single minions")
    if tgt.split() != [tgt]:
        raise ValueError(f"its target {tgt!r} has a blank, which a compound target cannot have")
    delimiter = str((load.get("kwargs") or {}).get("delimiter") or ":") if letter in _DELIMITED else ":"
    if len(delimiter) != 1:
        raise ValueError(f"its target has the delimiter {delimiter!r}; in a compound target it is one character")
    return f"{letter}{delimiter if delimiter != ':' else ''}@{tgt}"


def obstacle(load: Mapping[str, Any]) -> str:
    """Return why a job cannot be published again to single minions; empty if it can."""
    try:
        expression_of(load)
    except ValueError as exc:
        return str(exc)
    return ""


def narrowed(load: Mapping[str, Any], minions: Iterable[str], named: Iterable[str]) -> tuple[list[str] | str, str]:
    """
    Return (target, its type) for a publish of a job to some minions; ``named`` ones need not match the job's own target.
    :raises ValueError: as ``expression_of``.
    """
    exempt = set(named)
    bound = [minion for minion in minions if minion not in exempt]
    expression = expression_of(load) if bound else None
    if expression is None:
        return [*bound, *sorted(exempt)], "list"
    narrow = f"{as_compound(bound)} and {expression}"
    return (f"{as_compound(sorted(exempt))} or ( {narrow} )" if exempt else narrow), "compound"


class Waiting:
    """Tells operators for which window an entry waits, and when that opens. It must never differ from the machine."""

    def __init__(self, settings: RetrySettings, now: float) -> None:
        self._settings, self._now = settings, now
        self._opens: dict[Hours, float | None] = {}

    def of(self, entry: Entry, job: Job) -> tuple[str | None, float | None]:
        """Return (what an entry waits for besides its minion, Unix time at which that comes); each None if there is none."""
        hours = hours_of(job.limits, self._settings)
        if hours is None or entry.state is not State.PENDING:
            return None, None
        if hours not in self._opens:
            try:
                self._opens[hours] = next_opening(None, *hours, self._now).opens
            except ValueError:
                self._opens[hours] = None
        opens = self._opens[hours]
        if opens is not None and opens <= self._now:
            return None, None
        zone = f" ({hours[1]})" if hours[1] else ""
        when = ", which opens at no known time" if opens is None else ", which opens after it expires"
        return f"its window {hours[0]}{zone}{when if opens is None or opens >= entry.expires_at else ''}", opens
