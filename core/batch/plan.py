"""
The layout of a batch before it begins: groups of minions, sizes, stages and a budget for each, and checks between stages.

Pure: stdlib only, no clock, no I/O. It must never place a minion by a value that is not known: such minions are a group of
their own, the last one.
"""

from __future__ import annotations

import itertools
import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

#: Names of the groups of minions that are known to lack the value by which a batch is grouped, and whose value is not known.
WITHOUT, NOT_KNOWN = "(without)", "(not known)"
#: Most characters of a group's name.
_LONGEST = 100

#: The check that a person makes, and the prefix of one by a runner function.
APPROVE, RUNNER = "approve", "runner:"
_COUNT = re.compile(r"[0-9]+")
_PERCENT = re.compile(r"([0-9]+(?:\.[0-9]+)?)%")
_FUNCTION = re.compile(r"[A-Za-z0-9_]+(?:\.[A-Za-z0-9_]+)+")
#: What a minion returns that does not have a function.
_MISSING = re.compile(r"'[A-Za-z0-9_.]+' (is not available\.|__virtual__ returned False)")


# -- groups -----------------------------------------------------------------------------------------------------------


class Group(NamedTuple):
    """Minions that are sent to before those of the next group."""

    name: str
    minions: tuple[str, ...]


def labels_of(value: Any) -> tuple[str, ...]:
    """
    Return the names of the groups for a minion's grain or pillar value: several for a list.

    Empty for a value that names no group: None, an empty text, a mapping.
    """
    values = value if isinstance(value, (list, tuple)) else [value]
    plain = (str(item).strip() for item in values if isinstance(item, (str, int, float)))
    # The value comes from a minion, and is shown on terminals.
    return tuple(label[:_LONGEST] if label.isprintable() else ascii(label)[:_LONGEST] for label in plain if label)


def groups_of(
    minions: Iterable[str], labels: Mapping[str, Sequence[str]], order: Sequence[str] = ()
) -> tuple[Group, ...]:
    """
    Return the groups of some minions, in the order in which they are sent to; none is empty.

    Groups named in ``order`` come first, then the others, sorted (numbers by value: r2 before r10). A minion with several
    labels is in the first of its groups.

    :param labels: the ``labels_of`` each minion; a minion that is missing has unknown labels.
    """
    ranks = {name: (0, rank) for rank, name in enumerate(order)}
    found: dict[str, list[str]] = {}
    for minion in minions:
        if minion not in labels:
            name = NOT_KNOWN
        elif not labels[minion]:
            name = WITHOUT
        else:
            name = min(labels[minion], key=lambda label: _rank(label, ranks))
        found.setdefault(name, []).append(minion)
    return tuple(Group(name, tuple(found[name])) for name in sorted(found, key=lambda name: _rank(name, ranks)))


def _rank(name: str, ranks: Mapping[str, tuple[int, int]]) -> tuple[Any, ...]:
    if name in ranks:
        return ranks[name]
    if name in (WITHOUT, NOT_KNOWN):
        return (2, name == NOT_KNOWN)
    return (1, tuple(_natural(part) for part in re.split(r"([0-9]+)", name) if part), name)


def _natural(part: str) -> tuple[Any, ...]:
    """Sort numbers by value and before words. They come from minions, and may be too long for ``int``."""
    digits = part.lstrip("0")
    return (0, len(digits), digits) if part[0] in "0123456789" else (1, 0, part)


# -- sizes and budgets ------------------------------------------------------------------------------------------------


def sizes_of(batch: Any, total: int) -> tuple[int, ...]:
    """
    Return the sizes of a batch's stages: one for a plain size, several for a ramp such as ``1,10%,50%``.

    A percentage is of ``total`` minions, rounded down, and at least 1.

    :raises ValueError: with what is malformed.
    """
    if isinstance(batch, bool) or not isinstance(batch, (int, str)):
        raise ValueError(_malformed(batch))
    sizes = []
    for part in (part.strip() for part in str(batch).split(",")):
        percent = _PERCENT.fullmatch(part)
        if percent and 0 < float(percent[1]) <= 100:
            sizes.append(max(1, math.floor(total * float(percent[1]) / 100)))
        elif _COUNT.fullmatch(part) and int(part) > 0:
            sizes.append(int(part))
        else:
            raise ValueError(_malformed(batch))
    return tuple(sizes)


def _malformed(batch: Any) -> str:
    return f"batch is {batch!r}; accepted is a count ('10'), a percentage up to 100% ('25%') or a ramp of both ('1,10%,50%')"


