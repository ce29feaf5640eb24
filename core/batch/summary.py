"""
A batch as seen from outside: the summary of ``batch.status``, the batch's minions, and the payloads of its events; and what
a summary says in words for people. Pure: stdlib only. It must never show a return's payload.
"""

from __future__ import annotations

import collections
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from saltext.jobs.core.batch.facts import Announce
from saltext.jobs.core.batch.member import KILLS, Outcome, why_lost
from saltext.jobs.core.batch.pace import HELD, PausedBy
from saltext.jobs.core.batch.spec import APPROVE, OPTIONS, RUNNER, Spec, gates_of, sizes_of
from saltext.jobs.core.batch.state import Batch
from saltext.jobs.core.display.command import HIDDEN, named, shown, words_of
from saltext.jobs.core.display.text import counted, local, span
from saltext.jobs.core.reasons import Reasons, text_of

#: The ``driver`` of our batches.
DRIVER = "engine"
#: What an event has besides the counts, by its kind.
_ANNOUNCED = {
    "new": ("tgt", "tgt_type", "batch_size"),
    "progress": ("blocked_reason", "batch_size", "stage"),
    **dict.fromkeys(("complete", "halted"), ("halted_reason", "success", "stopped_by")),
}
_ORDINALS = ("first", "second", "third")
#: Most columns of the bar.
_BAR = 20


def announcement(batch: Batch, effect: Announce) -> dict[str, Any]:
    """Return the payload of an event: the fields of the summary that core/master/events.py names for its kind."""
    found = summary(batch, batch.last_progress)
    names = ("jid", "fun", "user", "total", *ENDED, "active", "pending", "group", *_ANNOUNCED.get(effect.kind, ()))
    # Salt 3008's manager would take a "state" in such an event for a whole batch of its own.
    return {**{name: found[name] for name in names if name in found}, "status": found["state"], **shown(effect.details)}


def summary(batch: Batch, now: float, is_seen: bool = True) -> dict[str, Any]:
    """Return the flat dict of ``batch.status``: all keys of Salt 3008, and ours. ``is_seen``: arguments are shown."""
    spec, pace, pause = batch.spec, batch.pace, batch.waits_for()
    numbers = {outcome.value: batch.counts[outcome] for outcome in Outcome}
    numbers |= {"active": len(batch.flights), "pending": len(batch.pending)}
    group = {"group": spec.groups[pace.group][0], "group_number": pace.group + 1} if spec.groups else {}
    return {
        "jid": spec.jid,
        **_asked(spec, is_seen),
        **numbers,
        "state": batch.state,
        "batch_size": pace.size,  # most minions in flight at the present stage, which is counted from 1
        "stage": pace.stage % len(spec.sizes) + 1,
        "killing": batch.killing,
        "halted": batch.halted is not None,
        "halted_reason": batch.halted,
        "stopped_by": batch.stopped_by or None,
        "driver": DRIVER,
        "user": spec.user,
        "created": batch.created,
        "first_sent": pace.first_sent,
        "last_progress": batch.last_progress,
        "age_seconds": max(0.0, now - batch.last_progress),
        "stages": len(spec.sizes),
        **({**group, "by": spec.grouped_by, "groups": len(spec.groups)} if group else {}),
        "rate": round(60 * _ran(numbers) / max(1e-3, (batch.finished or now) - (pace.first_sent or batch.created)), 2),
        "eta_seconds": _seconds_left(batch, numbers),
        "success": batch.success,
        "paused_by": pause.by.value if pause else None,
        "paused_reason": pause.reason if pause else None,
        "opens_at": batch.schedule.opens if pause and pause.by in (PausedBy.WINDOW, PausedBy.START) else None,
        "blocked_reason": batch.blocked() or None,
        "check": pace.checking is not None,
        "approve": pace.to_approve,
        "survivors": sorted(minion for minion, member in batch.flights.items() if member.kills >= KILLS),
        "publishes": pace.publishes,
        "publish_failures": pace.publish_failures,
        "finished": batch.finished,
        "parent": spec.parent,
    }


