"""What a minion lacks for the executor ``job_once``, by what it answers."""

from __future__ import annotations

import pytest

from saltext.jobs.core.master.coverage import NEITHER, NOT_CONFIGURED, NOTHING_RUNS, lack_of

CACHED, EXECUTORS, SYNCED = "saltutil.find_cached_job", "config.get", "cp.is_cached"
HAS = {"jid": "0", "job_once": {"state": "never", "recorded_for": 9.0}}
FILE = "/var/cache/salt/minion/files/base/_executors/job_once.py"
NO_CACHE = "Local jobs cache directory not found; you may need to enable cache_jobs on this minion"


@pytest.mark.parametrize(
    ("answer", "lack"),
    [
        ({CACHED: HAS, EXECUTORS: ["job_once", "direct_call"], SYNCED: FILE}, ""),
        ({0: HAS, 1: ["job_once", "direct_call"], 2: ""}, ""),
        ({CACHED: NO_CACHE, EXECUTORS: ["direct_call"], SYNCED: ""}, NEITHER),
        ({CACHED: NO_CACHE, EXECUTORS: "", SYNCED: FILE}, NOT_CONFIGURED),
        ({CACHED: "Traceback ... Executor 'job_once' is not available"}, NOTHING_RUNS),
        ("text", NEITHER),
        (None, NEITHER),
        ({CACHED: {"job_once": "text"}, SYNCED: "Traceback (most recent call last)"}, NEITHER),
    ],
)
def test_what_a_minion_lacks_is_told_by_its_answer(answer, lack):
    assert lack_of(answer) == lack
