"""What a minion lacks for the executor ``job_once``, by what it answers."""

from __future__ import annotations

import pytest

from saltext.jobs.core.retry.coverage import NEITHER, NOT_CONFIGURED, NOTHING_RUNS, lack_of

EXECUTORS, SYNCED = "config.get", "cp.is_cached"
HAS = {"jid": "0", "job_once": {"state": "never", "recorded_for": 9.0}}
FILE = "/var/cache/salt/minion/files/base/_executors/job_once.py"
NO_CACHE = "Local jobs cache directory not found; you may need to enable cache_jobs on this minion"


@pytest.mark.parametrize(
    ("told", "more", "lack"),
    [
        (HAS, None, ""),
        (NO_CACHE, {EXECUTORS: ["direct_call"], SYNCED: ""}, NEITHER),
        (NO_CACHE, {EXECUTORS: "", SYNCED: FILE}, NOT_CONFIGURED),
        (NO_CACHE, {0: "", 1: FILE}, NOT_CONFIGURED),
        ("ERROR executing ...: Executor 'job_once' is not available", {}, NOTHING_RUNS),
        ("text", "text", NEITHER),
        (None, None, NEITHER),
        ({"job_once": "text"}, {SYNCED: "Traceback (most recent call last)"}, NEITHER),
    ],
)
def test_what_a_minion_lacks_is_told_by_its_answers(told, more, lack):
    assert lack_of(told, more) == lack
