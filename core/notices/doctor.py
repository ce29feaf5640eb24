"""
What an operator should know about notices before relying on them. It changes nothing. It must never reveal the webhook's
address or the secret.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from saltext.jobs.core.advice import Advice
from saltext.jobs.core.engine import requests
from saltext.jobs.core.engine.findings import about_engine, around, standing
from saltext.jobs.core.engine.names import JOB_NOTICES
from saltext.jobs.core.errors import EngineAbsent, SettingsError
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
    """
    Return the state of job_notices.

    :return: engine (whether it runs), process (which one it is; None if not known), targets (the names of the targets),
        waiting (``{target: number of notices that have not arrived}``), delivered (``{target: when it last got a notice}``,
        Unix time or None), findings: a sentence for each thing that an operator may want to change, and retcode: 1 if one
        is more than advice.
    """
    runs, found = requests.is_running(opts, JOB_NOTICES), around(opts, JOB_NOTICES)
    targets: list[str] = []
    try:
        settings = read_settings(NoticesSettings, JOB_NOTICES, *engine_options(opts, JOB_NOTICES))
        check(settings)
    except SettingsError as exc:
        if is_configured(opts, JOB_NOTICES):
            found.append(f"the engine does not start: {exc}")
    else:
        targets = [*(["webhook"] if settings.url else []), *(choice.label for choice in settings.returners)]
        found += _about_webhook(opts, settings) if settings.url else []
        found += [f"no notice reaches {one.label}: {why}" for one in settings.returners if (why := missing(one))]
    record, notices = _kept(opts, found)
    waiting = {name: len(notices.get(name, ())) for name in targets}
    delivered = {name: record.get("delivered", {}).get(name) for name in targets}
    if runs and not about_engine(opts, JOB_NOTICES):
        found += _about_work(opts, delivered)
    more = {"targets": targets, "waiting": waiting, "delivered": delivered}
    return standing(opts, JOB_NOTICES, found, **more)


def _kept(opts: Mapping[str, Any], found: list[str]) -> tuple[Mapping[str, Any], Mapping[str, list[Any]]]:
    """Return the ledger's record, and the notices that wait. If they cannot be read, that becomes a finding."""
    try:
        record, notices = NoticesStore(site_of(opts).tables).read()
        return record or {}, notices
    except OSError as exc:
        found.append(f"it is not known which notices wait: {exc}")
    return {}, {}


def _about_webhook(opts: Mapping[str, Any], settings: NoticesSettings) -> list[str]:
    found: list[str] = []
    url = urlsplit(settings.url)
    if not settings.secret:
        found.append(Advice("notices are not signed, so their receiver cannot tell them from forged ones: set secret"))
    elif opts.get("pillar_opts"):
        found.append("every minion gets the secret of notices, since pillar_opts is set: unset it")
    if url.scheme == "http" and url.hostname not in _HERE:
        found.append(Advice("notices go over the network as plain text: have the webhook's url begin with https://"))
    return found


def _about_work(opts: Mapping[str, Any], delivered: Mapping[str, float | None]) -> list[str]:
    try:
        stats = requests.ask(opts, JOB_NOTICES, {"do": "stats"})
    except EngineAbsent as exc:
        return [str(exc)]
    found: list[str] = []
    for name, one in stats.items():
        if one["trouble"]:
            found.append(f"notices do not arrive at {name}, and {one['waiting']} wait: {one['trouble']}")
        elif delivered.get(name) is None:
            found.append(Advice(f"no notice has arrived at {name} yet: salt-run job_notices.test sends one"))
        if one["dropped"]:
            found.append(
                f"notices for {name} were given up since the engine's start ({one['dropped']:,}): the master's log has "
                "them; salt-run batch.list shows how batches stand"
            )
    return found
