"""Two masters of one site, in each of its forms."""

from __future__ import annotations

import uuid

import pytest

from saltext.jobs.core.site import site_of
from tests.functional.cache_servers import cache_servers as cache_servers
from tests.functional.cache_servers import masters_key
from tests.worlds.site import Disk, MemoryTables

#: The options of masters that work as one.
SHARED = {"saltext_jobs_site": "postgresql", "master_job_cache": "salt_cache", "cache": "postgresql"}


@pytest.fixture(params=["sqlite", "postgresql", "memory"])
def form(request):
    return request.param


@pytest.fixture
def sites(form, tmp_path, request):
    """The site as two of its masters see it."""
    if form == "sqlite":
        return [site_of({"cachedir": str(tmp_path), "id": name}) for name in ("a", "b")]
    if form == "memory":
        disk = Disk()
        return [MemoryTables(disk, master=name) for name in ("a", "b")]
    return postgresql_sites(tmp_path, request.getfixturevalue("cache_servers"))


def postgresql_sites(tmp_path, servers):
    """Two masters with cachedirs of their own, and one new database."""
    options = servers("postgresql").make_database(f"site{uuid.uuid4().hex[:12]}")
    masters = [{**options, **masters_key(tmp_path), "cachedir": str(tmp_path / name), "id": name} for name in "ab"]
    return [site_of({**opts, **SHARED}) for opts in masters]


def end_lease(site):
    """Have a lease in PostgreSQL end, as after seconds in which it was not renewed."""
    site.run("UPDATE saltext_jobs_leases SET until = '-infinity'")
