"""
What an operator should know about the recorder and its surroundings before relying on it. The doctor changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from saltext.jobs.core.engine import findings, requests
from saltext.jobs.core.engine.names import JOB_RECORDER
from saltext.jobs.core.options import engine_options, read_settings
from saltext.jobs.core.options.engines import RecorderSettings
from saltext.jobs.core.recorder.usable import check

#: Seconds that a returner may be behind before the doctor mentions it.
_BEHIND = 60.0


def examine(opts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of ``job_recorder.doctor``."""
    returners: list[str] = []
    return findings.examine(opts, JOB_RECORDER, _own(opts, returners), returners=returners)


def _own(opts: Mapping[str, Any], returners: list[str]) -> Iterator[str]:
    """Yield the findings; the labels of the returners in use are added to ``returners``."""
    settings = read_settings(RecorderSettings, JOB_RECORDER, *engine_options(opts, JOB_RECORDER))
    check(opts, settings)
    returners += [choice.label for choice in settings.returners]
    if opts.get("job_cache", True) is False or opts.get("ext_job_cache"):
        yield (
            "this master stores no returns in a job cache of its own (job_cache: False, or ext_job_cache), so only loads "
            "are recorded"
        )
    runs = requests.is_running(opts, JOB_RECORDER) and not findings.about_engine(opts, JOB_RECORDER)
    stats = requests.ask(opts, JOB_RECORDER, {"do": "stats", "returner": None}) if runs else {"returners": {}}
    yield from _about_work(stats["returners"])


def _about_work(stats: Mapping[str, Any]) -> Iterator[str]:
    for name, one in stats.items():
        if one["trouble"]:
            yield f"the returner {name} takes nothing, and {one['queued']} records wait: {one['trouble']}"
        elif one["lag"] > _BEHIND:
            yield f"the returner {name} is {one['lag']:.0f} s behind ({one['queued']} records wait): it is too slow"
        if one["dropped"]:
            yield (
                f"records for the returner {name} were lost since the engine's start ({one['dropped']:,}): it was away or "
                "slow for longer than the log or the job cache keeps them; raise log_size or keep_jobs_seconds"
            )
        if one["set_aside"]:
            yield (
                f"the returner {name} has refused records ({one['set_aside']:,}): job_recorder.set_aside says why, "
                "job_recorder.redeliver hands them over again, job_recorder.drop forgets them"
            )