def _asked(spec: Spec, is_seen: bool = True) -> dict[str, Any]:
    """Return what a summary and a preview tell of what a batch was asked to do."""
    return {
        "fun": spec.fun,
        "arguments": words_of(spec.arg, spec.kwargs) if is_seen else [HIDDEN],
        "tgt": spec.tgt,
        "tgt_type": spec.tgt_type,
        "total": len(spec.minions),
        "sizes": spec.sizes,
        "unsure": list(spec.unsure),
        "options": options_of(spec, is_seen),
    }


def options_of(spec: Spec, is_seen: bool = True) -> dict[str, Any]:
    """Return the options of a batch by their names in ``batch.start``: None if not given and without a default."""
    check, given = check_of(spec), shown(named(spec.options.get("metadata")))
    more: dict[str, Any] = {"metadata": given} if given else {}
    if is_seen:
        words, more = words_of(spec.check.get("arg") or (), spec.check.get("kwargs") or {}), shown(spec.options)
        check = check and " ".join((check, *words))
    values = {name: getattr(spec, name) for name in OPTIONS} | {"by": spec.grouped_by, "check": check}
    kept = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
    return {**{name: None if value in ("", []) else value for name, value in kept.items()}, **more}


def preview(spec: Spec, limit: int | None, ttl: float) -> dict[str, Any]:
    """Return what ``batch.preview`` shows. :param ttl: seconds for which the retry queue owes a job."""
    return {
        **_asked(spec),
        "minions": list(spec.minions),
        "groups": [[name, count] for name, count in spec.groups] or None,
        "check": check_of(spec),
        "check_after": gates_of(spec.batch, spec.counts) if spec.check else [],
        "max_in_flight": limit,
        "sentence": in_a_sentence(spec, ttl),
    }


def in_a_sentence(spec: Spec, ttl: float) -> str:
    """Return how a batch would go on. :param ttl: as for ``preview``."""
    total = len(spec.minions)
    *waves, last = zip(*(sizes_of(spec.batch, count) for count in spec.counts), strict=True)  # by stage, for all groups
    steps = [f"{min(sizes):,}" + (f" to {max(sizes):,}" if max(sizes) > min(sizes) else "") for sizes in (*waves, last)]
    steps[0] += " first" if waves else ""
    is_at_once = not waves and all(map(operator.ge, last, spec.counts))
    pace = "all at once" if is_at_once else f"{'with ' if spec.groups else ''}{', then '.join(steps)} at a time"
    many = f"{len(spec.groups)} groups, one after the other, each "
    groups = many if len(spec.groups) > 1 else "1 group, " if spec.groups else ""
    stops = "goes on whatever fails"
    if len(spec.budgets) == 1 and spec.budgets[0] < total:
        allowed = int(spec.budgets[0])
        nth = f"the {_ORDINALS[allowed]} failure" if allowed < len(_ORDINALS) else f"failure {allowed + 1:,}"
        stops = f"stops at {nth}"
    elif len(spec.budgets) > 1:
        stops = f"stops when more than {spec.max_failures} of a group have failed"
    absent = {"queue": f"are queued for {span(ttl)}", "fail": "count as failed", "skip": "are left out"}[spec.offline]
    late = " unless they are back before it ends" if spec.presence == "ping" else ""
    parts = [
        f"{counted(total, 'minion')}: {groups}{pace}",
        f"begins at {local(spec.start_at, None)}" if spec.start_at else "",
        f"sends only within {spec.window}" if spec.window else "",
        f"{'waits for an approval' if spec.by_hand else 'is checked'} between them" if spec.check else "",
        stops,
        f"absent ones {absent}{late}",
    ]
    return "; ".join(part for part in parts if part)


