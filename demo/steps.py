"""
The three things that the demo shows, each a function that checks what it says.

A step must raise StepFailed if anything did not hold, and must never assume that something has already happened.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from demo import screen
from demo.fleet import MINIONS, Fleet, StepFailed
from demo.processes import family, is_running, wait_for

#: Seconds in which a step's effect must show.
_PATIENCE = 180.0
_POLL = 0.2


def rollout(fleet: Fleet) -> None:
    """Run a batch of size 2 over the four minions."""
    jid = fleet.start_batch("*", "cmd.run", "sleep 3; date +%T", "batch=2")
    busiest, final = _follow(fleet, jid)
    _expect(final["completed"] == len(MINIONS) and final["success"], f"all to succeed, and saw {final}")
    _expect(busiest <= 2, f"no more than 2 minions at once, and saw {busiest}")
    screen.say(f"never more than {busiest} at once")
    fleet.run("jobs.lookup_jid", jid)
    returns = fleet.ask("jobs.lookup_jid", jid)
    _expect(sorted(returns) == sorted(MINIONS), f"a return of each minion, and saw {returns}")


def return_of_the_absent(fleet: Fleet) -> None:
    """Publish a job that one minion misses, and see it get the job when it is back."""
    absent = MINIONS[-1]
    fleet.stop_minion(absent)
    screen.say(f"the minion {absent} is down")
    jid = fleet.publish("*", "cmd.run", "echo made it")
    queued = wait_for(lambda: _entries(fleet, jid), _PATIENCE)
    _expect(queued, f"{absent} to be in the queue for {jid}", "master")
    fleet.run("job_retry.list")
    entries = fleet.ask("job_retry.list")
    _expect(
        [(entry["minion"], entry["jid"]) for entry in entries] == [(absent, jid)],
        f"{absent} alone in the queue, for {jid}, and saw {entries}",
    )
    fleet.start_minion(absent)
    screen.say(f"the minion {absent} starts again")
    back = wait_for(lambda: absent in fleet.ask("jobs.lookup_jid", jid), _PATIENCE)
    _expect(back, f"a return of {absent} under {jid}", "master", absent)
    fleet.run("jobs.lookup_jid", jid)
    returns = fleet.ask("jobs.lookup_jid", jid)
    wrong = {minion: returns.get(minion) for minion in MINIONS if returns.get(minion) != "made it"}
    _expect(not wrong, f"'made it' from each minion, and saw {wrong}")
    _expect(
        wait_for(lambda: not _entries(fleet, jid), _PATIENCE), f"the queue to be empty again: {_entries(fleet, jid)}"
    )


def stop_and_kill(fleet: Fleet) -> None:
    """Start a batch of long sleeps, and kill it."""
    jid = fleet.start_batch("*", "cmd.run", "sleep 600", f"batch={len(MINIONS)}")
    jobs = wait_for(lambda: _processes(fleet, jid), _PATIENCE)
    _expect(jobs, f"a process on each minion for {jid}", "master", *MINIONS)
    assert jobs is not None
    for minion, (pid, started) in sorted(jobs.items()):
        screen.say(f"{minion}: the job is process {pid}, which has started {_list(started)}")
    pids = {pid for job, started in jobs.values() for pid in (job, *started)}
    fleet.run("batch.stop", jid, "kill=True")
    gone = wait_for(lambda: not any(map(is_running, pids)), _PATIENCE)
    _expect(gone, f"no process to be left, and saw {_list(filter(is_running, pids))}", "master", *MINIONS)
    screen.say("none of these processes is left")
    final = wait_for(lambda: _finished(fleet, jid), _PATIENCE)
    _expect(final, f"the batch to end, and saw {fleet.ask('batch.status', jid)}")
    assert final is not None
    fleet.run("batch.status", jid)
    _expect(final["halted"] and final["killed"] == len(MINIONS), f"four killed minions, and saw {final}")


STEPS = (
    ("A batch of two at a time over four minions", rollout),
    ("A job for a minion that is away", return_of_the_absent),
    ("A batch that has to be stopped", stop_and_kill),
)


def _follow(fleet: Fleet, jid: str) -> tuple[int, Mapping[str, Any]]:
    """Show a batch's progress until it ends; returns how many minions were busy at once at most, and the summary."""
    busiest = 0
    deadline = time.monotonic() + _PATIENCE
    with fleet.shown("batch.watch", jid):
        while time.monotonic() < deadline:
            summary = fleet.ask("batch.status", jid)
            busiest = max(busiest, summary["active"])
            if summary["finished"]:
                return busiest, summary
            time.sleep(_POLL)
    raise StepFailed(f"the batch {jid} did not end in {_PATIENCE:g} s: {summary}")


def _finished(fleet: Fleet, jid: str) -> Mapping[str, Any] | None:
    summary = fleet.ask("batch.status", jid)
    return summary if summary["finished"] else None


def _entries(fleet: Fleet, jid: str) -> list[Mapping[str, Any]]:
    return [entry for entry in fleet.ask("job_retry.list") if entry["jid"] == jid]


def _processes(fleet: Fleet, jid: str) -> dict[str, tuple[int, set[int]]] | None:
    """Return the process of a job on each minion, with those that it has started, once there are some everywhere."""
    answers = fleet.salt("*", "saltutil.find_job", jid, quiet=True)
    pids = {minion: job["pid"] for minion, job in answers.items() if isinstance(job, dict) and job.get("pid")}
    jobs = {minion: (pid, family(pid) - {pid}) for minion, pid in pids.items()}
    # Besides the job's own process there is that of the shell or of sleep.
    return jobs if len(jobs) == len(MINIONS) and all(started for _, started in jobs.values()) else None


def _list(pids: Any) -> str:
    return ", ".join(map(str, sorted(pids)))


def _expect(holds: Any, what: str, *logs: str) -> None:
    """:raises StepFailed: unless ``holds``; ``what`` completes "expected …"."""
    if not holds:
        raise StepFailed(f"expected {what}", *logs)
