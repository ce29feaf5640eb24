"""Why minions of a batch did not succeed."""

from __future__ import annotations

import collections
import datetime

from saltext.jobs.core.batch import summary, tables
from saltext.jobs.core.batch.state import Batch
from saltext.jobs.core.batch.summary import failures
from saltext.jobs.core.display.page import Page
from saltext.jobs.core.display.text import width_of
from tests.unit.batch.bench import spec
from tests.unit.batch.test_tables import JID, NOW
from tests.unit.display.test_text import HARMFUL


def found(records, returns, mended=(), **more):
    """What ``batch.failures`` returns; ``records`` has state and retcode by minion."""
    minions = {name: {"state": state, "since": NOW, "retcode": code} for name, (state, code) in records.items()}
    for name in mended:
        minions[name] |= {"retry": "2", "retry_state": "completed"}
    about = {**summary.summary(Batch(spec(), NOW), NOW), "jid": JID, "fun": "state.apply", "arguments": ["nginx"]}
    about |= collections.Counter(state for state, _ in records.values())
    wanted = []

    def each(names):
        for name in names:
            wanted.append(name)
            yield name, returns.get(name)

    return failures({**about, "total": len(records), "state": "complete", **more}, minions, each), wanted


def drawn(data, width=80):
    page = Page(width, NOW, datetime.timezone.utc)
    tables.failures(data, page)
    lines = page.text().split("\n")
    assert all(width_of(line) <= width and line.isprintable() for line in lines)
    return lines


def test_only_returns_of_minions_that_did_not_succeed_and_were_not_mended_are_read():
    records = {"a": ("completed", 0), "b": ("failed", 1), "c": ("pending", None), "d": ("active", None)}
    result, wanted = found({**records, "e": ("failed", 2)}, {"b": {"return": "no such package"}}, mended="e")
    assert wanted == ["b"]
    assert (result["unsuccessful"], result["total"], result["jid"]) == (1, 5, JID)
    assert result["groups"] == [
        {"count": 1, "state": "failed", "retcode": 1, "text": "no such package", "minions": ["b"]}
    ]


def test_a_minion_that_returned_nothing_is_described_by_its_state():
    records = {name: (name, None) for name in ("failed", "timed_out", "lost", "killed", "offline", "queued")}
    result, _ = found(records, {"timed_out": {"return": "so far"}})
    assert {group["state"]: group["text"] for group in result["groups"]} == {
        "failed": "its return cannot be read: the job cache does not have it",
        "timed_out": "so far",
        "lost": "may have run it",
        "killed": "by an operator",
        "offline": "no answer",
        "queued": "owed by job_retry",
    }


def test_each_reason_takes_a_few_lines_and_the_most_frequent_comes_first():
    records = {f"web{n}": ("failed", 2) for n in range(1204)} | {"db1": ("offline", None)}
    returns = {name: {"return": f"E: {name}: no space left\nE: giving up"} for name in records if name != "db1"}
    assert drawn(found(records, returns, retries=["7"], unmended={})[0])[2] == "mended by 7"
    assert drawn(found(records, returns, success=False)[0]) == [
        f"{JID}  unsuccessful  state.apply nginx on *",
        "1,205 of 1,205 minions did not succeed, for 2 reasons",
        "",
        "1,204 minions, failed (retcode 2): web0, web1, web10, web100, web1000, web1001,",
        "    web1002, web1003, web1004, web1005, web1006, web1007, … and 1,192 more",
        "    E: web0: no space left",
        "    E: giving up",
        "",
        "1 minion, offline: db1",
        "    no answer",
        "",
        f"Next: salt-run batch.retry {JID} which=all (or minions)",
    ]
    assert "batch.watch" in drawn(found({**records, "new": ("pending", None)}, returns, state="running")[0])[-1]


def test_control_characters_of_minions_do_not_act_on_the_terminal():
    records = {f"m{number}": ("failed", 1) for number in range(20)}
    for text in HARMFUL:
        lines = drawn(found(records, {name: {"return": f"{text}\n{text * 1000}"} for name in records})[0], 40)
        assert len(lines) < 100
