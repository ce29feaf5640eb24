"""
What a batch was asked to do: the job, its minions in groups, sizes, stages with a budget for each, and checks between them;
and what describes each option of ``batch.start``. Pure.

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
from typing import Any, NamedTuple

from saltext.jobs.core.options import kinds, option
from saltext.jobs.core.options.kinds import Kind

#: Names of the groups of minions that are known to lack the value by which a batch is grouped, and whose value is not known.
WITHOUT, NOT_KNOWN = "(without)", "(not known)"
#: Most characters of a group's name.
_LONGEST = 100

_BY = re.compile(r"(?P<kind>grains|pillar|nodegroups):(?P<key>[^\[\]]*?)(?::?\[(?P<order>[^\[\]]*)\])?", re.DOTALL)

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
    if match is None:
        raise ValueError(value)
    kind, key, given = match["kind"], match["key"].strip().strip(":"), match["order"]
    order = () if given is None else tuple(name.strip() for name in given.split(","))
    is_whole = not key and order if kind == "nodegroups" else key
    if not is_whole or not all(order) or len(set(order)) < len(order):
        raise ValueError(value)
    return By(kind, key, order)


BY = Kind(
    lambda value: parse_by(value) and value.strip(),
    "a grain, a pillar key or nodegroups, such as 'grains:rack', 'pillar:site:ring', 'grains:rack:[r7,r2]' (r7 and r2 "
    "first) or 'nodegroups:[canary,eu,us]'",
)


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
        names = labels.get(minion, (NOT_KNOWN,)) or (WITHOUT,)
        found.setdefault(min(names, key=lambda name: _rank(name, ranks)), []).append(minion)
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
    ``total`` minions, rounded down, and at least 1. :raises ValueError:
    """
    sizes, is_text = list[int](), isinstance(batch, (int, str)) and not isinstance(batch, bool)
    for part in (part.strip() for part in (str(batch) if is_text else "").split(",")):
        percent = _PERCENT.fullmatch(part)
        if percent and 0 < float(percent[1]) <= 100:
            sizes.append(max(1, math.floor(total * float(percent[1]) / 100)))
        elif _COUNT.fullmatch(part) and int(part) > 0:
            sizes.append(int(part))
        else:
            raise ValueError(batch)
    return tuple(sizes)


SIZES = Kind(
    lambda value: sizes_of(value, 1) and str(value),
    "a count ('10'), a percentage up to 100% ('25%') or a ramp of both ('1,10%,50%')",
)


def budgets_of(max_failures: Any, counts: Sequence[int]) -> tuple[float, ...]:
    """
    Return how many failures are tolerated: a percentage is of each group, by their ``counts`` of minions; a count, as one
    number, of all; empty for None, which is any number. :raises ValueError:
    """
    if max_failures is None:
        return ()
    text = str(max_failures).strip()
    percent = _PERCENT.fullmatch(text)
    if percent and float(percent[1]) <= 100:
        return tuple(count * float(percent[1]) / 100 for count in counts)
    if _COUNT.fullmatch(text) and not isinstance(max_failures, bool):
        return (float(text),)
    raise ValueError(max_failures)


BUDGET = Kind(lambda value: budgets_of(value, (1,)) and value, "a count ('3') or a percentage ('10%')")


# -- stages -----------------------------------------------------------------------------------------------------------


class Stage(NamedTuple):
    """A part of a batch."""

    group: int  # the place of its group
    size: int  # most minions in flight
    quota: float  # how many it sends to in all: a wave to ``size``, the last stage of a group to all that are left


def gates_of(batch: Any, counts: Sequence[int]) -> list[int]:
    """Return, for each check between stages, how many minions of the batch come before it. ``counts``: of its groups."""
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
    kwargs: Mapping[str, Any] | None = None  # None: ``arg`` is as it was written


def parse_check(value: Any) -> Check:
    """
    Read ``service.status nginx``, ``runner:survey.healthy site=eu`` or ``approve``. Arguments are split and quoted as in a
    shell, and stay as they were written. The check of an earlier batch stays as it is. :raises ValueError:
    """
    if isinstance(value, Check):
        return value
    words = shlex.split(value if isinstance(value, str) else "")  # an unclosed quotation mark is a ValueError
    if words == [APPROVE]:
        return Check(APPROVE)
    fun = words[0].removeprefix(RUNNER) if words else ""
    if not _FUNCTION.fullmatch(fun):
        raise ValueError(value)
    return Check("runner" if words[0].startswith(RUNNER) else "function", fun, words[1:])


