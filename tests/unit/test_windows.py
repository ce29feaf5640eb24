"""Windows: when work may begin, by the wall clock."""

from __future__ import annotations

import calendar
import datetime
import math
import os
import time
import zoneinfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from saltext.jobs.core.windows import find_zone, is_open, longest_break, next_period, parse_moment, parse_windows

UTC = datetime.timezone.utc
BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")  # 2026-03-29 02:00 -> 03:00, 2026-10-25 03:00 -> 02:00
HAVANA = zoneinfo.ZoneInfo("America/Havana")  # changes at midnight
LORD_HOWE = zoneinfo.ZoneInfo("Australia/Lord_Howe")  # changes by half an hour
APIA = zoneinfo.ZoneInfo("Pacific/Apia")  # had no Friday, 2011-12-30
ZONES = [
    UTC,
    BERLIN,
    HAVANA,
    LORD_HOWE,
    APIA,
    zoneinfo.ZoneInfo("Asia/Kathmandu"),
    zoneinfo.ZoneInfo("America/St_Johns"),
]


def at(text, tz=UTC, fold=0):
    return datetime.datetime.fromisoformat(text).replace(tzinfo=tz, fold=fold).timestamp()


def period(window, after, tz=UTC):
    """What a window's next period is, as its zone's clock shows it, with the offset."""
    found = next_period(parse_windows(window), after, tz)
    return tuple(
        end and datetime.datetime.fromtimestamp(end, tz).isoformat(" ", "minutes")
        for end in (found.opens, found.closes)
    )


# -- reading -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, days",
    [("Sat,Sun 02:00-05:00", "56"), ("mon-fri 22:00-06:00", "01234"), ("Fri-Mon, wednesday 1:00-2:00", "02456")],
)
def test_days_are_a_list_a_range_or_both_and_a_range_may_go_over_the_weekend(text, days):
    apart = ";".join(f"{calendar.day_name[int(day)]} {text.rpartition(' ')[2]}" for day in days)
    assert parse_windows(text) == parse_windows(apart)


BEYOND = ("25:00-26:00", "02:60-03:00", "24:01-03:00", "02:00-02:00", "24:00-02:00", "1:00-2:00; 02:00")


@pytest.mark.parametrize(
    "value", ["", "always", "02:00", "Caturday 2:00-3:00", "Mon- 2:00-3:00", "2-3", "Sat 2:00-3:00;", *BEYOND]
)
def test_a_malformed_window_is_named(value):
    with pytest.raises(ValueError, match="is no window") as caught:
        parse_windows(value)
    assert repr(value.rpartition(";")[2].strip()) in str(caught.value)


def test_a_zone_that_does_not_exist_is_named():
    assert find_zone("Europe/Berlin") == BERLIN
    for name in ("Europe/Atlantis", "../../etc/passwd", "/etc/passwd", "Europe", "", 7, None):
        with pytest.raises(ValueError, match="time zone") as caught:
            find_zone(name)
        assert repr(name) in str(caught.value)


# -- a moment ----------------------------------------------------------------------------------------------------------


def test_a_moment_is_read_in_the_zone_unless_it_has_an_offset_of_its_own():
    assert parse_moment("2026-11-28 02:00", BERLIN) == at("2026-11-28T01:00")
    assert parse_moment("2026-11-28T02:00:30Z", BERLIN) == at("2026-11-28T02:00:30")
    assert parse_moment("2026-11-28 02:00 -0530", BERLIN) == at("2026-11-28T07:30")


def test_a_moment_that_the_clock_shows_twice_is_the_first_and_one_that_it_skips_is_when_it_does():
    assert parse_moment("2026-10-25 02:30", BERLIN) == at("2026-10-25T00:30")
    assert parse_moment("2026-03-29 02:30", BERLIN) == at("2026-03-29T01:00")


@pytest.mark.parametrize(
    "text", ["", "tomorrow", "02:00", "2026-11-28", "2026-13-01 00:00", "2026-11-28 24:30", "2026-11-28 02:00 CET"]
)
def test_an_invalid_moment_is_named(text):
    with pytest.raises(ValueError, match="no date and time") as caught:
        parse_moment(text, UTC)
    assert repr(text) in str(caught.value)


# -- periods -----------------------------------------------------------------------------------------------------------


def test_windows_that_touch_or_overlap_are_one_period():
    assert period("Sat 22:00-24:00; Sun 00:00-03:00; Sun 02:00-04:00", at("2026-11-28T12:00")) == (
        "2026-11-28 22:00+00:00",
        "2026-11-29 04:00+00:00",
    )


def test_an_hour_that_the_clock_skips_is_missing_from_a_window():
    assert period("02:00-05:00", at("2026-03-28T12:00"), BERLIN) == ("2026-03-29 03:00+02:00", "2026-03-29 05:00+02:00")
    assert period("01:00-02:30", at("2026-03-28T12:00"), BERLIN) == ("2026-03-29 01:00+01:00", "2026-03-29 03:00+02:00")


