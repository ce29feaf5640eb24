"""The job_retry engine: its start, its options, and what it is made of."""

from __future__ import annotations

import subprocess
import sys

import pytest

from saltext.jobs.core.errors import SettingsError
from saltext.jobs.core.options import read_settings
from saltext.jobs.core.options.engines import RetrySettings
from saltext.jobs.core.retry.doctor import doubts_about, settings_of
from tests.functional.options import options_in


def is_plain(value):
    """Whether a value can be written as Python says it."""
    return isinstance(value, (str, int, float, bool, list, tuple, dict, type(None)))


START = """
import logging, sys
logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stdout)
from saltext.jobs.engines import job_retry
job_retry.__opts__ = {opts!r}
job_retry.start(**{options!r})
"""
RUNS = "INFO The job_retry engine runs"
USABLE = {"master_job_cache": "salt_cache"}
#: A line with one of these is the last one.
LAST = (RUNS, "INFO The job_retry engine is off", "CRITICAL")


@pytest.mark.parametrize(
    "opts, options, expected",
    [
        ({}, {}, ["INFO The job_retry engine is off"]),
        ({"job_retry": True, **USABLE}, {}, [RUNS]),
        ({"job_retry": {"tll": 5}, **USABLE}, {}, ["CRITICAL", "'tll'", "ttl"]),
        ({"job_retry": True, **USABLE, "sqlite_cache_path": "/usr"}, {}, ["CRITICAL", "tries again: /usr cannot be"]),
        ({"job_retry": True, **USABLE}, {"window": "Sat 02:00-05:00"}, ["WARNING", "jobs will expire", RUNS]),
    ],
)
def test_the_engine_starts_only_with_a_usable_configuration_and_says_what_is_wrong(tmp_path, opts, options, expected):
    master = {name: value for name, value in options_in(tmp_path, **opts).items() if is_plain(value)}
    code = START.format(opts=master, options=options)
    with subprocess.Popen([sys.executable, "-uc", code], stdout=subprocess.PIPE, text=True) as engine:
        try:
            lines = []
            while not lines or not lines[-1].startswith(LAST):
                lines.append(engine.stdout.readline())
                assert lines[-1], "it has ended"
            if RUNS not in expected:  # the master would start it again as soon as it ends
                with pytest.raises(subprocess.TimeoutExpired):
                    engine.wait(0.2)
        finally:
            engine.kill()
    ours = [line for line in lines if "job_retry" in line]
    assert len(ours) == 1 + expected.count("WARNING")
    for text in expected:
        assert text in "".join(ours)


@pytest.mark.parametrize(
    "opts, switch, parts",
    [
        ({"master_job_cache": "local_cache"}, True, ["'local_cache'", "set master_job_cache: salt_cache"]),
        ({**USABLE, "ext_job_cache": "redis"}, True, ["'redis'", "unset it"]),
        (USABLE, {"ttl": "soon"}, ["'soon'", "7d"]),
        (USABLE, "yes", ["job_retry is no mapping"]),
        ({**USABLE, "job_cache": False}, True, ["job_cache is False"]),
    ],
)
def test_an_invalid_option_is_refused_with_its_value_and_what_is_accepted(opts, switch, parts):
    with pytest.raises(SettingsError) as refused:
        settings_of(opts, switch)
    for part in parts:
        assert part in str(refused.value)


@pytest.mark.parametrize(
    "opts, switch, doubts",
    [
        (USABLE, {"ttl": "2d"}, []),
        (USABLE, {"window": "Sat 02:00-05:00"}, ["jobs will expire before it opens"]),
        (USABLE, {"window": "02:00-05:00", "timezone": "Europe/Berlin"}, []),
        ({**USABLE, "timeout": 5, "gather_job_timeout": 9, "keep_jobs_seconds": 14}, True, ["keep_jobs_seconds is"]),
        ({**USABLE, "timeout": 5, "gather_job_timeout": 10, "keep_jobs_seconds": 60}, True, []),
        ({**USABLE, "keep_jobs_seconds": 0}, True, []),
    ],
)
def test_a_valid_option_that_may_keep_jobs_from_being_delivered_is_reported(opts, switch, doubts):
    found = list(doubts_about(opts, settings_of(opts, switch)))
    assert len(found) == len(doubts)
    assert all(part in said.text for part, said in zip(doubts, found, strict=True))


def test_an_option_is_read_from_the_section_and_the_engine_with_the_engine_winning():
    settings = read_settings(RetrySettings, "job_retry", {"ttl": "2d", "rate": 1}, {"rate": 3})
    assert (settings.ttl, settings.rate) == (172800.0, 3.0)
