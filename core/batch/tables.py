"""
What ``salt-run batch.*`` shows to people: one line for each batch, some lines for a single one, its minions by state.

It draws what the runner returns; programs get that unchanged. Pure: the time is the page's.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from typing import Any

from saltext.jobs.core.batch.gates import HELD, PausedBy
from saltext.jobs.core.batch.outcomes import Outcome
from saltext.jobs.core.batch.summary import two_digits
from saltext.jobs.core.batch.words import BAD, MEANINGS, WORDS, meaning, why_halted, word
from saltext.jobs.core.display import moments
from saltext.jobs.core.display.page import ROWS, Column, Page, by_state, headline
from saltext.jobs.core.display.reasons import reasons
from saltext.jobs.core.display.text import counted, target

#: The outcomes, other than success, of minions that were sent to.
_FAILED = BAD[:-1]
_MINION_STATES = (*BAD, "active", "pending", Outcome.COMPLETED.value)
#: Most lines of names for a state that needs attention, and for any other state.
_MANY_LINES, _FEW_LINES = 6, 2
#: Options of a batch that are shown if they are given, and options that are shown unless they have these values.
_TOLD = (
    "by",
    "max_failures",
    "min_executed",
    "batch_wait",
    "max_runtime",
    "window",
    "timezone",
    "check",
    "approve_by",
)
_USUAL = {"presence": "ping", "offline": "skip"}
#: Most different reasons that are shown for one state.
_REASONS = 6
#: Most batches of a list that are shown with the reason why they wait.
_WAITING = 10
_BAR = 24

_COLUMNS = (
    Column("JID"),
    Column("STATE"),
    Column("DONE", right=True, rank=1),
    Column("FAILED", right=True, rank=3),
    Column("FUNCTION", 7, rank=4, names=False),
    Column("TARGET", 6, rank=5, names=False),
    Column("AGE", rank=2),
)


# -- many batches -------------------------------------------------------------------------------------------------------


def active(found: Sequence[Mapping[str, Any]], page: Page) -> None:
    """Show ``batch.list_active``: if there are many, those that need an operator come first."""
    if not found:
        page.line("No batch is under way.")
        page.next("batch.list", "batch.start TARGET FUNCTION")
        return
    rows = list(found)
    if len(rows) > ROWS:
        rows = sorted(rows, key=lambda batch: batch["state"] == "running" and not _count(batch, _FAILED))
    _table(found, rows[:ROWS], page)


def listed(found: Sequence[Mapping[str, Any]], page: Page) -> None:
    """Show ``batch.list``: all batches that match."""
    if not found:
        page.line("No batch matches.")
        page.next("batch.start TARGET FUNCTION")
        return
    _table(found, found, page)


def _table(found: Sequence[Mapping[str, Any]], shown: Sequence[Mapping[str, Any]], page: Page) -> None:
    page.line(headline(len(found), "batch", "batches", by_state(map(word, found), WORDS)))
    page.table(
        _COLUMNS,
        [
            (
                *(batch["jid"], word(batch), f"{_ended(batch)}/{batch['total']}", _count(batch, _FAILED)),
                *(_command(batch), _target(batch), page.age(batch["created"])),
            )
            for batch in shown
        ],
    )
    page.folded(len(found), len(shown))
    waiting = [(batch["jid"], why) for batch in shown if (why := _stands_still(batch, page))]
    for jid, why in waiting[:_WAITING]:
        page.line(f"{jid}: {why}", "  ", 3)
    page.folded(len(waiting), _WAITING, " that wait")
    trouble = next((told for batch in found if (told := engine_trouble(batch))), None)
    if trouble:
        page.line(f"{trouble[0].upper()}{trouble[1:]}.")
    driver = next((batch["engine_master"] for batch in found if batch.get("engine_master")), None)
    if driver:
        page.line(f"Driven by the master {driver}.")
    if any(_count(batch, _FAILED) for batch in found):
        page.next("batch.failures JID", "batch.status", "batch.watch", "batch.minions", "batch.stop")
    else:
        page.next("batch.status JID", "batch.watch", "batch.minions", "batch.stop")


# -- the masters -----------------------------------------------------------------------------------------------------------

_MASTERS = (Column("ENGINE"), Column("MASTER", 7), Column("STATE"), Column("HEARD", rank=1), Column("VERSION", rank=2))


def masters(found: Mapping[str, Any], page: Page) -> None:
    """Show ``batch.masters``: who leads each engine, and who stands by."""
    page.line(f"The site: {found['site']}, which answered within {1000 * found['store_seconds']:.0f} ms.")
    rows = []
    for engine, told in found["engines"].items():
        page.line(f"{engine}: {_lead(told, page)}", "  ")
        for name, master in told["masters"].items():
            heard = f"{moments.span(master['silent_seconds'])} ago"
            rows.append((engine, name, master["state"], heard, f"{master['version']}, Salt {master['salt']}"))
    if not rows:
        page.line("No engine has run here.")
        page.next("batch.doctor")
        return
    page.table(_MASTERS, rows)
    page.next("batch.hand_over", "batch.doctor")


def _lead(told: Mapping[str, Any], page: Page) -> str:
    often = f"taken over {counted(told['takeovers'], 'time')}, handed over {counted(told['hand_overs'], 'time')}"
    if not told["leader"]:
        return f"no master leads; {often}"
    lease = f", lease of {told['lease_seconds']:g} s left" if told["lease_seconds"] is not None else ""
    since, beat = page.when(told["since"]), told["beat_seconds"]
    return f"{told['leader']} leads since {since}, last sign of life {moments.span(beat)} ago{lease}; {often}"


def handed_over(found: Mapping[str, Mapping[str, Any]], page: Page) -> None:
    """Show ``batch.hand_over``."""
    for engine, told in found.items():
        page.line(f"{engine}: {told['to']} leads, in place of {told['from']}, after {told['seconds']:g} s")
    page.next("batch.masters")


# -- one batch ----------------------------------------------------------------------------------------------------------


def standing(batch: Mapping[str, Any], page: Page) -> None:
    """Show one batch: the result of ``batch.status``, ``start``, ``run``, ``wait``, ``watch`` and ``retry``."""
    jid = batch["jid"]
    user = f", by {batch['user']}" if batch.get("user") else ""
    page.line(f"{jid}  {word(batch)}  {_command(batch)} on {_target(batch)}{user}", "  ", 3)
    page.line(_progress(batch, page), "  ")
    for told in _particulars(batch, page):
        page.line(f"  {told}", "    ", _MANY_LINES)
    if batch.get("verdict"):
        page.line(batch["verdict"], "  ", 6)
    page.next(*_next(batch))


def _progress(batch: Mapping[str, Any], page: Page) -> str:
    total, ended = batch["total"], _ended(batch)
    names = ("completed", *BAD, "active", "pending")
    counts = ", ".join(f"{batch[name]:,} {name}" for name in names if batch.get(name))
    bar = min(_BAR, page.width // 4)
    return f"{'#' * (bar * ended // (total or 1)):.<{bar}} {ended:,} of {total:,}: {counts or 'no minion'}"


def _particulars(batch: Mapping[str, Any], page: Page) -> list[str]:
    """Return the other lines about a batch, first those that need an operator."""
    over = batch["state"] in ("complete", "halted")
    told = [
        ("halted", why_halted(batch)),
        ("stopped by", batch.get("stopped_by") if batch.get("halted_reason") != "stop" else None),
        ("taken over by", batch.get("taken_over_by")),
        (word(batch), _waits(batch, page)),
        ("to be approved by", _approvers(batch)),
        ("engine", engine_trouble(batch)),
        ("a check", "is under way" if batch.get("check") and batch.get("approve") is None else None),
        ("left out, with no grains and pillar at the master", ", ".join(map(str, batch.get("unsure") or ()))),
        ("not handed to job_retry", batch.get("queue_refused")),
        ("still run it after a kill", ", ".join(str(name) for name in batch.get("survivors") or ())),
        ("publishes that failed", batch.get("publish_failures")),
    ]
    lines = [f"{name}: {value}" for name, value in told if value]
    if batch.get("blocked_reason"):
        lines.append(str(batch["blocked_reason"]))
    if batch.get("group"):
        lines.append(f"group: {batch['group']} ({batch['group_number']} of {batch['groups']}, by {batch['by']})")
    if not over:
        lines.append(_pace(batch))
    if options := _given(batch.get("options") or {}):
        lines.append(f"asked for with {options}")
    if batch.get("finished") and _never_sent(batch):
        asked_for = moments.local(batch["created"], page.tz)
        lines.append(f"asked for {asked_for}, sent to no minion, ended {page.when(batch['finished'])}")
    elif batch.get("finished"):
        lines.append(f"started {moments.local(batch['created'], page.tz)}, ended {page.when(batch['finished'])}")
    elif _never_sent(batch) and word(batch) in ("scheduled", "waiting"):
        lines.append(f"asked for {page.when(batch['created'])}, and not begun")
    else:
        progress = moments.ago(batch.get("last_progress"), page.now)
        lines.append(f"started {page.when(batch['created'])}, last progress {progress}")
    if batch.get("parent"):
        lines.append(f"a retry of {batch['parent']}")
    if batch.get("engine_master"):
        lines.append(f"driven by the master {batch['engine_master']}")
    if batch.get("driver") not in (None, "engine"):
        lines.append("driven by Salt itself, not by the batch_manager engine")
    return lines


def _never_sent(batch: Mapping[str, Any]) -> bool:
    """Return whether nothing of a batch was ever published."""
    return batch.get("publishes") == 0


def _given(options: Mapping[str, Any]) -> str:
    given = {name: options.get(name) for name in _TOLD if options.get(name)}
    if options.get("max_failures") == 0:
        given["max_failures"] = 0
    given |= {name: value for name, value in options.items() if name in _USUAL and value != _USUAL[name]}
    return ", ".join(name if value is True else f"{name}={_typed(value)}" for name, value in given.items())


def _typed(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def engine_trouble(batch: Mapping[str, Any]) -> str | None:
    """Return why a batch does not go on, if that is because of its engine; else None."""
    if batch.get("engine") is False:
        return "no batch_manager engine runs: nothing goes on until one does"
    silent = batch.get("engine_silent_seconds")
    return f"the engine has not answered for {moments.span(silent)}; see salt-run batch.doctor" if silent else None


def _approvers(batch: Mapping[str, Any]) -> str | None:
    """Return who may give the approval that a batch waits for, if ``approve_by`` limits that."""
    named = (batch.get("options") or {}).get("approve_by")
    return ", ".join(str(name) for name in named) if named and batch.get("approve") is not None else None


def _stands_still(batch: Mapping[str, Any], page: Page) -> str | None:
    """Return why a batch under way sends to fewer minions than it could, or to none; None if it does not wait."""
    if batch["state"] == "paused":
        return _waits(batch, page)
    return str(batch["blocked_reason"]) if batch["state"] == "running" and batch.get("blocked_reason") else None


def _waits(batch: Mapping[str, Any], page: Page) -> str | None:
    reason = batch.get("paused_reason")
    if batch.get("opens_at"):
        happens = "begins" if batch.get("paused_by") == PausedBy.START else "opens"
        return f"{reason or 'for its window'}; {happens} {page.when(batch['opens_at'])}"
    return str(reason) if reason else None


def _pace(batch: Mapping[str, Any]) -> str:
    stage = f"stage {batch['stage']} of {batch['stages']}, " if batch.get("stages", 1) > 1 else ""
    rate = f"; {two_digits(batch['rate']):g} a minute" if batch.get("rate") and batch["state"] == "running" else ""
    left = f", about {moments.span(batch['eta_seconds'])} left" if batch.get("eta_seconds") else ""
    return f"{stage}{batch.get('batch_size')} at a time{rate}{left}"


def _next(batch: Mapping[str, Any]) -> list[str]:
    jid, state = batch["jid"], batch["state"]
    if batch.get("driver") not in (None, "engine"):
        return [f"batch.minions {jid}", *(() if state in ("complete", "halted") else ("batch.stop",))]
    if batch.get("approve") is not None:
        return [f"batch.approve {jid}", "batch.minions", "batch.stop"]
    if state == "paused":
        waits = batch.get("paused_by") not in HELD
        return [f"batch.watch {jid}" if waits else f"batch.resume {jid}", "batch.minions", "batch.stop"]
    if state in ("running", "stopping"):
        return [f"batch.watch {jid}", "batch.minions", *(("batch.pause", "batch.stop") if state == "running" else ())]
    bad = [name for name in BAD if batch.get(name) and not (name == "offline" and batch.get("handed_over"))]
    worst, left = next(iter(bad), None), batch.get("pending")
    if worst in ("failed", "timed_out"):
        return [f"batch.failures {jid}", "batch.retry", "batch.minions"]
    if worst or left:
        return [f"batch.retry {jid} which={'all' if left or worst == 'killed' else worst}", "batch.minions"]
    return [f"jobs.lookup_jid {jid}", "batch.minions"]


# -- the minions of a batch ---------------------------------------------------------------------------------------------


def minions(found: Mapping[str, Mapping[str, Any]], page: Page) -> None:
    """Show ``batch.minions``: the minions of each state with the reason, first those that need attention."""
    if not found:
        page.line("There is no such minion in this batch.")
        return
    states = collections.defaultdict[str, list[str]](list)
    for minion, record in found.items():
        states[str(record["state"])].append(minion)
    page.line(headline(len(found), "minion", "minions", by_state((r["state"] for r in found.values()), _MINION_STATES)))
    _groups(found, page)
    for state in [*(state for state in _MINION_STATES if state in states), *sorted(states.keys() - {*_MINION_STATES})]:
        most = _MANY_LINES if state in BAD else _FEW_LINES
        reasons = _by_reason(state, {minion: found[minion] for minion in states[state]}, page)
        for reason, names in reasons.items():
            page.names(f"{state}{reason}, {len(names):,}:", names, most)
    if any(state in BAD for state in states):
        page.next(f"batch.failures {page.jid}", "batch.retry", "jobs.lookup_jid")
    else:
        page.next(f"batch.status {page.jid}", "jobs.lookup_jid")


def _by_reason(state: str, records: Mapping[str, Mapping[str, Any]], page: Page) -> dict[str, list[str]]:
    """Return the minions of a state by the reason that is shown."""
    if state == "active":
        known = {minion: moments.seconds_of(record["since"]) for minion, record in records.items()}
        began = sorted((at, minion) for minion, at in known.items() if at is not None)  # the longest first: it may hang
        since = f", the first for {moments.span(page.now - began[0][0])}" if began else ""
        unknown = [minion for minion, at in known.items() if at is None]
        return {f" ({MEANINGS[state]}{since})": [*(minion for _, minion in began), *unknown]}
    if state not in ("failed", "completed"):
        means = collections.defaultdict[str, list[str]](list)
        for minion, record in records.items():
            means[f" ({meaning(record)})" if meaning(record) else ""].append(minion)
        return means
    codes = collections.defaultdict[str, list[str]](list)
    for minion, record in records.items():
        code = record.get("retcode")
        codes[f" (retcode {code})" if code else ""].append(minion)
    found = dict(sorted(codes.items(), key=lambda item: -len(item[1])))
    if len(found) > _REASONS:
        kept = dict(list(found.items())[:_REASONS])
        return kept | {" (other retcodes)": [name for reason in found.keys() - kept for name in found[reason]]}
    return found


def _groups(found: Mapping[str, Mapping[str, Any]], page: Page) -> None:
    groups = collections.defaultdict[str, list[str]](list)
    for record in found.values():
        if "group" in record:
            groups[str(record["group"])].append(str(record["state"]))
    if len(groups) < 2:
        return
    ordered = sorted(groups.items(), key=lambda item: (not any(state in BAD for state in item[1]), item[0]))
    page.table(
        (Column("GROUP", 8), Column("MINIONS", right=True), Column("STATES", 12, names=False)),
        [(name, len(states), by_state(states, _MINION_STATES)) for name, states in ordered[:ROWS]],
    )
    page.folded(len(groups), ROWS, " groups")


# -- why they failed ----------------------------------------------------------------------------------------------------


def failures(found: Mapping[str, Any], page: Page) -> None:
    """Show ``batch.failures``: each reason with its minions, the most frequent first."""
    jid, groups = found["jid"], found["groups"]
    page.line(f"{jid}  {word(found)}  {_command(found)} on {_target(found)}", "  ", 3)
    many = f", for {counted(len(groups), 'reason')}" if len(groups) > 1 else ""
    page.line(f"{found['unsuccessful']:,} of {counted(found['total'], 'minion')} did not succeed{many}")
    reasons(groups, page)
    if groups:
        page.next(*_next_of_failures(found))
    else:
        page.next(f"batch.status {jid}")


def _next_of_failures(found: Mapping[str, Any]) -> list[str]:
    jid, states = found["jid"], {group["state"] for group in found["groups"]}
    if found.get("handed_over"):
        states.discard("offline")
    if not states:
        return ["job_retry.list", f"batch.minions {jid}"]
    if found.get("driver") not in (None, "engine"):
        return [f"batch.minions {jid}"]
    which = next(iter(states)) if len(states) == 1 and states <= {"failed", "lost", "offline", "timed_out"} else "all"
    return [f"batch.retry {jid}" + ("" if which == "failed" else f" which={which}"), "batch.minions", "jobs.lookup_jid"]


# -- what they share ----------------------------------------------------------------------------------------------------


def _count(batch: Mapping[str, Any], names: Sequence[str]) -> int:
    return sum(batch.get(name) or 0 for name in names)


def _ended(batch: Mapping[str, Any]) -> int:
    return _count(batch, ("completed", *BAD))


def _command(batch: Mapping[str, Any]) -> str:
    """Return the function with its arguments."""
    fun = batch.get("fun")
    name = ",".join(str(name) for name in fun) if isinstance(fun, (list, tuple)) else str(fun)
    return " ".join((name, *(str(word) for word in batch.get("arguments") or ())))


def _target(batch: Mapping[str, Any]) -> str:
    return target(batch.get("tgt"), batch.get("tgt_type"))
