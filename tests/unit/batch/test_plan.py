"""How a batch is laid out: groups, sizes, stages, checks."""

from __future__ import annotations

import math
import re

import pytest

from saltext.jobs.core.batch.member import Member, Outcome, given_up
from saltext.jobs.core.batch.spec import (
    NOT_KNOWN,
    OPTIONS,
    WITHOUT,
    By,
    Group,
    Stage,
    budgets_of,
    gates_of,
    groups_of,
    labels_of,
    not_passed,
    parse_by,
    sizes_of,
)
from saltext.jobs.core.delivery.known import Evidence
from saltext.jobs.core.errors import Refused
from tests.unit.batch.bench import spec

MALFORMED = {
    "by": [
        *("rack", "grains", "grains:", "grains:[a]", "grain:rack", "mine:rack", "grains:rack:[a", "nodegroups:canary"),
        *("nodegroups:[]", "nodegroups:[a,,b]", "nodegroups:[a,a]", "", 7, ["grains:rack"]),
    ],
    "check": ["", "ping", "runner:", "runner:ping", "approve now", "test.ping '", "a b.c", True, 7],
    "batch": ["", "0", 0, -1, "-1", "0%", "101%", "ten", "1,", ",1", "5%%", 1.5, True, [1]],
    "max_failures": ["", "x", -1, "101%", True, "1.5"],
    "offline": ["wait"],
    "presence": ["maybe"],
    "timeout": [-1],
    "max_runtime": [0],
    "window": ["02:00", 7],
    "timezone": ["Mars", 7],
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_option_is_refused_with_its_value_and_what_is_accepted(name):
    for value in MALFORMED[name]:
        with pytest.raises(Refused, match=f"^{name} is {re.escape(repr(value))}; accepted is "):
            OPTIONS[name].metadata["kind"].given(name, value)


# -- what a batch is grouped by ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "by"),
    [
        ("grains:rack", By("grains", "rack")),
        ("grains:location:rack", By("grains", "location:rack")),
        ("pillar:ring", By("pillar", "ring")),
        ("grains:rack:[r7, r2]", By("grains", "rack", ("r7", "r2"))),
        ("grains:location:rack[r7]", By("grains", "location:rack", ("r7",))),
        ("nodegroups:[canary,eu,us]", By("nodegroups", "", ("canary", "eu", "us"))),
    ],
)
def test_the_option_by_is_read(text, by):
    assert parse_by(text) == by


@pytest.mark.parametrize(
    ("value", "labels"),
    [
        ("r1", ("r1",)),
        (7, ("7",)),
        (False, ("False",)),
        (["web", "db", None, {}], ("web", "db")),
        ("a\x1b[2Jb\n", ("'a\\x1b[2Jb'",)),  # it can be shown on a terminal
        *((nothing, ()) for nothing in (None, "", " ", {}, {"a": 1}, [], [None])),
    ],
)
def test_a_value_names_its_group_a_list_names_several_and_some_values_name_none(value, labels):
    assert labels_of(value) == labels
    assert [len(label) for label in labels_of(["x" * 5000, "\n".join("abc" * 100)])] == [100, 100]


def test_groups_are_sorted_by_name_and_numbers_by_size():
    labels = {"a": ["r10"], "b": ["r2"], "c": ["r1"], "d": ["r2"]}
    assert groups_of("abcd", labels) == (Group("r1", ("c",)), Group("r2", ("b", "d")), Group("r10", ("a",)))


def test_groups_that_are_named_come_first_in_that_order_and_empty_ones_are_left_out():
    labels = {"a": ["us"], "b": ["canary"], "c": ["eu"], "d": ["asia"]}
    names = [group.name for group in groups_of("abcd", labels, ("canary", "mars", "us"))]
    assert names == ["canary", "us", "asia", "eu"]


