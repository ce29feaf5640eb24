"""
Metrics and alerts with the real programs: engines write their files, node_exporter reads them, Prometheus judges by our
rules, and Alertmanager tells a webhook. Queries of the dashboard are asked of the same Prometheus.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import pathlib
import re
import subprocess
import threading
import urllib.parse
import urllib.request

import pytest
import salt.utils.yaml

from saltext.jobs.core.engine import requests
from saltext.jobs.core.engine.names import BATCH_MANAGER, JOB_NOTICES, JOB_RECORDER, JOB_RETRY
from tests.faults import freeze, thaw
from tests.functional.cache_servers import free_port, server_program
from tests.functional.notices.receiver import receiving
from tests.integration.batch.conftest import batch_master
from tests.integration.faults import CountedJob
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

MONITORING = pathlib.Path(__file__).resolve().parents[2] / "docs" / "monitoring"
#: Seconds after which an engine's figures are old; it writes them every 15.
OLD = 40
#: Seconds in which an alert arrives, or is over.
ARRIVES = 180


class Hook:
    """Alertmanager's webhook. ``told`` are (alert, engine, whether it is over), in the order in which they came."""

    def __init__(self):
        self.told, self.summaries = [], []

    def take(self, alerts):
        for alert in alerts:
            labels = alert["labels"]
            self.told.append((labels["alertname"], labels.get("engine"), alert["status"] == "resolved"))
            self.summaries.append(alert["annotations"]["summary"])

    def firing(self):
        return sorted((name, engine or "") for name, engine, is_over in self.told if not is_over)

    def over(self):
        return sorted((name, engine or "") for name, engine, is_over in self.told if is_over)


@pytest.fixture(scope="module")
def hook():
    """Runs the webhook; has ``url``."""
    made = Hook()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            made.take(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["alerts"])
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        made.url = f"http://127.0.0.1:{server.server_port}/"
        yield made
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def metrics(tmp_path_factory):
    return tmp_path_factory.mktemp("metrics")


@pytest.fixture(scope="module")
def master(salt_factories, metrics, tmp_path_factory):
    with receiving() as receiver:
        more = {BATCH_MANAGER: {}, JOB_RETRY: {}, JOB_RECORDER: {"returners": ["rawfile_json"]}}
        more[JOB_NOTICES] = {"url": receiver.url}
        engines = [{name: {**options, "metrics_dir": str(metrics)}} for name, options in more.items()]
        events = str(tmp_path_factory.mktemp("events") / "events")
        options = {"engines": engines, "rawfile_json.filename": events}
        with batch_master(salt_factories, "p1", **options) as daemon:
            for name in more:
                wait_for((metrics / f"saltext_jobs_{name}.prom").exists, what=f"{name} has written its figures")
            yield daemon


@contextlib.contextmanager
def program(name, *arguments, port, ready):
    """Run a program that answers at a port of this machine."""
    with subprocess.Popen([server_program(name), *arguments], stderr=subprocess.DEVNULL) as process:
        try:
            wait_for(lambda: _answers(f"http://127.0.0.1:{port}{ready}"), what=f"{name} answers")
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()


def _answers(url):
    with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5) as answer:
        return answer.status == 200


def rules():
    """Our rules, with all waiting shortened that a test waits for. On a busy machine notices do wait for some seconds."""
    found = salt.utils.yaml.safe_load((MONITORING / "alerts.yml").read_text(encoding="utf-8"))
    for rule in found["groups"][0]["rules"]:
        if "for" in rule and rule["alert"] != "SaltJobNoticesWait":
            rule["for"] = "10s"
        rule["expr"] = rule["expr"].replace("> 120", f"> {OLD}")
    return json.dumps(found)


