"""What operators type, and what becomes of it."""

from __future__ import annotations

import pytest

from saltext.jobs.core.errors import Refused
from saltext.jobs.core.options import kinds


@pytest.mark.parametrize("value", [20260516101112131415, "20260516101112131415"])
def test_a_jid_may_arrive_as_a_number(value):
    assert kinds.jid(value) == "20260516101112131415"


@pytest.mark.parametrize("value", ["../x", "", "a/b", None, True, 1.5, ["1"], {"a": 1}])
def test_an_invalid_jid_is_refused_with_its_value(value):
    with pytest.raises(Refused, match="jid is") as refused:
        kinds.jid(value)
    assert repr(value) in str(refused.value)


def test_minion_ids_may_arrive_as_numbers_alone_and_in_lists():
    assert kinds.minion(1001) == "1001"
    assert kinds.minions([1001, "web1"]) == ("1001", "web1")
    assert kinds.minions("1001, web1") == ("1001", "web1")
    assert kinds.minions(1001) == ("1001",)


@pytest.mark.parametrize("value", ["", ",", [], [None], {"a": 1}, True, ["a/b"]])
def test_an_invalid_minion_id_is_refused(value):
    with pytest.raises(Refused):
        kinds.minions(value)


@pytest.mark.parametrize(
    ("tgt", "tgt_type", "becomes"),
    [
        ("web*", "glob", ("web*", "glob")),
        (1001, "glob", ("1001", "glob")),
        (1001, "list", (["1001"], "list")),
        ("a, b", "list", (["a", "b"], "list")),
        ([1001, "b"], "list", (["1001", "b"], "list")),
        (["a", "b"], "glob", (["a", "b"], "list")),
        ("G@os:Debian and not a*", "compound", ("G@os:Debian and not a*", "compound")),
    ],
)
def test_a_target_becomes_what_the_matcher_takes(tgt, tgt_type, becomes):
    assert kinds.target(tgt, tgt_type) == becomes


@pytest.mark.parametrize(
    ("tgt", "tgt_type"), [("", "glob"), ([], "list"), (None, "glob"), ({}, "glob"), ("*", None), ("*", "foo")]
)
def test_an_invalid_target_is_refused(tgt, tgt_type):
    with pytest.raises(Refused):
        kinds.target(tgt, tgt_type)


@pytest.mark.parametrize("value", ["true", 1, 0, None, "yes"])
def test_only_true_and_false_are_a_flag(value):
    with pytest.raises(Refused, match="accepted is True or False"):
        kinds.FLAG.given("kill", value)


@pytest.mark.parametrize(("value", "seconds"), [(90, 90), ("90s", 90), ("15m", 900), (0.5, 0.5)])
def test_durations_are_numbers_or_have_a_unit(value, seconds):
    assert kinds.SECONDS.given("timeout", value) == seconds


@pytest.mark.parametrize("value", [0, -1, "soon", None, True, float("inf"), float("nan"), [1]])
def test_an_invalid_duration_is_refused(value):
    with pytest.raises(Refused, match="timeout is"):
        kinds.SOME_SECONDS.given("timeout", value)


@pytest.mark.parametrize("value", [-1, 1.0, "1", None, True])
def test_an_invalid_whole_number_is_refused(value):
    with pytest.raises(Refused, match="accepted is a whole number of at least 0"):
        kinds.whole().given("limit", value)


STATES = kinds.some_of("held", "dead")


def test_several_words_are_taken_from_a_list_or_a_text_and_each_is_checked():
    assert STATES.given("state", "held,dead") == ("held", "dead")
    assert STATES.given("state", ["held"]) == ("held",)
    for value in ("held,gone", "", [], 5, None):
        with pytest.raises(Refused, match="state is"):
            STATES.given("state", value)


@pytest.mark.parametrize("value", ["test", "test.", ".ping", "", None, 5, ["test.ping"], "test. ping"])
def test_an_invalid_function_name_is_refused(value):
    with pytest.raises(Refused, match=r"such as test\.ping"):
        kinds.function(value)


@pytest.mark.parametrize("value", ["test.ping,test.version", "test.ping,", ["test.ping", "test.version"]])
def test_several_functions_are_refused_with_what_to_do_instead(value):
    with pytest.raises(Refused, match=r"fun is .*a batch runs one function: start one batch for each"):
        kinds.function(value)


@pytest.mark.parametrize("value", ["a", [1], {1: 2}])
def test_an_invalid_mapping_is_refused(value):
    with pytest.raises(Refused, match="accepted is a mapping"):
        kinds.MAPPING.given("metadata", value)


def test_a_refusal_is_one_line_whatever_was_typed():
    with pytest.raises(Refused) as refused:
        kinds.function("a\nb\r\n")
    assert len(str(Refused("one\n  two\r\n\tthree")).splitlines()) == 1
    assert len(str(refused.value).splitlines()) == 1
