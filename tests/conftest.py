"""Shared by all tests: short temporary roots, and nothing left behind."""

from __future__ import annotations

import logging
import os
import pathlib
import shutil
import tempfile

import pytest

CHECKOUT = pathlib.Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def salt_factories_default_root_dir():
    # Unix socket paths are limited to 107 bytes and the factories nest deeply: keep this short.
    root = tempfile.mkdtemp(prefix="sj-", dir=os.environ.get("SALTEXT_JOBS_TMP", tempfile.gettempdir()))
    yield pathlib.Path(root)
    shutil.rmtree(root, ignore_errors=True)


def pytest_unconfigure():
    # At exit Salt flushes log records that it kept since its start into streams that pytest has closed by then; the
    # tracebacks about it would hide the summary.
    logging.raiseExceptions = False
