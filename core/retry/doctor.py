"""
What must hold before the engine can start, and what an operator should know before relying on it. This module changes
nothing.
"""

from __future__ import annotations

import pathlib
import time
from collections.abc import Mapping
from typing import Any

from saltext.jobs.core import compat
from saltext.jobs.core.advice import Advice
from saltext.jobs.core.engine.feeder import why_unproven
from saltext.jobs.core.engine.findings import about_returns, around, standing
from saltext.jobs.core.engine.names import JOB_RETRY
from saltext.jobs.core.errors import SettingsError
from saltext.jobs.core.master.job_cache import OURS, JobCache
from saltext.jobs.core.options import engine_options, read_settings
from saltext.jobs.core.options.engines import RetrySettings
from saltext.jobs.core.retry.effects import answer_time
from saltext.jobs.core.retry.entry import State
from saltext.jobs.core.retry.store import PAUSED, RetryStore
from saltext.jobs.core.site import site_of
from saltext.jobs.core.windows import longest_break, parse_windows


def settings_of(opts: Mapping[str, Any], *sources: Any) -> RetrySettings:
    """Return the engine's options, from ``sources`` as ``read_settings`` takes them. :raises SettingsError:"""
    settings = read_settings(RetrySettings, JOB_RETRY, *sources)
    cache = opts.get("master_job_cache")
    if cache != OURS:
        raise SettingsError(
            f"master_job_cache is {cache!r}; set master_job_cache: {OURS}, which alone logs what this master has published"
        )
    if opts.get("ext_job_cache"):
        raise SettingsError(
            f"ext_job_cache is {opts['ext_job_cache']!r}, to which minions write themselves; unset it, since only returns "
            "that the master stores prove what has run (job_recorder records into another database)"
        )
    if not opts.get("job_cache", True):
        raise SettingsError("job_cache is False; accepted is True, since without returns it is not known what has run")
    return settings


def doubts_about(opts: Mapping[str, Any], settings: RetrySettings) -> list[str]:
    """Return why jobs may not be delivered although the options are valid."""
    found = []
    keep, due = opts.get("keep_jobs_seconds") or 0, float(opts.get("timeout", 5)) + answer_time(opts)
    if 0 < keep <= due:
        found.append(
            f"keep_jobs_seconds is {keep}, and a job is looked at {due:.0f} s after its publish (timeout + "
            "gather_job_timeout): the job is removed before that, so nothing is ever queued"
        )
    if settings.window and longest_break(parse_windows(settings.window)) >= settings.ttl:
        found.append(
            f"a job is owed for {settings.ttl:.0f} s (ttl), and the window {settings.window!r} stays shut for longer: jobs "
            "will expire before it opens"
        )
    return found


def examine(opts: Mapping[str, Any]) -> dict[str, Any]:
    """
    Return what an operator should know.

    :return: engine (whether it runs), process (its pid, user and host; None if unknown),
        job_cache (the one that gets the returns), answers_proven (whether a minion's answer must be in the job cache before
        it counts), findings (one sentence for each thing that may need a change), and retcode (1 if a finding is more
        than advice).
    """
    found = [*_about_options(opts), *around(opts, JOB_RETRY)]
    if site_of(opts).folder(JOB_RETRY).exists(PAUSED):
        found.append("the queue is paused: nothing is delivered until job_retry.resume")
    found += about_returns(opts)
    more = {"job_cache": JobCache(opts).name, "answers_proven": not why_unproven(opts)}
    return standing(opts, JOB_RETRY, found, **more)


def _about_options(opts: Mapping[str, Any]) -> list[str]:
    switch, own = engine_options(opts, JOB_RETRY)
    if switch is None or switch is False:
        return [f"the engine is off: {JOB_RETRY} is not set to True in the master's configuration"]
    try:
        settings = settings_of(opts, switch, own or None)
    except SettingsError as exc:
        return [f"the engine does not start: {exc}"]
    return [*doubts_about(opts, settings), *_about_owed(opts, settings)]


def _about_owed(opts: Mapping[str, Any], settings: RetrySettings) -> list[str]:
    """Return what is wrong with ids to which jobs are owed."""
    now = time.time()
    # Any minion can report as a syndic, so only an operator can say which ones are.
    syndics = {path.name for path in pathlib.Path(opts["cachedir"], "syndics").glob("*")}  # by Salt's master
    owed, keyless, late = set[str](), set[str](), set[str]()
    try:
        accepted, _ = compat.minion_keys(opts)
        for entry, snapshot in RetryStore(site_of(opts).tables).entries():
            owed.add(entry.minion)
            is_late = now > snapshot["published_at"] + settings.ttl / 2 and not settings.window
            if entry.state is State.PENDING and (is_late or entry.minion not in accepted):
                (late if entry.minion in accepted else keyless).add(entry.minion)
    except OSError as exc:
        return [f"the queue, or the keys, cannot be read: {exc}"]
    found, unnamed = list[str](), owed & syndics - set(settings.syndics)
    if unnamed:
        found.append(f"{_some(unnamed)}: a syndic, to which jobs are owed; name it in {JOB_RETRY}: syndics")
    if keyless:
        found.append(
            f"{_some(keyless)}: jobs are owed to it, and its key is not accepted: accept it, or job_retry.cancel minion=ID"
        )
    if late:
        found.append(
            Advice(
                f"{_some(late)}: it has not taken what it is owed for half of the ttl: if it was renamed or removed, delete "
                "its key; if it takes jobs more slowly than they come, set a longer ttl"
            )
        )
    return found


def _some(names: set[str]) -> str:
    return ", ".join(sorted(names)[:5]) + (" …" if len(names) > 5 else "")
