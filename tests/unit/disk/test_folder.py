"""An engine's files if the disk gives no answer, and what a killed process leaves behind."""

from __future__ import annotations

import pytest

from saltext.jobs.core.disk.folder import FileFolder


@pytest.fixture
def folder(tmp_path):
    made = FileFolder(tmp_path / "engine")
    made.write("requests/1", b"one")
    return made


@pytest.fixture
def unreadable(folder):
    """A name below which no user can look anything up."""
    (folder.path / "loop").symlink_to("loop")
    return "loop/1"


def test_a_file_that_cannot_be_looked_up_does_not_count_as_absent(folder, unreadable):
    for look in (folder.exists, folder.read, folder.modified, folder.remove):
        with pytest.raises(OSError, match="symbolic links"):
            look(unreadable)
    with pytest.raises(OSError, match="symbolic links"):
        folder.names("loop")


@pytest.mark.parametrize("name", ["requests/2", "nowhere/1", "requests/1/below", "requests/" + "x" * 300])
def test_a_file_that_cannot_be_there_is_absent(folder, name):
    assert not folder.exists(name)


def test_an_unfinished_file_of_a_killed_process_is_no_file_and_is_swept_away(folder):
    unfinished = folder.path / "requests" / ".1.abc"
    unfinished.write_bytes(b"ha")
    assert folder.names("requests") == ["requests/1"]
    folder.sweep("requests")
    assert not unfinished.exists()
    assert folder.read("requests/1") == b"one"
    folder.sweep("nowhere")
