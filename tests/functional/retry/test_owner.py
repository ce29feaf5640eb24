"""The name under which the entries of a queue are stored, whatever has happened to the file with that name."""

from __future__ import annotations

import pytest

from saltext.jobs.core.engine.names import JOB_RETRY
from saltext.jobs.core.retry.owner import owner_of, settle_owner
from saltext.jobs.core.site import site_of


def test_the_first_one_to_lead_names_the_queue_for_all_that_follow(opts):
    assert settle_owner(site_of(opts).folder(JOB_RETRY), "one") == "one"
    assert settle_owner(site_of(opts).folder(JOB_RETRY), "two") == owner_of({**opts, "id": "two"}) == "one"


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff", b"../elsewhere", b"a/b"])
def test_a_file_without_a_name_is_written_anew_and_stays(opts, content):
    site_of(opts).folder(JOB_RETRY).write("owner", content)
    assert settle_owner(site_of(opts).folder(JOB_RETRY), "one") == "one"
    assert settle_owner(site_of(opts).folder(JOB_RETRY), "two") == "one"
