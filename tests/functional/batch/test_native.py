"""Each handler of Salt 3008's own manager, given a batch of ours: it publishes, writes and announces nothing."""

from __future__ import annotations

import pytest

from saltext.jobs.core.batch.store import BatchStore, path_of
from tests.unit.batch.bench import BEGIN, spec

batch_manager = pytest.importorskip("salt.utils.batch_manager", reason="Salt 3008 is the first release that has it")
batch_output = pytest.importorskip("salt.utils.batch_output")
batch_state = pytest.importorskip("salt.utils.batch_state")

OURS = spec("abcd", "1,100%", max_failures=0)


class Outside:
    """The bus and the client of Salt's manager: keeps what it is given."""

    def __init__(self):
        self.done = []

    def fire_event(self, data, tag):
        self.done.append(tag)

    def run_job(self, **job):
        self.done.append(job)


@pytest.fixture
def opts(tmp_path):
    return {"cachedir": str(tmp_path), "hash_type": "sha256", "id": "m"}


@pytest.fixture
def outside():
    return Outside()


@pytest.fixture
def manager(opts, outside):
    made = batch_manager.BatchManager(opts)
    made.event = made.local = outside
    made.output = batch_output.EventOutput(opts, outside)
    return made


@pytest.fixture
def shown(opts):
    """The file that Salt is shown of our batch."""
    BatchStore(opts).show_to_salt(OURS, BEGIN)
    return path_of(opts, OURS.jid)


def events_of(jid):
    lifecycle = [
        {"tag": f"salt/batch/{jid}/{kind}", "data": {"jid": jid}}
        for kind in ("new", "progress", "stop", "recover", "halted", "complete", "paused", "resumed")
    ]
    return [*lifecycle, {"tag": f"salt/job/{jid}/ret/a", "data": {"id": "a", "jid": jid, "return": 1, "retcode": 1}}]


@pytest.mark.parametrize("event", events_of(OURS.jid), ids=lambda event: event["tag"].split("/")[-1])
@pytest.mark.parametrize("already", ["unknown to it", "in its index", "taken for its own"])
def test_it_neither_publishes_nor_writes_nor_announces_anything(manager, outside, opts, shown, event, already):
    if already != "unknown to it":  # as another program, or an earlier release of ours, may have left it
        batch_state.add_to_active_index(OURS.jid, opts)
    if already == "taken for its own":
        manager.active_batches = batch_state.read_active_index(opts)
    before = shown.read_bytes()
    for now in (BEGIN, BEGIN + 10_000):
        manager._handle_event(event)
        manager._tick(now=now)
    assert outside.done == []
    assert shown.read_bytes() == before
    assert not manager.active_batches


def test_its_maintenance_finds_nothing_to_recover(opts, outside, shown):
    from salt.master import Maintenance

    batch_state.add_to_active_index(OURS.jid, opts)
    maintenance = Maintenance.__new__(Maintenance)
    maintenance.opts, maintenance.event = opts, outside
    maintenance.handle_batch_jobs()
    assert outside.done == []
    assert batch_state.read_active_index(opts) == set()
