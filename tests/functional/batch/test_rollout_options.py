"""From the options of a rollout, as an operator types them, to its Spec."""

from __future__ import annotations

import datetime
import time
import zoneinfo

import pytest
import salt.config
from salt.utils.args import yamlify_arg

from saltext.jobs.core.batch.permission import CallerRights
from saltext.jobs.core.batch.starting import check_of, fields_of
from saltext.jobs.core.errors import Refused
from saltext.jobs.core.master.caller import Caller
from saltext.jobs.core.users import PEER_RUN, Identity

ROOT = Caller("root")
TIMEOUTS = {"timeout": 5, "gather_job_timeout": 10}


# -- times -------------------------------------------------------------------------------------------------------------


def times_of(options):
    return {name: value for name, value in fields_of(TIMEOUTS, options).items() if name not in TIMEOUTS}


def test_windows_are_kept_as_they_were_written_a_list_as_one_text():
    assert times_of({"window": ["Sat 02:00-05:00", "22:00-23:00"], "timezone": "Europe/Berlin"}) == {
        "window": "Sat 02:00-05:00; 22:00-23:00",
        "timezone": "Europe/Berlin",
    }
    assert times_of({}) == {}


def test_a_window_without_a_zone_is_by_the_clock_of_the_master_that_was_asked(monkeypatch):
    monkeypatch.setenv("TZ", "Europe/Berlin")
    assert times_of({"window": "02:00-05:00"}) == {"window": "02:00-05:00", "timezone": "Europe/Berlin"}
    monkeypatch.setenv("TZ", "no/such")
    assert times_of({"window": "02:00-05:00"}) == {"window": "02:00-05:00", "timezone": ""}
    assert times_of({"start_at": time.time() + 3600}).keys() == {"start_at"}


@pytest.mark.parametrize("days", [1, 40])
def test_a_start_time_is_a_date_a_delay_or_unix_time(days):
    later = round(time.time() / 60 + days * 1440) * 60
    text = datetime.datetime.fromtimestamp(later, datetime.timezone.utc).strftime("%Y-%m-%d %H:%M")
    assert times_of({"start_at": text, "timezone": "UTC"})["start_at"] == later
    assert times_of({"start_at": later})["start_at"] == later
    assert abs((times_of({"start_at": f"+{days * 24}h"})["start_at"] - time.time()) - days * 86400) < 5


@pytest.mark.parametrize("typed", ["22:00", yamlify_arg("22:00"), "02:30", yamlify_arg("2:30")])
def test_a_time_of_the_day_is_the_next_one_by_the_clock_of_the_zone(typed):
    at = times_of({"start_at": typed, "timezone": "Asia/Tokyo"})["start_at"]
    wall = datetime.datetime.fromtimestamp(at, zoneinfo.ZoneInfo("Asia/Tokyo"))
    assert (wall.hour, wall.minute, wall.second) in ((22, 0, 0), (2, 30, 0)) and 0 <= at - time.time() <= 86400


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"start_at": 13200}, "start_at is 13200"),
        ({"start_at": "25:00"}, "start_at is '25:00'"),
        ({"start_at": True}, "start_at is True"),
        ({"start_at": 1e3 * time.time() + 1e9}, "after the year 9999"),
        ({"start_at": "+soon"}, "start_at is '+soon'"),
        ({"start_at": "tomorrow"}, "start_at is 'tomorrow'"),
        ({"start_at": "2020-01-01 00:00"}, "has passed"),
        ({"timezone": "Mars"}, "'Mars'"),
    ],
)
def test_a_time_that_is_malformed_is_refused(options, word):
    with pytest.raises(Refused, match=r"accepted|passed|seconds") as caught:
        times_of(options)
    assert word in str(caught.value)


# -- checks ------------------------------------------------------------------------------------------------------------


def check(opts, who, typed):
    return check_of(opts, CallerRights(opts, who), fields_of(opts, {"check": typed})["check"])


@pytest.fixture
def opts(tmp_path):
    opts = salt.config.master_config(None)
    opts.update(cachedir=str(tmp_path), pki_dir=str(tmp_path), external_auth={"pam": {"ann": []}})
    return opts


@pytest.mark.parametrize(
    ("typed", "kind", "fun", "arg", "kwargs"),
    [
        ("test.arg 7 'a b' timeout=5", "function", "test.arg", [7, "a b"], {"timeout": 5}),
        ("runner:jobs.active {jid} limit=5", "runner", "jobs.active", ["{jid}", "limit=5"], {}),
        ("approve", "approve", "", [], {}),
    ],
)
def test_the_arguments_of_a_function_are_read_as_on_the_command_line_and_those_of_a_runner_stay(
    opts, typed, kind, fun, arg, kwargs
):
    assert check(opts, ROOT, typed) == {"kind": kind, "fun": fun, "arg": arg, "kwargs": kwargs}


@pytest.mark.parametrize(
    ("who", "allowed"),
    [
        (ROOT, True),
        (Caller("ann", ("@runner",)), True),
        (Caller("ann", ({"@jobs": ["active"]},)), True),
        (Caller("ann", ({"@jobs": [{"active": {"args": ["eu"]}}]},)), True),
        (Caller("ann", ({"@jobs": [{"active": {"args": ["us"]}}]},)), False),
        (Caller("ann", ({"@batch": ["start"]}, ".*")), False),
        (Caller("ann", ()), False),
        (Caller("web1", (), Identity(PEER_RUN, "web1")), False),
    ],
)
def test_a_runner_is_a_check_only_for_a_user_who_may_call_it(opts, who, allowed):
    if allowed:
        assert check(opts, who, "runner:jobs.active eu")
    else:
        with pytest.raises(Refused, match=r"may not call the runner function jobs\.active"):
            check(opts, who, "runner:jobs.active eu")
