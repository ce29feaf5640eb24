"""The name under which the entries of a queue are stored, whatever has happened to the file with that name."""

from __future__ import annotations

import pytest

from saltext.jobs.core.engine.names import JOB_RETRY
from saltext.jobs.core.retry.owner import owner_of, settle_owner
from saltext.jobs.core.site import FileSite, site_of


@pytest.fixture
def path(opts):
    found = FileSite(opts).path(JOB_RETRY) / "owner"
    found.parent.mkdir(parents=True)
    return found


def test_the_first_one_to_lead_names_the_queue_for_all_that_follow(opts, path):
    assert settle_owner(site_of(opts).folder(JOB_RETRY), "one") == "one"
    assert settle_owner(site_of(opts).folder(JOB_RETRY), "two") == owner_of({**opts, "id": "two"}) == "one"


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff", b"../elsewhere", b"a/b"])
def test_a_file_without_a_name_is_written_anew_and_stays(opts, path, content):
    path.write_bytes(content)
    assert settle_owner(site_of(opts).folder(JOB_RETRY), "one") == "one"
    assert settle_owner(site_of(opts).folder(JOB_RETRY), "two") == "one"


def test_a_name_with_a_line_end_is_the_same_name(opts, path):
    path.write_bytes(b"one\n")
    assert settle_owner(site_of(opts).folder(JOB_RETRY), "two") == "one"


def test_a_file_that_cannot_be_read_now_names_no_other_owner(opts, path):
    path.mkdir()
    with pytest.raises(OSError, match="owner"):
        settle_owner(site_of(opts).folder(JOB_RETRY), "two")
    with pytest.raises(OSError, match="owner"):
        owner_of(opts)
