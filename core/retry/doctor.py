"""What must hold before the engine can start, and what an operator should know before relying on it. It changes nothing."""

from __future__ import annotations

import collections
import pathlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

from saltext.jobs.core import compat
from saltext.jobs.core.display.text import counted, some
from saltext.jobs.core.engine import findings
from saltext.jobs.core.engine.names import JOB_RETRY
from saltext.jobs.core.errors import SettingsError
from saltext.jobs.core.findings import Finding, advice, fault
from saltext.jobs.core.master.job_cache import OURS
from saltext.jobs.core.options import engine_options, is_configured, read_settings
from saltext.jobs.core.options.engines import RetrySettings
from saltext.jobs.core.retry.effects import answer_time
from saltext.jobs.core.retry.entry import ENDED, State
from saltext.jobs.core.retry.queue import hours_of
from saltext.jobs.core.retry.store import RetryStore
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


def doubts_about(opts: Mapping[str, Any], settings: RetrySettings) -> Iterator[Finding]:
    """Yield why jobs may not be delivered although the options are valid."""
    keep, due = opts.get("keep_jobs_seconds") or 0, float(opts.get("timeout", 5)) + answer_time(opts)
    if 0 < keep <= due:
        yield fault(
            "jobs-removed-early",
            f"keep_jobs_seconds is {keep}, and a job is looked at {due:.0f} s after its publish (timeout + "
            "gather_job_timeout): the job is removed before that, so nothing is ever queued",
        )
    if settings.window and longest_break(parse_windows(settings.window)) >= settings.ttl:
        yield fault(
            "window-shut",
            f"a job is owed for {settings.ttl:.0f} s (ttl), and the window {settings.window!r} stays shut for longer: jobs "
            "will expire before it opens",
        )


def examine(opts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of ``job_retry.doctor``."""
    return findings.examine(opts, JOB_RETRY, _own(opts))


def _own(opts: Mapping[str, Any]) -> Iterator[Finding]:
    yield from findings.about_returns(opts)
    if RetryStore(site_of(opts)).is_paused():
        yield fault("queue-paused", "the queue is paused: nothing is delivered until job_retry.resume")
    switch, own = engine_options(opts, JOB_RETRY)
    if switch is None or switch is False:
        if is_configured(opts, JOB_RETRY):
            yield fault("engine-off", f"the engine is off: {JOB_RETRY} is not True in the master's configuration")
        return
    settings = settings_of(opts, switch, own or None)
    yield from doubts_about(opts, settings)
    yield from _about_owed(opts, settings)


def _about_owed(opts: Mapping[str, Any], settings: RetrySettings) -> Iterator[Finding]:
    """Yield what is wrong with ids to which jobs are owed. :raises OSError:"""
    now = time.time()
    # Any minion can report as a syndic, so only an operator can say which ones are.
    syndics = {path.name for path in pathlib.Path(opts["cachedir"], "syndics").glob("*")}  # by Salt's master
    accepted, _ = compat.minion_keys(opts)
    owed, loads, keyless, late = collections.Counter[str](), dict[str, int](), set[str](), set[str]()
    states = collections.Counter[State]()
    for entry, job in RetryStore(site_of(opts)).entries():
        states[entry.state] += 1
        loads[job.jid] = job.kilobytes
        owed[entry.minion] += entry.state not in ENDED
        is_late = 2 * now > entry.queued + entry.expires_at and hours_of(job.limits, settings) is None
        if entry.state is State.PENDING and (is_late or entry.minion not in accepted):
            (late if entry.minion in accepted else keyless).add(entry.minion)
    full = {minion for minion, many in owed.items() if many >= settings.max_queue_per_minion}
    if states.total() + sum(loads.values()) >= settings.max_queue:
        yield fault("queue-full", "max_queue is reached: no further job is kept", "raise it, or cancel entries")
    elif full:
        told = f"max_queue_per_minion is reached: no further job is kept for {some(sorted(full), 5)}"
        yield fault("queue-full-for", told, "raise it, or job_retry.cancel minion=ID jid=JID")
    if unnamed := owed.keys() & syndics - set(settings.syndics):
        told = f"{some(sorted(unnamed), 5)}: a syndic, to which jobs are owed"
        yield fault("syndic", told, f"name it under {JOB_RETRY}, in syndics")
    if keyless:
        told = f"{some(sorted(keyless), 5)}: jobs are owed to it, and its key is not accepted"
        yield fault("owed-without-key", told, "accept it, or job_retry.cancel minion=ID")
    if stuck := states[State.HELD] + states[State.DEAD]:
        told = f"{counted(stuck, 'entry', 'entries')} held or dead: a person has to decide"
        yield advice("undecided", told, "job_retry.list state=held,dead")
    if late:
        yield advice(
            "owed-for-long",
            f"{some(sorted(late), 5)}: it has not taken what it is owed for half of its time to live",
            "if it was renamed or removed, delete its key; if it takes jobs more slowly than they come, set a longer ttl",
        )
