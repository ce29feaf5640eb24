"""What the extension costs, beside what Salt itself has, in one run."""

from __future__ import annotations

from typing import NoReturn

import salt.version

#: The benchmarks that need Salt 3008. On an earlier release each ends with one line that says so.
NEED_3008 = frozenset(("benchmarks.batch", "benchmarks.batch_live", "benchmarks.retry_live"))


def end_without(what: str) -> NoReturn:
    """End a benchmark on a release of Salt that lacks what it needs."""
    raise SystemExit(f"Salt {salt.version.__version__} lacks {what}")
