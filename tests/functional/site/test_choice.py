"""Masters work as one if the option says so."""

from __future__ import annotations

import pytest

from saltext.jobs.core.errors import SettingsError
from saltext.jobs.core.site import site_of

NEEDED = {"cachedir": "/x", "id": "m", "master_job_cache": "salt_cache", "cache": "postgresql"}


def test_without_the_option_the_file_of_this_master_is_the_site():
    assert site_of(NEEDED).place == "/x/saltext_jobs/jobs.sqlite"


def test_with_the_option_the_database_is_the_site():
    assert site_of({**NEEDED, "saltext_jobs_site": "postgresql"}).place.startswith("PostgreSQL at localhost:5432")


@pytest.mark.parametrize(
    ("opts", "told"),
    [
        ({"saltext_jobs_site": "redis"}, "saltext_jobs_site is 'redis'; accepted is postgresql"),
        ({"saltext_jobs_site": ["postgresql"]}, "accepted is postgresql"),
        (
            {"saltext_jobs_site": "postgresql", "cache": "sqlite", "master_job_cache": "local_cache"},
            "needs master_job_cache: salt_cache and cache: postgresql too",
        ),
    ],
)
def test_an_invalid_site_is_refused_by_name(opts, told):
    with pytest.raises(SettingsError, match=told):
        site_of({**NEEDED, **opts})
