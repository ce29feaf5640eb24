"""What one command prints: never wider than the terminal, whatever is in it."""

from __future__ import annotations

import datetime

from hypothesis import given
from hypothesis import strategies as st

from saltext.jobs.core.display.page import Column, Page, doctor
from saltext.jobs.core.display.text import width_of
from saltext.jobs.core.findings import advice, examined, fault
from tests.unit.display.test_moments import NOW
from tests.unit.display.test_text import ANYTHING

COLUMNS = (
    Column("MINION", "minion", 8),
    Column("JID", "jid"),
    Column("STATE", "state"),
    Column("TRIES", lambda row: row["tries"], right=True, rank=1),
    Column("WHY", "why", 5, rank=2, names=False),
)
ROW = {"minion": "web1", "jid": "20260516101112131415", "state": "held", "tries": 3, "why": "it may have begun"}


def page(width=80, **more):
    return Page(width, NOW, datetime.timezone.utc, **more)


def lines_of(width, rows, columns=COLUMNS, **more):
    made = page(width, **more)
    made.table(columns, rows)
    return made.text().split("\n")


def test_a_table_has_a_head_and_a_line_a_row():
    assert lines_of(80, [ROW]) == [
        "MINION  JID                   STATE  TRIES  WHY",
        "web1    20260516101112131415  held       3  it may have begun",
    ]


def test_columns_shrink_first_and_then_go_but_never_those_that_matter():
    assert lines_of(54, [ROW])[1] == "web1    20260516101112131415  held       3  it may ha…"
    assert lines_of(48, [ROW]) == [
        "MINION  JID                   STATE  TRIES",
        "web1    20260516101112131415  held       3",
    ]
    assert lines_of(36, [ROW]) == ["MINION  JID                   STATE", "web1    20260516101112131415  held"]
    assert lines_of(20, [ROW])[1] == "web1   202…15  held"


@given(st.lists(st.fixed_dictionaries(dict.fromkeys(ROW, ANYTHING)), max_size=5), st.integers(8, 120))
def test_no_table_is_wider_than_the_terminal_and_nothing_in_it_acts_on_it(rows, width):
    lines = lines_of(width, rows)
    assert len(lines) == 1 + len(rows)
    assert all(width_of(line) <= width and line.isprintable() for line in lines)


@given(ANYTHING, st.lists(ANYTHING, min_size=1, max_size=200), st.integers(8, 100), st.integers(1, 5))
def test_names_take_as_many_lines_as_they_may_and_say_how_many_are_left_out(head, names, width, most):
    made = page(width)
    made.names(head, names, most)
    lines = made.text().split("\n")
    assert all(width_of(line) <= width and line.isprintable() for line in lines)
    if len(names) * 3 > width * most + 3:  # each takes three columns at least, with its comma
        assert " more" in " ".join(lines) or width < 24


def test_states_have_colours_where_they_are_wanted_and_the_columns_stay():
    plain, coloured = lines_of(80, [ROW]), lines_of(80, [ROW], colours=True)
    assert "\x1b[31mheld" in coloured[1]
    assert coloured[1].replace("\x1b[31m", "").replace("\x1b[0m", "") == plain[1]
    assert lines_of(80, [{**ROW, "minion": "failed\x1b[5m"}], colours=True)[1].count("\x1b") == 2


def test_the_next_commands_are_one_line_with_those_of_the_same_runner_in_short():
    made = page(100)
    made.next("batch.watch 20260516101112131415", "batch.minions", "batch.pause", "jobs.list_jobs")
    assert made.text() == ("Next: salt-run batch.watch 20260516101112131415 (or minions, pause, jobs.list_jobs)")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ANYTHING,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(ANYTHING, inner, max_size=4),
    max_leaves=15,
)


@given(JSON, st.integers(8, 100))
def test_whatever_a_runner_returns_can_be_shown(data, width):
    made = page(width)
    made.facts(data)
    assert all(width_of(line) <= width and line.isprintable() for line in made.text().split("\n"))


def test_times_are_shown_as_dates_and_words_or_flags_of_the_same_name_as_they_are():
    made = page(60)
    made.facts({"since": NOW - 60, "started": NOW - 60, "return": {"started": True, "since": "boot", "run_at": None}})
    date = "2026-05-17 06:39:00 (1 min ago)"
    shown = [f"since: {date}", f"started: {date}", "return: started True, since boot"]
    assert made.text().split("\n") == shown


def test_very_many_facts_take_no_more_than_a_few_screens():
    made = page()
    made.facts(
        {"minions": [f"web{number}" for number in range(50_000)], "failed": {str(n): "why" for n in range(5000)}}
    )
    lines = made.text().split("\n")
    assert len(lines) < 120
    assert lines[11].endswith("more")
    assert lines[-1] == "… and 4,900 more; --out=json shows all"
    made = page()
    made.facts([[number, {f"figure {n}": n for n in range(30)}] for number in range(60)])
    assert len(made.text().split("\n")) == 121
    assert made.text().endswith("more lines; --out=json shows all")


def test_a_doctor_says_what_is_wrong_and_then_how_things_stand():
    made = page(60)
    text = "the engine runs, and has not taken a request for 40 s"
    found = [fault("engine-hangs", text, "look in the master's log"), advice("b", "a\x1b[2J")]
    standing = {"engine": True, "since": NOW - 60, "process": None, "job_cache": "salt_cache", "set_aside": ["1", "2"]}
    doctor(examined(standing, reversed(found)), made)
    assert made.text().split("\n") == [
        "1 fault:",
        " 1. the engine runs, and has not taken a request for 40 s:",
        "    look in the master's log [engine-hangs]",
        "Advice:",
        " 2. a\\x1b[2J [b]",
        "",
        "engine: yes",
        "since: 2026-05-17 06:39:00 (1 min ago)",
        "job cache: salt_cache",
        "set aside: 1, 2",
    ]
