"""The lock of the process that leads. That one leads at a time is said in tests/functional/site/test_contract.py."""

from __future__ import annotations

import pytest

from saltext.jobs.core.disk import files
from saltext.jobs.core.disk.lease import FileLease
from tests.interrupted import FORK
from tests.waiting import SOON, stretched

RUN = "7-1.00"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "engine" / "lock"


def taken(path, master="one", run=RUN):
    lease = FileLease(path, master, run)
    assert lease.take()
    return lease


def test_many_may_look_at_once_who_leads_and_are_neither_taken_for_a_leader_nor_in_the_way_of_one(path):
    taken(path).release()
    together, over, held = FORK.Barrier(4), FORK.Event(), FORK.SimpleQueue()

    def look():
        together.wait(stretched(SOON))
        held.put(sum(files.is_held(path) for _ in range(3000)))
        together.wait(stretched(SOON))
        while not over.is_set():
            files.is_held(path)

    looking = [FORK.Process(target=look, daemon=True) for _ in range(3)]
    for process in looking:
        process.start()
    together.wait(stretched(SOON))
    assert [held.get() for _ in looking] == [0, 0, 0]
    together.wait(stretched(SOON))
    led = []
    for _ in range(300):
        lease = FileLease(path, "one", RUN)
        led.append(lease.take())
        lease.release()
    over.set()
    for process in looking:
        process.join(stretched(SOON))
    assert led == [True] * 300


@pytest.mark.parametrize(
    ("master", "run", "is_takeover"),
    [("one", RUN, False), ("two", RUN, True), ("one", "8-2.00", True), ("one", "", True)],
)
def test_it_is_a_takeover_unless_the_same_run_of_the_same_master_is_known_to_have_led(path, master, run, is_takeover):
    taken(path).release()
    assert taken(path, master, run).is_takeover is is_takeover


@pytest.mark.parametrize("line", [b"", b"\x00\xff", b"17 root here", b"{}", b'{"pid": 17'])
def test_a_lock_left_by_an_earlier_version_or_a_power_cut_makes_it_a_takeover(path, line):
    path.parent.mkdir()
    path.write_bytes(line)
    assert taken(path).is_takeover
