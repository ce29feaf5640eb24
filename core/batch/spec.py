"""
What a batch was asked to do: the job, its minions, its sizes and its budget. Pure: stdlib only.

A spec must never be changed once the batch is created, since its state is rebuilt from it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, ClassVar

from saltext.jobs.core.batch.plan import Stage, budgets_of, stages_of

PRESENCE = ("ping", "none")
OFFLINE = ("skip", "fail", "queue")
#: Options of ``batch.start`` that a Spec keeps under their own names.
OWN_NAMES = (
    *("batch", "batch_wait", "max_failures", "timeout", "gather_job_timeout", "max_runtime", "start_at"),
    *("window", "timezone", "by", "check_timeout", "presence", "offline", "ret"),
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
    presence: str = "ping"
    offline: str = "skip"
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
    check: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # as ``plan.Check``; empty: nothing is checked
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
