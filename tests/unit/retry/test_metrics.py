"""The figures of the job_retry engine, from a queue in a known state."""

from __future__ import annotations

from saltext.jobs.core.metrics import figures_of
from saltext.jobs.core.retry import shell
from tests.worlds.world import World


def test_owed_jobs_are_counted_with_their_age():
    world = World()
    world.stop("b")
    world.stop("c")
    world.publish("j1")
    world.publish("j2")
    world.run(60)
    entries = list(world.machine.entries())
    found = figures_of(shell.figures(entries, {"sent": 3}, False, world.now))
    assert found["saltext_jobs_retry_entries"]["pending"] == len(entries) == 4
    assert found["saltext_jobs_retry_oldest_pending_seconds"] == world.now - min(entry.queued for entry in entries)
    assert found["saltext_jobs_retry_next_expiry_seconds"] == min(entry.expires_at for entry in entries) - world.now
    assert found["saltext_jobs_retry_transitions_total"]["sent"] == 3
