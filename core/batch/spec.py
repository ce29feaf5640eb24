"""
What a batch was asked to do: the job, its minions in groups, sizes, stages with a budget for each, and checks between them.
Pure: stdlib only.

A spec must never be changed once the batch is created, since its state is rebuilt from it. No minion is placed by a value
that is not known: such minions are the last group.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

#: Names of the groups of minions that are known to lack the value by which a batch is grouped, and whose value is not known.
WITHOUT, NOT_KNOWN = "(without)", "(not known)"
#: Most characters of a group's name.
_LONGEST = 100

#: What minions may be grouped by.
_BY_KINDS = ("grains", "pillar", "nodegroups")

_BY = re.compile(r"(?P<kind>[a-z]+):(?P<key>[^\[\]]*?)(?::?\[(?P<order>[^\[\]]*)\])?", re.DOTALL)

#: The kind of check that a person makes, and what a check by a runner function begins with.
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


class By(NamedTuple):
    """What minions are grouped by."""

    kind: str
    key: str  # of a grain or pillar value, parts divided by colons
    order: tuple[str, ...] = ()  # names of groups that come first, in this order; for nodegroups, of all groups


def parse_by(value: Any) -> By:
    """Read ``grains:rack``, ``pillar:site:ring``, ``grains:rack:[r7,r2]`` or ``nodegroups:[eu,us]``. :raises ValueError:"""
    match = _BY.fullmatch(value.strip()) if isinstance(value, str) else None
    kind, key = (match["kind"], match["key"].strip().strip(":")) if match else ("", "")
    given = match["order"] if match else None
    order = tuple(name.strip() for name in given.split(",")) if given is not None else ()
    malformed = kind not in _BY_KINDS or bool(key) == (kind == "nodegroups") or (kind == "nodegroups" and not order)
    if malformed or not all(order) or len(set(order)) < len(order):
        raise ValueError(
            f"by is {value!r}; accepted is a grain, a pillar key or nodegroups, such as 'grains:rack', 'pillar:site:ring', "
            "'grains:rack:[r7,r2]' (r7 and r2 first) or 'nodegroups:[canary,eu,us]'"
        )
    return By(kind, key, order)


def labels_of(value: Any) -> tuple[str, ...]:
    """Return the names of the groups for a grain or pillar value: several for a list, none for None, '' or a mapping."""
    values = value if isinstance(value, (list, tuple)) else [value]
    plain = (str(item).strip() for item in values if isinstance(item, (str, int, float)))
    # The value comes from a minion, and is shown on terminals.
    return tuple(label[:_LONGEST] if label.isprintable() else ascii(label)[:_LONGEST] for label in plain if label)


def groups_of(
    minions: Iterable[str], labels: Mapping[str, Sequence[str]], order: Sequence[str] = ()
) -> tuple[Group, ...]:
    """
    Return the groups of some minions, in the order in which they are sent to: those named in ``order``, then the others,
    sorted (numbers by value: r2 before r10). A minion with several labels is in the first of its groups.

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
    parts = (part for part in re.split(r"([0-9]+)", name) if part)
    # Numbers by value, and before words: no name of a group is too long for ``int``.
    return (1, tuple((0, int(part), "") if part[0] in "0123456789" else (1, 0, part) for part in parts), name)


# -- sizes and budgets ------------------------------------------------------------------------------------------------


def sizes_of(batch: Any, total: int) -> tuple[int, ...]:
    """
    Return the sizes of a batch's stages: one for a plain size, several for a ramp such as ``1,10%,50%``. A percentage is of
    ``total`` minions, rounded down, and at least 1. :raises ValueError: naming what is malformed.
    """
    sizes, is_text = list[int](), isinstance(batch, (int, str)) and not isinstance(batch, bool)
    for part in (part.strip() for part in (str(batch) if is_text else "").split(",")):
        percent = _PERCENT.fullmatch(part)
        if percent and 0 < float(percent[1]) <= 100:
            sizes.append(max(1, math.floor(total * float(percent[1]) / 100)))
        elif _COUNT.fullmatch(part) and int(part) > 0:
            sizes.append(int(part))
        else:
            raise ValueError(
                f"batch is {batch!r}; accepted is a count ('10'), a percentage up to 100% ('25%') or a ramp of both "
                "('1,10%,50%')"
            )
    return tuple(sizes)


def budgets_of(max_failures: Any, counts: Sequence[int]) -> tuple[float, ...]:
    """
    Return how many failures are tolerated: a percentage is of each group, by their ``counts`` of minions; a count, as one
    number, of all; empty for None, which is any number. :raises ValueError: naming what is malformed.
    """
    if max_failures is None:
        return ()
    text = str(max_failures).strip()
    percent = _PERCENT.fullmatch(text)
    if percent and float(percent[1]) <= 100:
        return tuple(count * float(percent[1]) / 100 for count in counts)
    if _COUNT.fullmatch(text) and not isinstance(max_failures, bool):
        return (float(text),)
    raise ValueError(f"max_failures is {max_failures!r}; accepted is a count ('3') or a percentage ('10%')")


# -- stages -----------------------------------------------------------------------------------------------------------


class Stage(NamedTuple):
    """A part of a batch."""

    group: int  # the place of its group
    size: int  # most minions in flight
    wave: bool  # it sends to ``size`` minions in all; the last stage of a group sends to all that are left


def stages_of(batch: Any, counts: Sequence[int]) -> tuple[Stage, ...]:
    """Return the stages of a batch of groups with these counts of minions: each goes through its sizes before the next."""
    stages = []
    for group, count in enumerate(counts):
        *waves, last = sizes_of(batch, count)
        stages += [*(Stage(group, size, wave=True) for size in waves), Stage(group, last, wave=False)]
    return tuple(stages)


