"""
A leading engine ends in each phase of a batch, after a request that was made just then. The next one goes on: nothing
runs twice, never too many at once, and the request is answered.
"""

from __future__ import annotations

import pytest

from tests.unit.batch.shell_bench import JID, FakeMinion, ShellBench
from tests.unit.batch.test_shell_rollout import APPROVE, HOUR, utc

LIMIT = 2


def running(bench, **options):
    bench.begin(timeout=60.0, **options)
    assert bench.run(5.0, lambda: bench.master.minions["a"].begun)


def asked(bench, do, **more):
    running(bench)
    bench.reply(do, **more)


def waiting_for_approval(bench):
    running(bench, batch="1,2", check=APPROVE)
    assert bench.run(30.0, lambda: bench.batch().checks.under_way)


#: How each phase is come to, the request that is made just then, and the one with which it goes on.
PHASES = {
    "just begun": (lambda bench: bench.begin(), ("pause", {}), "resume"),
    "running": (running, ("pause", {}), "resume"),
    "paused": (lambda bench: asked(bench, "pause"), ("resume", {}), ""),
    "waiting for its window": (
        lambda bench: bench.begin(window=f"{utc(HOUR)}-{utc(2 * HOUR)}", timezone="UTC"),
        ("pause", {}),
        "resume",
    ),
    "waiting for an approval": (waiting_for_approval, ("approve", {"stage": 0}), ""),
    "stopping": (lambda bench: asked(bench, "stop", kill=True), ("stop", {"kill": True, "again": True}), ""),
}


@pytest.mark.parametrize("phase", PHASES)
def test_in_whatever_phase_the_leader_ends_the_next_one_goes_on(tmp_path, phase):
    come_to, (verb, values), goes_on = PHASES[phase]
    minions = [FakeMinion(name, seconds=3.0) for name in "abcdef"]
    with ShellBench(tmp_path, minions=minions) as bench:
        come_to(bench)
        then = bench.ask(verb, jid=JID, user="ann", **values)
        bench.run(1.0, lambda: then in bench.inbox.replies)
        bench.restart(is_takeover=True)
        assert bench.run(60.0, lambda: then in bench.inbox.replies)
        if goes_on:
            bench.reply(goes_on)
        bench.end(4 * HOUR)
        assert max(len(minion.begun) for minion in minions) == 1
        assert bench.master.most <= LIMIT
        if phase == "stopping":
            assert bench.batch().halted == "stop"
        else:
            assert bench.states() == dict.fromkeys("abcdef", "completed")
