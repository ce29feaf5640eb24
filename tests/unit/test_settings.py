"""Options: what is accepted, and what is said about the rest."""

from __future__ import annotations

import pytest

from saltext.jobs.core.errors import SettingsError
from saltext.jobs.core.options import engine_options, read_settings
from saltext.jobs.core.options.engines import BatchSettings
from saltext.jobs.core.options.kinds import duration


def test_defaults_need_no_options():
    assert read_settings(BatchSettings, "batch_manager", None, {}) == BatchSettings()
    assert read_settings(BatchSettings, "batch_manager", True) == BatchSettings()


def test_a_later_source_overrides_an_earlier_one():
    settings = read_settings(
        BatchSettings, "batch_manager", {"max_in_flight": 7, "metrics_dir": "/here"}, {"max_in_flight": 2}
    )
    assert (settings.max_in_flight, settings.metrics_dir) == (2, "/here")


@pytest.mark.parametrize(
    ("given", "seconds"), [(90, 90), (0.5, 0.5), ("90", 90), ("90s", 90), ("15m", 900), ("12h", 43200), ("7d", 604800)]
)
def test_a_duration_is_a_number_of_seconds_or_has_a_unit(given, seconds):
    assert duration(given) == seconds


@pytest.mark.parametrize(
    "given", ["", "1w", "-1", -1, True, None, "1h30m", float("nan"), float("inf"), 10**400, "9" * 400, [1]]
)
def test_another_duration_is_refused(given):
    with pytest.raises(ValueError):
        duration(given)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"bogus": 1}, ["'bogus'", "1", "max_in_flight"]),
        ({"metrics_dir": "here"}, ["metrics_dir", "'here'", "the full path"]),
        ([1], ["batch_manager", "[1]", "a mapping"]),
        (False, ["batch_manager", "False", "a mapping"]),
    ],
)
def test_a_wrong_option_is_named_with_its_value_and_what_is_accepted(options, words):
    with pytest.raises(SettingsError) as caught:
        read_settings(BatchSettings, "batch_manager", options)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("given", [0, -1, True, None, 2.5, "500", "50%", [500], {"total": 5}])
def test_a_limit_over_all_batches_that_is_no_count_is_refused_with_what_is_accepted(given):
    with pytest.raises(SettingsError, match=r"max_in_flight is .*accepted is a whole number"):
        read_settings(BatchSettings, "batch_manager", {"max_in_flight": given})


def test_options_under_engines_override_those_of_the_section():
    opts = {"batch_manager": {"max_in_flight": 5, "metrics_dir": "/here"}}
    opts["engines"] = ["job_retry", {"batch_manager": {"max_in_flight": 9}}]
    settings = read_settings(BatchSettings, "batch_manager", *engine_options(opts, "batch_manager"))
    assert (settings.max_in_flight, settings.metrics_dir) == (9, "/here")
