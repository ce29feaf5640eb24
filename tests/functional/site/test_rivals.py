"""Processes that want to lead, which are frozen and killed, with a server that is frozen and restarted."""

from __future__ import annotations

import itertools
import json
import random
import signal
import subprocess
import sys
import time

import pytest

from saltext.jobs.core.ledger.batches import Batches
from saltext.jobs.core.site import site_of
from tests.faults import freeze, thaw
from tests.functional.cache_servers import masters_key
from tests.functional.site.conftest import SHARED
from tests.functional.site.rival import JID
from tests.waiting import wait_for

TTL = 2.0


class Rivals:
    """The processes that want to lead, by name, and what they have printed."""

    def __init__(self, options, folder, names):
        self.options, self.folder, self.processes = options, folder, {}
        for name in names:
            self.start(name)

    def start(self, name):
        opts = json.dumps({**self.options, "cachedir": str(self.folder / name)})
        with open(self.folder / f"{name}.out", "ab") as out:
            command = [sys.executable, "-m", "tests.functional.site.rival", opts, name, str(TTL)]
            self.processes[name] = subprocess.Popen(command, stdout=out, stderr=out)

    def send(self, name, number):
        self.processes[name].send_signal(number)
        if number == signal.SIGKILL:
            self.processes[name].wait()

    def close(self):
        for process in self.processes.values():
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()

    def told(self, what):
        """``[(epoch, number, word)]`` of the lines of a kind."""
        found = []
        for path in self.folder.glob("*.out"):
            for line in path.read_text().splitlines():
                kind, *words = line.split()
                assert kind in ("confirmed", "published", "leads", "trouble"), path.read_text()
                if kind == what:
                    found.append((int(words[0]), int(words[1]), *words[2:]))
        return sorted(found)

    def leads(self):
        return len(self.told("leads"))


@pytest.fixture
def rivals(cache_servers, tmp_path):
    made = Rivals(
        {**cache_servers("postgresql").make_database("rivals"), **masters_key(tmp_path)}, tmp_path, ("a", "b", "c")
    )
    yield made
    made.close()


def torment(rivals, server, chance, rounds):
    """Freeze, kill and restart, ``rounds`` times."""
    for _ in range(rounds):
        name, what = chance.choice(sorted(rivals.processes)), chance.choice(("freeze", "kill", "server", "restart"))
        time.sleep(chance.uniform(0, TTL / 4))
        if what == "freeze":
            freeze(rivals.processes[name].pid)
            time.sleep(chance.choice((0.1, 1.0, 2.0)) * TTL)
            thaw(rivals.processes[name].pid)
        elif what == "kill":
            rivals.send(name, signal.SIGKILL)
            rivals.start(name)
        elif what == "server":
            server.freeze()
            time.sleep(chance.choice((0.3, 1.5)) * TTL)
            server.thaw()
        else:
            server.stop()
            server.start()
        before = len(rivals.told("confirmed"))
        wait_for(lambda before=before: len(rivals.told("confirmed")) > before, what="one goes on")


def test_two_masters_never_lead_at_once_and_nothing_confirmed_is_lost(rivals, cache_servers, tmp_path):
    chance = random.Random(1)
    wait_for(lambda: rivals.told("confirmed"), what="one of them leads")
    torment(rivals, cache_servers("postgresql"), chance, 12)
    before = len(rivals.told("confirmed"))
    wait_for(lambda: len(rivals.told("confirmed")) > before, what="it goes on")
    rivals.close()

    leads = [(epoch, float(at)) for epoch, _, at in rivals.told("leads")]
    assert len({epoch for epoch, _ in leads}) == len(leads) > 1
    # No process published after another one had taken the lead.
    ends = {epoch: at for (epoch, _), (_, at) in itertools.pairwise(leads)}
    assert all(float(at) < ends.get(epoch, float("inf")) for epoch, _, at in rivals.told("published"))

    site = site_of({**rivals.options, **SHARED, "cachedir": str(tmp_path / "a"), "id": "a"})
    _, _, found = Batches(site).rows(JID)
    numbers = sorted(map(int, found))
    epochs = [int(found[f"{number:09}"]) for number in numbers]
    assert epochs == sorted(epochs)
    assert numbers == list(range(numbers[0], numbers[-1] + 1))
    confirmed = [number for _, number in rivals.told("confirmed")]
    assert len(set(confirmed)) == len(confirmed)
    assert max(confirmed) in (numbers[-1], numbers[-1] - 1)
