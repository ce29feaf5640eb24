"""What becomes of the queue if the store refuses a single record for good."""

from __future__ import annotations

import collections
import errno

from saltext.jobs.core.retry.entry import State
from saltext.jobs.core.retry.store import NOTES, QUEUE
from tests.unit.retry.test_machine import away
from tests.worlds.world import OPTS, World


def hinder(world, bank, key):
    """Put something else in the place of a record. Returns a count of what is tried with it."""
    tried = collections.Counter()

    def uses_record(do, *place):
        if place == (bank, key):
            tried[do] += 1
            raise IsADirectoryError(errno.EISDIR, "it is a directory")

    world.uses_record = uses_record
    return tried


def test_an_entry_that_can_be_neither_read_nor_written_keeps_no_other_job_from_being_delivered():
    world = away()
    world.publish("j2", targets=("b",))
    world.run(60)
    world.crash()
    hinder(world, f"{QUEUE}/b", "j1")
    world.boot()
    assert world.state("b", "j1") is State.HELD
    world.start("b")
    world.run(120)
    assert (world.runs["b", "j1"], world.runs["b", "j2"]) == (0, 1)


def test_a_note_that_the_store_refuses_is_not_written_again_and_again():
    world = World(duration=1e5)
    tried = hinder(world, f"{NOTES}/{OPTS['id']}", "j1")
    world.publish("j1")
    world.run(3600)
    assert world.notes == {}
    assert tried["store"] == 1