@pytest.fixture(scope="module")
def prometheus(master, metrics, hook, tmp_path_factory):
    """The whole chain; gives what asks Prometheus."""
    folder = tmp_path_factory.mktemp("prometheus")
    (folder / "rules.yml").write_text(rules())
    ports = [free_port() for _ in range(3)]
    with contextlib.ExitStack() as stack:

        def run(name, port, ready, *arguments):
            listen = f"--web.listen-address=127.0.0.1:{port}"
            return stack.enter_context(program(name, listen, *arguments, port=port, ready=ready))

        textfiles = (
            "--collector.disable-defaults",
            "--collector.textfile",
            f"--collector.textfile.directory={metrics}",
        )
        exporter = run("prometheus-node-exporter", ports[0], "/metrics", *textfiles)
        route = {"receiver": "hook", "group_by": ["..."], "group_wait": "0s", "group_interval": "1s"}
        receivers = [{"name": "hook", "webhook_configs": [{"url": hook.url, "send_resolved": True}]}]
        (folder / "alertmanager.yml").write_text(json.dumps({"route": route, "receivers": receivers}))
        manager = run(
            *("prometheus-alertmanager", ports[1], "/-/ready", "--cluster.listen-address="),
            *(f"--config.file={folder}/alertmanager.yml", f"--storage.path={folder}/alerts"),
        )
        settings = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [f"{folder}/rules.yml"],
            "scrape_configs": [{"job_name": "node", "static_configs": [{"targets": [exporter]}]}],
            "alerting": {"alertmanagers": [{"static_configs": [{"targets": [manager]}]}]},
        }
        (folder / "prometheus.yml").write_text(json.dumps(settings))
        address = run(
            *("prometheus", ports[2], "/-/ready"),
            *(f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/series"),
        )

        def ask(path, **query):
            with urllib.request.urlopen(f"http://{address}/api/v1/{path}?{urllib.parse.urlencode(query)}") as answer:
                told = json.load(answer)
            assert told["status"] == "success", told
            return told["data"]

        written = "saltext_jobs_written_timestamp_seconds"
        wait_for(lambda: len(ask("query", query=written)["result"]) == 4, what="all engines have figures")
        wait_for(lambda: not ask("query", query="ALERTS")["result"], what="nothing fires at the start")
        yield ask


@pytest.fixture
def alerts(prometheus, hook):
    """The webhook, with nothing received yet. No new alert fires."""
    hook.told.clear()
    return hook


@contextlib.contextmanager
def frozen(master, *engines):
    """Keep engines from running until the block ends."""
    processes = [requests.process_of(master.config, engine).pid for engine in engines]
    freeze(*processes)
    try:
        yield
    finally:
        thaw(*processes)


def arrive(alerts, *expected, over=False):
    told = alerts.over if over else alerts.firing
    wait_for(lambda: told() == sorted(expected), ARRIVES, what=lambda: f"{expected}: {alerts.told}")


def test_nothing_fires_where_all_is_well(prometheus, alerts):
    assert prometheus("query", query="ALERTS")["result"] == []


def test_a_halted_batch_fires_its_alert_and_no_other(alerts, run, tmp_path):
    work = CountedJob(tmp_path, "work", seconds=300)
    jid = run("batch.start", "p1", "cmd.run", work.command, "batch=1")["jid"]
    wait_for(work.begun, what="the minion runs it")
    run("batch.stop", jid, "kill=True")
    arrive(alerts, ("SaltBatchHalted", ""))


def test_a_paused_queue_fires_its_alert_until_it_is_resumed(alerts, run):
    run("job_retry.pause")
    arrive(alerts, ("SaltJobRetryPaused", ""))
    run("job_retry.resume")
    arrive(alerts, ("SaltJobRetryPaused", ""), over=True)


def test_an_engine_whose_file_is_gone_is_named_until_it_is_back(master, metrics, alerts):
    gone = ("SaltJobsEngineGone", JOB_RECORDER)
    with frozen(master, JOB_RECORDER):
        (metrics / f"saltext_jobs_{JOB_RECORDER}.prom").unlink()
        arrive(alerts, gone)
    arrive(alerts, gone, over=True)
    assert alerts.firing() == [gone]


def test_two_engines_that_hang_are_two_alerts(master, alerts):
    silent = [("SaltJobsEngineSilent", BATCH_MANAGER), ("SaltJobsEngineSilent", JOB_RETRY)]
    with frozen(master, BATCH_MANAGER, JOB_RETRY):
        arrive(alerts, *silent)
    arrive(alerts, *silent, over=True)
    assert alerts.firing() == silent and len(set(alerts.summaries[-2:])) == 2


def test_each_query_of_the_dashboard_gets_data_with_the_labels_of_its_legend(prometheus):
    board = json.loads((MONITORING / "dashboard.json").read_text(encoding="utf-8"))
    (masters,) = [one for one in board["templating"]["list"] if one["name"] == "instance"]
    figure, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", masters["query"]["query"]).groups()
    assert len(prometheus(f"label/{label}/values", **{"match[]": figure})) == 1
    for panel in board["panels"]:
        for target in panel["targets"]:
            query = target["expr"].replace("$instance", ".*").replace("$__rate_interval", "1m")
            found = prometheus("query", query=query)["result"]
            assert found, f"{panel['title']}: {query}"
            for name in re.findall(r"{{\s*(\w+)\s*}}", target.get("legendFormat", "")):
                assert all(one["metric"].get(name) for one in found), f"{panel['title']}: no label {name}"
