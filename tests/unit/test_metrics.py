"""The figures of an engine, in the text format of Prometheus and as a runner shows them."""

from __future__ import annotations

import itertools

import pytest

from saltext.jobs.core.metrics import History, figures_of, text_of


def test_a_figure_is_written_with_its_type_and_help():
    assert text_of({"batch_minions_total": {"failed": 7}}) == (
        "# HELP saltext_jobs_batch_minions_total Minions that ended, counted as each one ends.\n"
        "# TYPE saltext_jobs_batch_minions_total counter\n"
        'saltext_jobs_batch_minions_total{outcome="failed"} 7\n'
    )
    assert "# TYPE saltext_jobs_retry_paused gauge\n" in text_of({"retry_paused": False})


@pytest.mark.parametrize(
    ("value", "written"), [(True, "1"), (0.25, "0.25"), (1732242000.5, "1732242000.5"), (2**53, "9.00719925474099e+15")]
)
def test_numbers_are_written_as_prometheus_reads_them(value, written):
    assert text_of({"retry_paused": value}).splitlines()[-1] == f"saltext_jobs_retry_paused {written}"


def test_a_runner_shows_the_same_figures_by_name():
    found = figures_of({"retry_paused": 0, "retry_entries": {"held": 1}})
    assert found == {"saltext_jobs_retry_paused": 0, "saltext_jobs_retry_entries": {"held": 1}}


def test_the_figures_of_a_day_are_kept_each_minute_of_the_last_hour_and_each_quarter_before():
    history = History()
    for minute in range(2000):
        history.take(60.0 * minute, {"retry_paused": minute})
    minutes = [int(at // 60) for at, _ in history.told()]
    assert minutes[-60:] == list(range(1940, 2000))
    assert {later - earlier for earlier, later in itertools.pairwise(minutes[:-60])} == {15}
    assert 1999 - minutes[0] in range(23 * 60, 24 * 60 + 15)