CHECK = Kind(
    parse_check,
    "an execution function with arguments ('service.status nginx'), a runner function ('runner:survey.healthy site=eu') or "
    "'approve'",
)


# -- the batch --------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Spec:
    """
    A batch as it was asked for. Times are in seconds.

    Each ``option`` of ``batch.start`` has its default here, and the kind of what is accepted. ``batch.status`` shows it and
    ``like`` takes it over by its name. ``listed``: a page for people names it, unless it has its default.
    """

    jid: str
    fun: str
    tgt: Any
    tgt_type: str
    # All that the target matched, absent ones included, in the order in which they are sent to.
    minions: tuple[str, ...]
    arg: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    batch: str = option("10%", SIZES, listed=False)
    by: str = option("", BY)
    max_failures: Any = option(None, BUDGET)  # as it was typed; so are ``batch``, ``by``, ``window`` and ``timezone``
    max_runtime: float | None = option(None, kinds.SOME_SECONDS)
    start_at: float | None = option(None, kinds.SECONDS, listed=False)  # Unix time
    window: str = option("", kinds.WINDOW)
    timezone: str = option("", kinds.TIMEZONE)
    # As ``Check``; empty: nothing is checked.
    check: Mapping[str, Any] = dataclasses.field(default_factory=dict, metadata={"kind": CHECK})
    check_timeout: float = option(300.0, kinds.SOME_SECONDS)
    # Users and, after a ``%``, groups that may approve; empty: who may run the job.
    approve_by: tuple[str, ...] = option((), kinds.NAMES)
    batch_wait: float = option(0.0, kinds.SECONDS)
    timeout: float = option(60.0, kinds.SOME_SECONDS, listed=False)  # the default is the master's
    gather_job_timeout: float = option(10.0, kinds.SOME_SECONDS, listed=False)  # likewise
    presence: str = option("ping", kinds.choice("ping", "none"))
    offline: str = option("skip", kinds.choice("skip", "fail", "queue"))
    ret: str = option("", kinds.WORD)
    # What is published with each sub-batch (``TRAVELLING``).
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    groups: tuple[tuple[str, int], ...] = ()  # the name of each group and its count of minions, in order
    unsure: tuple[str, ...] = ()  # minions left out, since it is not known whether the target matches them
    parent: str | None = None
    user: str = ""
    # The user that Salt authenticated (``users.Identity``); empty if none was kept.
    owner: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    # The limits of a runner function that the batch calls (``master.caller.Caller.limits``); empty for none.
    on_behalf: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    acks: bool = False
    # -- the same for all batches of a version
    publish_window: float = 0.1  # least seconds for which freed slots are gathered into one publish
    publish_retries: int = 5
    probe_attempts: int = 3

    @functools.cached_property
    def counts(self) -> tuple[int, ...]:
        """How many minions are in each group; as one number in a batch without groups."""
        return tuple(count for _, count in self.groups) or (len(self.minions),)

    @functools.cached_property
    def stages(self) -> tuple[Stage, ...]:
        """Each group goes through its sizes before the next."""
        stages = []
        for group, count in enumerate(self.counts):
            *waves, last = sizes_of(self.batch, count)
            stages += [*(Stage(group, size, size) for size in waves), Stage(group, last, math.inf)]
        return tuple(stages)

    @property
    def by_hand(self) -> bool:
        """Whether the checks are approvals."""
        return self.check.get("kind") == APPROVE

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
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Spec:
        """
        Return the Spec of which ``as_dict`` made this dict. What it lacks, since an earlier version has made it, has its
        default. :raises TypeError: if it is not such a dict.
        """
        values = {field.name: data[field.name] for field in dataclasses.fields(cls) if field.name in data}
        values["groups"] = map(tuple, values.get("groups", ()))
        tuples = {field.name for field in dataclasses.fields(cls) if str(field.type).startswith("tuple")}
        return cls(**values | {name: tuple(values[name]) for name in tuples & values.keys()})


#: The options of ``batch.start`` that a Spec keeps under their names.
OPTIONS = {field.name: field for field in dataclasses.fields(Spec) if field.metadata}
#: Those that go into the job's load unchanged, and what reads them.
TRAVELLING: dict[str, Kind[Any]] = {
    **dict.fromkeys(("metadata", "executor_opts", "ret_kwargs"), kinds.MAPPING),
    "module_executors": kinds.SEQUENCE,
    "ret_config": kinds.WORD,
}
