"""
What an operator should know about the recorder and its surroundings before relying on it. The doctor changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from saltext.jobs.core.engine import requests
from saltext.jobs.core.engine.findings import about_engine, around, standing
from saltext.jobs.core.engine.names import JOB_RECORDER
from saltext.jobs.core.errors import EngineAbsent, SettingsError
from saltext.jobs.core.options import engine_options, read_settings
from saltext.jobs.core.options.engines import RecorderSettings
from saltext.jobs.core.recorder.usable import check

#: Seconds that a returner may be behind before the doctor mentions it.
_BEHIND = 60.0


def examine(opts: Mapping[str, Any]) -> dict[str, Any]:
    """
    Return the state of the recorder and its surroundings.

    :param opts: the master's options.
    :return: engine (whether it runs), process (its id, user and host; None if not known), returners (those in use),
        findings: a sentence for each thing that an operator may want to change, and retcode: 1 if a finding is more
        than advice.
    """
    runs, found, returners = requests.is_running(opts, JOB_RECORDER), around(opts, JOB_RECORDER), list[str]()
    try:
        settings = read_settings(RecorderSettings, JOB_RECORDER, *engine_options(opts, JOB_RECORDER))
        check(opts, settings)
        returners = [choice.label for choice in settings.returners]
        found += _about_options(opts)
    except SettingsError as exc:
        found.append(f"the engine does not start: {exc}")
    if runs and not about_engine(opts, JOB_RECORDER):
        found += _about_work(opts)
    return standing(opts, JOB_RECORDER, found, returners=returners)


def _about_options(opts: Mapping[str, Any]) -> list[str]:
    if opts.get("job_cache", True) is False or opts.get("ext_job_cache"):
        return [
            "this master stores no returns in a job cache of its own (job_cache: False, or ext_job_cache), so only loads "
            "are recorded"
        ]
    return []


def _about_work(opts: Mapping[str, Any]) -> list[str]:
    try:
        stats = requests.ask(opts, JOB_RECORDER, {"do": "stats", "returner": None})
    except EngineAbsent as exc:
        return [str(exc)]
    found = []
    for name, one in stats["returners"].items():
        if one["trouble"]:
            found.append(f"the returner {name} takes nothing, and {one['queued']} records wait: {one['trouble']}")
        elif one["lag"] > _BEHIND:
            found.append(
                f"the returner {name} is {one['lag']:.0f} s behind ({one['queued']} records wait): it is too slow"
            )
        if one["dropped"]:
            found.append(
                f"records for the returner {name} were lost since the engine's start ({one['dropped']:,}): it was away or "
                "slow for longer than the log or the job cache keeps them; raise log_size or keep_jobs_seconds"
            )
        if one["set_aside"]:
            found.append(
                f"the returner {name} has refused records ({one['set_aside']:,}): job_recorder.set_aside says why, "
                "job_recorder.redeliver hands them over again, job_recorder.drop forgets them"
            )
    return found
