"""
Checks what operators type: one function for each kind of value, for all runners. What only batches have (sizes, groups,
checks) is read in ``core/batch/``.

Each function takes the option's name and its value as Salt handed it over, returns the value to use, and raises ``Refused``
with the name, the value and what is accepted. The command line reads everything as YAML, so a jid, a minion id or a target
may arrive as a number.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from saltext.jobs.core.errors import Refused, SettingsError
from saltext.jobs.core.ids import is_plain, jid_at
from saltext.jobs.core.options import duration
from saltext.jobs.core.windows import parse_moment

Found = TypeVar("Found")

#: The kinds of target that Salt's matcher on the master knows (``salt.utils.minions.CkMinions``), on each release.
TARGETS = (
    *("glob", "list", "grain", "compound", "nodegroup", "pcre", "grain_pcre", "pillar", "pillar_pcre", "pillar_exact"),
    *("compound_pillar_exact", "ipcidr", "range"),
)
#: How similar two names must be for one to count as a misspelling of the other.
_ALIKE = 0.8


def seconds(name: str, value: Any, above: float | None = None) -> float:
    """Return the seconds of a number or of a duration such as ``15m``. They must exceed ``above``, if given."""
    try:
        result = duration(value)
        if above is not None and result <= above:
            raise ValueError(value)
    except ValueError:
        more = "" if above is None else f" above {above:g}"
        raise Refused(f"{name} is {value!r}; accepted is a number of seconds{more}, or 90s, 15m, 12h") from None
    return result


def whole(name: str, value: Any, minimum: int = 0) -> int:
    """Return a whole number of at least ``minimum``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise Refused(f"{name} is {value!r}; accepted is a whole number of at least {minimum}")
    return value


def moment(name: str, value: Any, now: float) -> float | None:
    """Return the Unix time of a date and time, or of a time ago such as ``-2h``; None for None."""
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


def flag(name: str, value: Any) -> bool:
    """Return True or False; nothing else is accepted."""
    if not isinstance(value, bool):
        raise Refused(f"{name} is {value!r}; accepted is True or False")
    return value


def choice(name: str, value: Any, accepted: Iterable[str]) -> str:
    """Return one of the ``accepted`` words."""
    words = tuple(accepted)
    if not isinstance(value, str) or value not in words:
        raise Refused(f"{name} is {value!r}; accepted is one of {', '.join(words)}")
    return value


def choices(name: str, value: Any, accepted: Iterable[str]) -> tuple[str, ...]:
    """Return at least one of the ``accepted`` words, from a list or from words with commas between them."""
    chosen = names(name, value)
    if not chosen:
        raise Refused(f"{name} is {value!r}; accepted are {', '.join(accepted)}")
    return tuple(choice(name, word, accepted) for word in chosen)


def names(name: str, value: Any) -> tuple[str, ...]:
    """Return the words of a list, or of a text with commas between them; numbers are words too."""
    if isinstance(value, (str, int)) and not isinstance(value, bool):
        value = str(value).split(",")
    if not isinstance(value, (list, tuple)):
        raise Refused(f"{name} is {value!r}; accepted is a name, a list of names, or names with commas between them")
    words = (word(name, item).strip() for item in value)
    return tuple(found for found in words if found)


def word(name: str, value: Any) -> str:
    """Return a text; a whole number becomes its decimal digits."""
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise Refused(f"{name} is {value!r}; accepted is a text")
    return str(value)


def mapping(name: str, value: Any) -> dict[str, Any]:
    """Return a dict with names as its keys; None stands for an empty one."""
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise Refused(f"{name} is {value!r}; accepted is a mapping of names to values")
    return dict(value)


def sequence(name: str, value: Any) -> list[Any]:
    """Return a list; None stands for an empty one."""
    if value is None:
        return []
    if not isinstance(value, (list, tuple)):
        raise Refused(f"{name} is {value!r}; accepted is a list")
    return list(value)


def jid(value: Any) -> str:
    """Return a job's id."""
    return _plain("jid", value, "the id of a job, such as 20260516101112131415")


def minion(value: Any) -> str:
    """Return the id of one minion."""
    return _plain("minion", value, "the id of one minion")


def minions(value: Any) -> tuple[str, ...]:
    """Return the ids of minions, from a list or from ids with commas between them."""
    found = tuple(minion(name) for name in names("minions", value))
    if not found:
        raise Refused(f"minions is {value!r}; name at least one")
    return found


def plain(name: str, value: Any) -> str:
    """Return a name that may become part of a path or a key, such as a master's id or a returner's name."""
    return _plain(name, value, "a plain name")


def target(tgt: Any, tgt_type: Any) -> tuple[Any, str]:
    """
    Return a target and its type as Salt's matcher takes them: a ``list`` as a list of ids, everything else as a text.

    :raises Refused: also for an empty target.
    """
    kind = choice("tgt_type", tgt_type, TARGETS)
    if kind == "list" or isinstance(tgt, (list, tuple)):
        found = list(names("tgt", tgt))
        if not found:
            raise Refused(f"tgt is {tgt!r}; name at least one minion")
        return found, "list" if kind == "glob" else kind
    text = word("tgt", tgt)
    if not text.strip():
        raise Refused(f"tgt is {tgt!r}; accepted is a target, such as 'web*'")
    return text, kind


def function(value: Any) -> str:
    """Return the name of one execution function."""
    if (isinstance(value, str) and "," in value) or (isinstance(value, (list, tuple)) and len(value) > 1):
        raise Refused(f"fun is {value!r}; a batch runs one function: start one batch for each, or batch a state")
    if not isinstance(value, str) or not all(value.partition(".")[::2]) or value != "".join(value.split()):
        raise Refused(f"fun is {value!r}; accepted is the name of an execution function, such as test.ping")
    return value


def accepted(read: Callable[..., Found], *values: Any) -> Found:
    """Return ``read(*values)``. Its ValueError or SettingsError, which names the value, becomes the refusal."""
    try:
        return read(*values)
    except (ValueError, SettingsError) as exc:
        raise Refused(str(exc)) from None


def slip_of(name: str, known: Iterable[str]) -> str | None:
    """Return the ``known`` name that ``name`` misspells, or None."""
    return next(iter(difflib.get_close_matches(name.lower(), list(known), 1, _ALIKE)), None)


def _plain(name: str, value: Any, what: str) -> str:
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not is_plain(text):
        raise Refused(f"{name} is {value!r}; accepted is {what}")
    return str(text)
