"""What ``salt-run job_recorder.*`` shows to people."""

from __future__ import annotations

import pytest

from saltext.jobs.core.recorder import tables
from tests.unit.batch.test_tables import JID, NOW, drawn
from tests.unit.display.test_text import HARMFUL

ONE = {"delivered": 120, "queued": 12, "lag": 3.2, "dropped": 0, "refused": 0, "set_aside": 0, "trouble": None}
STATS = {"bus_gaps": 0, "loop_lag": 0.1, "returners": {"pgjsonb": ONE}}


def test_a_returner_is_one_line():
    assert drawn(tables.stats, STATS) == [
        "RETURNER  DELIVERED  QUEUED  LAG  DROPPED  REFUSED  SET ASIDE",
        "pgjsonb         120      12  3 s        0        0          0",
        "loop_lag: 0.1",
        "Next: salt-run job_recorder.doctor",
    ]


def test_problems_are_shown_below():
    troubled = {**ONE, "set_aside": 2, "trouble": "connection refused\x1b[2J"}
    lines = drawn(tables.stats, {**STATS, "bus_gaps": 3, "loop_lag": 4.5, "returners": {"pgjsonb": troubled}})
    assert {"bus_gaps: 3", "loop_lag: 4.5"} <= {*lines}
    assert "pgjsonb: connection refused\\x1b[2J" in lines
    assert lines[-1] == "Next: salt-run job_recorder.set_aside (or redeliver)"


def record(**more):
    return {"name": "r42", "kind": "ret", "jid": JID, "minion": "web1", "reason": "refused", "tries": 3, **more}


def test_records_that_were_set_aside_are_a_line_each_and_the_newest_are_shown():
    records = [record(name=f"r{number}", time=NOW - 60) for number in range(100)]
    lines = drawn(tables.set_aside, {"pgjsonb": records, "mysql": []}, 100)
    assert lines[0] == "pgjsonb: 100 records"
    assert lines[-5].startswith(f"r99   ret   {JID} web1")
    assert "… and 60 more that are older; --out=json shows all" in lines
    assert "mysql: 0 records" in lines


def test_an_empty_list_of_records_set_aside_says_so():
    assert drawn(tables.set_aside, {"pgjsonb": []}) == ["Nothing was set aside."]


@pytest.mark.parametrize("harmful", HARMFUL, ids=ascii)
def test_control_characters_do_not_act_on_the_terminal(harmful):
    drawn(tables.stats, {**STATS, "returners": {harmful: {**ONE, "trouble": harmful}}})
    bad = {"name": harmful, "kind": harmful, "minion": harmful, "reason": harmful, "time": NOW}
    drawn(tables.set_aside, {harmful: [record(**bad), {**record(**bad), "tag": harmful}]})