def check_of(spec: Spec) -> str | None:
    """Return the check between stages as it was written, without arguments; None if there is none."""
    kind, fun = spec.check.get("kind"), spec.check.get("fun")
    return {"runner": f"{RUNNER}{fun}", "function": fun, APPROVE: APPROVE}.get(str(kind))


def _ran(numbers: Mapping[str, Any]) -> int:
    """Return on how many minions the job has ended."""
    return sum(numbers[name] for name in ("completed", "failed", "lost", "killed", "timed_out"))


def _seconds_left(batch: Batch, numbers: Mapping[str, Any]) -> float | None:
    """Return about how many seconds a batch will still run, by the usual run time and the present size; None: not known."""
    usual, left = batch.pace.usual, numbers["active"] + (0 if batch.halted else numbers["pending"])
    if batch.finished or batch.killing or batch.state == "paused" or batch.blocked() or not (usual and left):
        return None
    # The first to return are the quickest: they tell little of the others. For how long a check runs is not known.
    if _ran(numbers) < batch.pace.size or batch.pace.checking is not None:
        return None
    return float(f"{(usual + batch.spec.batch_wait) * max(1.0, left / batch.pace.size):.2g}")


# -- its minions -------------------------------------------------------------------------------------------------------


def minion_record(
    state: str, since: float | None, retcode: Any = None, started: float | None = None, **more: Any
) -> dict[str, Any]:
    """Return what ``batch.minions`` shows of a minion."""
    return {"state": state, "since": since, "started": started, "retcode": retcode, **more}


#: Why a minion counts as offline in a batch that goes on.
_AWAY = "no answer: it gets the job if it is back before the batch has ended"
_SILENT = "was sent the job, and is silent: job_retry asks it once the batch has ended"


def minions(batch: Batch) -> dict[str, dict[str, Any]]:
    """Return the minions of a batch as ``batch.minions`` does."""
    known = {minion: minion_record("pending", batch.created) for minion in batch.pending.in_order()}
    for minion, member in batch.members.items():
        if member.step is not None:
            started = member.ran_since
            known[minion] = minion_record("active", started, None, started, seen=max(started, member.since))
        elif member.ended is not None:
            known[minion] = minion_record(member.ended.value, member.since, member.retcode, member.ran_since or None)
            if member.ended is Outcome.FAILED and member.retcode is None:
                known[minion]["why"] = "was away, and did not get the job: offline=fail"
            elif member.ended is Outcome.LOST:
                known[minion].update({"begun": True} if member.has_begun else {}, why=why_lost(member))
            elif member.ended is Outcome.OFFLINE and not batch.finished and not batch.halted:
                known[minion]["why"] = _SILENT if member.unanswered else _AWAY
    if batch.spec.groups:
        for minion, record in known.items():
            record["group"] = batch.spec.groups[batch.pending.group_of(minion)][0]
    for record in () if batch.finished else known.values():
        if record["retcode"] is None and record["state"] in ("pending", "active", "offline", "failed"):
            record["open"] = True  # the batch may still send it the job, hand it over, or have its return
    return {minion: known[minion] for minion in sorted(known)}


# -- in words ---------------------------------------------------------------------------------------------------------
# ``found`` is the summary of a batch of ours, or of one of Salt's own.

#: The states of a batch that has ended.
OVER = ("complete", "halted")
#: The outcomes without success, worst first; those that count as failures (``max_failures``); and all outcomes.
BAD = ("failed", "timed_out", "lost", "killed", "offline", "queued")
FAILED, ENDED = BAD[:3], ("completed", *BAD)
#: What a minion's state means, if its name does not say it.
_MEANINGS = {
    "timed_out": "ran longer than max_runtime",
    "lost": "may have run it",
    "killed": "by an operator",
    "offline": "no answer",
    "queued": "owed by job_retry",
    "active": "sent to, or running it",
    "pending": "not sent to",
}
#: The words that ``word`` returns: they tell people the state of a batch.
WORDS = ("running", "paused", "waiting", "scheduled", "stopping", "halted", "unsuccessful", "mended", "succeeded")

