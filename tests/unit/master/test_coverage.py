"""What a minion lacks for the executor ``job_once``, by what it answers."""

from __future__ import annotations

import pytest

from saltext.jobs.core.master.once import LACKS, NOTHING_RUNS, lack_of


@pytest.mark.parametrize(
    ("told", "lack"),
    [
        ({"jid": "0", "job_once": {"state": "never", "recorded_for": 9.0}}, ""),
        ("Local jobs cache directory not found; you may need to enable cache_jobs on this minion", LACKS),
        ("ERROR executing ...: Executor 'job_once' is not available", NOTHING_RUNS),
        (None, LACKS),
        ({"job_once": "text"}, LACKS),
    ],
)
def test_the_answer_of_a_minion_shows_what_it_lacks(told, lack):
    assert lack_of(told) == lack
