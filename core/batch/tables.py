"""
What ``salt-run batch.*`` shows to people: one line for each batch, some lines for a single one, its minions by state. It
draws what the runner returns; programs get that unchanged. Pure: the time is the page's.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from typing import Any

from saltext.jobs.core.batch import summary
from saltext.jobs.core.batch.member import Outcome
from saltext.jobs.core.batch.pace import HELD, PausedBy
from saltext.jobs.core.batch.spec import OPTIONS, TRAVELLING
from saltext.jobs.core.display.page import FUNCTION, JID, ROWS, TARGET, Column, Page, Row, Table, ended, reasons
from saltext.jobs.core.display.text import ago, counted, joined, local, seconds_of, some, span
from saltext.jobs.core.reasons import id_and_function, states_of, text_of

#: Most lines of names for a state that needs attention, and for any other state.
_MANY_LINES, _FEW_LINES = 6, 2
#: What is said of lost minions, and of those that were handed over.
_LOST = "they may have run it, or run it yet; batch.minions tells what is known; batch.retry which=lost runs it again"
_OWED = "owed by job_retry, which delivers the job when they are back; batch.retry leaves them out"
#: Most batches of a list of which is said why they wait, or which batch has retried them.
_NOTES = 10
#: Most reasons, and most minions of one, that a step of an orchestration shows.
_REASONS, _NAMES = 12, 20


def _failed(batch: Row) -> int:
    return sum(batch.get(name) or 0 for name in summary.FAILED)


_BATCHES = Table(
    "batch",
    "batches",
    (
        JID,
        Column("STATE", summary.word),
        Column("DONE", lambda batch: f"{batch['completed']}/{batch['total']}", right=True, rank=1),
        Column("FAILED", _failed, right=True, rank=3),
        FUNCTION,
        TARGET,
        Column("AGE", "created", rank=2, age=True),
    ),
    summary.word,
    summary.WORDS,
)
_MINIONS = Table("minion", "minions", (), "state", (*summary.BAD, "active", "pending", Outcome.COMPLETED.value))
_STATES = Table(
    "state",
    "states",
    (
        Column("RESULT", "result"),
        Column("STATE", "id", 8, names=False),
        Column("FUNCTION", "function", 6, rank=2),
        Column("TOOK", "took", right=True, rank=1),
    ),
    "result",
    ("failed", "changed", "would change", "unchanged"),
)


def listed(found: Sequence[Row], page: Page) -> None:
    """Show ``batch.list`` and ``batch.list_active``."""
    if not found:
        page.line("No batch was found.")
        page.next("batch.start TARGET FUNCTION", "batch.list")
        return
    page.listing(_BATCHES, found, most=len(found))
    whys = ((batch["jid"], summary.waits(batch, page.when) or summary.retried(batch)) for batch in found)
    notes = [f"{jid}: {why}" for jid, why in whys if why]
    for line in notes[:_NOTES]:
        page.line(line, "  ", 3)
    page.folded(len(notes), _NOTES, " that wait or were retried")
    trouble = next((told for batch in found if (told := summary.engine_trouble(batch))), None)
    if trouble:
        page.line(f"{trouble[0].upper()}{trouble[1:]}.")
    goes_on = any(batch["state"] not in summary.OVER for batch in found)
    steps = ["status", "watch", "minions", "stop"] if goes_on else ["status", "minions"]
    if any(_failed(batch) for batch in found if summary.word(batch) != "mended"):
        steps.insert(0, "failures")
    page.next(f"batch.{steps[0]} JID", *steps[1:])


# -- one batch ----------------------------------------------------------------------------------------------------------


def standing(batch: Row, page: Page) -> None:
    """Show one batch: the result of ``batch.status``, ``start``, ``preview``, ``run``, ``wait``, ``watch`` and ``retry``."""
    if "sentence" in batch:  # it is only a preview
        page.facts({**batch, "options": _given(batch["options"])}, *(("sizes",) if batch["groups"] else ()))
        return
    page.head(batch, summary.word(batch))
    counts = summary.in_numbers(batch, (*summary.BAD, "active", "completed", "pending"))
    page.line(f"{summary.progress(batch, page.width)}: {counts or 'no minion'}", "  ")
    for name, value in _particulars(batch, page):
        if value:
            text = ", ".join(value) if isinstance(value, list) else str(value)
            page.line(f"  {name}: {text}" if name else f"  {text}", "    ", _MANY_LINES)
    if batch.get("verdict"):
        page.line(batch["verdict"], "  ", 6)
    page.next(*_next(batch))


def _particulars(batch: Row, page: Page) -> list[tuple[str, Any]]:
    """Return (label, value) lines about a batch, first those that need an operator. Empty values are not shown."""
    options = batch.get("options") or {}
    sent, finished = batch.get("publishes") != 0, batch.get("finished")
    at = batch.get("first_sent") or batch["created"]
    began = f"{'started' if sent else 'asked for'} {local(at, page.tz) if finished else page.when(at)}"
    last = ago(batch.get("last_progress"), page.now)
    ends = f"ended {page.when(finished)}" if finished else f"last progress {last}" if sent else ""
    return [
        ("halted", summary.why_halted(batch)),
        ("stopped by", batch.get("stopped_by") if batch.get("halted_reason") != "stop" else None),
        (summary.word(batch), summary.waits(batch, page.when)),
        ("engine", summary.engine_trouble(batch)),
        ("a check", "is under way" if batch.get("check") and batch.get("approve") is None else None),
        ("left out, with no grains and pillar at the master", batch.get("unsure")),
        ("still run it after a kill", batch.get("survivors")),
        ("lost", _LOST if batch.get("unmended", batch).get("lost") and batch["state"] in summary.OVER else None),
        ("queued", _OWED if batch.get("queued") else None),
        ("publishes that failed", batch.get("publish_failures")),
        ("", summary.pace(batch, f"{batch.get('batch_size')} at a time")),
        ("options", _given(options)),
        ("", f"{began}, {ends}" if ends else began),
        ("retry of", batch.get("parent")),
        ("", summary.retried(batch)),
        ("driven by the master", batch.get("engine_master")),
        ("driven by", None if _is_ours(batch) else "Salt itself, not by the batch_manager engine"),
    ]


def _is_ours(batch: Row) -> bool:
    return batch.get("driver") in (None, summary.DRIVER)


def _given(options: Mapping[str, Any]) -> str:
    usual = {name: field.default for name, field in OPTIONS.items() if field.metadata.get("listed", True)}
    names = (name for name in (*usual, *TRAVELLING) if options.get(name) not in (None, {}, usual.get(name)))
    return ", ".join(f"{name}={joined(options[name])}" for name in names)


def _next(batch: Row) -> list[str]:
    jid, state = batch["jid"], batch["state"]
    if not _is_ours(batch):
        return [f"batch.minions {jid}", *(() if state in summary.OVER else ("batch.stop",))]
    if batch.get("approve") is not None:
        others = (batch.get("options") or {}).get("approve_by")  # whoever reads this may be none of them
        steps = [f"batch.watch {jid}", "batch.approve"] if others else [f"batch.approve {jid}"]
        return [*steps, "batch.minions", "batch.stop"]
    if state == "paused" and batch.get("paused_by") == PausedBy.PERMISSION:  # others can retry the rest
        return [f"batch.stop {jid}", "batch.resume", "batch.minions"]
    if state == "paused":
        return [f"batch.{'resume' if batch.get('paused_by') in HELD else 'watch'} {jid}", "batch.minions", "batch.stop"]
    if state in ("running", "stopping"):
        more = ("batch.pause", "batch.stop") if state == "running" else ("batch.stop kill=True",)
        return [f"batch.watch {jid}", "batch.minions", *(more if not batch.get("killing") else ())]
    if not batch.get("retries") and (batch.get("failed") or batch.get("timed_out")):
        return [f"batch.failures {jid}", _retry(batch), "batch.minions"]
    return _again(batch) or [f"jobs.lookup_jid {jid}", "batch.minions"]


def _again(batch: Row) -> list[str]:
    """Return the commands that run a batch again where it did not succeed, or show what has done so or will."""
    jid, retries, left = batch["jid"], batch.get("retries"), batch.get("unmended", batch)
    retry = _retry(left)
    # What is known of lost minions decides whether the job may run again, and a retry leaves a failed check behind.
    if left.get("lost") or (retry and str(batch.get("halted_reason") or "").startswith("check")):
        return [f"batch.minions {jid}", retry]
    if retry:
        return [retry.replace("batch.retry", f"batch.retry {jid}"), "batch.minions"]
    if left.get("queued"):
        return [f"job_retry.list jid={jid}", "batch.minions"]
    return [f"batch.status {retries[-1]}"] if retries else []


def _retry(counts: Row) -> str:
    """Return the command, without a jid, that runs a batch again where that is safe; empty if it is nowhere."""
    if counts.get("failed") and not counts.get("pending"):  # a plain retry leaves out those that were not sent to
        return "batch.retry"
    # The queue owes the job to those that are queued, and those that are lost may have run it.
    kinds = [name for name in (*summary.BAD, "pending") if counts.get(name) and name not in ("queued", "lost")]
    which = "all" if len(kinds) > 1 and not counts.get("lost") else ",".join(kinds)
    return which and f"batch.retry which={which}"


# -- the minions of a batch, and why they failed -----------------------------------------------------------------------


def minions(found: Mapping[str, Row], page: Page) -> None:
    """Show ``batch.minions``: the minions of each state with the reason, first those that need attention."""
    if not found:
        page.line("There is no such minion in this batch.")
        return
    page.line(_MINIONS.headline(list(found.values())))
    # Where a job may hang, those that have been in their state for the longest come first.
    alike = collections.defaultdict[tuple[str, str], list[str]](list)
    for minion, record in sorted(found.items(), key=lambda item: (_since(item[1]) or 0.0, item[0])):
        retcode, again = record.get("retcode"), record.get("retry_state")
        why = f"retcode {retcode}" if retcode else summary.meaning(record)
        told = f"{again} in the retry {record['retry']}{', whose page says more' * (again == 'lost')}" if again else ""
        alike[str(record["state"]), ", ".join(filter(None, (why, told)))].append(minion)
    for (state, why), names in sorted(alike.items(), key=lambda item: (_MINIONS.rank(item[0][0]), -len(item[1]))):
        since = _since(found[names[0]])
        longest = f", the first for {span(page.now - since)}" if since else ""
        text = f"{state} ({why}{longest})" if why else state
        page.names(f"{text}, {len(names):,}:", names, _MANY_LINES if state in summary.BAD else _FEW_LINES)
    page.fold(ROWS)
    bad = {one.get("retry_state") or one["state"] for one in found.values() if "open" not in one} & {*summary.BAD}
    retry = _retry(dict.fromkeys(bad, 1))  # pending ones may still get it
    lost = [one.get("retry", "") for one in found.values() if (one.get("retry_state") or one["state"]) == "lost"]
    other = f"job_retry.list jid={page.jid}" if bad else f"batch.status {page.jid}"
    if lost:  # what is known of them is on the page of the batch that lost them
        other = f"batch.minions {max(lost)}" if any(lost) else f"jobs.lookup_jid {page.jid}"
    more = (retry, "jobs.lookup_jid") if retry or not lost else ("batch.retry which=lost",)
    page.next(f"batch.failures {page.jid}" if retry else other, *more)


def _since(record: Row) -> float | None:
    return seconds_of(record["since"]) if record["state"] in ("active", "queued") else None


def failures(found: Mapping[str, Any], page: Page) -> None:
    """Show ``batch.failures``: each reason with its minions, the most frequent first."""
    groups = found["groups"]
    page.head(found, summary.word(found))
    many = f", for {counted(len(groups), 'reason')}" if len(groups) > 1 else ""
    page.line(f"{found['unsuccessful']:,} of {counted(found['total'], 'minion')} did not succeed{many}")
    why = summary.why_halted(found)
    for told in filter(None, (f"halted: {why}" if why else "", summary.retried(found))):
        page.line(told, "  ", 3)
    reasons(groups, page)
    steps = _next(found) if found["state"] not in summary.OVER else _is_ours(found) and _again(found)
    page.next(*(steps or [f"batch.minions {found['jid']}"]))


def returned(found: Mapping[str, Any], page: Page) -> None:
    """Show ``batch.output``: a run of states as a table, failed ones first, with why they failed and what changed."""
    ran = states_of(found.get("return"))
    if not ran:
        page.facts(found)
        return
    rows = _STATES.sorted([_state(*item) for item in ran])
    page.facts(found, "return")
    page.gap()
    page.listing(_STATES, rows)
    page.gap()
    why = text_of(found) if rows[0]["result"] == "failed" else None
    page.facts({"why": why, "changes": {row["id"]: row["changes"] for row in rows if row["changes"]}})


def _state(name: str, state: Mapping[str, Any]) -> dict[str, Any]:
    id_, function = id_and_function(name, state)
    result, changes, took = state.get("result"), state.get("changes"), state.get("duration")
    done = "failed" if result is False else "would change" if result is None else "changed" if changes else "unchanged"
    seconds = f"{took / 1000:.1f} s" if isinstance(took, (int, float)) else took or ""
    return {"result": done, "id": id_, "function": function, "took": seconds, "changes": changes}


def step(found: Mapping[str, Any], groups: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what a step of an orchestration shows of a summary and ``batch.failures``: Salt prints a line a key."""
    ends = "Error" if "Error" in found else "verdict"
    names = ("jid", "state", "total", *summary.ENDED, "active", "pending", "retcode", ends)
    told: dict[str, Any] = {name: found.get(name) for name in names}
    told["failures"] = {f"{ended(one)} {some(one['minions'], _NAMES)}": one["text"] for one in groups[:_REASONS]}
    if len(groups) > _REASONS:
        told["more"] = f"batch.failures shows {len(groups) - _REASONS} more"
    return {name: value for name, value in told.items() if value}