#: Yields (minion, its return or None) for some minions.
Returns = Callable[[Iterable[str]], Iterator[tuple[str, Mapping[str, Any] | None]]]
#: By minion: the batch of a family whose run of the job counts, and its state there.
Latest = Mapping[str, tuple[str, str]]


def word(found: Mapping[str, Any]) -> str:
    """Return a batch's state in one word that tells people whether all went well, or whether an operator has to act."""
    state, by = str(found["state"]), found.get("paused_by")
    if found.get("retries") and not (found.get("unmended") or found.get("success")):
        return "mended"
    if state == "running" and found.get("blocked_reason") and not found.get("active"):
        return "waiting"
    if state == "complete":
        return "succeeded" if found.get("success") else "unsuccessful"
    if state != "paused" or by is None or by in HELD:
        return state
    return "scheduled" if by == PausedBy.START else "waiting"


def meaning(record: Mapping[str, Any]) -> str:
    """Return what a minion's state means; empty if its name says it. :param record: as ``batch.minions`` has it."""
    return record.get("why") or _MEANINGS.get(record["state"], "")


def in_numbers(found: Mapping[str, Any], names: Iterable[str]) -> str:
    """Return how many minions of a batch are in these states: ``2 failed, 10 active``."""
    return ", ".join(f"{found[name]:,} {name}" for name in names if found.get(name))


