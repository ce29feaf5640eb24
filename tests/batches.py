"""Where the journals of batches are, for tests that change these files directly."""

from __future__ import annotations

import pathlib

from saltext.jobs.core.batch.store import journal_name
from saltext.jobs.core.store.retention import BATCHES


def journals(store) -> pathlib.Path:
    """The directory of a BatchStore's journals."""
    return pathlib.Path(store.folder.where(BATCHES))


def journal_path(store, jid, ended=False) -> pathlib.Path:
    """The file of one journal."""
    return pathlib.Path(store.folder.where(journal_name(jid, ended)))
