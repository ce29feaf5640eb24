"""
How a batch is laid out before it begins: groups of minions, the stages in each, and what is checked between them.

Pure: stdlib only, no clock, no I/O. It must never place a minion by a value that is not known: such minions are a group of
their own, the last.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

#: Name of the group of minions that are known not to have the value by which a batch is grouped.
WITHOUT = "(without)"
#: Name of the group of minions of which that is not known.
NOT_KNOWN = "(not known)"

#: Most characters of a group's name.
_LONGEST = 100

#: What stands for a check by a person.
APPROVE = "approve"
#: What a check by a runner function begins with.
RUNNER = "runner:"

_FUNCTION = re.compile(r"[A-Za-z0-9_]+(?:\.[A-Za-z0-9_]+)+")


# -- groups -----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Group:
    """Minions that are sent to before those of the next group."""

    name: str
    minions: tuple[str, ...]


def labels_of(value: Any) -> tuple[str, ...]:
    """
    Return the names of the groups that a minion's grain or pillar value stands for: several for a list.

    Empty for what names no group: nothing, an empty text, a mapping.
    """
    values = value if isinstance(value, (list, tuple)) else [value]
    plain = (str(item).strip() for item in values if isinstance(item, (str, int, float)))
    # It comes from a minion, and is shown on terminals.
    return tuple(label[:_LONGEST] if label.isprintable() else ascii(label)[:_LONGEST] for label in plain if label)


def groups_of(
    minions: Iterable[str], labels: Mapping[str, Sequence[str]], order: Sequence[str] = ()
) -> tuple[Group, ...]:
    """
    Return the groups of some minions, in the order in which they are sent to; none is empty.

    Groups named in ``order`` come first, the others sorted after them (numbers by size: r2 before r10). A minion with
    several labels is in the first of its groups.

    :param labels: for each minion what ``labels_of`` says; a minion that is missing here is one of which it is not known.
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
    """Order numbers by size and before words; they come from minions and may be too long for ``int``."""
    digits = part.lstrip("0")
    return (0, len(digits), digits) if part[0] in "0123456789" else (1, 0, part)


# -- stages -----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Stage:
    """
    A part of a batch with a size of its own.

    ``group`` is the place of its group. ``size`` is the most minions in flight; a ``wave`` sends to so many and no more, the
    last stage of a group to all that are left of it.
    """

    group: int
    size: int
    wave: bool


def stages_of(sizes: Sequence[int], groups: int) -> tuple[Stage, ...]:
    """
    Return the stages of a batch: each group goes through all its sizes before the next begins.

    :param sizes: those of the first group, then those of the next, of each as many.
    """
    each = len(sizes) // groups
    return tuple(Stage(place // each, size, wave=(place + 1) % each > 0) for place, size in enumerate(sizes))


def gates_of(sizes: Sequence[int], counts: Sequence[int]) -> list[int]:
    """
    Return after how many minions, counted from the first of the batch, what is to be checked between stages is checked.

    :param sizes: as for ``stages_of``.
    :param counts: how many minions each group has; the one count of all of them where there are no groups.
    """
    gates, before = [], 0
    for place, count in enumerate(counts):
        stages = [stage for stage in stages_of(sizes, len(counts)) if stage.group == place]
        waves = itertools.accumulate(stage.size for stage in stages if stage.wave)
        gates += [before + sent for sent in waves if sent < count]
        before += count
        gates.append(before)
    return gates[:-1]


class Membership:
    """
    Which group each minion of a batch is in, by the group's place.

    :param minions: all minions of the batch, group by group.
    :param counts: how many minions each group has; empty for a batch without groups, where all are in one.

    ``lanes``: the groups of which only so many minions may be in flight over all batches, ``{minion: name}``; empty where
    there are none, and until they are known.
    """

    __slots__ = ("_places", "groups", "lanes")

    def __init__(self, minions: Sequence[str], counts: Sequence[int]) -> None:
        self.groups = len(counts) or 1
        self.lanes: Mapping[str, str] = {}
        places = [place for place, count in enumerate(counts) for _ in range(count)]
        self._places = dict(zip(minions, places, strict=True)) if counts else {}

    def of(self, minion: str) -> int:
        """Return the place of a minion's group."""
        return self._places.get(minion, 0)

    def lane_of(self, minion: str) -> str:
        """Return the name of the group of a minion in which only so many may be in flight."""
        return self.lanes.get(minion, "")


# -- checks -----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Check:
    """
    What must hold before the next stage begins.

    ``kind`` is ``function`` (an execution function on the minions just done), ``runner`` (a runner function on the master)
    or ``approve`` (somebody says so). ``words`` are the function's arguments as they were written.
    """

    kind: str
    fun: str = ""
    words: tuple[str, ...] = ()


def not_passed(value: Any, retcode: int = 0) -> str:
    """Return why what a function returned does not let a batch go on; empty where it does."""
    if retcode:
        return f"exit code {retcode}"
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

    Arguments are divided and quoted as in a shell.

    :raises ValueError: naming what is malformed, and what is accepted.
    """
    try:
        words = shlex.split(value) if isinstance(value, str) else []
    except ValueError:  # a quotation mark without its partner
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