def progress(found: Mapping[str, Any], width: int | None = None) -> str:
    """Return a bar that fits a line of ``width`` columns, and how many minions have ended: ``####.... 44 of 104``."""
    ended, total = sum(found.get(name) or 0 for name in ENDED), found["total"]
    bar = _BAR if width is None else min(_BAR, width // 4)
    return f"{'#' * (bar * ended // (total or 1)):.<{bar}} {ended:,} of {total:,}"


def pace(found: Mapping[str, Any], size: str = "") -> str:
    """Return how a batch goes on, after its ``size`` in words: ``stage 2 of 3; 12 a minute, about 5 min left``."""
    if found["state"] in OVER:
        return ""
    by = f", by {found['by']}" if found.get("by") else ""
    group = f"group {found['group']} ({found['group_number']} of {found['groups']}{by})" if found.get("group") else ""
    stage = f"stage {found['stage']} of {found['stages']}" if found.get("stages", 1) > 1 else ""
    goes_on = not engine_trouble(found)
    is_known = found.get("rate") and found["state"] == "running" and goes_on
    rate = f"{float(format(found['rate'], '.2g')):g} a minute" if is_known else ""
    left = f"about {span(found['eta_seconds'])} left" if goes_on and (found.get("eta_seconds") or 0) >= 1 else ""
    begins = found["state"] == "running" and found.get("publishes") == 0 and not found.get("active")
    pings = begins and (found.get("options") or {}).get("presence") == "ping"
    texts = ((group, stage, size), ("minions are pinged first" if pings else "", rate, left))
    return "; ".join(filter(None, (", ".join(filter(None, each)) for each in texts)))


def why_halted(found: Mapping[str, Any]) -> str:
    """Return in words why a batch was halted; empty where it was not."""
    reason, by = str(found.get("halted_reason") or ""), found.get("stopped_by")
    if reason == "stop":
        return f"stopped by {by or 'batch.stop'}{' with kill=True' if found.get('killing') else ''}"
    more = "more minions failed than max_failures allows"
    return f"{more}{reason.removeprefix('max_failures')}" if reason.startswith("max_failures") else reason


def waits(found: Mapping[str, Any], when: Callable[[float], str]) -> str:
    """Return why a batch is paused or held up, and when (in the words of ``when``) it goes on; empty if nothing holds it."""
    if found["state"] in OVER:
        return ""
    reason = str(found.get("paused_reason") or found.get("blocked_reason") or "")
    if not found.get("opens_at"):
        return reason
    happens = "begins" if found.get("paused_by") == PausedBy.START else "opens"
    return f"{reason or 'for its window'}; {happens} {when(found['opens_at'])}"


def retried(found: Mapping[str, Any]) -> str:
    """Return which batches have retried one that has ended without success, and what they have left; empty if none has."""
    names, left = ", ".join(found.get("retries") or ()), found.get("unmended") or {}
    return names and (f"retried by {names}; left: {in_numbers(left, left)}" if left else f"mended by {names}")


def engine_trouble(found: Mapping[str, Any]) -> str | None:
    """Return why a batch does not go on, if that is because of its engine; else None."""
    is_away = found.get("engine") is False or found.get("engine_silent_seconds")
    return "no batch_manager engine answers, so nothing goes on; see jobs_doctor.run" if is_away else None


def verdict(found: Mapping[str, Any]) -> str:
    """Return a sentence about an ended batch, with how many minions were left out."""
    batch, total = f"Batch {found['jid']}", counted(found["total"], "minion")
    after = f"; {retried(found)}" if retried(found) else ""
    if found.get("success"):
        left_out = f"; {found['offline']} left out without an answer" if found.get("offline") else ""
        return f"{batch}: {found['completed']} of {total} completed{left_out}{after}"
    wrong = in_numbers(found, (*BAD, "pending"))
    why = f" ({why_halted(found)})" if why_halted(found) else ""
    return f"{batch} is {word(found)}{why}: {wrong or 'nothing ran'} of {total}{after}"


def why_not(verb: str, found: Mapping[str, Any]) -> str:
    """Return why a request (stop, pause, resume or approve) is not carried out."""
    jid, state = found["jid"], found["state"]
    told = f"Batch {jid} {'has' if word(found) == 'succeeded' else 'is'} {word(found)}"
    told += f": {found['paused_reason']}" if found.get("paused_reason") else ""
    if found.get("approve") is not None and state not in OVER:
        return f"{told}; salt-run batch.approve {jid} stage={found['approve']} lets it go on"
    if verb == "stop" and state == "stopping" and found.get("active"):
        kill = "its job is being killed there" if found.get("killing") else "with kill=True its job is ended there"
        return f"{told}, and still runs on {counted(found['active'], 'minion')}; {kill}"
    return f"{told}; there is nothing to {verb}"


def failures(found: Mapping[str, Any], minions: Mapping[str, Mapping[str, Any]], returns: Returns) -> dict[str, Any]:
    """Return the result of ``batch.failures``. :param minions: as ``batch.minions`` returns them."""
    bad = {minion: record for minion, record in minions.items() if record["state"] in BAD}
    wanted = {minion: record for minion, record in bad.items() if record.get("retry_state") != "completed"}
    reasons = Reasons()
    for minion, ret in returns(wanted):
        record = wanted[minion]
        text = text_of(ret) if ret else meaning(record) or "its return cannot be read: the job cache does not have it"
        reasons.add(minion, str(record["state"]), record["retcode"], text)
    return {**found, "unsuccessful": len(wanted), "groups": reasons.groups()}


def latest(batch: Batch, retries: Sequence[Batch]) -> dict[str, tuple[str, str]]:
    """Return how a batch stands after later batches of its family (``Catalog.retries``), oldest first: the last counts."""
    found: dict[str, tuple[str, str]] = {}
    for one in (batch, *retries):
        for minion, record in minions(one).items():
            state = "waiting" if record.get("open") and record["state"] != "active" else record["state"]
            # A batch of its family may have others; those that are pending or offline at its end have not run it again.
            if one is batch or (minion in found and state not in ("pending", "offline")):
                found[minion] = one.spec.jid, state
    return found


def unmended(latest: Latest) -> dict[str, int]:
    """Return on how many minions a batch and its retries have not succeeded, by state."""
    states = collections.Counter(state for _, state in latest.values())
    return {state: states[state] for state in (*BAD, "active", "waiting", "pending") if states[state]}
