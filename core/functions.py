"""Functions of Salt that say something about other jobs. Pure: names only."""

from __future__ import annotations

#: Signals to other jobs: what they end is not delivered any more.
KILLS = frozenset(
    {
        "saltutil.kill_job",
        "saltutil.term_job",
        "saltutil.signal_job",
        "saltutil.kill_all_jobs",
        "saltutil.term_all_jobs",
    }
)
