"""What a job runs, as an operator would type it."""

from __future__ import annotations

import json
import time

import pytest

from saltext.jobs.core.display.command import HIDDEN, published_words, shown, words_of


def test_arguments_are_shown_as_they_are_typed():
    found = words_of(["nginx", 7, True], {"test": True, "saltenv": "dev"})
    assert found == ["nginx", "7", "True", "test=True", "saltenv=dev"]


SECRETS = (
    *("password", "passwd", "db_passwd", "api_token", "Secret", "private_key", "apikey", "passphrase", "Authorization"),
    *("pass", "connection_pass", "pwd", "db_pass", "MYSQL_PWD", "auth", "access_key", "ssh_key", "bearer", "cookie"),
)


@pytest.mark.parametrize("name", SECRETS)
def test_an_argument_named_like_a_secret_is_hidden(name):
    assert words_of([], {name: "swordfish"}) == [f"{name}={HIDDEN}"]
    assert "swordfish" not in words_of([{"pillar": [{name: {"x": "swordfish"}}]}], {})[0]
    assert shown({"a": [{name: "swordfish"}]}) == {"a": [{name: HIDDEN}]}
    assert shown(json.dumps([{"a": {name: {"x": "swordfish"}}}])) == json.dumps([{"a": {name: HIDDEN}}])
    assert shown(f"mysql --{name}=swordfish -e x") == f"mysql --{name}={HIDDEN} -e x"
    assert shown(f"{{a: 1, {name}: 'sword fish', b: 2}}") == f"{{a: 1, {name}: {HIDDEN}, b: 2}}"


@pytest.mark.parametrize(
    "text",
    ['curl -H "Authorization: Bearer swordfish" x', '{"token": {"a": 1, "b": "swordfish', 'pass="sword swordfish'],
)
def test_a_secret_within_a_text_is_hidden_also_where_the_text_was_cut(text):
    assert "swordfish" not in shown(text) and HIDDEN in shown(text)


def test_the_values_by_which_minions_are_grouped_are_left_out():
    assert words_of(["by=pillar:ring:[gold,lead]"], {"by": "grains:a:b:[x,y]"}) == [
        "by=pillar:ring:[…]",
        "by=grains:a:b:[…]",
    ]


def test_a_name_that_only_resembles_one_is_shown():
    assert words_of([], {"key": "region", "compass": "north"}) == ["key=region", "compass=north"]
    for text in ("author=anna", "pass the salt", '{"a": "token"}', "test.ping", "cat /etc/passwd", "eauth=pam"):
        assert shown(text) == text


def test_a_long_text_is_searched_in_time():
    for text in ("x" * 10**6, 'secret="' * 100_000, "api_" * 250_000, "pass " * 200_000, "[" * 10**6):
        begun = time.process_time()
        shown(text)
        assert time.process_time() - begun < 5


def test_the_arguments_of_a_load_are_shown_in_the_same_way():
    load = ["nginx", {"__kwarg__": True, "test": True, "password": "swordfish"}, {"a": 1}]
    assert published_words(load) == ["nginx", '{"a": 1}', "test=True", f"password={HIDDEN}"]
    assert published_words(None) == published_words("nginx") == []
