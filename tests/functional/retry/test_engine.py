"""The job_retry engine: its start, its options, and what it is made of."""

from __future__ import annotations

import subprocess
import sys

import pytest
import salt.config

from saltext.jobs.core.errors import SettingsError
from saltext.jobs.core.retry import facts
from saltext.jobs.core.retry.checkpoint import Checkpoint
from saltext.jobs.core.settings import RetrySettings, read_settings


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
#: A line with one of these is the last one.
LAST = (RUNS, "INFO The job_retry engine is off", "CRITICAL")


@pytest.mark.parametrize(
    "opts, options, expected",
    [
        ({}, {}, ["INFO The job_retry engine is off"]),
        ({"job_retry": False}, {}, ["INFO The job_retry engine is off"]),
        ({"job_retry": True, "master_job_cache": "salt_cache"}, {}, [RUNS]),
        ({"job_retry": {"ttl": "2d"}, "master_job_cache": "salt_cache"}, {"rate": 5}, [RUNS]),
        ({"job_retry": True, "master_job_cache": "local_cache"}, {}, ["CRITICAL", "'local_cache'"]),
        ({"job_retry": {"trust_job_cache": True}, "master_job_cache": "local_cache"}, {}, [RUNS]),
        (
            {"job_retry": {"trust_job_cache": True}, "master_job_cache": "redis"},
            {},
            ["WARNING", "if redis does not, nothing is ever queued", RUNS],
        ),
        ({"job_retry": {"tll": 5}, "master_job_cache": "salt_cache"}, {}, ["CRITICAL", "'tll'", "5", "ttl"]),
        ({"job_retry": {"ttl": "soon"}, "master_job_cache": "salt_cache"}, {}, ["CRITICAL", "'soon'", "7d"]),
        (
            {"job_retry": {"window": "at night"}, "master_job_cache": "salt_cache"},
            {},
            ["CRITICAL", "window is 'at night'", "'Sat,Sun 02:00-05:00"],
        ),
        ({"job_retry": {"window": 2}, "master_job_cache": "salt_cache"}, {}, ["CRITICAL", "gather"]),
        ({"job_retry": {"timezone": "Mars"}, "master_job_cache": "salt_cache"}, {}, ["CRITICAL", "'Mars'"]),
        (
            {"job_retry": {"window": "Sat 02:00-05:00"}, "master_job_cache": "salt_cache"},
            {},
            ["WARNING", "jobs will expire before it opens", RUNS],
        ),
        (
            {"job_retry": {"window": "02:00-05:00", "timezone": "Europe/Berlin"}, "master_job_cache": "salt_cache"},
            {},
            [RUNS],
        ),
        ({"job_retry": "yes", "master_job_cache": "salt_cache"}, {}, ["CRITICAL", "'yes'"]),
        ({"job_retry": True, "master_job_cache": "salt_cache", "job_cache": False}, {}, ["CRITICAL"]),
    ],
)
def test_the_engine_starts_only_with_a_usable_configuration_and_says_why_not(tmp_path, opts, options, expected):
    places = {name: str(tmp_path / name) for name in ("cachedir", "sock_dir", "pki_dir", "extension_modules")}
    master = {**salt.config.DEFAULT_MASTER_OPTS, **places, "root_dir": str(tmp_path), "id": "m", **opts}
    code = START.format(opts={name: value for name, value in master.items() if is_plain(value)}, options=options)
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
    assert len(ours) == (2 if RUNS in expected and len(expected) > 1 else 1)
    for text in expected:
        assert text in "".join(ours)


def test_an_option_is_read_from_the_section_and_the_engine_with_the_engine_winning():
    settings = read_settings(RetrySettings, "job_retry", {"ttl": "2d", "rate": 1}, {"rate": 3})
    assert (settings.ttl, settings.rate) == (172800.0, 3.0)
    with pytest.raises(SettingsError, match="triggers"):
        read_settings(RetrySettings, "job_retry", {"triggers": ["sometimes"]})


def test_effects_and_facts_are_performed_and_handled_without_exception():
    from saltext.jobs.core.retry import effects as retry_effects
    from saltext.jobs.core.retry import machine as retry

    assert set(retry_effects.PERFORM) == set(facts.Effect.__args__) - {facts.Answer}  # which the shell hands over
    assert set(retry.HANDLERS) == set(facts.Fact.__args__)


def test_an_engine_that_dies_in_its_first_second_leaves_behind_from_when_on_jobs_are_looked_for(tmp_path):
    first = Checkpoint(tmp_path / "checkpoint", 1000.0)
    first.read()
    second = Checkpoint(tmp_path / "checkpoint", 2000.0)
    second.read()
    assert (first.at, second.at) == (1000.0, 1000.0)


def test_a_checkpoint_that_is_damaged_is_the_present_and_says_so(tmp_path, caplog):
    (tmp_path / "checkpoint").write_bytes(b"\xc1 rubbish")
    checkpoint = Checkpoint(tmp_path / "checkpoint", 1000.0)
    checkpoint.read()
    assert checkpoint.at == 1000.0
    assert "jobs of the past are not looked at" in caplog.text
