"""Checks that the recorder can work on this master, with these returners."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from saltext.jobs.core.engine.names import JOB_RECORDER
from saltext.jobs.core.errors import SettingsError
from saltext.jobs.core.master.job_cache import OURS
from saltext.jobs.core.options.engines import RecorderSettings, ReturnerChoice
from saltext.jobs.core.recorder.returner import promoted


def check(opts: Mapping[str, Any], settings: RecorderSettings) -> None:
    """:raises SettingsError: when these settings make no sense on this master."""
    if not settings.returners:
        raise SettingsError(
            f"{JOB_RECORDER}: returners is not set; accepted is a list of returners, such as ['pgjsonb']"
        )
    if opts.get("master_job_cache") != OURS:
        raise SettingsError(
            f"{JOB_RECORDER} needs master_job_cache: {OURS}, which is {opts.get('master_job_cache', 'local_cache')!r}: it "
            "records what that job cache has"
        )
    for choice in settings.returners:
        _check_returner(opts, choice)


def _check_returner(opts: Mapping[str, Any], choice: ReturnerChoice) -> None:
    if choice.returner not in (opts.get("master_job_cache"), opts.get("ext_job_cache")):
        return
    if not choice.ret_config or promoted(opts, choice.ret_config) == dict(opts):
        raise SettingsError(
            f"{JOB_RECORDER}: returners has {choice.label!r}, which is this master's job cache and has everything already; "
            "accepted is another returner, or this one with a ret_config whose options lead elsewhere"
        )