def failures_allowed(max_failures: Any, total: int) -> float | None:
    """
    Return how many failures a batch tolerates, or None for any number. One more stops it.

    :param max_failures: None, a count, or a percentage of ``total`` minions.
    :raises ValueError: with what is malformed.
    """
    if max_failures is None:
        return None
    text = str(max_failures).strip()
    percent = _PERCENT.fullmatch(text)
    if percent and float(percent[1]) <= 100:
        return total * float(percent[1]) / 100
    if _COUNT.fullmatch(text) and not isinstance(max_failures, bool):
        return float(text)
    raise ValueError(f"max_failures is {max_failures!r}; accepted is a count ('3') or a percentage ('10%')")


def grouped_layout(groups: Sequence[Group], by: str, batch: Any, max_failures: Any) -> dict[str, Any]:
    """
    Return the fields of a Spec that depend on groups: the minions in order, the sizes of each group, and their budgets.

    A percentage, in ``batch`` or ``max_failures``, is of the minions of each group; ``max_failures`` as a count is of all.

    :raises ValueError: naming the malformed value.
    """
    counts = [len(group.minions) for group in groups]
    budget: dict[str, Any] = {"failures_allowed": failures_allowed(max_failures, sum(counts))}
    if str(max_failures).strip().endswith("%"):
        budget = {"group_failures_allowed": tuple(failures_allowed(max_failures, count) for count in counts)}
    return {
        "by": by,
        "groups": tuple((group.name, len(group.minions)) for group in groups),
        "minions": tuple(minion for group in groups for minion in group.minions),
        "sizes": tuple(size for count in counts for size in sizes_of(batch, count)),
        **budget,
    }


# -- stages -----------------------------------------------------------------------------------------------------------


class Stage(NamedTuple):
    """
    A part of a batch, in the group at this place, with at most ``size`` minions in flight. A ``wave`` sends to ``size``
    minions in all; the last stage of a group sends to all minions that are left.
    """

    group: int
    size: int
    wave: bool


def stages_of(sizes: Sequence[int], groups: int) -> tuple[Stage, ...]:
    """
    Return the stages of a batch: each group goes through all its sizes before the next group begins.

    :param sizes: those of the first group, then those of the next; each group has the same number.
    """
    each = len(sizes) // groups
    return tuple(Stage(place // each, size, wave=(place + 1) % each > 0) for place, size in enumerate(sizes))


def gates_of(sizes: Sequence[int], counts: Sequence[int]) -> list[int]:
    """
    Return, for each check between stages, how many minions of the batch come before it.

    :param sizes: as for ``stages_of``.
    :param counts: the number of minions in each group; without groups, one number for all.
    """
    gates, before = [], 0
    for place, count in enumerate(counts):
        stages = [stage for stage in stages_of(sizes, len(counts)) if stage.group == place]
        waves = itertools.accumulate(stage.size for stage in stages if stage.wave)
        gates += [before + sent for sent in waves if sent < count]
        before += count
        gates.append(before)
    return gates[:-1]


# -- checks -----------------------------------------------------------------------------------------------------------


class Check(NamedTuple):
    """
    What must hold before the next stage begins. ``kind`` is ``function`` (an execution function on the minions of the
    stage), ``runner`` (a runner function on the master) or ``approve`` (a person approves). ``words`` are the function's
    arguments as they were written.
    """

    kind: str
    fun: str = ""
    words: tuple[str, ...] = ()


def not_passed(value: Any, retcode: int = 0) -> str:
    """Return why a function's return stops a batch; empty if it does not."""
    if retcode:
        is_missing = isinstance(value, str) and _MISSING.match(value)
        return "it has no such function" if is_missing else f"exit code {retcode}"
    if value is False:
        return "returned False"
    if isinstance(value, Mapping):
        for name in ("result", "success"):
            if value.get(name) is False:
                return f"returned {name}: False"
        if value.get("retcode") not in (None, 0):
            return f"returned retcode: {value['retcode']!r:.40}"
    return ""


def parse_check(value: Any) -> Check:
    """
    Read ``service.status nginx``, ``runner:survey.healthy site=eu`` or ``approve``.

    Arguments are split and quoted as in a shell.

    :raises ValueError: with what is malformed, and what is accepted.
    """
    try:
        words = shlex.split(value) if isinstance(value, str) else []
    except ValueError:  # an unclosed quotation mark
        words = []
    if words == [APPROVE]:
        return Check(APPROVE)
    fun = words[0].removeprefix(RUNNER) if words else ""
    if not _FUNCTION.fullmatch(fun):
        raise ValueError(
            f"check is {value!r}; accepted is an execution function with arguments ('service.status nginx'), "
            "a runner function ('runner:survey.healthy site=eu') or 'approve'"
        )
    return Check("runner" if words[0].startswith(RUNNER) else "function", fun, tuple(words[1:]))
