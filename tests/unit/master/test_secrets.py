"""What of a load or a return is stored: no secret, and nothing that would redirect a returner."""

from __future__ import annotations

import pytest

from saltext.jobs.core.master.secrets import (
    SECRETS,
    event_for_history,
    load_for_history,
    return_for_history,
    without_secrets,
)


@pytest.mark.parametrize("strip", [without_secrets, load_for_history])
@pytest.mark.parametrize("name", sorted(SECRETS))
def test_a_secret_is_taken_out_of_a_load_and_of_its_kwargs(strip, name):
    load = {"fun": "a.b", name: "s3cret", "kwargs": {name: "s3cret", "metadata": {name: "kept"}}, "arg": ["typed"]}
    assert strip(load) == {"fun": "a.b", "kwargs": {"metadata": {name: "kept"}}, "arg": ["typed"]}


@pytest.mark.parametrize("name", sorted(SECRETS))
def test_a_secret_is_taken_out_of_a_return(name):
    assert return_for_history({"id": "m", "return": {name: "kept"}, name: "s3cret"}) == {
        "id": "m",
        "return": {name: "kept"},
    }


def test_a_load_whose_access_is_checked_again_says_how_its_user_was_authenticated():
    load = {"eauth": "pam", "username": "anna", "kwargs": {"eauth": "pam"}}
    assert without_secrets(load) == load
    assert load_for_history(load) == {"username": "anna", "kwargs": {}}


def test_a_return_cannot_choose_the_server_that_it_is_sent_to():
    data = {"id": "m", "return": 1, "ret_config": "evil", "ret_kwargs": {"host": "evil"}, "tok": "t"}
    assert return_for_history(data) == {"id": "m", "return": 1}


def test_a_secret_is_taken_out_of_an_event_however_deep_it_is():
    deep = {"token": "s3cret"}
    for _ in range(500):  # msgpack packs no more than 511 levels
        deep = {"next": deep}
    assert "s3cret" not in repr(event_for_history(deep))


@pytest.mark.parametrize("strip", [without_secrets, load_for_history, return_for_history])
def test_the_original_load_stays_as_it_was(strip):
    load = {"token": "t", "kwargs": {"token": "t"}}
    strip(load)
    assert load == {"token": "t", "kwargs": {"token": "t"}}


@pytest.mark.parametrize("kwargs", [None, "token", ["token"], 1])
def test_kwargs_that_are_none_are_left_as_they_are(kwargs):
    assert without_secrets({"kwargs": kwargs}) == {"kwargs": kwargs}
