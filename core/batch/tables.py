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
from saltext.jobs.core.batch.pace import HELD
from saltext.jobs.core.display import moments
from saltext.jobs.core.display.facts import facts, head, reasons
from saltext.jobs.core.display.page import ROWS, Column, Page, Row, Table
from saltext.jobs.core.display.text import counted, some, target
from saltext.jobs.core.reasons import id_and_function, states_of, text_of

#: Most lines of names for a state that needs attention, and for any other state.
_MANY_LINES, _FEW_LINES = 6, 2
#: Options of a batch that are shown, unless they have these values.
_OPTIONS = {
    **dict.fromkeys(("by", "max_failures", "max_runtime", "window", "timezone", "check", "approve_by")),
    "batch_wait": 0.0,
    "presence": "ping",
    "offline": "skip",
}
#: What is said of lost minions, and of those that were handed over.
_LOST = "they may have run it; batch.minions says what is known of each, and a retry runs it again"
_OWED = "owed by job_retry, which delivers the job when they are back; batch.retry leaves them out"
#: Most batches of a list of which is said why they wait, or which batch has retried them.
_NOTES = 10


def _command(batch: Row) -> str:
    """Return the function with its arguments, after what the operator has named the batch."""
    given = ", ".join(str(word) for word in summary.named((batch.get("options") or {}).get("metadata")).values())
    words = (batch["fun"], *(batch.get("arguments") or ()))
    return " ".join([*([f"{given}:"] if given else []), *map(str, words)])


def _target(batch: Row) -> str:
    return target(batch.get("tgt"), batch.get("tgt_type"))


def _count(batch: Row, names: Sequence[str]) -> int:
    return sum(batch.get(name) or 0 for name in names)


