"""Why minions have failed, and who says the same."""

from __future__ import annotations

import tracemalloc

import pytest

from saltext.jobs.core.reasons import NOTHING, OTHER, Reasons, evened, text_of

TRACEBACK = 'Traceback (most recent call last):\n  File "x.py", line 1, in f\n    g()\n    ~^^\n'


def state(result, comment, name="nginx", run=0, **more):
    key = f"pkg_|-{name}_|-{name}_|-installed"
    return {key: {"result": result, "comment": comment, "__run_num__": run, "__id__": name, "__sls__": "web", **more}}


# -- what a return says ---------------------------------------------------------------------------------------------------


def test_the_failed_states_of_a_run_are_shown_with_their_comments_in_the_order_of_the_run():
    found = {**state(False, "Package nginx is not there", run=3), **state(False, "No such key", "repo", 1)}
    fine = {
        f"file_|-f{n}_|-f{n}_|-managed": {"result": True, "comment": "x" * 1000, "__run_num__": 9} for n in range(99)
    }
    assert text_of({"return": {**found, **fine, **state(None, "would be", "test", 2)}}).split("\n") == [
        "repo (pkg.installed in web): No such key",
        "nginx (pkg.installed in web): Package nginx is not there",
    ]


def test_states_that_were_not_run_since_another_failed_are_counted_alone():
    follows = [state(False, "One or more requisite failed: web.nginx", f"s{n}", 5 + n) for n in range(30)]
    found = state(False, "No such package")
    for each in follows:
        found |= each
    assert text_of({"return": found}).split("\n") == [
        "nginx (pkg.installed in web): No such package",
        "and 30 not run, since what they require failed",
    ]
    assert "One or more requisite failed" in text_of({"return": follows[0]})


def test_the_output_of_a_command_of_a_state_is_shown():
    changes = {"pid": 4711, "retcode": 2, "stdout": "reading", "stderr": "E: cannot open /etc/x"}
    found = text_of({"return": state(False, 'Command "x" run', changes=changes)})
    assert found == 'nginx (pkg.installed in web): E: cannot open /etc/x\nCommand "x" run'


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("  sh: 1: frobnicate: not found\n", "sh: 1: frobnicate: not found"),
        ({"pid": 7, "retcode": 1, "stdout": "so far", "stderr": "no such host"}, "no such host"),
        ({"pid": 7, "retcode": 1, "stdout": "no such host", "stderr": " "}, "no such host"),
        (["Rendering SLS 'base:web' failed: no such include", "and another"], None),
        (False, "False"),
        ("\n  a:\n\n    b\n  c", "a:\n  b\nc"),
        ({"b": 1, "a": [None]}, '{\n "a": [\n  null\n ],\n "b": 1\n}'),
        ({1: 2, "a": 3}, '{\n "1": 2,\n "a": 3\n}'),
        (f"It caused an exception: {TRACEBACK}OSError: no\n room", "It caused an exception: OSError: no\n room"),
        *((nothing, NOTHING) for nothing in (None, "", " \n ", [])),
    ],
)
def test_the_output_of_any_other_function_is_shown(value, told):
    assert text_of({"return": value}) == ("\n".join(value) if told is None else told)


def test_what_salt_has_cut_out_of_a_return_is_named_with_the_option_to_raise():
    assert "max_event_size" in text_of({"return": "VALUE_TRIMMED"})
    told = text_of({"return": state(False, "VALUE_TRIMMED")})
    assert told.startswith("nginx (pkg.installed in web): ") and "max_event_size" in told
    assert "VALUE_TRIMMED" not in told


def test_the_end_of_a_long_output_is_shown_and_some_of_the_beginning():
    lines = text_of({"return": "\n".join(f"line {number} {'x' * 1000}" for number in range(10_000))}).split("\n")
    assert (len(lines), lines[5], max(map(len, lines))) == (20, "…", 300)
    assert lines[0].startswith("line 0 ")
    assert lines[-1].startswith("line 9999 ")


def test_a_run_in_which_a_thousand_states_failed_is_a_short_text():
    found = {}
    for number in range(1000):
        found |= state(False, "y\n" * 5000, f"s{number}", number)
    text = text_of({"return": found})
    assert text.endswith("and 990 more failed")
    assert len(text) < 40_000


# -- who says the same ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("web1: no route to 10.0.0.7", "web22: no route to 192.168.17.1"),
        ("at 2026-11-23T13:44:40Z it failed", "at 2026-11-24T01:02:03.5Z it failed"),
        ("Mon Nov 23 13:44:40 UTC 2026", "Tue Dec  1 01:02:03 UTC 2026"),
        ("job 20261123134440123456", "job 20261123134440999999"),
        ("took 12 ms", "took 1.5 s"),
        ("wrote 10 kB", "wrote 3 MB"),
        ("/tmp/tmpx8f3k2aa is gone", "/tmp/tmpabcdefgh is gone"),
        ("object at 0x7f12aa", "object at 0x7fbb10"),
        ("id 123e4567-e89b-12d3-a456-426614174000", "id 00000000-e89b-12d3-a456-42661417abcd"),
        ("sum d41d8cd98f00b204e9800998ecf8427e", "sum 9e107d9d372bb6826bd81d3542a419d6"),
        ("mac 52:54:00:12:34:56", "mac 52:54:00:ab:cd:ef"),
        ("from fe80::1 no answer", "from 2001:db8::ff00:42:8329 no answer"),
        ("a  b\n c", "a b c"),
    ],
)
def test_details_that_differ_from_minion_to_minion_are_evened_out(one, other):
    assert evened(one, "web1") == evened(other, "web22")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("No such package nginx", "No such package apache"),
        ("No space left on device", "Permission denied"),
        ("cafe is closed", "decade is closed"),
    ],
)
def test_details_that_distinguish_reasons_stay(one, other):
    assert evened(one, "web1") != evened(other, "web1")


def told(*failures):
    reasons = Reasons()
    for failure in failures:
        reasons.add(*failure)
    return reasons.groups()


def test_minions_that_say_the_same_are_one_group_and_the_largest_comes_first():
    few = [(f"db{number}", "failed", 1, "Permission denied") for number in (3, 1)]
    many = [(f"web{number}", "failed", 1, f"web{number}: disk full at 10:0{number}") for number in range(5)]
    assert told(*few, *many) == [
        {
            "count": 5,
            "state": "failed",
            "retcode": 1,
            "text": "web0: disk full at 10:00",
            "minions": [f"web{number}" for number in range(5)],
        },
        {"count": 2, "state": "failed", "retcode": 1, "text": "Permission denied", "minions": ["db1", "db3"]},
    ]


def test_very_many_different_texts_are_distinguished_up_to_a_bound():
    found = told(*((f"m{n}", "failed", 1, "x" * (n + 1)) for n in range(1000)))
    assert (len(found), found[0]["count"], found[0]["text"]) == (201, 800, OTHER)
    assert sum(group["count"] for group in found) == 1000


def nested(depth, innermost):
    for _ in range(depth):
        innermost = [innermost]
    return innermost


def test_a_deep_return_takes_little_memory():
    tracemalloc.start()
    try:
        text_of({"return": nested(900, list(range(20_000)))})
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 5_000_000, peak