def test_minions_without_the_value_come_after_all_others_and_those_not_known_last():
    labels = {"a": ["z"], "b": (), "c": ["~"]}
    groups = groups_of("abcd", labels)
    assert groups == (Group("z", ("a",)), Group("~", ("c",)), Group(WITHOUT, ("b",)), Group(NOT_KNOWN, ("d",)))


def test_a_minion_of_several_groups_is_in_the_first_of_them():
    assert groups_of("a", {"a": ["eu", "canary"]}, ("canary", "eu")) == (Group("canary", ("a",)),)
    assert groups_of("a", {"a": ["web", "db"]}) == (Group("db", ("a",)),)


# -- checks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "retcode", "reason"),
    [
        *(
            (fine, 0, "")
            for fine in (True, None, 0, "", "fine", {}, {"result": True, "retcode": 0}, {"result": None}, [])
        ),
        (True, 1, "exit code 1"),
        ("'nosuch.fun' is not available.", 254, "it has no such function"),
        ("'zfs.list' __virtual__ returned False: no zfs", 254, "it has no such function"),
        (False, 0, "returned False"),
        ({"result": False}, 0, "returned result: False"),
        ({"success": False}, 0, "returned success: False"),
        ({"retcode": "x" * 99}, 0, "returned retcode: '" + "x" * 39),
    ],
)
def test_some_returns_of_a_check_do_not_let_a_batch_go_on(value, retcode, reason):
    assert not_passed(value, retcode) == reason


@pytest.mark.parametrize(
    ("batch", "counts", "gates"),
    [
        ("3", (9,), []),
        ("1,9", (9,), [1]),
        ("1,2,9", (9,), [1, 3]),
        ("1,2,9", (1,), []),
        ("1,2,9", (2,), [1]),
        ("2", (4, 5), [4]),
        ("1,100%", (4, 5), [1, 4, 5]),
        ("2,3", (1, 3), [1, 3]),
    ],
)
def test_a_check_is_made_after_each_wave_and_group_that_leaves_minions(batch, counts, gates):
    assert gates_of(batch, counts) == gates


# -- sizes and budgets -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("batch", "total", "sizes"),
    [
        (10, 50, (10,)),
        ("10", 50, (10,)),
        ("25%", 50, (12,)),
        ("1%", 50, (1,)),
        ("100%", 3, (3,)),
        ("12.5%", 80, (10,)),
        ("1,10%,50%", 50, (1, 5, 25)),
        (" 1 , 10% ", 50, (1, 5)),
        ("100", 3, (100,)),
    ],
)
def test_a_size_is_a_count_a_percentage_or_a_ramp(batch, total, sizes):
    assert sizes_of(batch, total) == sizes


@pytest.mark.parametrize(
    ("given", "allowed"), [(None, ()), (0, (0.0,)), (3, (3.0,)), ("3", (3.0,)), ("10%", (5.0,)), ("0%", (0.0,))]
)
def test_a_budget_is_a_count_or_a_percentage(given, allowed):
    assert budgets_of(given, (50,)) == allowed


def test_sizes_and_a_budget_in_per_cent_are_of_each_group_and_a_budget_that_is_a_count_is_of_all():
    stages = [Stage(0, 1, 1), Stage(0, 2, math.inf), Stage(1, 1, 1), Stage(1, 1, math.inf)]
    grouped = spec("abcde", "1,50%", groups=(("x", 4), ("y", 1)), max_failures="25%")
    assert (grouped.stages, grouped.budgets, budgets_of(3, (4, 1))) == (tuple(stages), (1.0, 0.25), (3.0,))


def test_a_minion_that_was_sent_the_job_and_is_silent_is_handed_over_only_if_it_would_have_said_that_it_began():
    silent = Member(sent_at=1.0, last=Evidence.SILENT)
    assert given_up(silent, spec("a", "1", offline="queue", acks=True)) is Outcome.OFFLINE
    assert given_up(silent, spec("a", "1", offline="queue")) is Outcome.LOST
