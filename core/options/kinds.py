"""
The kinds of values that options and arguments of runners have: how each is read, and in which words a refusal says what is
accepted. What only batches have (sizes, groups, checks) is read in ``core/batch/``.

The command line reads everything as YAML, so a jid, a minion id or a target may arrive as a number.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar

from saltext.jobs.core.errors import Refused
from saltext.jobs.core.ids import is_plain, jid_at
from saltext.jobs.core.windows import find_zone, parse_moment, parse_windows

Found = TypeVar("Found")

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)([smhd]?)")
_FACTORS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = re.compile(r"([1-9][0-9]*)([KMGT]?)")
_ADDRESS = re.compile(r"https?://(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[1-9][0-9]{0,4})?([/?#][!-~]*)?", re.IGNORECASE)
#: Most characters of a window: engines parse it often, and the publisher of a job may choose it.
_LONGEST_WINDOW = 1000
#: How similar two names must be for one to count as a misspelling of the other.
_ALIKE = 0.8
#: The kinds of target that Salt's matcher on the master knows (``salt.utils.minions.CkMinions``), on each release.
TARGETS = (
    *("glob", "list", "grain", "compound", "nodegroup", "pcre", "grain_pcre", "pillar", "pillar_pcre", "pillar_exact"),
    *("compound_pillar_exact", "ipcidr", "range"),
)


@dataclasses.dataclass(frozen=True)
class Kind(Generic[Found]):
    """What is accepted: ``read`` returns the value to use or raises ValueError; ``accepts`` says it in words."""

    read: Callable[[Any], Found]
    accepts: str

    def given(self, name: str, value: Any) -> Found:
        """Return the value of an argument that an operator typed. :raises Refused: naming it, and what is accepted."""
        try:
            return self.read(value)
        except (ValueError, TypeError):
            told = "not given" if value is None else repr(value)
            raise Refused(f"{name} is {told}; accepted is {self.accepts}") from None


def _only(found: Found, holds: object) -> Found:
    if not holds:
        raise ValueError(found)
    return found


def _is(value: Any, *types: type) -> bool:
    """Tell whether a value is of one of these types; True and False are no numbers."""
    return isinstance(value, types) and not isinstance(value, bool)


def _parts(pattern: re.Pattern[str], text: str) -> tuple[str, ...]:
    if not (match := pattern.fullmatch(text)):
        raise ValueError(text)
    return match.groups()


# -- numbers and times --------------------------------------------------------------------------------------------------


def duration(value: Any) -> float:
    """Return seconds from a number, or from ``90s``, ``15m``, ``12h``, ``7d``. :raises ValueError: for anything else."""
    if isinstance(value, str):
        number, unit = _parts(_DURATION, value.strip())
        value = float(number) * _UNITS[unit]
    return float(_only(value, _is(value, int, float) and 0 <= value <= sys.float_info.max))


def seconds(minimum: float = 0.0, maximum: float = math.inf) -> Kind[float]:
    """Accept a duration between two limits, in seconds."""
    limits = [f"at least {minimum:g}"] * (minimum > 0) + [f"at most {maximum:g}"] * (maximum < math.inf)
    return Kind(
        lambda value: _only(duration(value), minimum <= duration(value) <= maximum),
        f"a number of seconds{' of ' * bool(limits)}{' and '.join(limits)}, or a duration such as 90s, 15m, 12h or 7d",
    )


#: Accepts a duration, and one that is not zero.
SECONDS, SOME_SECONDS = seconds(), seconds(0.1)


def whole(minimum: int = 0) -> Kind[int]:
    """Accept a number, also as the text that a form of salt-api has."""

    def read(value: Any) -> int:
        found = int(value) if isinstance(value, str) else value
        return int(_only(found, _is(found, int) and found >= minimum))

    return Kind(read, f"a whole number of at least {minimum}")


def _bytes(value: Any) -> int:
    number, unit = _parts(_SIZE, str(value))
    return int(number) * _FACTORS[unit]


#: Accepts a number of bytes.
SIZE = Kind(_bytes, "a number of bytes, or a size such as 500M or 20G")
#: Accepts True and False, also as the text that a form of salt-api has.
FLAG = Kind(lambda value: bool(("false", "true").index(str(value).lower())), "True or False")


def _moment(value: Any) -> float | None:
    if value is None:
        return None
    text = str(value).strip()
    try:
        is_ago = text.startswith("-") or text.endswith(tuple("smhd"))
        found = time.time() - duration(text.removeprefix("-")) if is_ago else parse_moment(text, None)
        jid_at(found)  # jids have a time from the year 1 to 9999
    except (OverflowError, OSError):
        raise ValueError(value) from None
    return found


#: Accepts a date and time, or a time ago such as ``-2h`` or ``2h``, as Unix time; None for None.
MOMENT = Kind(
    _moment,
    "a time ago such as -90s, -15m, -2h or -7d, or a date and time such as '2026-11-28 02:00' or "
    "'2026-11-28T02:00:00+01:00'",
)


def _window(value: Any) -> str:
    text = "; ".join(value) if isinstance(value, (list, tuple)) else value
    return str(_only(text, text == "" or (len(text) <= _LONGEST_WINDOW and parse_windows(text))))


#: WINDOW accepts windows of time as core/windows.py reads them, and TIMEZONE a time zone; both, an empty text too.
WINDOW = Kind(
    _window,
    "a window such as '02:00-05:00', 'Sat 00:00-24:00' or 'Sat,Sun 02:00-05:00; Mon-Fri 22:00-06:00', or '' for any time",
)
TIMEZONE = Kind(
    lambda value: str(_only(value, value == "" or find_zone(value))),
    "a time zone of this system such as 'Europe/Berlin' or 'UTC', or '' for the master's own",
)


# -- words --------------------------------------------------------------------------------------------------------------

#: Accepts a text; a whole number becomes its decimal digits.
WORD = Kind(lambda value: str(_only(value, _is(value, str, int))), "a text")


def _names(value: Any) -> tuple[str, ...]:
    parts = str(value).split(",") if _is(value, str, int) else _only(value, isinstance(value, (list, tuple)))
    return tuple(name for part in parts if (name := WORD.read(part).strip()))


#: Accepts at least one word of a list, or of a text with commas between them; numbers are words too.
NAMES = Kind(
    lambda value: _only(_names(value), _names(value)), "one or more names, in a list or with commas between them"
)
#: The same for globs over functions, and for ids of minions.
GLOBS = Kind(
    lambda value: _only(_names(value), not isinstance(value, int)),
    "a list of globs over function names, such as ['state.*', 'pkg.install']",
)
IDS = Kind(lambda value: _only(_names(value), all(map(is_plain, _names(value)))), "a list of minion ids")


def choice(*words: str) -> Kind[str]:
    return Kind(lambda value: _only(value, isinstance(value, str) and value in words), f"one of {', '.join(words)}")


def some_of(*words: str) -> Kind[tuple[str, ...]]:
    """Accept at least one of some words, in a list or with commas between them."""
    return Kind(
        lambda value: _only(NAMES.read(value), set(_names(value)) <= {*words}),
        f"one or more of {', '.join(words)}",
    )


def _mapping(value: Any) -> dict[str, Any]:
    found = {} if value is None else value
    return dict(_only(found, isinstance(found, Mapping) and all(isinstance(key, str) for key in found)))


#: Accept a dict with names as its keys, and a list; None stands for an empty one.
MAPPING = Kind(_mapping, "a mapping of names to values")
SEQUENCE = Kind(lambda value: [] if value is None else list(_only(value, isinstance(value, (list, tuple)))), "a list")


#: Accept the path of a file or a directory, and an address of the web without a user and a password; or nothing.
PATH = Kind(
    lambda value: str(_only(os.path.expanduser(value), not value or os.path.expanduser(value).startswith("/"))),
    "a full path, which begins with / or ~, or '' for none",
)
ADDRESS = Kind(
    lambda value: str(_only(value or "", value in (None, "") or _parts(_ADDRESS, value))),
    "an address such as https://ops.example.com/salt, without a user and a password, or '' for none",
)


# -- jobs and minions ---------------------------------------------------------------------------------------------------


def _plain(value: Any) -> str:
    text = str(value) if _is(value, int) else value
    return str(_only(text, is_plain(text)))


#: Return the id of a job, and of a minion. :raises Refused:
jid = functools.partial(Kind(_plain, "the id of a job, such as 20260516101112131415").given, "jid")
minion = functools.partial(Kind(_plain, "the id of one minion").given, "minion")


def minions(value: Any) -> tuple[str, ...]:
    """Return the ids of minions, from a list or from ids with commas between them. :raises Refused: also for none."""
    return tuple(minion(name) for name in NAMES.given("minions", value))


def target(tgt: Any, tgt_type: Any) -> tuple[Any, str]:
    """Return a target and its type as Salt's matcher takes them: a ``list`` as ids, else a text. :raises Refused:"""
    kind = choice(*TARGETS).given("tgt_type", tgt_type)
    if kind == "list" or isinstance(tgt, (list, tuple)):
        return list(NAMES.given("tgt", tgt)), "list" if kind == "glob" else kind
    text = WORD.given("tgt", tgt)
    if not text.strip():
        raise Refused(f"tgt is {tgt!r}; accepted is a target, such as 'web*'")
    return text, kind


def function(value: Any) -> str:
    """Return the name of one execution function. :raises Refused:"""
    if (isinstance(value, str) and "," in value) or (isinstance(value, (list, tuple)) and len(value) > 1):
        raise Refused(f"fun is {value!r}; a batch runs one function: start one batch for each, or batch a state")
    if not isinstance(value, str) or not all(value.partition(".")[::2]) or value != "".join(value.split()):
        raise Refused(f"fun is {value!r}; accepted is the name of an execution function, such as test.ping")
    return value


# -- refusals -----------------------------------------------------------------------------------------------------------


def slip_of(name: str, known: Iterable[str]) -> str | None:
    """Return the ``known`` name that ``name`` misspells or means, or None."""
    name = {"since": "start_time", "until": "end_time"}.get(name, name)
    return next(iter(difflib.get_close_matches(name.lower(), list(known), 1, _ALIKE)), None)
