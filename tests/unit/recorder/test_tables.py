"""What ``salt-run job_recorder.*`` shows to people."""

from __future__ import annotations

from saltext.jobs.core.recorder import tables
from tests.unit.batch.test_tables import JID, NOW, drawn

ONE = {"delivered": 120, "queued": 12, "lag": 3.2, "dropped": 0, "refused": 0, "set_aside": 0, "trouble": None}
STATS = {"bus_gaps": 0, "loop_lag": 0.1, "returners": {"pgjsonb": ONE}}


def test_a_returner_is_one_line():
    assert drawn(tables.stats, STATS) == [
        "RETURNER  DELIVERED  QUEUED  LAG  DROPPED  REFUSED  SET ASIDE",
        "pgjsonb         120      12  3 s        0        0          0",
        "loop_lag: 0.1",
        "Next: salt-run job_recorder.doctor",
    ]


def record(**more):
    return {"name": "r42", "kind": "ret", "jid": JID, "minion": "web1", "reason": "refused", "tries": 3, **more}


def test_records_that_were_set_aside_are_a_line_each_and_the_newest_are_shown():
    records = [record(name=f"r{number}", time=NOW - 60) for number in range(100)]
    lines = drawn(tables.set_aside, {"pgjsonb": records, "mysql": []}, 100)
    assert lines[0] == "pgjsonb: 100 records"
    assert lines[-5].startswith(f"r99   ret   {JID} web1")
    assert "… and 60 more that are older; --out=json shows all" in lines
    assert "mysql: 0 records" in lines
