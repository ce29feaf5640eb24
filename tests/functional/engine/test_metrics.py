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
import time

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from saltext.jobs.core import compat
from saltext.jobs.core.batch import metrics as of_batches
from saltext.jobs.core.engine.report import Report
from saltext.jobs.core.metrics import gauge, of_bus, of_publisher, text_of
from saltext.jobs.core.recorder import metrics as of_recorder
from saltext.jobs.core.retry import metrics as of_retry

MONITORING = pathlib.Path(__file__).resolve().parents[3] / "docs" / "monitoring"


class Health:
    gaps, lag = 2, 0.004


class Work:
    published, failed, questions = 10, 1, 4


RETURNER = {
    "delivered": 5,
    "queued": 1,
    "spooled_bytes": 100,
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


def everything():
    """The metrics of all engines, as they write them."""
    written = [gauge(f"saltext_jobs_{name}_written_timestamp_seconds", "When.", time.time()) for name in ENGINES]
    return [
        *of_batches.metrics_of([], of_batches.Tally(), 0, 0.0),
        *of_publisher("salt_batch", Work()),
        *of_bus("salt_batch", Health()),
        *of_retry.metrics_of([], {}, False, 0.0),
        *of_publisher("salt_job_retry", Work()),
        *of_bus("salt_job_retry", Health()),
        *of_recorder.metrics_of(STATS),
        *of_bus("salt_job_recorder", Health()),
        *written,
    ]


ENGINES = ("batch_manager", "job_retry", "job_recorder")


@pytest.fixture(scope="module")
def promtool():
    found = shutil.which("promtool")
    if found is None:
        if os.environ.get("CI"):
            pytest.fail("promtool is not installed (Debian: prometheus)")
        pytest.skip("promtool is not installed (Debian: prometheus)")

    def call(*args, text=None):
        done = subprocess.run([found, *args], input=text, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    return call


def test_prometheus_has_nothing_to_say_against_the_metrics(promtool):
    assert promtool("check", "metrics", text=text_of(everything())).strip() == ""


def test_the_parser_of_its_client_reads_every_figure():
    families = list(text_string_to_metric_families(text_of(everything())))
    read = {sample.name: sample.value for family in families for sample in family.samples}
    assert {metric.name for metric in everything()} == read.keys()
    labels = {name for family in families for sample in family.samples for name in sample.labels}
    assert labels == {"state", "outcome", "returner"}


def test_a_file_for_the_collector_is_written_at_once_and_may_be_read_by_it(loop, tmp_path):
    report = Report(loop, tmp_path, "job_retry", lambda: 1234.5, lambda: [gauge("held", "Held.", 1)])
    path = tmp_path / "saltext_jobs_job_retry.prom"

    async def until_written():
        report.start()
        deadline = time.monotonic() + 20
        while not path.exists() and time.monotonic() < deadline:
            await compat.sleep(0.01)

    loop.run_sync(until_written)
    report.close()
    assert path.read_text().splitlines()[2:] == [
        "held 1",
        "# HELP saltext_jobs_job_retry_written_timestamp_seconds When this file was written.",
        "# TYPE saltext_jobs_job_retry_written_timestamp_seconds gauge",
        "saltext_jobs_job_retry_written_timestamp_seconds 1234.5",
    ]
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert os.listdir(tmp_path) == [path.name]


def test_a_directory_that_is_not_there_is_named_once_and_not_made(loop, tmp_path, caplog):
    report = Report(loop, tmp_path / "none", "job_retry", time.time, list)

    async def twice():
        for _ in range(2):
            report.start()
            deadline = time.monotonic() + 20
            while not caplog.records and time.monotonic() < deadline:
                await compat.sleep(0.01)

    with caplog.at_level(logging.ERROR):
        loop.run_sync(twice)
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
    assert len(queries) >= 8
    assert len(shown) >= 12
    for query in queries + shown:
        assert names_in(query), query
        assert names_in(query) <= there, query


def test_the_docs_have_every_metric_with_its_label_and_the_values_of_it_and_no_other():
    rows = re.findall(
        r"^\| `(\w+)` \|(?: `(\w+)`(?:: (.+?))?)? \| .+ \|$", (MONITORING / "index.md").read_text(), re.MULTILINE
    )
    told = {name: (label, set(values.split(", ")) if values else set()) for name, label, values in rows}
    assert len(told) == len(rows)
    # Which returners there are is up to the site.
    there = {
        metric.name: (metric.label, set(metric.samples) if metric.label not in ("", "returner") else set())
        for metric in everything()
    }
    assert told == there
