"""What the job cache does while it is not known which jobs belong to batches."""

from __future__ import annotations

import logging
import os
import pathlib

import pytest
import salt.loader

from saltext.jobs.core.site import site_of
from tests.functional.options import options_in

JID = "20160516000000000000"


@pytest.fixture
def opts(tmp_path):
    return options_in(tmp_path, master_job_cache="salt_cache", cache="localfs", keep_jobs_seconds=60)


@pytest.fixture
def job_cache(opts):
    return salt.loader.returners(opts, salt.loader.minion_mods(opts, utils=salt.loader.utils(opts)))


@pytest.fixture
def database(opts):
    """Something in the place of the database, so that nothing can be looked up as long as it is there."""
    path = pathlib.Path(site_of(opts).place)
    path.parent.mkdir(parents=True)
    path.symlink_to(path.name)
    return path


def test_nothing_is_published_under_a_given_jid_while_it_may_be_the_jid_of_a_batch(job_cache, database, caplog):
    with caplog.at_level(logging.DEBUG):
        assert job_cache["salt_cache.prep_jid"](passed_jid=JID) is None
    assert f"Refusing the jid {JID}, because batches cannot be looked up now" in caplog.text
    assert job_cache["salt_cache.prep_jid"](), "a new one is no batch's"
    database.unlink()
    assert job_cache["salt_cache.prep_jid"](passed_jid=JID) == JID


def test_no_job_is_removed_while_it_may_be_the_job_of_a_batch(job_cache, database, opts, caplog):
    job_cache["salt_cache.save_load"](JID, {"fun": "test.ping", "tgt": "*"}, minions=["a"])
    for folder, _, names in os.walk(os.path.join(opts["cachedir"], "jobs")):
        for name in names:
            os.utime(os.path.join(folder, name), (1, 1))
    job_cache["salt_cache.clean_old_jobs"]()
    assert "It cannot be told which jobs the engines need" in caplog.text
    assert job_cache["salt_cache.get_load"](JID)
    database.unlink()
    job_cache["salt_cache.clean_old_jobs"]()
    assert job_cache["salt_cache.get_load"](JID) == {}
