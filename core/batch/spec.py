"""
What a batch was asked to do: the job, its minions, its sizes and its budget. Fixed when the batch is created.

Pure: stdlib only. A spec must never be changed afterwards, since a batch's state is rebuilt from it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

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
    """
    A batch as it was asked for. Times are in seconds; ``start_at`` is Unix time.

    * ``minions``: all that the target matched, absent ones included, in the order in which they are sent to.
    * ``sizes``: one limit for each stage. With groups: those of the first group, then those of the second, and so on.
    * ``max_failures``, ``window``, ``timezone``: as they were typed.
    * ``publish_window``, ``publish_retries``, ``probe_attempts``: the same for all batches of a version.
    * ``unsure``: minions that are left out, since it is not known whether the target matches them.
    * ``options``: what travels with each sub-batch (metadata, executors, …).
    * ``groups``: the name of each group and its count of minions, in order; empty without groups.
    * ``group_failures_allowed``: the budget of each group, if ``max_failures`` is a percentage.
    * ``check``: ``kind`` (function, runner or approve), ``fun``, ``arg`` and ``kwargs``; empty if nothing is checked.
    * ``owner``: the user that Salt authenticated (``users.Identity``); empty if none was kept.
    * ``on_behalf``: the limits of a runner function that the batch calls (``master.caller.Caller.limits``); empty for none.
    * ``approve_by``: the users and, after a ``%``, the groups that may approve; empty for anyone who may run the job.
    """

    jid: str
    fun: str
    arg: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    tgt: Any
    tgt_type: str
    minions: tuple[str, ...]
    batch: str
    sizes: tuple[int, ...]
    user: str = ""
    ret: str = ""
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    batch_wait: float = 0.0
    failures_allowed: float | None = None
    max_failures: Any = None
    timeout: float = 60.0
    gather_job_timeout: float = 10.0
    presence: str = "ping"
    offline: str = "skip"
    parent: str | None = None
    publish_window: float = PUBLISH_WINDOW
    publish_retries: int = 5
    probe_attempts: int = 3
    acks: bool = False
    unsure: frozenset[str] = frozenset()
    max_runtime: float | None = None
    start_at: float | None = None
    window: str = ""
    timezone: str = ""
    check: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    check_timeout: float = 300.0
    by: str = ""
    groups: tuple[tuple[str, int], ...] = ()
    group_failures_allowed: tuple[float, ...] = ()
    on_behalf: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    owner: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    approve_by: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return a dict of plain values, from which ``from_dict`` makes an equal Spec."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {**values, "unsure": sorted(self.unsure)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Spec:
        """:raises TypeError: if the dict is not that of a Spec."""
        values = dict(data)
        for name in ("arg", "minions", "sizes", "approve_by", "group_failures_allowed"):
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
