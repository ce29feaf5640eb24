"""Checks that the options of job_notices name a target. Pure."""

from __future__ import annotations

from saltext.jobs.core.errors import SettingsError
from saltext.jobs.core.notices.webhook import check_address
from saltext.jobs.core.options.engines import NoticesSettings


def check(settings: NoticesSettings) -> None:
    """:raises SettingsError: if there is no target, or the webhook's address is invalid. The address is not in the error."""
    if settings.url:
        check_address(settings.url)
    elif not settings.returners:
        raise SettingsError("job_notices has neither url nor returners, so nobody would be told")