_BATCHES = Table(
    "batch",
    "batches",
    (
        Column("JID", "jid"),
        Column("STATE", summary.word),
        Column("DONE", lambda batch: f"{batch['completed']}/{batch['total']}", right=True, rank=1),
        Column("FAILED", lambda batch: _count(batch, summary.FAILED), right=True, rank=3),
        Column("FUNCTION", _command, 7, rank=4, names=False),
        Column("TARGET", _target, 6, rank=5, names=False),
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
#: Most reasons, and most minions of one, that a step of an orchestration shows.
_REASONS, _NAMES = 12, 20


def listed(found: Sequence[Row], page: Page) -> None:
    """Show ``batch.list`` and ``batch.list_active``."""
    if not found:
        page.line("No batch was found.")
        page.next("batch.start TARGET FUNCTION", "batch.list")
        return
    page.line(_BATCHES.headline(found))
    page.table(_BATCHES.columns, found, len(found))
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
    if any(_count(batch, summary.FAILED) for batch in found if summary.word(batch) != "mended"):
        steps.insert(0, "failures")
    page.next(f"batch.{steps[0]} JID", *steps[1:])


def previewed(found: Row, page: Page) -> None:
    """Show ``batch.preview``: what there is to say of the batch."""
    told = {**found, "options": _given(found["options"])}
    facts({name: value for name, value in told.items() if value not in (None, "", [])}, page)


# -- one batch ----------------------------------------------------------------------------------------------------------


def standing(batch: Row, page: Page) -> None:
    """Show one batch: the result of ``batch.status``, ``start``, ``run``, ``wait``, ``watch`` and ``retry``."""
    if "sentence" in batch:  # ``batch.start preview=True``
        previewed(batch, page)
        return
    user = f", by {batch['user']}" if batch.get("user") else ""
    page.line(f"{batch['jid']}  {summary.word(batch)}  {_command(batch)} on {_target(batch)}{user}", "  ", 3)
    counts = summary.in_numbers(batch, (*summary.BAD, "active", "completed", "pending"))
    page.line(f"{summary.progress(batch, page.width)}: {counts or 'no minion'}", "  ")
    for name, value in _particulars(batch, page):
        if value:
            page.line(f"  {name}: {value}" if name else f"  {value}", "    ", _MANY_LINES)
    if batch.get("verdict"):
        page.line(batch["verdict"], "  ", 6)
    page.next(*_next(batch))


def _particulars(batch: Row, page: Page) -> list[tuple[str, Any]]:
    """Return (label, value) lines about a batch, first those that need an operator. Empty values are not shown."""
    options = batch.get("options") or {}
    stopped = batch.get("stopped_by") if batch.get("halted_reason") != "stop" else None
    return [
        ("halted", summary.why_halted(batch)),
        ("stopped by", stopped),
        (summary.word(batch), summary.waits(batch, page.when)),
        ("to be approved by", _names(options.get("approve_by")) if batch.get("approve") is not None else None),
        ("engine", summary.engine_trouble(batch)),
        ("a check", "is under way" if batch.get("check") and batch.get("approve") is None else None),
        ("left out, with no grains and pillar at the master", _names(batch.get("unsure"))),
        ("still run it after a kill", _names(batch.get("survivors"))),
        ("lost", _LOST if batch.get("lost") and batch["state"] in summary.OVER else None),
        ("queued", _OWED if batch.get("queued") else None),
        ("publishes that failed", batch.get("publish_failures")),
        ("", summary.pace(batch, f"{batch.get('batch_size')} at a time")),
        ("options", _given(options)),
        ("", _times(batch, page)),
        ("retry of", batch.get("parent")),
        ("", summary.retried(batch)),
        ("driven by the master", batch.get("engine_master")),
        ("driven by", None if _is_ours(batch) else "Salt itself, not by the batch_manager engine"),
    ]


def _names(names: Any) -> str:
    return ", ".join(str(name) for name in names or ())


def _is_ours(batch: Row) -> bool:
    return batch.get("driver") in (None, summary.DRIVER)


def _given(options: Mapping[str, Any]) -> str:
    given = {name: options.get(name) for name, usual in _OPTIONS.items() if options.get(name) not in (None, usual)}
    texts = {
        name: ",".join(map(str, value)) if isinstance(value, (list, tuple)) else value for name, value in given.items()
    }
    return ", ".join(f"{name}={value}" for name, value in texts.items())


def _times(batch: Row, page: Page) -> str:
    asked = moments.local(batch["created"], page.tz)
    is_unsent = batch.get("publishes") == 0
    if batch.get("finished"):
        sent = "delivered by job_retry" if batch.get("completed") or batch.get("failed") else "sent to no minion"
        began = f"asked for {asked}, {sent}" if is_unsent else f"started {asked}"
        return f"{began}, ended {page.when(batch['finished'])}"
    if is_unsent and summary.word(batch) in ("scheduled", "waiting"):
        return f"asked for {page.when(batch['created'])}, and not begun"
    return f"started {page.when(batch['created'])}, last progress {moments.ago(batch.get('last_progress'), page.now)}"


def _next(batch: Row) -> list[str]:
    jid, state = batch["jid"], batch["state"]
    if not _is_ours(batch):
        return [f"batch.minions {jid}", *(() if state in summary.OVER else ("batch.stop",))]
    if batch.get("approve") is not None:
        return [f"batch.approve {jid}", "batch.minions", "batch.stop"]
    if state == "paused":
        waits = batch.get("paused_by") not in HELD
        return [f"batch.watch {jid}" if waits else f"batch.resume {jid}", "batch.minions", "batch.stop"]
    if state in ("running", "stopping"):
        return [f"batch.watch {jid}", "batch.minions", *(("batch.pause", "batch.stop") if state == "running" else ())]
    if batch.get("retries"):
        return _again(batch)
    if batch.get("failed") or batch.get("timed_out"):
        # A plain retry leaves out those that the batch was not sent to.
        is_plain = batch.get("failed") and not batch.get("pending")
        return [f"batch.failures {jid}", "batch.retry" if is_plain else _retry(batch), "batch.minions"]
    owed = [f"job_retry.list jid={jid}", "batch.minions"] if batch.get("queued") else []
    return _again(batch) or owed or [f"jobs.lookup_jid {jid}", "batch.minions"]


def _again(batch: Row) -> list[str]:
    """Return the commands that run a batch again where it did not succeed, or show the batch that has done so."""
    retries = batch.get("retries")
    left = batch.get("unmended") or {} if retries else batch
    retry, jid = _retry(left), batch["jid"]
    if not retry:
        return [f"batch.status {retries[-1]}"] if retries else []
    # What is known of lost minions decides whether the job may run again, and a retry leaves a failed check behind.
    if left.get("lost") or str(batch.get("halted_reason") or "").startswith("check"):
        return [f"batch.minions {jid}", retry]
    return [retry.replace("batch.retry", f"batch.retry {jid}"), "batch.minions"]


def _retry(counts: Row) -> str:
    """Return the command, without a jid, that runs a batch again on all minions without success; empty if there are none."""
    bad = [name for name in summary.BAD if counts.get(name) and name != "queued"]  # the queue owes the job to those
    if not bad and not counts.get("pending"):
        return ""
    which = "all" if len(bad) != 1 or counts.get("pending") else bad[0]
    return "batch.retry" if which == "failed" else f"batch.retry which={which}"


# -- the minions of a batch, and why they failed -----------------------------------------------------------------------


def minions(found: Mapping[str, Row], page: Page) -> None:
    """Show ``batch.minions``: the minions of each state with the reason, first those that need attention."""
    if not found:
        page.line("There is no such minion in this batch.")
        return
    page.line(_MINIONS.headline(list(found.values())))
    # Those that have been in their state for the longest come first: a job may hang there.
    alike = collections.defaultdict[tuple[str, str], list[str]](list)
    for minion, record in sorted(found.items(), key=lambda item: moments.seconds_of(item[1]["since"]) or 0.0):
        retcode, again = record.get("retcode"), record.get("retry_state")
        why = f"retcode {retcode}" if retcode else summary.meaning(record)
        told = f"{again} in the retry {record['retry']}" if again else ""
        alike[str(record["state"]), ", ".join(filter(None, (why, told)))].append(minion)
    for (state, why), names in sorted(alike.items(), key=lambda item: (_MINIONS.rank(item[0][0]), -len(item[1]))):
        since = moments.seconds_of(found[names[0]]["since"]) if state in ("active", "queued") else None
        longest = f", the first for {moments.span(page.now - since)}" if since else ""
        text = f"{state} ({why}{longest})" if why else state
        page.names(f"{text}, {len(names):,}:", names, _MANY_LINES if state in summary.BAD else _FEW_LINES)
    page.fold(ROWS)
    stands = {record.get("retry_state") or record["state"] for record in found.values()}
    bad = {state: 1 for state in summary.BAD if state in stands}
    if [*bad] == ["queued"]:
        page.next("job_retry.list jid=JID", "jobs.lookup_jid")
    else:
        retry = "batch.retry" if "failed" in bad else _retry(bad)
        page.next(*(("batch.failures JID", retry) if bad else ("batch.status JID",)), "jobs.lookup_jid")


def failures(found: Mapping[str, Any], page: Page) -> None:
    """Show ``batch.failures``: each reason with its minions, the most frequent first."""
    jid, groups = found["jid"], found["groups"]
    page.line(f"{jid}  {summary.word(found)}  {_command(found)} on {_target(found)}", "  ", 3)
    many = f", for {counted(len(groups), 'reason')}" if len(groups) > 1 else ""
    page.line(f"{found['unsuccessful']:,} of {counted(found['total'], 'minion')} did not succeed{many}")
    if why := summary.why_halted(found):
        page.line(f"halted: {why}", "  ", 3)
    reasons(groups, page)
    page.next(*((_is_ours(found) and _again(found)) or [f"batch.minions {jid}"]))


def returned(found: Mapping[str, Any], page: Page) -> None:
    """Show ``batch.output``: a run of states as a table, failed ones first, with why they failed and what changed."""
    value = found.get("return")
    ran = states_of(value)
    if not ran:
        facts(found, page)
        return
    rows = sorted((_state(*item) for item in ran), key=lambda row: _STATES.rank(row["result"]))
    facts({name: told for name, told in found.items() if name != "return"}, page)
    page.gap()
    page.listing(_STATES, rows)
    page.gap()
    why = text_of(found) if rows[0]["result"] == "failed" else None
    told = {"why": why, "changes": {row["id"]: row["changes"] for row in rows if row["changes"]}}
    facts({name: value for name, value in told.items() if value}, page)


def _state(name: str, state: Mapping[str, Any]) -> dict[str, Any]:
    id_, function = id_and_function(name, state)
    result, changes, took = state.get("result"), state.get("changes"), state.get("duration")
    done = "failed" if result is False else "would change" if result is None else "changed" if changes else "unchanged"
    seconds = f"{took / 1000:.1f} s" if isinstance(took, (int, float)) else took or ""
    return {"result": done, "id": id_, "function": function, "took": seconds, "changes": changes}


def step(found: Mapping[str, Any], groups: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what a step of an orchestration shows of a summary and ``batch.failures``: Salt prints a line a key."""
    ended = "Error" if "Error" in found else "verdict"
    names = ("jid", "state", "total", *summary.ENDED, "active", "pending", "retcode", ended)
    told: dict[str, Any] = {name: found.get(name) for name in names}
    told["failures"] = {f"{head(one)} {some(one['minions'], _NAMES)}": one["text"] for one in groups[:_REASONS]}
    if len(groups) > _REASONS:
        told["more"] = f"batch.failures shows {len(groups) - _REASONS} more"
    return {name: value for name, value in told.items() if value}
