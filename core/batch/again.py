"""
A batch like another batch or job: what ``batch.start like=JID`` takes over if it is not given. Pure.

This only reads what the other one was asked for. Access, target and sizes are worked out anew, as for any new batch.
"""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Mapping
from typing import Any

from saltext.jobs.core.batch.plan import APPROVE, RUNNER
from saltext.jobs.core.batch.spec import Spec
from saltext.jobs.core.batch.summary import options_of
from saltext.jobs.core.display.command import divided
from saltext.jobs.core.errors import Refused
from saltext.jobs.core.functions import RUNNERS, kind_of

#: Not taken over: the start time of one batch is not that of another.
_NOT_AGAIN = ("start_at", "check")


@dataclasses.dataclass(frozen=True)
class Before:
    """What was asked for before, in the form of ``batch.start``."""

    tgt: Any
    fun: str
    options: Mapping[str, Any]


def of_batch(spec: Spec) -> Before:
    """Return what a batch was asked to do."""
    told = {name: value for name, value in options_of(spec).items() if value is not None and name not in _NOT_AGAIN}
    if spec.check:
        told["check"] = _check_of(spec.check)
    job = {"tgt_type": spec.tgt_type, "arg": list(spec.arg), "kwarg": dict(spec.kwargs)}
    return Before(spec.tgt, spec.fun, {**told, **spec.options, **job})


def of_job(jid: str, load: Mapping[str, Any]) -> Before:
    """
    Return what a job was published with.

    :param load: from the job cache.
    :raises Refused: if a batch cannot run such a job.
    """
    fun = load.get("fun")
    if not isinstance(fun, str) or kind_of(fun) == RUNNERS:
        raise Refused(f"like is {jid}, which is not a job of one function on minions: a batch can't run it")
    arg, kwarg = divided(load.get("arg"))
    kwargs = load.get("kwargs")
    metadata = kwargs.get("metadata") if isinstance(kwargs, Mapping) else None
    found = {"tgt_type": load.get("tgt_type"), "ret": load.get("ret") or None, "metadata": metadata or None}
    return Before(load.get("tgt"), fun, {**found, "arg": arg, "kwarg": kwarg})


def asked_again(
    before: Before, tgt: Any, fun: Any, args: tuple[Any, ...], given: Mapping[str, Any]
) -> tuple[Any, Any, tuple[Any, ...], dict[str, Any]]:
    """
    Return target, function, arguments and keyword arguments for ``batch.start``: those given, or else those from before.

    Arguments are not taken over for another function, nor the target type for another target.
    """
    taken = dict(before.options)
    if tgt is not None:
        taken.pop("tgt_type", None)
    if fun is not None:
        taken.update(arg=[], kwarg={})
    kwarg = {name: value for name, value in taken.pop("kwarg").items() if name not in given}
    if isinstance(given.get("kwarg"), Mapping):
        kwarg.update(given["kwarg"])
    options = {**taken, **given, "kwarg": kwarg}
    return (before.tgt if tgt is None else tgt), (before.fun if fun is None else fun), args, options


def _check_of(check: Mapping[str, Any]) -> str:
    """Return a check in the form in which it is typed."""
    if check["kind"] == APPROVE:
        return APPROVE
    words = [_typed(value) for value in check["arg"]]
    words += [f"{name}={_typed(value)}" for name, value in check["kwargs"].items()]
    return (RUNNER if check["kind"] == "runner" else "") + shlex.join((check["fun"], *words))


def _typed(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)
