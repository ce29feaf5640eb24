"""Times for people."""

from __future__ import annotations

import datetime

import pytest

from saltext.jobs.core.display import text

NOW = 1_779_000_000.0  # 2026-05-17 06:40:00 UTC


@pytest.mark.parametrize(
    ("before", "told"),
    [
        (0.4, "now"),
        (59, "59 s ago"),
        (60, "1 min ago"),
        (3599, "59 min ago"),
        (3600, "1 h ago"),
        (47.5 * 3600, "47 h ago"),
        (48 * 3600, "2 d ago"),
        (-60, "in 1 min"),
        (-86400 * 400, "in 400 d"),
    ],
)
def test_an_age_is_shown_in_one_unit(before, told):
    assert text.ago(NOW - before, NOW) == told


def test_a_time_is_shown_in_the_zone():
    assert text.local(NOW, datetime.timezone(datetime.timedelta(hours=2))) == "2026-05-17 08:40:00"


@pytest.mark.parametrize("value", [1e300, -1e300, 10**400])
def test_a_time_that_no_calendar_has_is_no_error(value):
    assert text.local(value, datetime.timezone.utc) == "-"
    assert text.ago(value, NOW)
