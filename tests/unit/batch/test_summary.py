"""What a batch looks like from outside."""

from __future__ import annotations

import pytest

from saltext.jobs.core.batch import summary as batch_summary
from saltext.jobs.core.batch.watch import progress_line
from tests.unit.batch.bench import BEGIN, spec
from tests.unit.batch.shell_bench import JID, FakeMinion, ShellBench


def shown(bench):
    return batch_summary.summary(bench.batch(), bench.clock.now())


@pytest.mark.parametrize(
    ("minions", "more", "good", "said"),
    [
        ("CC", {}, True, ": 2 of 2 minions completed"),
        ("C", {}, True, ": 1 of 1 minion completed"),
        ("CCaa", {"batch": "4"}, True, ": 2 of 4 minions completed; 2 left out without an answer"),
        ("aa", {}, False, " is unsuccessful: 2 offline of 2 minions"),
        (
            "fCCC",
            {"batch": "1", "max_failures": 0},
            False,
            " is halted (more minions failed than max_failures allows): 1 failed, 3 pending of 4 minions",
        ),
    ],
)
def test_the_verdict_on_a_batch_says_what_went_wrong_and_how_many_were_left_out(tmp_path, minions, more, good, said):
    made = [FakeMinion(f"m{n}", retcode=int(one == "f"), there=one != "a") for n, one in enumerate(minions)]
    with ShellBench(tmp_path, made) as bench:
        bench.begin(**{"batch": "2", "presence": "ping", **more})
        bench.end()
        assert (shown(bench)["success"], batch_summary.verdict(shown(bench))) == (good, f"Batch {JID}{said}")
        keys = {*shown(bench), "retcode", "Error", "engine", "group_number", "groups"}
        assert max(keys | {"verdict"}) == "verdict", "Salt prints a mapping in the order of its keys"
        if minions == "aa":
            assert "2 of 2 unsuccessful" in progress_line(shown(bench))
        if not good:
            mended = {**shown(bench), "retries": ["2"], "unmended": {}}
            assert batch_summary.verdict(mended).endswith(f" of {len(minions)} minions; mended by 2")


def test_the_status_has_the_counts_the_pace_the_group_and_what_each_minion_does(tmp_path):
    minions = [FakeMinion("a", 60.0), FakeMinion("b", 60.0, 4), *(FakeMinion(name, 600.0) for name in "cdef")]
    with ShellBench(tmp_path, minions) as bench:
        bench.begin(batch="2,3", timeout=100.0, groups=(("x", 5), ("y", 1)), by="grains:dc")
        bench.run(50.0)
        assert shown(bench)["eta_seconds"] is None, "none has returned"
        bench.run(200.0)
        found, minions = shown(bench), batch_summary.minions(bench.batch())
        counts = {name: found[name] for name in ("total", "completed", "failed", "active", "pending")}
        assert counts == {"total": 6, "completed": 1, "failed": 1, "active": 3, "pending": 1}
        assert (found["group"], found["group_number"], found["groups"], found["by"]) == ("x", 1, 2, "grains:dc")
        assert (found["stage"], found["stages"], found["rate"]) == (2, 2, pytest.approx(0.48, abs=0.02))
        assert found["age_seconds"] == pytest.approx(190.0, abs=5.0), "since the last progress"
        assert list(minions) == list("abcdef")
        assert {(one["state"], one["retcode"], one["group"]) for one in minions.values()} == {
            ("completed", 0, "x"),
            ("failed", 4, "x"),
            ("active", None, "x"),
            ("pending", None, "y"),
        }
        assert [minions[name]["started"] is None for name in "abcdef"] == [False] * 5 + [True]
        ran = [minions[name]["since"] - minions[name]["started"] for name in "ab"]
        assert ran == [pytest.approx(60.0, abs=5.0)] * 2, "seconds from the start to the return"
        assert minions["c"]["since"] < BEGIN + 65 < BEGIN + 150 < minions["c"]["seen"]


def test_how_long_a_batch_takes_goes_by_the_run_time_and_the_size(tmp_path):
    with ShellBench(tmp_path, [FakeMinion("a", 9.5), *(FakeMinion(name, 10.0) for name in "bcdefg")]) as bench:
        bench.begin(batch="2")
        bench.run(9.7)
        assert (shown(bench)["completed"], shown(bench)["eta_seconds"]) == (1, None), "one of two tells too little"
        bench.run(0.8)
        assert shown(bench)["eta_seconds"] == 25, "five are left, two at a time"
        assert "by" not in shown(bench) and "group" not in shown(bench)
        bench.reply("pause")
        assert shown(bench)["eta_seconds"] is None
        bench.reply("stop")
        assert (shown(bench)["eta_seconds"], shown(bench)["stopped_by"]) == (10, "ann"), "the two in flight are left"
        assert bench.end() and shown(bench)["stopped_by"] == "ann"


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (
            {"batch": "1,3", "max_failures": 1, "offline": "queue"},
            "6 minions: 1 first, then 3 at a time; stops at the second failure; absent ones are queued for 24 h",
        ),
        (
            {"batch": "6", "max_failures": "100%", "presence": "ping"},
            "6 minions: all at once; goes on whatever fails; absent ones are left out unless they are back before it ends",
        ),
        (
            {
                "batch": "2",
                "groups": (("eu", 4), ("us", 2)),
                "max_failures": "50%",
                "check": {"kind": "approve"},
                "window": "Sat 02:00-05:00",
                "offline": "fail",
            },
            "6 minions: 2 groups, one after the other, each with 2 at a time; sends only within Sat 02:00-05:00; waits for"
            " an approval between them; stops when more than 50% of a group have failed; absent ones count as failed",
        ),
        *(
            (
                {"batch": batch, "groups": (("canary", 1), ("eu", 2), ("us", 4))},
                f"7 minions: 3 groups, one after the other, each {told}; goes on whatever fails; absent ones are left out",
            )
            for batch, told in (
                ("1,50%", "with 1 first, then 1 to 2 at a time"),
                ("50%", "with 1 to 2 at a time"),
                ("100%", "all at once"),
            )
        ),
    ],
)
def test_a_preview_says_in_a_sentence_how_the_batch_would_go_on(asked, told):
    assert batch_summary.preview(spec("abcdefg"[: int(told[0])], **asked), None, 86400.0)["sentence"] == told


@pytest.mark.parametrize(
    ("verb", "more", "told"),
    [
        ("stop", {"state": "stopping", "active": 2}, "still runs on 2 minions; with kill=True its job is ended there"),
        ("stop", {"state": "stopping", "active": 1, "killing": True}, "on 1 minion; its job is being killed there"),
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
            {"state": "paused", "paused_by": "approval", "paused_reason": "waits for approval", "approve": 1},
            "is waiting: waits for approval; salt-run batch.approve 1 stage=1 lets it go on",
        ),
        ("stop", {"state": "halted"}, "Batch 1 is halted; there is nothing to stop"),
        ("pause", {"state": "complete", "success": True}, "Batch 1 has succeeded; there is nothing to pause"),
    ],
)
def test_a_runner_says_why_a_request_changes_nothing(verb, more, told):
    assert told in batch_summary.why_not(verb, {"jid": "1", **more})
