"""The figures of an engine, in the text format of Prometheus and as a runner shows them."""

from __future__ import annotations

import math

import pytest

from saltext.jobs.core.metrics import History, counter, figures_of, gauge, text_of


def test_a_figure_is_written_with_its_type_and_help():
    assert text_of([counter("saltext_jobs_batch_publishes_total", "Publishes.", 7)]) == (
        "# HELP saltext_jobs_batch_publishes_total Publishes.\n"
        "# TYPE saltext_jobs_batch_publishes_total counter\n"
        "saltext_jobs_batch_publishes_total 7\n"
    )


def test_a_label_cannot_break_the_line():
    text = text_of([gauge("lag_seconds", "Lag.", {'a"b\\c\nd': 1}, "returner")])
    assert text.splitlines()[2:] == ['lag_seconds{returner="a\\"b\\\\c\\nd"} 1']


@pytest.mark.parametrize(
    ("value", "written"),
    [(True, "1"), (0.25, "0.25"), (1732242000.5, "1732242000.5"), (2**53, "9.00719925474099e+15"), (math.inf, "+Inf")],
)
def test_numbers_are_written_as_prometheus_reads_them(value, written):
    assert text_of([gauge("x", "X.", value)]).splitlines()[-1] == f"x {written}"


def test_a_runner_shows_the_same_figures_by_name():
    metrics = [counter("a_total", "A.", 3), gauge("b", "B.", {"held": 1, "dead": 2}, "state")]
    assert figures_of(metrics) == {"a_total": 3, "b": {"held": 1, "dead": 2}}


def test_the_figures_of_an_hour_are_kept_and_no_more():
    history = History()
    for minute in range(100):
        history.take(60.0 * minute, [gauge("a", "A.", minute)])
    told = history.told()
    assert (len(told), told[0], told[-1]) == (60, (2400.0, {"a": 40}), (5940.0, {"a": 99}))
