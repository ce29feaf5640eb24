"""Checks that the options of job_notices name somebody who can be told. Pure but for what it calls."""

from __future__ import annotations

from saltext.jobs.core.errors import SettingsError
from saltext.jobs.core.notices.webhook import check_address
from saltext.jobs.core.settings import NoticesSettings


def check(settings: NoticesSettings) -> None:
    """:raises SettingsError: where nobody would be told, or the address is none; the address is not in it."""
    if settings.url:
        check_address(settings.url)
    elif not settings.returners:
        raise SettingsError("job_notices has neither url nor returners, so nobody would be told")
