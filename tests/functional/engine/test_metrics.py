"""Metrics in the directory of the collector, checked by Prometheus' own tools."""

from __future__ import annotations

import json
import logging
import os
import pathlib
import re
import shutil
import stat
import subprocess
import tempfile

import pytest
import yaml

from saltext.jobs.core.engine.process import Report
from saltext.jobs.core.metrics import FIGURES, PREFIX, text_of
from saltext.jobs.core.recorder import shell as of_recorder
from saltext.jobs.core.retry import shell as of_retry
from saltext.jobs.core.retry.entry import Entry
from tests.unit.batch.shell_bench import ShellBench
from tests.waiting import stretched

MONITORING = pathlib.Path(__file__).resolve().parents[3] / "docs" / "monitoring"


RETURNER = {"delivered": 5, "queued": 1, "lag": 0.2, "dropped": 0, "refused": 0, "set_aside": 0, "trouble": None}
STATS = {"returners": {"pgjsonb": RETURNER, 'odd"one': RETURNER}}


def of_each():
    """The figures of each engine, as it writes them."""
    with tempfile.TemporaryDirectory() as root, ShellBench(root, max_in_flight=5) as bench:
        of_batches = bench.shell.metrics()
    found = {
        "batch_manager": of_batches,
        "job_retry": of_retry.figures([Entry("m", "1", 1.0, 9.0, "queued")], {}, False, 0.0),
        "job_recorder": of_recorder.figures(STATS["returners"]),
    }
    of_all = [name for name, (label, _) in FIGURES.items() if label == "engine"]
    return {engine: {**own, **{name: {engine: 1.5} for name in of_all}} for engine, own in found.items()}


def everything():
    """All of them, each once, as ``{name with its prefix: (label, value)}``."""
    found = {}
    for own in of_each().values():
        found |= {f"{PREFIX}{name}": (FIGURES[name][0], value) for name, value in own.items()}
    assert found.keys() == {f"{PREFIX}{name}" for name in FIGURES}
    return found


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
    for own in of_each().values():
        assert promtool("check", "metrics", text=text_of(own)).strip() == ""


def test_a_file_for_the_collector_may_be_read_by_it(tmp_path):
    Report(str(tmp_path), "job_retry", lambda: 1234.5).write({"retry_paused": 1})
    path = tmp_path / "saltext_jobs_job_retry.prom"
    assert [line for line in path.read_text().splitlines() if line[0] != "#"] == [
        "saltext_jobs_retry_paused 1",
        'saltext_jobs_written_timestamp_seconds{engine="job_retry"} 1234.5',
    ]
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert os.listdir(tmp_path) == [path.name]


def named(caplog):
    """What this extension has logged; asyncio may log something of other tests."""
    return [record.getMessage() for record in caplog.records if record.name.startswith("saltext")]


def test_a_directory_that_is_not_there_is_named_once_and_not_made(tmp_path, caplog):
    report = Report(str(tmp_path / "none"), "job_retry")
    with caplog.at_level(logging.ERROR):
        for _ in range(2):
            report.write({})
    assert not (tmp_path / "none").exists()
    (line,) = named(caplog)
    assert f"there is no directory {tmp_path / 'none'}; make it, or correct metrics_dir" in line


def test_the_alert_rules_do_what_their_tests_say(promtool):
    assert "SUCCESS" in promtool("check", "rules", str(MONITORING / "alerts.yml"))
    assert "SUCCESS" in promtool("test", "rules", str(MONITORING / "alerts_test.yml"))


def names_in(query):
    """The metrics that a query names."""
    return set(re.findall(r"\b(?:salt_|saltext_)[a-z_]+", query))


def test_every_query_of_rules_and_dashboard_names_a_metric_that_exists():
    there = everything().keys()
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
                by = {everything()[name][0] for name in names_in(rule["expr"])}
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


def test_the_docs_have_every_metric_with_its_label_and_the_values_of_it_and_no_other():
    rows = re.findall(
        r"^\| `(\w+)` \|(?: `(\w+)`(?:: (.+?))?)? \| .+ \|$", (MONITORING / "index.md").read_text(), re.MULTILINE
    )
    told = {name: (label, set(values.split(", ")) if values else set()) for name, label, values in rows}
    assert len(told) == len(rows)
    # Which engines, returners and targets there are is up to the site.
    there = {
        name: (label, set(value) if label in ("state", "outcome") else set())
        for name, (label, value) in everything().items()
    }
    assert told == there
