"""The error of a driver of ``salt.cache`` (cache/sqlite.py, cache/postgresql.py)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from salt.exceptions import SaltCacheError

from saltext.jobs.core.errors import JobsError


@contextlib.contextmanager
def errors(driver: str, what: str, bank: str, key: str | None = None) -> Iterator[None]:
    """Turn an error of the block into the one that Salt expects of a driver."""
    try:
        yield
    except (JobsError, OSError, ValueError, TypeError, OverflowError) as exc:
        raise SaltCacheError(f"The cache driver {driver} could not {what} bank={bank!r} key={key!r}: {exc}") from exc
