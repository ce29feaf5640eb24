"""
Makes fields of a Spec from the options of a rollout: when it may send, its groups, and the check between stages. Blocks.
"""

from __future__ import annotations

import datetime
import itertools
import time
from collections.abc import Mapping, Sequence
from typing import Any

import salt.loader
import salt.utils.args

from saltext.jobs.core.batch.minion_data import find_groups
from saltext.jobs.core.batch.permission import require_runner
from saltext.jobs.core.batch.plan import (
    NOT_KNOWN,
    WITHOUT,
    Group,
    failures_allowed,
    grouped_layout,
    parse_check,
    sizes_of,
)
from saltext.jobs.core.errors import Refused
from saltext.jobs.core.grouping import parse_by
from saltext.jobs.core.master.caller import Caller
from saltext.jobs.core.options import kinds
from saltext.jobs.core.windows import find_zone, own_zone, parse_moment

#: The options that are read here.
OPTIONS = ("start_at", "window", "timezone", "by", "check")

_TIMES = {"timezone": kinds.TIMEZONE, "window": kinds.WINDOW}
#: A Unix time before this one is a mistake: YAML reads 22:00 as 1320.
_EARLIEST = 1_000_000_000


def times_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return when a batch may send. :raises Refused: for malformed options, and for a start time in the past."""
    found: dict[str, Any] = {name: kind.given(name, options[name]) for name, kind in _TIMES.items() if name in options}
    zone = find_zone(found["timezone"]) if found.get("timezone") else None
    if found.get("window") and zone is None:  # another master, in another time zone, may go on with the batch
        found["timezone"] = own_zone()
    if "start_at" in options:
        found["start_at"] = _start_at(options["start_at"], zone)
    return found


def layout_of(
    opts: Mapping[str, Any],
    options: Mapping[str, Any],
    batch: Any,
    minions: tuple[str, ...],
) -> dict[str, Any]:
    """
    Return the minions in order, their groups, sizes and failure budgets.

    :raises Refused: for malformed options.
    """
    budget = options.get("max_failures")
    if "by" not in options:
        return {
            "minions": minions,
            "sizes": kinds.accepted(sizes_of, batch, len(minions)),
            "failures_allowed": kinds.accepted(failures_allowed, budget, len(minions)),
        }
    groups = kinds.accepted(find_groups, opts, options["by"], minions)
    layout: dict[str, Any] = kinds.accepted(grouped_layout, *_as_shown(groups, options["by"].strip()), batch, budget)
    return layout


def _as_shown(groups: Sequence[Group], by: str) -> tuple[tuple[Group, ...], str]:
    """
    Return groups and their ``by`` as they are shown: a batch's events show them, and every user of salt-api can read events,
    whatever their rights. So numbers replace values of minions. The names of nodegroups are no secret.
    """
    wanted = parse_by(by)
    if wanted.kind == "nodegroups":
        return tuple(groups), by
    numbers = itertools.count(1)
    named = (group.name if group.name in (WITHOUT, NOT_KNOWN) else str(next(numbers)) for group in groups)
    return tuple(
        Group(name, group.minions) for name, group in zip(named, groups, strict=True)
    ), f"{wanted.kind}:{wanted.key}"


def check_of(opts: Mapping[str, Any], who: Caller, options: Mapping[str, Any]) -> dict[str, Any]:
    """
    Return the check between stages; empty for none.

    :raises Refused: for a malformed check, and for a runner function that ``who`` may not call. The right to run a function
        on the minions must be checked elsewhere.
    """
    if "check" not in options:
        return {}
    check = kinds.accepted(parse_check, options["check"])
    arg, kwargs = list(check.words), {}
    if check.kind == "function":
        arg, kwargs = salt.utils.args.parse_input(arg, condition=False)
    elif check.kind == "runner":
        require_runner(opts, who, check.fun, check.words)
    return {"kind": check.kind, "fun": check.fun, "arg": list(arg), "kwargs": dict(kwargs)}


def require_stages(check: Mapping[str, Any], layout: Mapping[str, Any]) -> None:
    """
    :param layout: the result of ``layout_of``.
    :raises Refused: for a check that would never happen, since the batch has one stage.
    """
    if check and len(layout["sizes"]) == 1:
        found = ", and its minions are one group" if layout.get("groups") else ""
        raise Refused(
            f"this batch has one stage{found}, and a check needs several; give it a ramp, such as batch=1,100%, or several "
            "groups with by="
        )


def require_known(opts: Mapping[str, Any], check: Mapping[str, Any]) -> None:
    """
    :raises Refused: for a check by a runner function that this master does not have. Which functions minions have is not
        known here.
    """
    if check.get("kind") != "runner":
        return
    runners = salt.loader.runner(dict(opts))
    if check["fun"] not in runners:
        why = runners.missing_fun_string(check["fun"])
        raise Refused(f"check is runner:{check['fun']}, and this master has no such runner function: {why}")


def _start_at(value: Any, zone: datetime.tzinfo | None) -> float:
    now = time.time()
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value >= _EARLIEST:
        moment = float(value)
    elif isinstance(value, str) and value.strip().startswith("+"):
        moment = now + kinds.SECONDS.given("start_at", value.strip()[1:])
    elif isinstance(value, (str, datetime.datetime)):
        moment = kinds.accepted(parse_moment, str(value), zone)
    else:
        raise Refused(
            f"start_at is {value!r}; accepted is a date and time ('2026-11-28 02:00'), '+90m', or Unix time in seconds"
        )
    if moment < now:
        raise Refused(f"start_at is {value!r}, which has passed")
    return moment
