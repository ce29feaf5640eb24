"""Metrics in the directory of the collector, checked by Prometheus' own tools."""

from __future__ import annotations

import dataclasses
import itertools
import json
import logging
import os
import pathlib
import re
import shutil
import stat
import subprocess
import time

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from saltext.jobs.core.batch import metrics as of_batches
from saltext.jobs.core.engine.process import Report
from saltext.jobs.core.metrics import gauge, of_bus, of_lead, of_publisher, of_writing, text_of
from saltext.jobs.core.notices.metrics import metrics_of as of_notices
from saltext.jobs.core.recorder import metrics as of_recorder
from saltext.jobs.core.retry import metrics as of_retry
from tests.waiting import run_until, stretched

MONITORING = pathlib.Path(__file__).resolve().parents[3] / "docs" / "monitoring"


class Health:
    gaps, lag = 2, 0.004


class Work:
    published, failed, questions = 10, 1, 4


RETURNER = {
    "delivered": 5,
    "queued": 1,
    "lag": 0.2,
    "dropped": 0,
    "refused": 0,
    "set_aside": 0,
    "trouble": None,
}
STATS = {
    "recorded": 4,
    "unwritten": 0,
    "events": 0,
    "events_dropped": 0,
    "found_in_job_cache": 0,
    "spool_bytes": 100,
    "returners": {"pgjsonb": RETURNER, 'odd"one': RETURNER},
}


def lead_of(engine):
    return of_lead(
        engine, leads=True, since=1.8e9, left=7.5, takeovers=1, hand_overs=2, refused=0, is_up=True, took=0.001
    )


def of_each():
    """The metrics of each engine, as it writes them."""
    found = {
        "batch_manager": [
            *of_batches.metrics_of([], of_batches.Tally(), 0, 0.0, limit=5),
            *of_publisher("batch_manager", Work()),
        ],
        "job_retry": [*of_retry.metrics_of([], {}, False, 0.0), *of_publisher("job_retry", Work())],
        "job_recorder": of_recorder.metrics_of(STATS),
        "job_notices": of_notices({"webhook": (0, 3, 1, 0)}),
    }
    return {
        engine: [*metrics, *of_bus(engine, Health()), *lead_of(engine), of_writing(engine, time.time())]
        for engine, metrics in found.items()
    }


def everything():
    """All of them, each once, with the values of its label that any engine has."""
    found = {}
    for metric in itertools.chain.from_iterable(of_each().values()):
        before = found.get(metric.name, metric)
        found[metric.name] = dataclasses.replace(metric, samples={**before.samples, **metric.samples})
    return list(found.values())


