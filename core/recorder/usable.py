"""Checks that the recorder can use the returners in ``returners:`` on this master."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from saltext.jobs.core.engine.names import JOB_RECORDER
from saltext.jobs.core.errors import SettingsError
from saltext.jobs.core.master.job_cache import OURS
from saltext.jobs.core.recorder.returner import promoted
from saltext.jobs.core.settings import RecorderSettings, ReturnerChoice


def check(opts: Mapping[str, Any], settings: RecorderSettings) -> None:
    """:raises SettingsError: when these settings make no sense on this master."""
    if not settings.returners:
        raise SettingsError(
            f"{JOB_RECORDER}: returners is not set; accepted is a list of returners, such as ['pgjsonb']"
        )
    for choice in settings.returners:
        _check_returner(opts, choice)


def _check_returner(opts: Mapping[str, Any], choice: ReturnerChoice) -> None:
    if choice.returner not in (opts.get("master_job_cache"), opts.get("ext_job_cache")):
        return
    if not choice.ret_config:
        raise SettingsError(
            f"{JOB_RECORDER}: returners has {choice.returner!r}, which is this master's job cache and has everything "
            "already; accepted is another returner, or this one with a ret_config that leads elsewhere"
        )
    if not _leads_elsewhere(opts, choice):
        raise SettingsError(
            f"{JOB_RECORDER}: returners has {choice.returner!r} with ret_config {choice.ret_config!r}, but no option "
            f"{choice.ret_config}.… leads it away from this master's own job cache; accepted is a ret_config with options "
            f"such as {choice.ret_config}.{_example(choice)}"
        )


def _leads_elsewhere(opts: Mapping[str, Any], choice: ReturnerChoice) -> bool:
    changed = promoted(opts, choice.ret_config)
    different = {name for name, value in changed.items() if name not in opts or opts[name] != value}
    if choice.returner == OURS:
        driver = str(changed.get("cache") or "localfs")
        return any(
            name in ("cache", "cachedir") or name.startswith(("cache.", f"{driver}.", f"cache_{driver}"))
            for name in different
        )
    return any(name.removeprefix("returner.").partition(".")[0] == choice.returner for name in different) or (
        choice.returner == "local_cache" and "cachedir" in different
    )


def _example(choice: ReturnerChoice) -> str:
    return "cache" if choice.returner == OURS else f"returner.{choice.returner}.host"