def gates_of(batch: Any, counts: Sequence[int]) -> list[int]:
    """Return, for each check between stages, how many minions of the batch come before it. ``counts``: as ``stages_of``."""
    gates, before = [], 0
    for count in counts:
        gates += [before + sent for sent in itertools.accumulate(sizes_of(batch, count)[:-1]) if sent < count]
        before += count
        gates.append(before)
    return gates[:-1]


# -- checks -----------------------------------------------------------------------------------------------------------


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


class Check(NamedTuple):
    """What must hold before the next stage begins."""

    kind: str  # ``function`` (on the minions of the stage), ``runner`` (on the master) or ``approve`` (by a person)
    fun: str = ""
    arg: Sequence[Any] = ()  # those of a runner function are as they were written
    kwargs: Mapping[str, Any] = MappingProxyType({})


def parse_check(value: Any) -> Check:
    """
    Read ``service.status nginx``, ``runner:survey.healthy site=eu`` or ``approve``. Arguments are split and quoted as in a
    shell, and stay as they were written. :raises ValueError: naming what is malformed, and what is accepted.
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
    return Check("runner" if words[0].startswith(RUNNER) else "function", fun, words[1:])


# -- the batch --------------------------------------------------------------------------------------------------------

#: Options of ``batch.start`` that a Spec keeps under their own names.
OWN_NAMES = (
    *("batch", "batch_wait", "max_failures", "timeout", "gather_job_timeout", "max_runtime", "start_at"),
    *("window", "timezone", "by", "check_timeout", "presence", "offline", "ret", "approve_by"),
)
#: Least seconds for which freed slots are gathered into one publish.
PUBLISH_WINDOW = 0.1


@dataclasses.dataclass(frozen=True)
class Spec:
    """A batch as it was asked for. Times are in seconds."""

    jid: str
    fun: str
    arg: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    tgt: Any
    tgt_type: str
    # All that the target matched, absent ones included, in the order in which they are sent to.
    minions: tuple[str, ...]
    batch: str
    user: str = ""
    ret: str = ""
    # What is published with each sub-batch (metadata, …).
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    batch_wait: float = 0.0
    max_failures: Any = None  # as it was typed; so are ``batch``, ``window`` and ``timezone``
    timeout: float = 60.0
    gather_job_timeout: float = 10.0
    presence: str = "ping"  # or none
    offline: str = "skip"  # or fail, queue
    parent: str | None = None
    # -- the same for all batches of a version
    publish_window: float = PUBLISH_WINDOW
    publish_retries: int = 5
    probe_attempts: int = 3
    # --
    acks: bool = False
    unsure: frozenset[str] = frozenset()  # minions left out, since it is not known whether the target matches them
    max_runtime: float | None = None
    start_at: float | None = None  # Unix time
    window: str = ""
    timezone: str = ""
    check: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # as ``Check``; empty: nothing is checked
    check_timeout: float = 300.0
    by: str = ""
    groups: tuple[tuple[str, int], ...] = ()  # the name of each group and its count of minions, in order
    # The limits of a runner function that the batch calls (``master.caller.Caller.limits``); empty for none.
    on_behalf: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    # The user that Salt authenticated (``users.Identity``); empty if none was kept.
    owner: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    approve_by: tuple[str, ...] = ()  # users and, after a ``%``, groups that may approve; empty: who may run the job

    @functools.cached_property
    def counts(self) -> tuple[int, ...]:
        """How many minions are in each group; as one number in a batch without groups."""
        return tuple(count for _, count in self.groups) or (len(self.minions),)

    @functools.cached_property
    def stages(self) -> tuple[Stage, ...]:
        return stages_of(self.batch, self.counts)

    @property
    def grouped_by(self) -> str:
        """What minions are grouped by, without the names of the first groups, if these are values of minions."""
        return self.by if self.by.startswith("nodegroups") else self.by.partition("[")[0].rstrip(":")

    @property
    def sizes(self) -> list[int]:
        """How many minions at a time, for each stage; with groups for those of the first."""
        return [stage.size for stage in self.stages if not stage.group]

    @functools.cached_property
    def budgets(self) -> tuple[float, ...]:
        """How many failures are tolerated, as ``budgets_of`` tells."""
        return budgets_of(self.max_failures, self.counts)

    def as_dict(self) -> dict[str, Any]:
        """Return a dict of plain values, from which ``from_dict`` makes an equal Spec."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {**values, "unsure": sorted(self.unsure)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Spec:
        """Return the Spec of which ``as_dict`` made this dict. :raises KeyError, TypeError: if it is not such a dict."""
        values = {field.name: data[field.name] for field in dataclasses.fields(cls)}
        for name in ("arg", "minions", "approve_by"):
            values[name] = tuple(values[name])
        values["unsure"] = frozenset(values["unsure"])
        values["groups"] = tuple((name, count) for name, count in values["groups"])
        return cls(**values)


class Part:
    """A part of a batch's state. Subclasses are dataclasses with slots; ``KEPT`` names the fields that its row holds."""

    __slots__ = ()
    KEPT: ClassVar[tuple[str, ...]] = ()

    def values(self) -> dict[str, Any]:
        """Return ``{name: value}`` of the kept fields, as plain values."""
        return {name: getattr(self, name) for name in self.KEPT}

    def load(self, values: Mapping[str, Any]) -> None:
        """Set the kept fields from what ``values`` returned. :raises KeyError, TypeError:"""
        for name in self.KEPT:
            setattr(self, name, values[name])
