"""
A batch as seen from outside: the summary of ``batch.status``, the batch's minions, and the payloads of its events.

Pure: stdlib only. It must never show a return's payload.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from saltext.jobs.core.batch.facts import Announce
from saltext.jobs.core.batch.machine import Batch
from saltext.jobs.core.batch.outcomes import Outcome
from saltext.jobs.core.batch.plan import APPROVE, RUNNER, gates_of
from saltext.jobs.core.batch.spec import Spec
from saltext.jobs.core.display.command import HIDDEN, shown, words_of
from saltext.jobs.core.display.moments import local, span
from saltext.jobs.core.display.text import counted

#: The ``driver`` of our batches.
DRIVER = "engine"
_ORDINALS = ("first", "second", "third")
#: Options of ``batch.start`` that a Spec keeps under their own names.
_KEPT = (
    *("batch", "batch_wait", "max_failures", "timeout", "gather_job_timeout", "max_runtime", "start_at"),
    *("window", "timezone", "by", "check_timeout", "presence", "offline", "ret"),
)


def counts(batch: Batch) -> dict[str, Any]:
    """Return how many minions are in each state; the counts add up to ``total``."""
    return {
        "total": len(batch.spec.minions),
        **{outcome.value: batch.counts[outcome] for outcome in Outcome},
        "active": len(batch.flights),
        "pending": batch.count_pending(),
        "state": batch.state,
        **({"group": batch.spec.groups[batch.pace.group][0]} if batch.spec.groups else {}),
    }


def _stages(spec: Spec) -> int:
    """Return how many stages each group has."""
    return len(spec.sizes) // max(1, len(spec.groups))


def _pace(batch: Batch) -> dict[str, int]:
    """Return the present stage, counted from 1, and the most minions in flight at it."""
    return {"batch_size": batch.pace.size, "stage": batch.pace.stage % _stages(batch.spec) + 1}


def announcement(batch: Batch, effect: Announce) -> dict[str, Any]:
    """Return the payload of an event: the fields that core/master/events.py names for its kind."""
    spec = batch.spec
    payload = {"jid": spec.jid, "fun": spec.fun, "user": spec.user, **counts(batch)}
    # Salt 3008's manager would take a "state" in such an event for a whole batch of its own.
    payload["status"] = payload.pop("state")
    if effect.kind == "new":
        payload.update(tgt=spec.tgt, tgt_type=spec.tgt_type, batch_size=batch.pace.size)
    if effect.kind == "progress":
        payload.update(blocked_reason=batch.waits_for_room() or None, **_pace(batch))
    if effect.kind in ("complete", "halted"):
        payload.update(halted_reason=batch.halted, success=batch.success, stopped_by=batch.stopped_by)
    return {**payload, **shown(effect.details)}


def summary(batch: Batch, now: float, is_seen: bool = True) -> dict[str, Any]:
    """
    Return the flat dict of ``batch.status``: all keys of Salt 3008, and ours. ``now`` is Unix time.

    :param is_seen: whether arguments are shown.
    """
    spec, numbers, pause = batch.spec, counts(batch), batch.waits_for()
    stages = _stages(spec)
    groups = {"by": spec.by, "group_number": batch.pace.group + 1, "groups": len(spec.groups)}
    return {
        "jid": spec.jid,
        "fun": spec.fun,
        "arguments": words_of(spec.arg, spec.kwargs) if is_seen else [HIDDEN],
        "tgt": spec.tgt,
        "tgt_type": spec.tgt_type,
        **numbers,
        **_pace(batch),
        "halted": batch.halted is not None,
        "halted_reason": batch.halted,
        "stopped_by": batch.stopped_by or None,
        "driver": DRIVER,
        "user": spec.user,
        "created": batch.created,
        "last_progress": batch.last_progress,
        "age_seconds": max(0.0, now - batch.last_progress),
        "stages": stages,
        "sizes": list(spec.sizes[:stages]),
        **(groups if spec.groups else {}),
        "rate": _rate(batch, numbers, now),
        "eta_seconds": _seconds_left(batch, numbers),
        "success": batch.success,
        "paused_by": pause.by.value if pause else None,
        "paused_reason": pause.reason if pause else None,
        "opens_at": batch.opens_at(),
        "blocked_reason": batch.waits_for_room() or None,
        "check": batch.checks.stage is not None,
        "approve": batch.checks.stage if batch.checks.by_hand else None,
        "survivors": sorted(batch.inflight.survivors()),
        "unsure": sorted(spec.unsure),
        "publishes": batch.pace.publishes,
        "publish_failures": batch.pace.publish_failures,
        "finished": batch.finished,
        "parent": spec.parent,
        "options": options_of(spec, is_seen),
    }


def options_of(spec: Spec, is_seen: bool = True) -> dict[str, Any]:
    """
    Return the options with which a batch was started, by their names in ``batch.start``.

    None for one that was not given and has no default.
    """
    check, more = check_of(spec), dict[str, Any]()
    if is_seen:
        words, more = words_of(spec.check.get("arg") or (), spec.check.get("kwargs") or {}), shown(spec.options)
        check = check and " ".join((check, *words))
    kept = {name: None if getattr(spec, name) == "" else getattr(spec, name) for name in _KEPT}
    return {**kept, "check": check, "approve_by": list(spec.approve_by) or None, **more}


def preview(spec: Spec, limit: int | None, ttl: float) -> dict[str, Any]:
    """
    Return what ``batch.preview`` shows of a batch that is not started.

    :param limit: the limit over all batches.
    :param ttl: seconds for which the retry queue owes a job.
    """
    counts = [count for _, count in spec.groups] or [len(spec.minions)]
    return {
        "fun": spec.fun,
        "arguments": words_of(spec.arg, spec.kwargs),
        "tgt": spec.tgt,
        "tgt_type": spec.tgt_type,
        "total": len(spec.minions),
        "minions": list(spec.minions),
        "sizes": list(spec.sizes[: _stages(spec)]),
        "groups": [[name, count] for name, count in spec.groups] or None,
        "check": check_of(spec),
        "check_after": gates_of(spec.sizes, counts) if spec.check else [],
        "unsure": sorted(spec.unsure),
        "max_in_flight": limit,
        "options": options_of(spec),
        "sentence": in_a_sentence(spec, ttl),
    }


def in_a_sentence(spec: Spec, ttl: float) -> str:
    """Return how a batch would go on. :param ttl: as for ``preview``."""
    sizes, total = spec.sizes[: _stages(spec)], len(spec.minions)
    pace = f"{sizes[0]:,} at a time" if sizes[0] < total else "all at once"
    if len(sizes) > 1:
        pace = ", then ".join((f"{sizes[0]:,} first", *(f"{size:,}" for size in sizes[1:]))) + " at a time"
    groups = f"{len(spec.groups)} groups, one after the other, each with " if spec.groups else ""
    stops = "goes on whatever fails"
    if spec.failures_allowed is not None:
        allowed = int(spec.failures_allowed)
        nth = f"the {_ORDINALS[allowed]} failure" if allowed < len(_ORDINALS) else f"failure {allowed + 1:,}"
        stops = f"stops at {nth}"
    elif spec.group_failures_allowed:
        stops = f"stops when more than {spec.max_failures} of a group have failed"
    absent = {"queue": f"are queued for {span(ttl)}", "fail": "count as failed", "skip": "are left out"}
    parts = [
        f"{counted(total, 'minion')}: {groups}{pace}",
        f"begins at {local(spec.start_at, None)}" if spec.start_at else "",
        f"sends only within {spec.window}" if spec.window else "",
        f"{'waits for an approval' if check_of(spec) == APPROVE else 'is checked'} between them" if spec.check else "",
        stops,
        f"absent ones {absent[spec.offline]}",
    ]
    return "; ".join(part for part in parts if part)


def check_of(spec: Spec) -> str | None:
    """Return the check between stages as it was written, without arguments; None if there is none."""
    kind, fun = spec.check.get("kind"), spec.check.get("fun")
    return {"runner": f"{RUNNER}{fun}", "function": fun, APPROVE: APPROVE}.get(str(kind))


def _rate(batch: Batch, numbers: Mapping[str, Any], now: float) -> float:
    """Return minions per minute since the start."""
    done = sum(numbers[name] for name in ("completed", "failed", "lost", "killed", "timed_out"))
    elapsed = (batch.finished or now) - batch.created
    return round(60 * done / elapsed, 2) if elapsed > 0 else 0.0


def two_digits(number: float) -> float:
    """Return an estimate, rounded to two significant digits."""
    return float(f"{number:.2g}")


def _seconds_left(batch: Batch, numbers: Mapping[str, Any]) -> float | None:
    """
    Return for about how many seconds a batch will still run, by the usual run time and the present size, which says more
    than the pace so far. None if that is not known: before the first return, after the end, and while the batch waits.
    """
    usual, left = batch.publish_window.usual, numbers["active"] + (0 if batch.halted else numbers["pending"])
    if batch.finished or batch.state == "paused" or batch.waits_for_room() or not (usual and left):
        return None
    return two_digits((usual + batch.spec.batch_wait) * max(1.0, left / batch.pace.size))


# -- its minions -------------------------------------------------------------------------------------------------------


def minion_record(
    state: str, since: float | None, retcode: Any = None, started: float | None = None, **more: Any
) -> dict[str, Any]:
    """Return what ``batch.minions`` shows of a minion."""
    return {"state": state, "since": since, "started": started, "retcode": retcode, **more}


def minions(batch: Batch) -> dict[str, dict[str, Any]]:
    """
    Return ``{minion: {state, since, started, retcode}}``; ``state`` is pending, active or how it ended; ``since`` and
    ``started`` (when it began the job, or else when it was sent to; None if neither) are Unix times. A batch with groups
    has ``group`` too, an active minion has ``seen``: when it was last seen to run the job, and a lost one that is known to
    have begun the job has ``begun``.
    """
    known = {minion: minion_record("pending", batch.created) for minion in batch.pending()}
    for minion, flight in batch.flights.items():
        since = flight.began or flight.since
        known[minion] = minion_record("active", since, None, since, seen=max(since, flight.since))
    for minion, (outcome, since, retcode, started) in batch.outcomes.items():
        known[minion] = minion_record(outcome.value, since, retcode, started)
    for minion in batch.record.begun:
        if known[minion]["state"] == Outcome.LOST.value:
            known[minion]["begun"] = True
    if batch.spec.groups:
        for minion, record in known.items():
            record["group"] = batch.spec.groups[batch.membership.of(minion)][0]
    return {minion: known[minion] for minion in sorted(known)}
