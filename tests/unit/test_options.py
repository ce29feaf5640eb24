"""Options, and what operators type: what is accepted, what becomes of it, and what is said about the rest."""

from __future__ import annotations

import os

import pytest

from saltext.jobs.core.errors import Refused, SettingsError
from saltext.jobs.core.options import engine_options, kinds, read_settings
from saltext.jobs.core.options.engines import BatchSettings

STATES, LIMIT = kinds.some_of("held", "dead"), kinds.whole()
JID = "20260516101112131415"
NAN, INFINITE = float("nan"), float("inf")

# -- the options of an engine ------------------------------------------------------------------------------------------


def test_defaults_need_no_options():
    assert read_settings(BatchSettings, "batch_manager", None, {}) == BatchSettings()
    assert read_settings(BatchSettings, "batch_manager", True) == BatchSettings()


def test_options_under_engines_override_those_of_the_section():
    opts = {"batch_manager": {"max_in_flight": 5, "metrics_dir": "/here"}}
    opts["engines"] = ["job_retry", {"batch_manager": {"max_in_flight": 9}}]
    settings = read_settings(BatchSettings, "batch_manager", *engine_options(opts, "batch_manager"))
    assert (settings.max_in_flight, settings.metrics_dir) == (9, "/here")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"bogus": 1, "kep": 2}, ["has no option 'bogus', 'kep'; accepted are", "max_in_flight"]),
        ({"metrics_dir": "here", "bogus": 1}, ["'bogus'", "metrics_dir is 'here'; accepted is a full path"]),
        ({"max_in_flight": [{"password": "x"}]}, ["max_in_flight is '…'; accepted is a whole number"]),
        ([{"secret": "x"}], ["batch_manager is no mapping; accepted is a mapping"]),
        (False, ["batch_manager is no mapping; accepted is a mapping"]),
        *(
            ({"max_in_flight": it}, ["max_in_flight is", "a whole number"])
            for it in (0, -1, True, None, 2.5, "5.5", [5])
        ),
    ],
)
def test_a_wrong_option_is_named_with_its_value_and_what_is_accepted(options, words):
    with pytest.raises(SettingsError) as caught:
        read_settings(BatchSettings, "batch_manager", options)
    assert all(word in str(caught.value) for word in words)


# -- what operators type -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("read", "given", "becomes"),
    [
        (kinds.jid, int(JID), JID),
        (kinds.minion, 1001, "1001"),
        (kinds.minions, [1001, "web1"], ("1001", "web1")),
        (kinds.minions, "1001, web1", ("1001", "web1")),
        (kinds.minions, 1001, ("1001",)),
        *((kinds.SECONDS.read, given, 90) for given in (90, 90.0, "90", "90s")),
        *((kinds.SECONDS.read, given, it) for given, it in {0.5: 0.5, "15m": 900, "12h": 43200, "7d": 604800}.items()),
        *((kinds.FLAG.read, given, given in (True, "True")) for given in (True, "True", False, "false")),
        (LIMIT.read, "5", 5),
        (STATES.read, "held,dead", ("held", "dead")),
        (STATES.read, ["held"], ("held",)),
        (kinds.PATH.read, "~/ca.pem", os.path.expanduser("~/ca.pem")),
    ],
)
def test_what_is_accepted_becomes_what_the_code_takes(read, given, becomes):
    assert read(given) == becomes


@pytest.mark.parametrize(
    ("tgt", "tgt_type", "becomes"),
    [
        ("web*", "glob", ("web*", "glob")),
        (1001, "glob", ("1001", "glob")),
        (1001, "list", (["1001"], "list")),
        ("a, b", "list", (["a", "b"], "list")),
        (["a", 1001], "glob", (["a", "1001"], "list")),
        ("G@os:Debian and not a*", "compound", ("G@os:Debian and not a*", "compound")),
    ],
)
def test_a_target_becomes_what_the_matcher_takes(tgt, tgt_type, becomes):
    assert kinds.target(tgt, tgt_type) == becomes


def given(kind):
    return lambda value: kind.given("it", value)


@pytest.mark.parametrize(
    ("read", "words", "values"),
    [
        (kinds.jid, "jid is", ["../x", "", "a/b", None, True, 1.5, ["1"], {"a": 1}]),
        (kinds.minions, "accepted is", ["", ",", [], [None], {"a": 1}, True, ["a/b"]]),
        (lambda tgt: kinds.target(tgt, "glob"), "tgt is", ["", [], None, {}]),
        (lambda tgt_type: kinds.target("*", tgt_type), "tgt_type is", [None, "foo"]),
        (given(kinds.FLAG), "accepted is True or False", [1, 0, None, "yes"]),
        (given(kinds.SOME_SECONDS), "it is", [0, -1, "", "1w", "-1", "1h30m", None, True, INFINITE, NAN, [1]]),
        (given(kinds.SECONDS), "it is", [-1, 10**400, "9" * 400]),
        (given(LIMIT), "accepted is a whole number of at least 0", [-1, 1.0, "1.0", None, True]),
        (given(STATES), "it is", ["held,gone", "", [], 5, None]),
        (given(kinds.MAPPING), "accepted is a mapping", ["a", [1], {1: 2}]),
        (given(kinds.PATH), "accepted is a full path", ["here", "~nobody.here/x", None, 5]),
        (kinds.function, "such as test.ping", ["test", "test.", ".ping", "", None, 5, ["test.ping"], "test. ping"]),
        (kinds.function, "start one batch for each", ["test.ping,test.version", "test.ping,", ["a.b", "a.c"]]),
    ],
)
def test_anything_else_is_refused_in_one_line_with_what_is_accepted(read, words, values):
    for value in [*values, "a\nb\r\n"] if words == "jid is" else values:
        with pytest.raises(Refused) as refused:
            read(value)
        assert words in str(refused.value) and len(str(refused.value).splitlines()) == 1


def test_a_refusal_is_one_line_whatever_was_typed():
    assert len(str(Refused("one\n  two\r\n\tthree")).splitlines()) == 1