@pytest.fixture(scope="module")
def promtool():
    found = shutil.which("promtool")
    if found is None:
        if os.environ.get("CI"):
            pytest.fail("promtool is not installed (Debian: prometheus)")
        pytest.skip("promtool is not installed (Debian: prometheus)")

    def call(*args, text=None):
        done = subprocess.run(
            [found, *args], input=text, capture_output=True, text=True, timeout=stretched(60), check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    return call


def test_prometheus_has_nothing_to_say_against_the_metrics(promtool):
    for metrics in of_each().values():
        assert promtool("check", "metrics", text=text_of(metrics)).strip() == ""


def test_the_parser_of_its_client_reads_every_figure():
    families = list(text_string_to_metric_families(text_of(everything())))
    read = {sample.name: sample.value for family in families for sample in family.samples}
    assert {metric.name for metric in everything()} == read.keys()
    labels = {name for family in families for sample in family.samples for name in sample.labels}
    assert labels == {"engine", "state", "outcome", "returner", "target"}


def test_a_file_for_the_collector_is_written_at_once_and_may_be_read_by_it(loop, tmp_path):
    report = Report(loop, tmp_path, "job_retry", lambda: 1234.5, lambda: [gauge("held", "Held.", 1)])
    path = tmp_path / "saltext_jobs_job_retry.prom"

    loop.add_callback(report.start)
    run_until(loop, path.exists, what="it is written")
    report.close()
    assert [line for line in path.read_text().splitlines() if line[0] != "#"] == [
        "held 1",
        'saltext_jobs_written_timestamp_seconds{engine="job_retry"} 1234.5',
    ]
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert os.listdir(tmp_path) == [path.name]


def test_a_directory_that_is_not_there_is_named_once_and_not_made(loop, tmp_path, caplog):
    report = Report(loop, tmp_path / "none", "job_retry", time.time, list)

    with caplog.at_level(logging.ERROR):
        for _ in range(2):
            loop.add_callback(report.start)
            run_until(loop, lambda: caplog.records, what="it is named")
    report.close()
    assert not (tmp_path / "none").exists()
    (record,) = caplog.records
    assert f"there is no directory {tmp_path / 'none'}; make it, or correct metrics_dir" in record.getMessage()


def test_the_alert_rules_do_what_their_tests_say(promtool):
    assert "SUCCESS" in promtool("check", "rules", str(MONITORING / "alerts.yml"))
    assert "SUCCESS" in promtool("test", "rules", str(MONITORING / "alerts_test.yml"))


def names_in(query):
    """The metrics that a query names."""
    return set(re.findall(r"\b(?:salt_|saltext_)[a-z_]+", query))


def test_every_query_of_rules_and_dashboard_names_a_metric_that_exists():
    there = {metric.name for metric in everything()}
    rules = yaml.safe_load((MONITORING / "alerts.yml").read_text())
    queries = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    dashboard = json.loads((MONITORING / "dashboard.json").read_text())
    shown = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert len(queries) >= 12
    assert len(shown) >= 12
    for query in queries + shown:
        assert names_in(query), query
        assert names_in(query) <= there, query


def test_every_rule_names_the_master_and_the_engine_returner_or_target_that_it_is_about():
    for group in yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"]:
        for rule in group["rules"]:
            summary = rule["annotations"]["summary"]
            assert "$labels.instance" in summary or "absent(" in rule["expr"], rule["alert"]
            for label in ("engine", "returner", "target"):
                by = {metric.label for metric in everything() if metric.name in names_in(rule["expr"])}
                assert label not in by or f"$labels.{label}" in summary or "absent(" in rule["expr"], rule["alert"]


def test_the_dashboard_is_one_that_grafana_imports_and_each_query_is_of_the_chosen_masters():
    board = json.loads((MONITORING / "dashboard.json").read_text())
    names = {variable["name"]: variable for variable in board["templating"]["list"]}
    assert names["instance"]["type"] == "query" and names["instance"]["includeAll"] and names["instance"]["multi"]
    assert names["instance"]["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    assert isinstance(board["schemaVersion"], int) and board["title"] and board["uid"]
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    taken = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken and max(x for x, _ in cells) < 24, panel["title"]
        taken |= cells
        assert panel["type"] and panel["title"] and panel["datasource"]["uid"] == "${datasource}"
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
        for target in panel["targets"]:
            assert target["expr"].count('instance=~"$instance"') == len(re.findall("saltext_jobs_", target["expr"]))


#: What Grafana's own description of a dashboard (``kinds/dashboard``, classic form) and of the panels accepts.
PANELS = {"timeseries", "stat", "gauge", "bargauge", "table", "row", "text"}
VARIABLES = {"query", "adhoc", "constant", "datasource", "interval", "textbox", "custom"}
UNITS = {"short", "s", "ms", "bytes", "percentunit", "ops", "cps", "none", "dateTimeAsIso", "dateTimeFromNow"}
FIRST_WITH_TIMESERIES, LAST_OF_CLASSIC_FORM = 27, 42


def test_the_dashboard_has_the_form_that_grafana_describes():
    board = json.loads((MONITORING / "dashboard.json").read_text())
    assert 8 <= len(board["uid"]) <= 40 and re.fullmatch("[a-zA-Z0-9_-]+", board["uid"])
    assert FIRST_WITH_TIMESERIES <= board["schemaVersion"] <= LAST_OF_CLASSIC_FORM
    assert "id" not in board, "it would overwrite another dashboard of that Grafana"
    assert set(board["time"]) == {"from", "to"} and re.fullmatch(r"\d+[smhd]", board["refresh"])
    assert isinstance(board["tags"], list) and isinstance(board["editable"], bool)
    variables = board["templating"]["list"]
    assert [variable["type"] for variable in variables][:1] == ["datasource"], "what the others ask comes first"
    for variable in variables:
        assert variable["type"] in VARIABLES and re.fullmatch(r"\w+", variable["name"]), variable
        assert variable.get("hide", 0) in (0, 1, 2) and variable.get("refresh", 1) in (0, 1, 2), variable
    known = {variable["name"] for variable in variables} | {"__rate_interval", "__all", "__range"}
    assert set(re.findall(r"\$\{?(\w+)", json.dumps(board))) <= known
    for panel in board["panels"]:
        place, fields = panel["gridPos"], panel["fieldConfig"]
        assert panel["type"] in PANELS and isinstance(panel["id"], int) and panel["id"] > 0, panel["title"]
        assert place["h"] > 0 and 0 < place["w"] <= 24 and 0 <= place["x"] < 24 and place["y"] >= 0, panel["title"]
        assert place["x"] + place["w"] <= 24, panel["title"]
        assert set(fields) == {"defaults", "overrides"} and isinstance(fields["overrides"], list), panel["title"]
        assert fields["defaults"].get("unit", "short") in UNITS, panel["title"]
        steps = fields["defaults"].get("thresholds", {"steps": [{"value": None}]})["steps"]
        values = [step.get("value") for step in steps]
        assert values[0] is None and values[1:] == sorted(values[1:]), panel["title"]
        assert panel["targets"] and all(re.fullmatch("[A-Z]", target["refId"]) for target in panel["targets"])


def test_the_docs_have_every_metric_with_its_label_and_the_values_of_it_and_no_other():
    rows = re.findall(
        r"^\| `(\w+)` \|(?: `(\w+)`(?:: (.+?))?)? \| .+ \|$", (MONITORING / "index.md").read_text(), re.MULTILINE
    )
    told = {name: (label, set(values.split(", ")) if values else set()) for name, label, values in rows}
    assert len(told) == len(rows)
    # Which engines, returners and targets there are is up to the site.
    there = {
        metric.name: (metric.label, set(metric.samples) if metric.label in ("state", "outcome") else set())
        for metric in everything()
    }
    assert told == there
