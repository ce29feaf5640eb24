"""
What an operator should know about the recorder, its returners and notices before relying on them. The doctor changes
nothing. It must never reveal the webhook's address or the secret.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from saltext.jobs.core.advice import Advice
from saltext.jobs.core.engine import findings, requests
from saltext.jobs.core.engine.names import JOB_RECORDER
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


def _own(opts: Mapping[str, Any], returners: list[str]) -> Iterator[str]:
    """Yield the findings; the names of the returners and targets in use are added to ``returners``."""
    settings, notices = settings_of(opts), notices_of(opts)
    returners += [*(choice.label for choice in settings.returners), *notices.targets]
    if settings.returners and (opts.get("job_cache", True) is False or opts.get("ext_job_cache")):
        yield (
            "this master stores no returns in a job cache of its own (job_cache: False, or ext_job_cache), so only loads "
            "are recorded"
        )
    yield from _about_webhook(opts, notices) if notices.url else ()
    for one in dict.fromkeys((*settings.returners, *notices.returners)):
        if why := ReturnerModule(opts, one.returner, one.ret_config).why_absent():
            yield f"{one.label} gets nothing: {why}"
    runs = requests.is_running(opts, JOB_RECORDER) and not findings.about_engine(opts, JOB_RECORDER)
    stats = requests.ask(opts, JOB_RECORDER, {"do": "stats", "returner": None}) if runs else {"returners": {}}
    yield from _about_work(stats["returners"])


def _about_webhook(opts: Mapping[str, Any], settings: NoticesSettings) -> Iterator[str]:
    url = urlsplit(settings.url)
    if not settings.secret:
        yield Advice("notices are not signed, so their receiver cannot tell them from forged ones: set secret")
    elif opts.get("pillar_opts"):
        yield "every minion gets the secret of notices, since pillar_opts is set: unset it"
    if url.scheme == "http" and url.hostname not in _HERE:
        yield Advice("notices go over the network as plain text: have the webhook's url begin with https://")


def _about_work(stats: Mapping[str, Any]) -> Iterator[str]:
    for name, one in stats.items():
        if one["trouble"]:
            yield f"{name} takes nothing, and {one['queued']} records wait: {one['trouble']}"
        elif one["lag"] > _BEHIND:
            yield f"{name} is {one['lag']:.0f} s behind ({one['queued']} records wait): it is too slow"
        if one["dropped"]:
            yield (
                f"records for {name} were lost since the engine's start ({one['dropped']:,}): it was away or slow for "
                "longer than they are kept; for returns, raise log_size or keep_jobs_seconds"
            )
        if one["set_aside"]:
            yield (
                f"{name} has refused records ({one['set_aside']:,}): job_recorder.set_aside says why, "
                "job_recorder.redeliver hands them over again, job_recorder.drop forgets them"
            )
