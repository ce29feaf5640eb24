"""What a runner says of a request that changes nothing."""

from __future__ import annotations

import pytest

from saltext.jobs.core.batch.summary import why_not


@pytest.mark.parametrize("verb", ["stop", "pause", "resume", "approve"])
@pytest.mark.parametrize(("state", "word"), [("halted", "halted"), ("complete", "succeeded")])
def test_nothing_can_be_done_with_a_batch_that_has_ended(verb, state, word):
    found = {"jid": "1", "state": state, "success": state == "complete", "halted": False, "failed": 0}
    assert why_not(verb, found) == f"Batch 1 is {word}; there is nothing to {verb}"


@pytest.mark.parametrize(
    ("verb", "more", "told"),
    [
        ("stop", {"state": "stopping", "active": 2}, "still runs on 2 minions; with kill=True its job is ended there"),
        ("pause", {"state": "stopping"}, "Batch 1 is stopping"),
        ("pause", {"state": "paused", "paused_reason": "paused by anna"}, "is paused: paused by anna"),
        ("resume", {"state": "running"}, "is running; there is nothing to resume"),
        (
            "resume",
            {"state": "paused", "paused_by": "start", "paused_reason": "before its start time"},
            "is scheduled: before its start time; there is nothing to resume",
        ),
        (
            "resume",
            {"state": "paused", "paused_by": "approval", "paused_reason": "waits for approval", "approve": 0},
            "is waiting: waits for approval; salt-run batch.approve 1 stage=0 lets it go on",
        ),
        ("approve", {"state": "running"}, "is running; there is nothing to approve"),
        ("approve", {"state": "paused", "paused_by": "approval", "approve": 1}, "batch.approve 1 stage=1"),
    ],
)
def test_a_runner_says_why_a_request_changes_nothing(verb, more, told):
    assert told in why_not(verb, {"jid": "1", **more})