def test_an_hour_that_the_clock_repeats_counts_twice():
    assert period("02:00-05:00", at("2026-10-24T12:00"), BERLIN) == ("2026-10-25 02:00+02:00", "2026-10-25 05:00+01:00")
    assert period("01:30-02:30", at("2026-10-24T12:00"), BERLIN) == ("2026-10-25 01:30+02:00", "2026-10-25 02:30+02:00")
    again = at("2026-10-25T00:30")  # 02:30 for the first time
    assert period("01:30-02:30", again, BERLIN) == ("2026-10-25 02:00+01:00", "2026-10-25 02:30+01:00")


def test_without_a_zone_it_is_this_machines():
    old = os.environ.get("TZ")
    os.environ["TZ"] = "Europe/Berlin"
    time.tzset()
    try:
        now = at("2026-03-28T12:00")
        assert next_period(parse_windows("02:00-05:00"), now, None) == next_period(
            parse_windows("02:00-05:00"), now, BERLIN
        )
        assert parse_moment("2026-03-29 02:30", None) == parse_moment("2026-03-29 02:30", BERLIN)
        assert parse_moment("2026-10-25 02:30", None) == parse_moment("2026-10-25 02:30", BERLIN)
    finally:
        os.environ.pop("TZ") if old is None else os.environ.update(TZ=old)
        time.tzset()


# -- whatever the windows are ------------------------------------------------------------------------------------------

any_minute = st.integers(0, 1439)
any_window = st.tuples(
    st.frozensets(st.integers(0, 6), min_size=1), any_minute, any_minute.map(lambda minute: minute + 1)
).filter(lambda window: window[1] != window[2])
any_windows = st.lists(any_window, min_size=1, max_size=3)


def typed(windows):
    """Windows as ``(days, opens, closes)``, as an operator writes them."""
    return "; ".join(
        f"{','.join(calendar.day_abbr[day] for day in days)} {opens // 60:02}:{opens % 60:02}-"
        f"{closes // 60:02}:{closes % 60:02}"
        for days, opens, closes in windows
    )


# Around the changes of the clocks above, and years before and after.
any_moment = st.one_of(
    st.sampled_from(
        [at("2026-03-29T01:00"), at("2026-10-25T01:00"), at("2026-03-08T05:00"), at("2026-10-03T15:30")]
    ).flatmap(lambda change: st.floats(change - 90000, change + 90000)),
    st.floats(at("2011-01-01T00:00"), at("2036-01-01T00:00")),
)
COMMON = settings(max_examples=300, deadline=None)


@COMMON
@given(any_windows, any_moment, st.sampled_from(ZONES), st.data())
def test_windows_are_shut_before_a_period_open_all_through_it_and_shut_after_it(windows, now, tz, data):
    windows = parse_windows(typed(windows))
    found = next_period(windows, now, tz)
    assert found.opens >= now
    if found.opens > now:
        for moment in (now, found.opens - 1, data.draw(st.floats(now, found.opens, exclude_max=True))):
            assert not is_open(windows, max(now, moment), tz)
    end = found.closes if found.closes is not None else found.opens + 30 * 86400
    assert end > found.opens
    for moment in (found.opens, max(found.opens, end - 1), data.draw(st.floats(found.opens, end, exclude_max=True))):
        assert is_open(windows, moment, tz)
    if found.closes is not None:
        assert not is_open(windows, found.closes, tz)


@COMMON
@given(any_windows, any_moment, st.sampled_from(ZONES))
def test_a_window_is_open_when_and_only_when_the_clock_shows_a_time_within_it(windows, now, tz):
    wall = datetime.datetime.fromtimestamp(math.floor(now), tz).replace(tzinfo=None)
    midnight = datetime.datetime.combine(wall.date(), datetime.time())

    def within(window, day):
        days, opens, closes = window
        begin = day + datetime.timedelta(minutes=opens)
        length = closes - opens + (1440 if closes <= opens else 0)
        return day.weekday() in days and begin <= wall < begin + datetime.timedelta(minutes=length)

    days = (midnight, midnight - datetime.timedelta(days=1))
    is_within = any(within(window, day) for window in windows for day in days)
    assert is_open(parse_windows(typed(windows)), now, tz) == is_within


@pytest.mark.parametrize(
    "text, hours",
    [
        ("00:00-24:00", 0),
        ("02:00-05:00", 21),
        ("Sat,Sun 02:00-05:00", 6 * 24 - 3),
        ("Mon-Fri 22:00-06:00", 2 * 24 + 16),
    ],
)
def test_the_longest_time_for_which_windows_stay_shut(text, hours):
    assert longest_break(parse_windows(text)) == hours * 3600
