"""Sessions of the pages: each is typed in a test or says why not, and what they show is compared with what is printed."""

from __future__ import annotations

import pytest

from tests import sessions

ONE, TWO = "20260516101112131415", "20261121081803238086"


def name(path):
    return str(path.relative_to(sessions.CHECKOUT))


@pytest.mark.parametrize("path", sessions.PAGES, ids=name)
def test_every_block_that_is_typed_is_run_by_a_test_or_says_why_not(path):
    found = sessions.blocks(path.read_text(encoding="utf-8"), name(path))
    assert [problem for block in found if (problem := sessions.problem_of(block))] == []


@pytest.mark.parametrize("path", sessions.PAGES, ids=name)
def test_every_jid_that_is_typed_was_shown_above(path):
    shown = {}
    for block in sessions.to_run(path.read_text(encoding="utf-8"), name(path)):
        for command in sessions.commands(block):
            sessions.known_jids(command.typed, shown)
            shown |= dict.fromkeys(sessions.JID.findall("\n".join(command.printed)), ONE)


# -- reading -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "Text:\n\n    salt-run batch.list",
        "```console\nsalt-run batch.list\n```",
        "```text\n$ salt-run batch.list\n```",
        "<!-- first: it rains -->\n```console\n$ salt-run batch.list\n```",
    ],
)
def test_a_block_that_no_test_would_type_is_noticed(text):
    (block,) = sessions.blocks(text)
    assert sessions.problem_of(block)


# -- comparing ---------------------------------------------------------------------------------------------------------


def same(shown, printed, known=None):
    return sessions.compared(tuple(shown.split("\n")), printed, known or {}) is not None


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("2 batches: 1 halted", "2 batches: 1 halted\n"),
        ("started 2026-11-21 08:04:17 (now)", "started 2027-01-01 23:59:59 (12 s ago)"),
        ("1 min   in 23 h", "3 s  in 2 d"),
        ("running, 29.6/min, about 4 s left", "running, 7/min, about 1 min left"),
        ("spool 1.2 kB", "spool 17 MB"),
        ("driver: …", "driver: master"),
        ("a\n…\nz", "a\nb\nc\nz"),
        ("(a) [b] *", "(a) [b] *"),
    ],
)
def test_values_that_differ_from_run_to_run_are_compared_by_their_kind(shown, printed):
    assert same(shown, printed)


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("2 batches", "3 batches"),
        ("2 batches", "2 batches\nand more"),
        ("AB", "A B"),
        ("state: …", "jid: 7"),
        ("in 23 h", "long"),
    ],
)
def test_a_difference_is_noticed(shown, printed):
    assert not same(shown, printed)


def test_a_jid_is_the_same_one_on_the_whole_page():
    known = sessions.compared((f"{ONE}  running", f"Next: {ONE}"), f"{TWO}  running\nNext: {TWO}", {})
    assert known == {ONE: TWO}
    assert sessions.known_jids(f"batch.watch {ONE}", known) == f"batch.watch {TWO}"
    assert not same(f"{ONE} {ONE}", f"{ONE} {TWO}")
    assert not same(ONE, ONE, known)
    assert same(ONE, TWO, known)
