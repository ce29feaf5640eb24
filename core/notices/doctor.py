"""
What an operator should know about notices before relying on them. It changes nothing. It must never reveal the webhook's
address or the secret.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from saltext.jobs.core.advice import Advice
from saltext.jobs.core.engine import findings, requests
from saltext.jobs.core.engine.names import JOB_NOTICES
from saltext.jobs.core.notices.store import NoticesStore
from saltext.jobs.core.notices.usable import check
from saltext.jobs.core.options import engine_options, is_configured, read_settings
from saltext.jobs.core.options.engines import NoticesSettings, ReturnerChoice
from saltext.jobs.core.site import site_of

#: Returns why a returner cannot be loaded; empty if it can.
Missing = Callable[[ReturnerChoice], str]
#: Hosts that are reached without a network.
_HERE = ("localhost", "127.0.0.1", "::1")


def examine(opts: Mapping[str, Any], missing: Missing) -> dict[str, Any]:
    """Return the result of ``job_notices.doctor``."""
    targets, waiting, delivered = list[str](), dict[str, int](), dict[str, float | None]()

    def own() -> Iterator[str]:
        if not is_configured(opts, JOB_NOTICES):
            return
        settings = read_settings(NoticesSettings, JOB_NOTICES, *engine_options(opts, JOB_NOTICES))
        check(settings)
        targets.extend([*(["webhook"] if settings.url else []), *(choice.label for choice in settings.returners)])
        yield from _about_webhook(opts, settings) if settings.url else ()
        yield from (f"no notice reaches {one.label}: {why}" for one in settings.returners if (why := missing(one)))
        record, notices = NoticesStore(site_of(opts).tables).read()
        waiting.update((name, len(notices.get(name, ()))) for name in targets)
        delivered.update((name, (record or {}).get("delivered", {}).get(name)) for name in targets)
        if requests.is_running(opts, JOB_NOTICES) and not findings.about_engine(opts, JOB_NOTICES):
            yield from _about_work(requests.ask(opts, JOB_NOTICES, {"do": "stats"}), delivered)

    more = {"targets": targets, "waiting": waiting, "delivered": delivered}
    return findings.examine(opts, JOB_NOTICES, own(), **more)


def _about_webhook(opts: Mapping[str, Any], settings: NoticesSettings) -> Iterator[str]:
    url = urlsplit(settings.url)
    if not settings.secret:
        yield Advice("notices are not signed, so their receiver cannot tell them from forged ones: set secret")
    elif opts.get("pillar_opts"):
        yield "every minion gets the secret of notices, since pillar_opts is set: unset it"
    if url.scheme == "http" and url.hostname not in _HERE:
        yield Advice("notices go over the network as plain text: have the webhook's url begin with https://")


def _about_work(stats: Mapping[str, Any], delivered: Mapping[str, float | None]) -> Iterator[str]:
    for name, one in stats.items():
        if one["trouble"]:
            yield f"notices do not arrive at {name}, and {one['waiting']} wait: {one['trouble']}"
        elif delivered.get(name) is None:
            yield Advice(f"no notice has arrived at {name} yet: salt-run job_notices.test sends one")
        if one["dropped"]:
            yield (
                f"notices for {name} were given up since the engine's start ({one['dropped']:,}): the master's log has "
                "them; salt-run batch.list shows how batches stand"
            )
