"""
What an operator should know about the recorder, its returners and notices before relying on them. It changes nothing, and
must never reveal the webhook's address or the secret.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from saltext.jobs.core.display.text import counted
from saltext.jobs.core.engine import findings, requests
from saltext.jobs.core.engine.names import JOB_RECORDER
from saltext.jobs.core.findings import Finding, advice, fault
from saltext.jobs.core.options import is_configured, section_of
from saltext.jobs.core.options.engines import NoticesSettings
from saltext.jobs.core.recorder.returner import ReturnerModule, notices_of, settings_of

#: Seconds that a returner may be behind before the doctor mentions it.
_BEHIND = 60.0
#: Hosts that are reached without a network.
_HERE = ("localhost", "127.0.0.1", "::1")


def examine(opts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of ``job_recorder.doctor``."""
    returners: list[str] = []
    return findings.examine(opts, JOB_RECORDER, _own(opts, returners), returners=returners)


def _own(opts: Mapping[str, Any], returners: list[str]) -> Iterator[Finding]:
    """Yield the findings; the names of the returners and targets in use are added to ``returners``."""
    if not is_configured(opts, JOB_RECORDER) and not section_of(opts, JOB_RECORDER):
        return
    settings, notices = settings_of(opts), notices_of(opts)
    returners += [*(choice.label for choice in settings.returners), *notices.targets]
    if settings.returners and (opts.get("job_cache", True) is False or opts.get("ext_job_cache")):
        why = "this master stores no returns in a job cache of its own (job_cache: False, or ext_job_cache)"
        yield fault("only-loads", f"{why}, so only loads are recorded")
    yield from _about_webhook(opts, notices) if notices.url else ()
    for one in dict.fromkeys((*settings.returners, *notices.returners)):
        if why := ReturnerModule(opts, one.returner, one.ret_config).why_absent():
            yield fault("returner-absent", f"{one.label} gets nothing: {why}")
    runs = requests.is_running(opts, JOB_RECORDER) and not findings.about_engine(opts, JOB_RECORDER)
    stats = requests.ask(opts, JOB_RECORDER, {"do": "stats", "returner": None}) if runs else {"returners": {}}
    yield from _about_work(stats["returners"])


def _about_webhook(opts: Mapping[str, Any], settings: NoticesSettings) -> Iterator[Finding]:
    url = urlsplit(settings.url)
    if not settings.secret:
        why = "notices are not signed, so their receiver cannot tell them from forged ones"
        yield advice("notices-unsigned", why, "set secret")
    elif opts.get("pillar_opts"):
        yield fault("secret-exposed", "every minion gets the secret of notices, since pillar_opts is set", "unset it")
    if url.scheme == "http" and url.hostname not in _HERE:
        do = "have the webhook's url begin with https://"
        yield advice("notices-plain", "notices go over the network as plain text", do)


def _about_work(stats: Mapping[str, Any]) -> Iterator[Finding]:
    for name, one in stats.items():
        waits = f"{counted(one['queued'], 'record')} in its queue"
        if one["trouble"]:
            yield fault("returner-down", f"{name} takes nothing, with {waits}: {one['trouble']}")
        elif one["lag"] > _BEHIND:
            yield fault("returner-slow", f"{name} is {one['lag']:.0f} s behind, with {waits}: it is too slow")
        if one["dropped"]:
            told = f"records for {name} were lost since the engine's start ({one['dropped']:,})"
            why = "they are kept no more, or could not be stored"
            yield fault("records-lost", f"{told}: {why}", "for returns, raise log_size or keep_jobs_seconds")
        if one["set_aside"]:
            do = "job_recorder.set_aside says why; then job_recorder.redeliver hands them over again, or drop forgets them"
            yield fault("records-refused", f"{name} has refused records ({one['set_aside']:,})", do)
