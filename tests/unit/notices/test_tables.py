"""What ``salt-run job_notices.*`` shows on a terminal."""

from __future__ import annotations

import datetime

from saltext.jobs.core.display.page import Page
from saltext.jobs.core.notices import tables

NOW = 1778999800.0
WELL = {"sent": 3, "waiting": 0, "failures": 0, "dropped": 0, "delivered": NOW - 120, "trouble": None}
AWAY = {"sent": 0, "waiting": 2, "failures": 7, "dropped": 1, "delivered": None, "trouble": "Connection refused"}


def drawn(draw, found, width=80):
    page = Page(width, NOW, datetime.timezone.utc)
    draw(found, page)
    lines = page.text().splitlines()
    assert all(len(line) <= width for line in lines)
    return lines


def test_each_target_has_a_line_and_its_trouble_stands_below():
    assert drawn(tables.stats, {"webhook": WELL, "smtp": AWAY}) == [
        "TARGET   SENT  WAITING  FAILED TRIES  DROPPED  LAST ARRIVED",
        "webhook     3        0             0        0  2 min",
        "smtp        0        2             7        1  -",
        "smtp: Connection refused",
        "Next: salt-run job_notices.doctor (or test)",
    ]
