"""What ``salt-run job_retry.*`` shows to people."""

from __future__ import annotations

import pytest

from saltext.jobs.core.retry import tables
from saltext.jobs.core.retry.entry import State
from tests.unit.batch.test_tables import JID, drawn

QUEUED, EXPIRES = 1778999700.0, 1779007200.0


def entry(minion="web1", state="pending", **more):
    """An entry as ``job_retry.list`` returns it."""
    job = {"minion": minion, "jid": JID, "fun": "state.apply", "state": state, "reason": "the minion was away"}
    times = {"queued_at": QUEUED, "expires_at": EXPIRES, "waits_for": None, "opens_at": None, "paused": False}
    return {**job, "attempts": 1, **times, **more}


def test_the_queue_is_counts_with_the_reasons_and_then_a_line_an_entry():
    found = [entry(), entry("db1", "held", reason="it may have begun", attempts=3)]
    assert drawn(tables.entries, found) == [
        "2 entries: 1 held, 1 pending",
        "  held 1: it may have begun",
        "  pending 1: the minion was away",
        "",
        "MINION  JID                   STATE    FUNCTION     TRIES  QUEUED  EXPIRES",
        "db1     20260516101112131415  held     state.apply      3  5 min   in 2 h",
        "web1    20260516101112131415  pending  state.apply      1  5 min   in 2 h",
        "Next: salt-run job_retry.show MINION JID (or retry, cancel, purge)",
    ]


def test_entries_that_need_an_operator_come_first_and_the_rest_are_folded():
    found = [entry(f"web{number}") for number in range(490)] + [entry(f"db{number}", "dead") for number in range(10)]
    lines = drawn(tables.entries, found)
    assert len(lines) == 47
    assert lines[0] == "500 entries: 10 dead, 490 pending"
    assert all(line.startswith("db") and line.endswith("  -") for line in lines[5:15])  # nothing of these expires
    assert lines[-2] == "… and 460 more; --out=json shows all"


def test_an_entry_that_waits_for_a_window_says_when_it_opens():
    waits = entry(waits_for="its window Sat 02:00-05:00", opens_at=EXPIRES)
    told = "  pending 1: waits for its window Sat 02:00-05:00, opens 2026-05-17 08:40:00"
    assert drawn(tables.entries, [waits], 120)[1] == f"{told} (in 2 h)"


def test_different_reasons_are_counted():
    found = [entry(reason=f"reason {min(number, 10)}") for number in range(20)]
    lines = drawn(tables.entries, found, 120)
    assert lines[1:3] == ["  pending 10: reason 10", "  pending 1: reason 0"]
    assert lines[9] == "… and 3 more reasons; --out=json shows all"


def test_an_empty_queue_says_so():
    assert drawn(tables.entries, []) == [
        "No minion is owed a job. A missed job is queued when its time is up.",
        "Next: salt-run job_cache.outcome JID (or job_retry.stats, job_retry.doctor)",
    ]
    assert drawn(tables.entries, [], chosen=True)[0].startswith("There is no such entry.")


@pytest.mark.parametrize("state", [state.value for state in State])
def test_every_state_of_an_entry_can_be_shown(state):
    assert f"  {state} 1: the minion was away" in drawn(tables.entries, [entry(state=state)])
    assert "\nNext: salt-run job_retry." in "\n".join(drawn(tables.entry, shown(state=state)))


def test_only_what_can_be_done_with_an_entry_is_offered():
    over = [entry(state="cancelled"), entry("db1", "expired")]
    assert drawn(tables.entries, over)[-1].endswith("job_retry.show MINION JID (or purge)")
    assert drawn(tables.entries, [*over, entry("db3", "dead")])[-1].endswith("(or retry, purge)")
    assert drawn(tables.entries, [*over, entry("db2")])[-1].endswith("(or replay MINION, cancel)")
    waits = [entry(waits_for="its window Sat 02:00-05:00")]  # which a replay would ignore
    assert drawn(tables.entries, waits)[-1].endswith("(or cancel)")
    assert drawn(tables.entries, [entry(paused=True)])[-1].endswith("(or resume, cancel)"), "it would replay nothing"
    assert drawn(tables.entry, shown(paused=True))[-1] == "Next: salt-run job_retry.resume (or cancel)"
    assert drawn(tables.entry, shown(state="cancelled"))[-1].startswith(
        f"Next: salt-run job_retry.enqueue {JID} minions=web1"
    )


def test_an_answer_says_what_happens_with_how_many_entries():
    said = {verb: (drawn(draw, 0)[0], drawn(draw, 2)[0]) for verb, draw in tables.ANSWERS.items()}
    assert said["cancel"] == ("No entry is in these states.", "2 entries cancelled")
    assert said["enqueue"][0].startswith("Nothing is queued anew: each minion has returned the job")
    assert said["replay"][1] == "2 entries waiting: the minions are asked first, and get the jobs if they answer"[:80]
    waits = {" ".join(drawn(draw, None)) for draw in tables.ANSWERS.values()}
    assert waits == {"The engine does not run: it takes the request when it starts."}


def shown(**more):
    """An entry as ``job_retry.show`` returns it."""
    job = {"arg": [{"__kwarg__": True, "a": 1}], "tgt": "web*", "user": "root", "published_at": QUEUED}
    unknown = dict.fromkeys(("asked_for_by", "metadata", "last_sent_at", "not_before"))
    history = [{"at": QUEUED, "state": "pending", "reason": "missed"}]
    return {**entry(), **job, **unknown, "unreceived_tries": 0, "history": history, **more}


def test_minions_that_lack_the_same_are_named_together():
    found = {"asked": {"tgt": "*"}, "has": ["c"], "lacks": {"a": "the executor", "b": "the executor"}, "silent": []}
    assert drawn(tables.coverage, found)[-2:] == ["lacks:", "  the executor: a, b"]


def test_a_single_entry_is_shown_with_all_that_is_known_of_it():
    lines = drawn(tables.entry, shown(state="dead", asked_for_by="anna", not_before=EXPIRES))
    assert lines[0] == "web1  20260516101112131415  dead  state.apply"
    assert {"reason: the minion was away", "arg: a=1", "tgt: web*", "user: root", "asked_for_by: anna"} <= {*lines}
    assert {"queued_at: 2026-05-17 06:35:00 (5 min ago)", "not_before: 2026-05-17 08:40:00 (in 2 h)"} <= {*lines}
    assert lines[-4:] == [
        "AT                   STATE    REASON",
        "2026-05-17 06:35:00  pending  missed",
        "Next: salt-run job_retry.retry minion=web1 jid=20260516101112131415 (or purge",
        "      state=dead)",
    ]
