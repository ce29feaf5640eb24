"""Checks that the recorder can work on this master, with these returners and these targets of notices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from saltext.jobs.core.engine.names import JOB_RECORDER
from saltext.jobs.core.errors import SettingsError
from saltext.jobs.core.master.job_cache import OURS
from saltext.jobs.core.options import engine_options, read_settings
from saltext.jobs.core.options.engines import NoticesSettings, RecorderSettings, ReturnerChoice
from saltext.jobs.core.recorder.returner import promoted
from saltext.jobs.core.recorder.webhook import check_address

#: The section of the options of notices.
NOTICES = "job_notices"


def notices_of(opts: Mapping[str, Any]) -> NoticesSettings:
    """Return the options of notices. :raises SettingsError: the webhook's address is not in it."""
    notices = read_settings(NoticesSettings, NOTICES, opts.get(NOTICES))
    if notices.url:
        check_address(notices.url)
    return notices


def settings_of(opts: Mapping[str, Any], *sources: Any) -> RecorderSettings:
    """
    Return the options of the recorder.

    :param sources: where they are, if not in the master's options.
    :raises SettingsError: when they, or those of notices, make no sense on this master.
    """
    recorder = read_settings(RecorderSettings, JOB_RECORDER, *(sources or engine_options(opts, JOB_RECORDER)))
    if not notices_of(opts).targets and not recorder.returners:
        raise SettingsError(
            f"{JOB_RECORDER}: returners is not set; accepted is a list of returners, such as ['pgjsonb']. For notices only, "
            f"set url or returners under {NOTICES}"
        )
    if recorder.returners and opts.get("master_job_cache") != OURS:
        raise SettingsError(
            f"{JOB_RECORDER} needs master_job_cache: {OURS}, which is {opts.get('master_job_cache', 'local_cache')!r}: it "
            "records what that job cache has"
        )
    for choice in recorder.returners:
        _check_returner(opts, choice)
    return recorder


def _check_returner(opts: Mapping[str, Any], choice: ReturnerChoice) -> None:
    if choice.returner not in (opts.get("master_job_cache"), opts.get("ext_job_cache")):
        return
    if not choice.ret_config or promoted(opts, choice.ret_config) == dict(opts):
        raise SettingsError(
            f"{JOB_RECORDER}: returners has {choice.label!r}, which is this master's job cache and has everything already; "
            "accepted is another returner, or this one with a ret_config whose options lead elsewhere"
        )
